//! Command `logs`.

use anyhow::{Result, anyhow};
use futures_util::StreamExt;

use super::show::{left_out, write};
use crate::args::LogsArgs;
use crate::cluster::{ClusterReader, HowMuch};
use crate::logs::{AttemptLog, LogSelection, LogSource, NoLog, WithPods, sources_of_each};
use crate::outcome::Outcome;
use crate::problem::root;

pub async fn logs(cluster: &ClusterReader, args: &LogsArgs) -> Result<Outcome> {
    let workloads = chosen(cluster, args).await?;
    let selection = LogSelection {
        group: args.group.clone(),
        rank: args.rank,
        failed: args.failed,
        all: args.all,
        container: args.container.clone(),
        previous: args.previous,
    };
    let (sources, mut missing) = sources_of_each(&workloads, &selection, args.scope.all_namespaces);
    if sources.is_empty() && missing.len() == 1 {
        return Err(missing.remove(0).into());
    }
    left_out(missing);
    if sources.is_empty() {
        return Err(NoLog::NoneOf(workloads.len()).into());
    }
    let how_much = HowMuch {
        follow: args.follow,
        // The last lines of a failed attempt are not the last lines of its container.
        tail: args.tail.filter(|_| !args.failed),
        since_seconds: args
            .since
            .map(|s| i64::try_from(s.as_secs()).unwrap_or(i64::MAX)),
    };
    let (mut lines, unopened) = cluster.logs(&sources, how_much).await?;
    left_out(unopened);
    let prefixed = args.prefix || workloads.len() > 1;
    let mut attempts: Vec<Option<AttemptLog>> = sources
        .iter()
        .map(|source| Some(AttemptLog::new(source.up_to_attempt?, args.tail)))
        .collect();
    while let Some((number, line)) = lines.next().await {
        let line = line.map_err(|why| anyhow!("the log stream was interrupted: {}", root(&why)))?;
        if let Some(Some(attempt)) = attempts.get_mut(number) {
            attempt.push(line);
        } else if !write_line(sources.get(number).filter(|_| prefixed), &line)? {
            return Ok(Outcome::Done);
        }
    }
    for (source, attempt) in sources.iter().zip(attempts) {
        for line in attempt.into_iter().flat_map(AttemptLog::into_lines) {
            if !write_line(Some(source).filter(|_| prefixed), &line)? {
                return Ok(Outcome::Done);
            }
        }
    }
    Ok(Outcome::Done)
}

/// Returns false if standard output is closed.
fn write_line(prefix: Option<&LogSource>, line: &str) -> Result<bool> {
    match prefix {
        Some(source) => write(&format!("[{}] {line}\n", source.prefix)),
        None => write(&format!("{line}\n")),
    }
}

async fn chosen(cluster: &ClusterReader, args: &LogsArgs) -> Result<Vec<WithPods>> {
    let namespace = args.scope.or_of(cluster.namespace());
    // The arguments forbid a name with `--all-namespaces`.
    let workloads = if let (Some(name), Some(namespace)) = (&args.name, namespace) {
        vec![cluster.workload(namespace, name).await?]
    } else {
        let labels = args.selector.as_deref();
        let (workloads, unread) = cluster.workloads(namespace, labels).await?;
        left_out(unread);
        if workloads.is_empty() {
            let none = NoLog::NoWorkload {
                labels: labels.unwrap_or_default().to_owned(),
                namespace: namespace.map(str::to_owned),
            };
            return Err(none.into());
        }
        workloads
    };
    let mut with_pods = Vec::new();
    for workload in workloads {
        let pods = cluster.pods_of(&workload).await?;
        with_pods.push((workload, pods));
    }
    Ok(with_pods)
}
