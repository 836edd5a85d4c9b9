//! Gangs on nodes that a real Karpenter creates and removes. Its node pool keeps three nodes; the gang
//! uses two.

mod on_demand;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use chrono::TimeDelta;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use lockstep_api::workload::{CauseKind, CheckpointOccasion, CheckpointOutcome, HistoryEntry};
use lockstep_cluster::karpenter::Karpenter;
use lockstep_cluster::manifests::{gang, group, merge};
use lockstep_cluster::nodes::{Nodes, Shape};
use lockstep_cluster::scenario::{PATIENCE, Scenario, node, scenario_on};
use lockstep_cluster::{Cluster, eventually, time_of_day};
use lockstep_e2e::{fresh, patient};
use serde_json::{Value, json};

const NODES: usize = 3;
/// Name of the node pool and of the scenario's namespace, one on each cluster.
const NAME: &str = "pool";
/// Longer than Lockstep collects signals and Karpenter drains a node, so that a second restart would
/// begin within it.
const SETTLED: Duration = Duration::from_secs(25);

/// Runs a test on a cluster with Karpenter and one node pool. `shape`: of the pool's machines.
async fn with_pool(
    cluster: &Cluster,
    pool: Value,
    shape: &Shape,
    body: impl AsyncFnOnce(&Karpenter<'_>, &Scenario<'_>) -> Result<()>,
) -> Result<()> {
    let _manager = cluster.start_manager("a").await?;
    let karpenter = Karpenter::start(cluster).await?;
    karpenter.create_pool(NAME, pool).await?;
    let none = Nodes::real(Vec::new());
    let played = scenario_on(cluster, NAME, none, async |t| body(&karpenter, t).await);
    tokio::select! {
        played = played => played,
        never = karpenter.run_machines(shape) => match never? {},
    }
}

/// Runs a test on three nodes that Karpenter keeps. Signals of nodes move gangs.
async fn on_karpenter(
    name: &str,
    body: impl AsyncFnOnce(&Karpenter<'_>, &Scenario<'_>) -> Result<()>,
) -> Result<()> {
    let mut config = patient();
    merge(&mut config, json!({"nodeHealth": {"mode": "Act"}}));
    let cluster = fresh(name, config).await?;
    if !cluster.has_nodes(name) {
        return Ok(());
    }
    let pool = json!({
        "replicas": NODES,
        "template": {"spec": {"terminationGracePeriod": "15m"}},
    });
    let shape = Shape {
        supervise: true,
        ..Shape::default()
    };
    with_pool(&cluster, pool, &shape, async |karpenter, t| {
        karpenter.has_machines(NODES).await?;
        body(karpenter, t).await
    })
    .await
}

/// Starts a gang of two nodes that saves on request. Returns the node of a member.
async fn started(t: &Scenario<'_>, annotations: Value, failure_policy: Value) -> Result<String> {
    let mut workers = group("workers", 2, 8);
    merge(
        &mut workers["template"],
        json!({"metadata": {"annotations": annotations}, "spec": {"terminationGracePeriodSeconds": 30}}),
    );
    workers["template"]["spec"]["containers"][0]["env"] = json!([
        {"name": "HOLLOW_STEP_MILLIS", "value": "500"},
        {"name": "HOLLOW_ON_CHECKPOINT", "value": "save"},
        {"name": "HOLLOW_CHECKPOINT_MILLIS", "value": "2000"},
    ]);
    let spec = json!({
        "groups": [workers],
        "checkpoint": {"onRequest": {"timeoutSeconds": 20}},
        "failurePolicy": failure_policy,
    });
    t.create(gang("g", 2, 8, spec)).await?;
    let pods = t.running("g").await?;
    t.workload("g", "to make steps", |w| {
        let status = w.status.as_ref().context("no status yet")?;
        status.progress.as_ref().map(drop).context("no step yet")
    })
    .await?;
    Ok(node(pods.last().context("a pod")?))
}

/// Waits until a node is removed.
async fn removed(t: &Scenario<'_>, name: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(t.client.clone());
    eventually("Karpenter to remove the node", PATIENCE, async || {
        let found = nodes.get_opt(name).await?;
        ensure!(found.is_none(), "{found:?}");
        Ok(())
    })
    .await
}

