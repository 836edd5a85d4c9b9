//! Each command from its arguments to its exit code.

mod show;

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::path::Path;

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use clap::CommandFactory;
use lockstep_api::PodGroup;
use lockstep_model::{Rules, SnapshotFile};

use crate::args::{Args, Command};
use crate::cluster::ClusterReader;
use crate::explain::explain;
use crate::queue::{QueueAnswer, queue};
use crate::whatif::{Answer, what_if};
use crate::{file, record};
pub use show::WallClock;
use show::{show, watch, write};

/// Namespace of objects that name none, where no context says otherwise.
const DEFAULT_NAMESPACE: &str = "default";

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did what it was asked for.
    Done,
    /// The workload would not fit.
    DoesNotFit,
}

/// Runs a command.
pub fn run(args: &Args, clock: WallClock) -> Result<Outcome> {
    if let Command::Completion { shell } = args.command {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Args::command(), "kubectl-lockstep", &mut script);
        write(&String::from_utf8_lossy(&script))?;
        return Ok(Outcome::Done);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.block_on(dispatch(args, clock))
}

async fn dispatch(args: &Args, clock: WallClock) -> Result<Outcome> {
    match &args.command {
        Command::Explain {
            name,
            namespace,
            output,
        } => {
            let cluster = ClusterReader::connect(&args.connection).await?;
            let namespace = namespace.as_deref().unwrap_or(cluster.namespace());
            let answer = explain(&cluster.story(namespace, name).await?);
            show(&answer, output.format, clock)?;
            Ok(Outcome::Done)
        }
        Command::Queue {
            scope,
            selector,
            watch: again,
            output,
        } => {
            let cluster = ClusterReader::connect(&args.connection).await?;
            let namespace = scope.namespace.as_deref();
            if let Some(namespace) = namespace {
                eprintln!(
                    "warning: only namespace {namespace} is known; gangs of others may come before these"
                );
            }
            let read = async || waiting(&cluster, namespace, selector.as_deref(), clock()).await;
            if *again {
                watch(&cluster, namespace, output.format, clock, read).await?;
            } else {
                show(&read().await?, output.format, clock)?;
            }
            Ok(Outcome::Done)
        }
        Command::Whatif {
            filename,
            snapshot,
            namespace,
            rules,
            output,
        } => {
            let answer = ask(
                args,
                filename,
                snapshot.as_deref(),
                namespace.as_deref(),
                &rules.into(),
                clock(),
            )
            .await?;
            if let Some(namespace) = &answer.only_namespace {
                eprintln!(
                    "warning: only namespace {namespace} is known; what pods of others hold counts as free"
                );
            }
            show(&answer, output.format, clock)?;
            Ok(if answer.fits {
                Outcome::Done
            } else {
                Outcome::DoesNotFit
            })
        }
        Command::Snapshot {
            output,
            hash_names,
            scope,
        } => {
            let cluster = ClusterReader::connect(&args.connection).await?;
            let mut snapshot = take(&cluster, scope.namespace.clone(), clock()).await?;
            if *hash_names {
                snapshot = snapshot.pseudonymized(&RandomState::new());
            }
            file::write_snapshot(output, &snapshot)?;
            eprintln!("{}: {}", output.display(), contents(&snapshot));
            Ok(Outcome::Done)
        }
        // Needs no cluster and was done before.
        Command::Completion { .. } => Ok(Outcome::Done),
    }
}

/// The queue, of gangs of workloads with these labels only.
async fn waiting(
    cluster: &ClusterReader,
    namespace: Option<&str>,
    selector: Option<&str>,
    now: DateTime<Utc>,
) -> Result<QueueAnswer> {
    let (snapshot, groups) = taken(cluster, namespace.map(str::to_owned), now).await?;
    let mut answer = queue(&snapshot, &groups);
    if let Some(selector) = selector {
        let chosen = cluster.selected(namespace, selector).await?;
        let chosen: BTreeSet<(&str, &str)> = chosen.iter().map(|(n, w)| (&**n, &**w)).collect();
        answer
            .gangs
            .retain(|g| chosen.contains(&(g.namespace.as_str(), g.workload.as_str())));
    }
    Ok(answer)
}

async fn ask(
    args: &Args,
    manifest: &Path,
    snapshot: Option<&Path>,
    namespace: Option<&str>,
    rules: &Rules,
    now: DateTime<Utc>,
) -> Result<Answer> {
    let mut workload = file::read_workload(manifest)?;
    let (snapshot, default) = if let Some(path) = snapshot {
        (file::read_snapshot(path)?, DEFAULT_NAMESPACE.to_owned())
    } else {
        let cluster = ClusterReader::connect(&args.connection).await?;
        (
            take(&cluster, None, now).await?,
            cluster.namespace().to_owned(),
        )
    };
    let chosen = namespace.map(str::to_owned);
    workload
        .metadata
        .namespace
        .get_or_insert(chosen.unwrap_or(default));
    what_if(&snapshot, &workload, rules).with_context(|| format!("manifest {}", manifest.display()))
}

async fn take(
    cluster: &ClusterReader,
    namespace: Option<String>,
    now: DateTime<Utc>,
) -> Result<SnapshotFile> {
    let (snapshot, _) = taken(cluster, namespace, now).await?;
    Ok(snapshot)
}

/// The snapshot, and the pod groups that it was made of.
async fn taken(
    cluster: &ClusterReader,
    namespace: Option<String>,
    now: DateTime<Utc>,
) -> Result<(SnapshotFile, Vec<PodGroup>)> {
    let objects = cluster.objects(namespace.as_deref()).await?;
    let groups = objects.groups.clone();
    let (snapshot, unread) = record::record(objects, namespace, now);
    for why in unread {
        eprintln!("warning: left out: {why}");
    }
    Ok((snapshot, groups))
}

fn contents(file: &SnapshotFile) -> String {
    let SnapshotFile {
        nodes,
        pods,
        gangs,
        budgets,
        ..
    } = file;
    let (nodes, pods, gangs, budgets) = (nodes.len(), pods.len(), gangs.len(), budgets.len());
    format!(
        "{nodes} nodes, {pods} pods that hold capacity, {gangs} gangs, {budgets} disruption budgets"
    )
}
