use std::collections::BTreeSet;

use anyhow::Result;
use chrono::{DateTime, Utc};

use super::engine::taken;
use super::show::{WallClock, left_out, show, watch};
use crate::args::{
    AgentsArgs, Connection, DoctorArgs, ExplainArgs, Format, NodesArgs, QueueArgs, StatusArgs,
    TopArgs, VersionArgs,
};
use crate::cluster::ClusterReader;
use crate::outcome::Outcome;
use crate::problem::Problem;
use crate::published::node_health;
use crate::queue::{QueueReport, queue_without_places};
use crate::status::StatusReport;
use crate::top::AcceleratorUse;
use crate::version::VersionReport;
use crate::view::View;

async fn show_or_watch<V: View>(
    cluster: &ClusterReader,
    namespace: Option<&str>,
    again: bool,
    format: Format,
    clock: WallClock,
    read: impl AsyncFn() -> Result<V>,
) -> Result<Outcome> {
    if again {
        watch(cluster, namespace, format, clock, read).await?;
    } else {
        show(&read().await?, format, clock)?;
    }
    Ok(Outcome::Done)
}

pub async fn status(
    cluster: &ClusterReader,
    args: &StatusArgs,
    clock: WallClock,
) -> Result<Outcome> {
    let namespace = args.namespace.as_deref().unwrap_or(cluster.namespace());
    let read = async || report(cluster, namespace, &args.name, clock).await;
    show_or_watch(
        cluster,
        Some(namespace),
        args.watch,
        args.output.format,
        clock,
        read,
    )
    .await
}

async fn report(
    cluster: &ClusterReader,
    namespace: &str,
    name: &str,
    clock: WallClock,
) -> Result<StatusReport> {
    let objects = cluster.of_workload(namespace, name).await?;
    Ok(crate::status::status(&objects, clock()))
}

/// Without a cluster, shows the version of this program and the error.
pub async fn version(
    connection: &Connection,
    args: &VersionArgs,
    clock: WallClock,
) -> Result<Outcome> {
    if args.client {
        show(&VersionReport::of_client(), args.output.format, clock)?;
        return Ok(Outcome::Done);
    }
    let read = async { ClusterReader::connect(connection).await?.versions().await };
    let (report, problem) = match read.await {
        Ok(report) => (report, Ok(Outcome::Done)),
        Err(problem) => (VersionReport::of_client(), Err(problem.into())),
    };
    show(&report, args.output.format, clock)?;
    problem
}

pub async fn top(cluster: &ClusterReader, args: &TopArgs, clock: WallClock) -> Result<Outcome> {
    let namespace = args.scope.namespace.as_deref();
    let labels = args.selector.as_deref();
    let (workloads, unread) = cluster.workloads(namespace, labels).await?;
    left_out(unread);
    let groups = cluster.groups(namespace).await?;
    let nodes = cluster.accelerators_of_nodes().await?;
    let report = AcceleratorUse {
        only_namespace: namespace.map(str::to_owned),
        only_labels: labels.map(str::to_owned),
        ..crate::top::top(&workloads, &groups, nodes)
    };
    show(&report, args.output.format, clock)?;
    Ok(Outcome::Done)
}

pub async fn agents(
    cluster: &ClusterReader,
    args: &AgentsArgs,
    clock: WallClock,
) -> Result<Outcome> {
    let objects = cluster.node_agents().await?;
    let pods = cluster.agent_pods(args.agent_namespace.as_deref()).await?;
    let report = crate::agents::agents(&objects, pods.as_deref());
    show(&report, args.output.format, clock)?;
    Ok(Outcome::Done)
}

pub async fn nodes(cluster: &ClusterReader, args: &NodesArgs, clock: WallClock) -> Result<Outcome> {
    let text = cluster
        .manager_config(args.manager_namespace.as_deref())
        .await?;
    let config = match text {
        Some((_, text)) => node_health(&text),
        None => Err("forbidden or not found".to_owned()),
    };
    if let Err(why) = &config {
        note!(
            "warning: cannot read the manager's configuration: {why}; using the built-in signals"
        );
    }
    let (nodes, groups) = (cluster.partial_nodes().await?, cluster.groups(None).await?);
    let report = crate::nodes::nodes(&nodes, &groups, config.as_ref().ok(), clock());
    show(&report, args.output.format, clock)?;
    Ok(Outcome::Done)
}

pub async fn doctor(
    cluster: &ClusterReader,
    args: &DoctorArgs,
    clock: WallClock,
) -> Result<Outcome> {
    let namespace = args.namespace.as_deref().unwrap_or(cluster.namespace());
    let facts = cluster
        .install_facts(namespace, args.agent_namespace.as_deref())
        .await?;
    let diagnosis = crate::doctor::diagnose(&facts, clock());
    show(&diagnosis, args.output.format, clock)?;
    Ok(if diagnosis.failed() {
        Outcome::Unhealthy
    } else {
        Outcome::Done
    })
}

pub async fn explain(
    cluster: &ClusterReader,
    args: &ExplainArgs,
    clock: WallClock,
) -> Result<Outcome> {
    let namespace = args.namespace.as_deref().unwrap_or(cluster.namespace());
    let story = cluster.story(namespace, &args.name).await?;
    show(&crate::explain::explain(&story), args.output.format, clock)?;
    Ok(Outcome::Done)
}

pub async fn queue(cluster: &ClusterReader, args: &QueueArgs, clock: WallClock) -> Result<Outcome> {
    let namespace = args.scope.namespace.as_deref();
    if let Some(namespace) = namespace {
        note!(
            "warning: only namespace {namespace} is included; gangs of other namespaces may be ahead of these gangs"
        );
    }
    let selector = args.selector.as_deref();
    let read = async || waiting(cluster, namespace, selector, clock()).await;
    show_or_watch(
        cluster,
        namespace,
        args.watch,
        args.output.format,
        clock,
        read,
    )
    .await
}

async fn waiting(
    cluster: &ClusterReader,
    namespace: Option<&str>,
    selector: Option<&str>,
    now: DateTime<Utc>,
) -> Result<QueueReport> {
    let everything = taken(cluster, &BTreeSet::new(), namespace.map(str::to_owned), now).await;
    let mut report = match (everything, namespace) {
        (Err(error), Some(namespace)) if forbidden(&error) => {
            note!("warning: places are read from the gangs and can be a minute old: {error}");
            let (workloads, unread) = cluster.workloads(Some(namespace), None).await?;
            left_out(unread);
            let groups = cluster.groups(Some(namespace)).await?;
            queue_without_places(namespace, &groups, &workloads)
        }
        (everything, _) => {
            let (snapshot, groups) = everything?;
            crate::queue::queue(&snapshot, &groups)
        }
    };
    if let Some(selector) = selector {
        let selected = cluster.selected(namespace, selector).await?;
        let chosen: BTreeSet<(&str, &str)> = selected.iter().map(|(n, w)| (&**n, &**w)).collect();
        report
            .gangs
            .retain(|g| chosen.contains(&(g.namespace.as_str(), g.workload.as_str())));
    }
    Ok(report)
}

fn forbidden(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Problem::NotAllowed { .. }))
}