/// Waits until the gang has left a node in a restart and the node is removed. Checks that this stays
/// the only restart. Returns it.
async fn left_once(t: &Scenario<'_>, node_left: &str) -> Result<HistoryEntry> {
    t.restarted("g", 1).await?;
    removed(t, node_left).await?;
    tokio::time::sleep(SETTLED).await;
    let pods = t.running("g").await?;
    ensure!(pods.iter().all(|p| node(p) != node_left) && pods.len() == 2);
    let status = t.restarted("g", 1).await?;
    let last = status.history.last().context("history")?.clone();
    ensure!(
        last.cause.node == node_left && last.recreated == 1 && status.attempt == 2,
        "{last:?}"
    );
    ensure!(
        status.restarts.counted == i64::from(last.counted),
        "{status:?}"
    );
    Ok(last)
}

/// The same after the loss of the node, which is charged. `why` is a part of its message.
async fn lost_once(t: &Scenario<'_>, node_left: &str, why: &str) -> Result<()> {
    let last = left_once(t, node_left).await?;
    ensure!(
        last.cause.kind == CauseKind::NodeLost && last.cause.message.contains(why) && last.counted,
        "{last:?}"
    );
    Ok(())
}

/// Checks that the gang has saved for this reason, and that its restart cost no step and no charge.
async fn saved_for(
    t: &Scenario<'_>,
    reason: CheckpointOccasion,
    last: &HistoryEntry,
) -> Result<()> {
    let request = t.checkpoint_request("g").await?;
    ensure!(
        request.reason == reason
            && request.outcome == Some(CheckpointOutcome::Saved)
            && request.steps_lost.is_some_and(|steps| steps <= 6)
            && !last.counted,
        "{request:?} {last:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-karpenter"]
async fn a_protected_gang_saves_and_leaves_once_before_karpenter_removes_its_node() -> Result<()> {
    on_karpenter("protected", async |karpenter, t| {
        let mark = json!({"karpenter.sh/do-not-disrupt": "true"});
        let left = started(t, mark, json!({})).await?;
        karpenter.delete_claim(&left).await?;
        let last = left_once(t, &left).await?;
        ensure!(
            last.cause.kind == CauseKind::NodeLeaving
                && last.cause.message.contains("KarpenterDisrupted"),
            "{last:?}"
        );
        saved_for(t, CheckpointOccasion::NodeLeaving, &last).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-karpenter"]
async fn a_gang_without_protection_saves_and_restarts_once_when_karpenter_evicts() -> Result<()> {
    on_karpenter("evicted", async |karpenter, t| {
        let left = started(t, json!({}), json!({})).await?;
        karpenter.delete_claim(&left).await?;
        let last = left_once(t, &left).await?;
        ensure!(
            last.cause.kind == CauseKind::PodDeleted
                && last.cause.reason == "EvictionByEvictionAPI",
            "{last:?}"
        );
        saved_for(t, CheckpointOccasion::Eviction, &last).await
    })
    .await
}

/// Waits until a silent node counts as unhealthy, and lets the ten minutes pass for which Karpenter
/// tolerates that.
async fn ten_minutes_pass(t: &Scenario<'_>, name: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(t.client.clone());
    eventually("the node to be silent", PATIENCE, async || {
        let node = nodes.get(name).await?;
        let mut conditions = node
            .status
            .iter()
            .flat_map(|s| s.conditions.iter().flatten());
        let silent = conditions.any(|c| c.type_ == "Ready" && c.status == "Unknown");
        ensure!(silent, "{:?}", node.status);
        Ok(())
    })
    .await?;
    let since = (time_of_day() - TimeDelta::minutes(10)).to_rfc3339();
    let earlier =
        json!({"status": {"conditions": [{"type": "Ready", "lastTransitionTime": since}]}});
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Strategic(earlier))
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-karpenter"]
async fn a_gang_that_has_left_a_silent_node_does_not_move_when_karpenter_repairs_it() -> Result<()>
{
    on_karpenter("silent", async |karpenter, t| {
        let left = started(t, json!({}), json!({"nodeLostSeconds": 1})).await?;
        karpenter.vanish(&left).await?;
        t.restarted("g", 1).await?;
        ten_minutes_pass(t, &left).await?;
        lost_once(t, &left, "not ready").await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-karpenter"]
async fn a_gang_leaves_a_silent_node_once_when_karpenter_repairs_it_first() -> Result<()> {
    on_karpenter("repaired", async |karpenter, t| {
        let left = started(t, json!({}), json!({"nodeLostSeconds": 3600})).await?;
        karpenter.vanish(&left).await?;
        ten_minutes_pass(t, &left).await?;
        lost_once(t, &left, "was deleted").await
    })
    .await
}
