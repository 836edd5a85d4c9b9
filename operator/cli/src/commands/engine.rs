//! Commands that use the engine.

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use lockstep_model::{Rules, SnapshotFile};

use super::show::{WallClock, show};
use crate::args::{Connection, SnapshotArgs, WhatifArgs};
use crate::cluster::ClusterReader;
use crate::file;
use crate::file::Manifest;
use crate::outcome::Outcome;
use crate::published::published;
use crate::reports::taken;
use crate::whatif::{Verdict, WhatIfReport, what_if};

const DEFAULT_NAMESPACE: &str = "default";

/// For an answer without an API server.
const NOT_VALIDATED: &str = "warning: no API server validated the manifest: with --snapshot, unknown fields, pod templates and admission policies are not checked";

pub async fn whatif(
    connection: &Connection,
    args: &WhatifArgs,
    clock: WallClock,
) -> Result<Outcome> {
    let report = evaluate(connection, args, clock()).await?;
    if let Some(namespace) = &report.only_namespace {
        note!(
            "warning: only namespace {namespace} is included; capacity of pods in other namespaces counts as free"
        );
    }
    show(&report, args.output.format, clock)?;
    let mut gangs = report.gangs.iter();
    Ok(if gangs.any(|gang| gang.verdict == Verdict::DoesNotFit) {
        Outcome::DoesNotFit
    } else {
        Outcome::Done
    })
}

pub async fn snapshot(
    cluster: &ClusterReader,
    args: &SnapshotArgs,
    clock: WallClock,
) -> Result<Outcome> {
    let mut snapshot = take(
        cluster,
        &BTreeSet::new(),
        args.scope.namespace.clone(),
        clock(),
    )
    .await?;
    if args.hash_names {
        snapshot = snapshot.pseudonymized(&RandomState::new());
    }
    file::write_snapshot(&args.output, &snapshot)?;
    note!("{}: {}", args.output.display(), contents(&snapshot));
    Ok(Outcome::Done)
}

async fn evaluate(
    connection: &Connection,
    args: &WhatifArgs,
    now: DateTime<Utc>,
) -> Result<WhatIfReport> {
    let manifest = &args.filename;
    let Manifest { workload, written } = &mut file::read_workload(manifest)?;
    let named = || format!("manifest {}", manifest.display());
    let namespace = &mut workload.metadata.namespace;
    let chosen = args.namespace.clone();
    let mut rules = Rules::default();
    let snapshot = if let Some(path) = &args.snapshot {
        args.rules.change(&mut rules);
        namespace.get_or_insert(chosen.unwrap_or(DEFAULT_NAMESPACE.to_owned()));
        lockstep_convert::check(written).with_context(named)?;
        note!("{NOT_VALIDATED}");
        file::read_snapshot(path)?
    } else {
        let cluster = ClusterReader::connect(connection).await?;
        namespace.get_or_insert(chosen.unwrap_or(cluster.namespace().to_owned()));
        for unchecked in cluster
            .validate(workload, written)
            .await
            .with_context(named)?
        {
            note!("warning: {unchecked}");
        }
        rules = rules_of_manager(&cluster, args).await?;
        take(&cluster, &excluded_labels(&rules), None, now).await?
    };
    what_if(&snapshot, workload, &rules).with_context(named)
}

/// Rules of the manager's configuration if readable, else the defaults. Flags override both.
async fn rules_of_manager(cluster: &ClusterReader, args: &WhatifArgs) -> Result<Rules> {
    let namespace = args.manager_namespace.as_deref();
    let read = match &cluster.manager_config(namespace).await? {
        Some((namespace, text)) => {
            published(text, namespace).map_err(|why| format!("in namespace {namespace}: {why}"))
        }
        None => Err("forbidden or not found".to_owned()),
    };
    let configured = match read {
        Ok(configured) => configured,
        Err(why) => {
            note!(
                "warning: cannot read the manager's configuration: {why}; using the defaults and the flags"
            );
            let mut rules = Rules::default();
            args.rules.change(&mut rules);
            return Ok(rules);
        }
    };
    if !configured.evicts {
        note!(
            "warning: preemption is disabled (scheduler.preemption.enabled is false): a gang that needs victims stays queued"
        );
    }
    let mut rules = configured.rules;
    let differ = args.rules.change(&mut rules);
    if !differ.is_empty() {
        note!(
            "warning: {} differs from the manager's configuration: the manager may decide differently",
            differ.join(", ")
        );
    }
    Ok(rules)
}

/// Label keys by which the configuration protects pods from preemption.
fn excluded_labels(rules: &Rules) -> BTreeSet<&str> {
    let labels = rules.victims.excluded_labels.keys();
    labels.map(String::as_str).collect()
}

async fn take(
    cluster: &ClusterReader,
    label_keys: &BTreeSet<&str>,
    namespace: Option<String>,
    now: DateTime<Utc>,
) -> Result<SnapshotFile> {
    let ((snapshot, _), notes) = taken(cluster, label_keys, namespace, now).await?;
    for note in notes {
        note!("{note}");
    }
    Ok(snapshot)
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
