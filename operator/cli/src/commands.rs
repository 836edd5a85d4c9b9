//! Each command from its arguments to its exit code.

use std::collections::hash_map::RandomState;
use std::fmt::Display;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use clap::CommandFactory;
use lockstep_api::PodGroup;
use lockstep_model::{Rules, SnapshotFile};
use serde::Serialize;

use crate::args::{Args, Command, Format};
use crate::cluster::ClusterReader;
use crate::explain::explain;
use crate::queue::queue;
use crate::whatif::{Answer, what_if};
use crate::{file, record};

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

/// Runs a command as of `now`.
pub fn run(args: &Args, now: DateTime<Utc>) -> Result<Outcome> {
    if let Command::Completion { shell } = args.command {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Args::command(), "kubectl-lockstep", &mut script);
        std::io::stdout().write_all(&script)?;
        return Ok(Outcome::Done);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.block_on(dispatch(args, now))
}

async fn dispatch(args: &Args, now: DateTime<Utc>) -> Result<Outcome> {
    match &args.command {
        Command::Explain {
            name,
            namespace,
            output,
        } => {
            let cluster = ClusterReader::connect(&args.connection).await?;
            let namespace = namespace.as_deref().unwrap_or(cluster.namespace());
            let answer = explain(&cluster.story(namespace, name).await?);
            print(&answer, *output)?;
            Ok(Outcome::Done)
        }
        Command::Queue {
            namespace,
            all_namespaces: _,
            output,
        } => {
            let cluster = ClusterReader::connect(&args.connection).await?;
            let (snapshot, groups) = taken(&cluster, namespace.clone(), now).await?;
            let answer = queue(&snapshot, &groups);
            if let Some(namespace) = &answer.only_namespace {
                eprintln!(
                    "warning: only namespace {namespace} is known; gangs of others may come before these"
                );
            }
            print(&answer, *output)?;
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
                now,
            )
            .await?;
            if let Some(namespace) = &answer.only_namespace {
                eprintln!(
                    "warning: only namespace {namespace} is known; what pods of others hold counts as free"
                );
            }
            print(&answer, *output)?;
            Ok(if answer.fits {
                Outcome::Done
            } else {
                Outcome::DoesNotFit
            })
        }
        Command::Snapshot {
            output,
            hash_names,
            namespace,
            all_namespaces: _,
        } => {
            let cluster = ClusterReader::connect(&args.connection).await?;
            let mut snapshot = take(&cluster, namespace.clone(), now).await?;
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

fn print<T: Display + Serialize>(answer: &T, format: Format) -> Result<()> {
    let text = match format {
        Format::Table => answer.to_string(),
        Format::Json => format!("{}\n", serde_json::to_string_pretty(answer)?),
    };
    // Whoever closed the pipe has read enough.
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
