//! Lockstep on real nodes, installed by `config/overlays/full` with development binaries in its images.
//! `make test-kubelets` on three nodes, `make test` on one node with the scenarios of [`one_node`]; both as
//! root.

mod agents;
mod gates;
mod nodes;
mod one_node;
mod probes;
mod release;
mod requests;
mod signals;
mod starts;
mod supervised;
mod tiers;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use lockstep_api::workload::Cause;
use lockstep_cluster::scenario::Scenario;
use lockstep_containers::Job;
use lockstep_nodes::incidents::{GPT, restarts_in_containers};
use lockstep_nodes::real_cluster::Gates;
use lockstep_nodes::{Images, RealCluster};
use rustix::process::Signal;
use tokio::sync::{Mutex, OnceCell};

/// Number of nodes of the cluster that all tests use in turn. Three by default.
const NODES: &str = "LOCKSTEP_NODES";

static REAL: OnceCell<Mutex<RealCluster>> = OnceCell::const_new();

/// Runs a test alone on the cluster, in a separate namespace.
async fn on_nodes(
    name: &str,
    body: impl AsyncFnOnce(&RealCluster, &Scenario<'_>) -> Result<()>,
) -> Result<()> {
    on_cluster(
        name,
        async |nodes| installed(nodes, &Gates::new()).await,
        body,
    )
    .await
}

/// Starts a cluster with these feature gates and the operator.
async fn installed(nodes: u8, gates: &Gates) -> Result<RealCluster> {
    let real = RealCluster::start("real", nodes, Images::Development, gates).await?;
    real.install().await?;
    Ok(real)
}

/// The same on a cluster that this function starts. A process has one cluster, so tests with another
/// cluster need another process.
async fn on_cluster(
    name: &str,
    start: impl AsyncFnOnce(u8) -> Result<RealCluster>,
    body: impl AsyncFnOnce(&RealCluster, &Scenario<'_>) -> Result<()>,
) -> Result<()> {
    let real = REAL
        .get_or_try_init(async || {
            let nodes = std::env::var(NODES).unwrap_or_else(|_| "3".into());
            let nodes = nodes.parse().context(NODES)?;
            anyhow::Ok(Mutex::new(start(nodes).await?))
        })
        .await?;
    let real = real.lock().await;
    real.scenario(name, async |t| body(&real, t).await).await
}

/// Kills the training process of a member and checks that all members restart in their containers.
/// Returns the cause in the history.
async fn kill_restarts_in_containers(
    real: &RealCluster,
    t: &Scenario<'_>,
    job: &Job,
    before: &[Pod],
    member: usize,
) -> Result<Cause> {
    let victim = before.get(member).context("a member")?;
    let kill = async || real.signal(victim, Signal::KILL);
    Ok(restarts_in_containers(t, job, before, kill).await?.cause)
}

/// Waits until this number of restarts is complete, and returns the cause of the last.
async fn restarted(t: &Scenario<'_>, times: i64) -> Result<Cause> {
    let history = t.restarted(GPT, times).await?.history;
    Ok(history.into_iter().next().context("history")?.cause)
}
