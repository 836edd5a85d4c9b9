//! Incidents on real nodes, and checks after each, for scenarios and the demonstration.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use lockstep_api::NodeAgent;
use lockstep_api::workload::{CauseKind, HistoryEntry};
use lockstep_cluster::eventually;
use lockstep_cluster::scenario::{
    Scenario, addresses, kept, node, restarts as restart_count, uids,
};
use lockstep_containers::Job;
use lockstep_containers::job::{TRAINER, now};
use serde_json::Value;

use crate::RealCluster;
use crate::real_cluster::{LIMIT, supervises};

/// Name of the training job.
pub const GPT: &str = "gpt";

/// Creates a job of this number of members, two per node, and waits until it trains. `spec` is
/// merged into its spec, `container` into the training container. Returns its pods.
pub async fn started(
    t: &Scenario<'_>,
    members: usize,
    spec: Value,
    container: Value,
) -> Result<(Job, Vec<Pod>)> {
    let job = Job::of(t, GPT, members)?;
    t.create(job.manifest(spec, container)?).await?;
    let pods = job.trains(t, 0).await?;
    Ok((job, pods))
}

/// Checks that all members restart inside their containers after `trouble`. Returns the incident.
pub async fn restarts_in_containers(
    t: &Scenario<'_>,
    job: &Job,
    before: &[Pod],
    trouble: impl AsyncFnOnce() -> Result<()>,
) -> Result<HistoryEntry> {
    let (after, incident) = restarts(t, job, trouble).await?;
    kept(before, &after, 0)?;
    ensure!(addresses(before) == addresses(&after), "addresses changed");
    apart(job)?;
    Ok(incident)
}

/// Waits until all members train again after `trouble`. Returns their pods and the incident.
pub async fn restarts(
    t: &Scenario<'_>,
    job: &Job,
    trouble: impl AsyncFnOnce() -> Result<()>,
) -> Result<(Vec<Pod>, HistoryEntry)> {
    let status = t.workloads().get(GPT).await?.status.context("a status")?;
    let at = now()?;
    trouble().await?;
    let after = job.trains(t, at).await?;
    let status = t.restarted(GPT, status.restarts.total + 1).await?;
    let incident = status.history.into_iter().next();
    Ok((after, incident.context("history")?))
}

/// A node of the job without its first member.
pub fn node_to_lose(pods: &[Pod]) -> Result<String> {
    let first = pods.first().map(node);
    let mut nodes = pods.iter().map(node);
    nodes
        .find(|name| Some(name) != first.as_ref())
        .context("all members are on one node")
}

/// Cuts a node off the network until its members have moved and the other members have restarted in
/// their containers. Then reconnects the node and waits until the old processes on it have ended.
/// Returns the incident.
pub async fn loses_a_node(
    real: &RealCluster,
    t: &Scenario<'_>,
    job: &Job,
    lost: &str,
) -> Result<HistoryEntry> {
    let before = t.running(GPT).await?;
    let machine = real.node(lost)?;
    let outcome = restarts(t, job, async || machine.cut().await).await;
    machine.reconnect().await?;
    let (after, incident) = outcome?;
    let cause = &incident.cause;
    ensure!(
        cause.kind == CauseKind::NodeLost && cause.node == lost,
        "{cause:?}"
    );
    for (old, new) in before.iter().zip(&after) {
        let same = old.uid() == new.uid();
        ensure!(same == (node(old) != lost), "{}: {same}", old.name_any());
        ensure!(node(new) != lost && restart_count(new) == 0, "{new:?}");
    }
    real.ready(lost).await?;
    eventually("the old pods to be gone", LIMIT, async || {
        let all = t.all_pods().list(&ListParams::default()).await?;
        let left = all.items.iter().filter(|p| node(p) == lost).count();
        ensure!(left == 0, "{left} pods on {lost}");
        Ok(())
    })
    .await?;
    eventually("the old processes to end", LIMIT, async || {
        ensure!(!machine.has(TRAINER), "a trainer runs on {lost}");
        Ok(())
    })
    .await?;
    supervises(&Api::<NodeAgent>::all(t.client.clone()), lost).await?;
    let running = t.running(GPT).await?;
    ensure!(uids(&running) == uids(&after), "pods were replaced again");
    Ok(incident)
}

/// Fails if two attempts ran at the same time.
pub fn apart(job: &Job) -> Result<()> {
    ensure!(job.mixed() == 0, "two attempts have met");
    Ok(())
}
