//! `logs`.

use anyhow::{Result, anyhow};
use futures_util::StreamExt;

use super::show::{left_out, write};
use crate::args::LogsArgs;
use crate::cluster::{ClusterReader, HowMuch};
use crate::logs::{NoLog, Wanted, WithPods, sources_of_each};
use crate::outcome::Outcome;
use crate::problem::root;

pub async fn logs(cluster: &ClusterReader, args: &LogsArgs) -> Result<Outcome> {
    let workloads = chosen(cluster, args).await?;
    let wanted = Wanted {
        group: args.group.clone(),
        rank: args.rank,
        failed: args.failed,
        all: args.all,
        container: args.container.clone(),
        previous: args.previous,
    };
    let (sources, mut missing) = sources_of_each(&workloads, &wanted, args.scope.all_namespaces);
    if sources.is_empty() && missing.len() == 1 {
        return Err(missing.remove(0).into());
    }
    left_out(missing);
    if sources.is_empty() {
        return Err(NoLog::NoneOf(workloads.len()).into());
    }
    let how_much = HowMuch {
        follow: args.follow,
        tail: args.tail,
        since_seconds: args
            .since
            .map(|s| i64::try_from(s.as_secs()).unwrap_or(i64::MAX)),
    };
    let (mut lines, unopened) = cluster.logs(&sources, how_much).await?;
    left_out(unopened);
    let prefixed = args.prefix || workloads.len() > 1;
    while let Some((number, line)) = lines.next().await {
        let line = line.map_err(|why| anyhow!("the log has broken off: {}", root(&why)))?;
        let prefix = sources.get(number).filter(|_| prefixed);
        let open = match prefix {
            Some(source) => write(&format!("[{}] {line}\n", source.prefix))?,
            None => write(&format!("{line}\n"))?,
        };
        if !open {
            break;
        }
    }
    Ok(Outcome::Done)
}

/// The workload that is named, or those that have the labels.
async fn chosen(cluster: &ClusterReader, args: &LogsArgs) -> Result<Vec<WithPods>> {
    let namespace = args.scope.or_of(cluster.namespace());
    // A name goes with no other namespaces.
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
