//! Lockstep on real nodes, installed by `config/overlays/full` with development binaries in its images.
//! `make test-kubelets`, as root.

mod agents;
mod nodes;
mod starts;
mod supervised;
mod tiers;

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use lockstep_api::workload::{Cause, TrainingWorkloadStatus};
use lockstep_cluster::scenario::{Scenario, kept};
use lockstep_containers::Job;
use lockstep_containers::job::now;
use lockstep_nodes::{Images, RealCluster};
use rustix::process::Signal;
use serde_json::Value;
use tokio::sync::{Mutex, OnceCell};

/// Nodes of the cluster that all tests share, one after the other.
const NODES: u8 = 3;

static REAL: OnceCell<Mutex<RealCluster>> = OnceCell::const_new();

/// Runs a test alone on the cluster, in a namespace of its own.
async fn on_nodes(
    name: &str,
    body: impl AsyncFnOnce(&RealCluster, &Scenario<'_>) -> Result<()>,
) -> Result<()> {
    let real = REAL
        .get_or_try_init(async || {
            let real = RealCluster::start("real", NODES, Images::Development).await?;
            real.install().await?;
            anyhow::Ok(Mutex::new(real))
        })
        .await?;
    let real = real.lock().await;
    real.scenario(name, async |t| body(&real, t).await).await
}

/// Creates a job of so many members, two of which fill a node, and waits until it trains. `spec` is
/// merged into its spec, `container` into the training container. Returns its pods.
async fn started(
    t: &Scenario<'_>,
    members: usize,
    spec: Value,
    container: Value,
) -> Result<(Job, Vec<Pod>)> {
    let job = Job::of(t, "gpt", members)?;
    t.create(job.manifest(spec, container)?).await?;
    let pods = job.trains(t, 0).await?;
    Ok((job, pods))
}

/// Kills the training process of a member and checks that all members restart in their containers.
/// Returns their pods.
async fn restarts_in_containers(
    real: &RealCluster,
    t: &Scenario<'_>,
    job: &Job,
    before: &[Pod],
    member: usize,
) -> Result<Vec<Pod>> {
    let killed = now()?;
    real.signal(before.get(member).context("a member")?, Signal::KILL)?;
    let after = job.trains(t, killed).await?;
    restarted(t, "gpt", 1).await?;
    kept(before, &after, 0)?;
    apart(job)?;
    Ok(after)
}

/// The status after this many restarts, and the cause of the last.
async fn restarted(
    t: &Scenario<'_>,
    name: &str,
    times: i64,
) -> Result<(TrainingWorkloadStatus, Cause)> {
    let status = t.restarted(name, times).await?;
    let entry = status.history.first().context("history")?;
    let cause = entry.cause.clone();
    Ok((status, cause))
}

/// Addresses of pods.
fn addresses(pods: &[Pod]) -> BTreeSet<String> {
    let address = |pod: &Pod| pod.status.as_ref()?.pod_ip.clone();
    pods.iter().filter_map(address).collect()
}

/// Fails unless no two attempts have run at once.
fn apart(job: &Job) -> Result<()> {
    ensure!(job.mixed() == 0, "two attempts have met");
    Ok(())
}
