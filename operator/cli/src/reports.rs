//! The reports of the verbs that read the cluster, for the commands and for the dashboard.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use chrono::{DateTime, Utc};
use lockstep_api::PodGroup;
use lockstep_model::SnapshotFile;
use serde_json::Value;

use crate::agents::AgentReport;
use crate::cluster::ClusterReader;
use crate::doctor::Diagnosis;
use crate::explain::WorkloadReport;
use crate::nodes::NodeReport;
use crate::problem::Problem;
use crate::published::node_health;
use crate::queue::{QueueReport, queue_without_places};
use crate::record;
use crate::status::StatusReport;
use crate::top::AcceleratorUse;

/// A report with warnings for standard error, one line each.
pub type Noted<T> = (T, Vec<String>);

pub async fn status(
    cluster: &ClusterReader,
    namespace: &str,
    name: &str,
    now: DateTime<Utc>,
) -> Result<StatusReport> {
    let objects = cluster.of_workload(namespace, name).await?;
    Ok(crate::status::status(&objects, now))
}

pub async fn explain(
    cluster: &ClusterReader,
    namespace: &str,
    name: &str,
) -> Result<WorkloadReport> {
    let story = cluster.story(namespace, name).await?;
    Ok(crate::explain::explain(&story))
}

pub async fn top(
    cluster: &ClusterReader,
    namespace: Option<&str>,
    labels: Option<&str>,
) -> Result<Noted<AcceleratorUse>> {
    let (workloads, unread) = cluster.workloads(namespace, labels).await?;
    let groups = cluster.groups(namespace).await?;
    let nodes = cluster.accelerators_of_nodes().await?;
    let report = AcceleratorUse {
        only_namespace: namespace.map(str::to_owned),
        only_labels: labels.map(str::to_owned),
        ..crate::top::top(&workloads, &groups, nodes)
    };
    Ok((report, skipped(unread)))
}

pub async fn agents(cluster: &ClusterReader, agent_namespace: Option<&str>) -> Result<AgentReport> {
    let objects = cluster.node_agents().await?;
    let pods = cluster.agent_pods(agent_namespace).await?;
    Ok(crate::agents::agents(&objects, pods.as_deref()))
}

pub async fn nodes(
    cluster: &ClusterReader,
    manager_namespace: Option<&str>,
    now: DateTime<Utc>,
) -> Result<Noted<NodeReport>> {
    let config = match cluster.manager_config(manager_namespace).await? {
        Some((_, text)) => node_health(&text),
        None => Err("forbidden or not found".to_owned()),
    };
    let note = config.as_ref().err().map(|why| {
        format!(
            "warning: cannot read the manager's configuration: {why}; using the built-in signals"
        )
    });
    let (nodes, groups) = (cluster.partial_nodes().await?, cluster.groups(None).await?);
    let report = crate::nodes::nodes(&nodes, &groups, config.as_ref().ok(), now);
    Ok((report, note.into_iter().collect()))
}

pub async fn doctor(
    cluster: &ClusterReader,
    namespace: &str,
    agent_namespace: Option<&str>,
    now: DateTime<Utc>,
) -> Result<Diagnosis> {
    let facts = cluster.install_facts(namespace, agent_namespace).await?;
    Ok(crate::doctor::diagnose(&facts, now))
}

pub async fn queue(
    cluster: &ClusterReader,
    namespace: Option<&str>,
    selector: Option<&str>,
    now: DateTime<Utc>,
) -> Result<Noted<QueueReport>> {
    let everything = taken(cluster, &BTreeSet::new(), namespace.map(str::to_owned), now).await;
    let (mut report, notes) = match (everything, namespace) {
        (Err(error), Some(namespace)) if forbidden(&error) => {
            let (workloads, unread) = cluster.workloads(Some(namespace), None).await?;
            let groups = cluster.groups(Some(namespace)).await?;
            let mut notes = vec![format!(
                "warning: places are read from the gangs and can be a minute old: {error}"
            )];
            notes.extend(skipped(unread));
            (queue_without_places(namespace, &groups, &workloads), notes)
        }
        (everything, _) => {
            let ((snapshot, groups), notes) = everything?;
            (crate::queue::queue(&snapshot, &groups), notes)
        }
    };
    if let Some(selector) = selector {
        let selected = cluster.selected(namespace, selector).await?;
        let chosen: BTreeSet<(&str, &str)> = selected.iter().map(|(n, w)| (&**n, &**w)).collect();
        report
            .gangs
            .retain(|g| chosen.contains(&(g.namespace.as_str(), g.workload.as_str())));
    }
    Ok((report, notes))
}

/// Takes a snapshot. Also returns its pod groups.
pub async fn taken(
    cluster: &ClusterReader,
    label_keys: &BTreeSet<&str>,
    namespace: Option<String>,
    now: DateTime<Utc>,
) -> Result<Noted<(SnapshotFile, Vec<PodGroup>)>> {
    let objects = cluster.objects(namespace.as_deref()).await?;
    let groups = objects.groups.clone();
    let (snapshot, unread) = record::record(objects, label_keys, namespace, now);
    Ok(((snapshot, groups), skipped(unread)))
}

/// What `kubectl lockstep VERB -o json` prints, without its warnings.
pub async fn json(
    cluster: &ClusterReader,
    verb: &str,
    namespace: Option<&str>,
    workload: Option<(&str, &str)>,
    now: DateTime<Utc>,
) -> Result<Value> {
    let named = workload.unwrap_or_default();
    let own = namespace.unwrap_or(cluster.namespace());
    let value = match verb {
        "status" => serde_json::to_value(status(cluster, named.0, named.1, now).await?),
        "explain" => serde_json::to_value(explain(cluster, named.0, named.1).await?),
        "queue" => serde_json::to_value(queue(cluster, namespace, None, now).await?.0),
        "top" => serde_json::to_value(top(cluster, namespace, None).await?.0),
        "agents" => serde_json::to_value(agents(cluster, None).await?),
        "nodes" => serde_json::to_value(nodes(cluster, None, now).await?.0),
        "doctor" => serde_json::to_value(doctor(cluster, own, None, now).await?),
        _ => bail!("no verb {verb:?} reads the cluster"),
    };
    Ok(value?)
}

fn skipped(unread: Vec<String>) -> Vec<String> {
    let lines = unread.into_iter();
    lines
        .map(|why| format!("warning: skipped: {why}"))
        .collect()
}

fn forbidden(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Problem::NotAllowed { .. }))
}
