//! Gangs on nodes with signals, in mode Act. Three nodes; the gang uses two.

use anyhow::{Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use lockstep_api::workload::{CauseKind, CheckpointOccasion};
use lockstep_cluster::scenario::{Scenario, kept, node};
use lockstep_cluster::{eventually, time_of_day};
use lockstep_containers::Job;
use lockstep_containers::job::CHECKPOINT_EVERY;
use lockstep_nodes::RealCluster;
use lockstep_nodes::incidents::{GPT, apart, node_to_lose, restarts, started};
use lockstep_nodes::real_cluster::LIMIT;
use serde_json::{Value, json};

use crate::{on_nodes, requests};

/// A signal of a component, as it writes it onto a node.
struct Signal {
    /// Patch that sets it, and patch that removes it.
    set: Value,
    removed: Value,
    /// True for a patch of the status.
    status: bool,
    cause: CauseKind,
}

impl Signal {
    /// Maintenance of GKE, announced by a label.
    fn label(end: DateTime<Utc>) -> Self {
        let key = "cloud.google.com/scheduled-maintenance-time";
        Self {
            set: json!({"metadata": {"labels": {key: end.timestamp().to_string()}}}),
            removed: json!({"metadata": {"labels": {key: null}}}),
            status: false,
            cause: CauseKind::NodeLeaving,
        }
    }

    /// An annotation of the administrator, from the configuration of the test cluster.
    fn annotation(end: DateTime<Utc>) -> Self {
        let key = "lockstep.test/maintenance";
        Self {
            set: json!({"metadata": {"annotations": {key: end.to_rfc3339()}}}),
            removed: json!({"metadata": {"annotations": {key: null}}}),
            status: false,
            cause: CauseKind::NodeLeaving,
        }
    }

    /// Karpenter's taint.
    fn taint() -> Self {
        let taint = json!({"key": "karpenter.sh/disrupted", "effect": "NoSchedule"});
        Self {
            set: json!({"spec": {"taints": [taint]}}),
            removed: json!({"spec": {"taints": null}}),
            status: false,
            cause: CauseKind::NodeLeaving,
        }
    }

    /// A condition that is bad with this status.
    fn condition(type_: &str, status: &str, reason: &str, cause: CauseKind) -> Self {
        let with = |status: &str| {
            json!({"status": {"conditions": [{
                "type": type_, "status": status, "reason": reason, "message": "",
                "lastTransitionTime": time_of_day().to_rfc3339(),
            }]}})
        };
        let healthy = if status == "True" { "False" } else { "True" };
        Self {
            set: with(status),
            removed: with(healthy),
            status: true,
            cause,
        }
    }

    async fn apply(&self, t: &Scenario<'_>, node: &str, patch: &Value) -> Result<()> {
        let nodes = Api::<Node>::all(t.client.clone());
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
        if self.status {
            nodes.patch_status(node, &params, &patch).await?;
        } else {
            nodes.patch(node, &params, &patch).await?;
        }
        Ok(())
    }

    async fn set(&self, t: &Scenario<'_>, node: &str) -> Result<()> {
        self.apply(t, node, &self.set).await
    }

    async fn remove(&self, t: &Scenario<'_>, node: &str) -> Result<()> {
        self.apply(t, node, &self.removed).await
    }
}

fn saves() -> Value {
    json!({"checkpoint": {"onRequest": {"signal": "SIGTERM", "timeoutSeconds": 20}}})
}

/// Checks that the gang leaves a node once for the signal: its members there get new pods on other
/// nodes, all others keep theirs, and nothing is charged.
async fn leaves_once(t: &Scenario<'_>, job: &Job, signal: &Signal) -> Result<()> {
    let before = t.running(GPT).await?;
    let left = node_to_lose(&before)?;
    let outcome = restarts(t, job, async || signal.set(t, &left).await).await;
    signal.remove(t, &left).await?;
    let (after, incident) = outcome?;
    ensure!(
        incident.cause.kind == signal.cause && incident.cause.node == left && !incident.counted,
        "{incident:?}"
    );
    moved(&before, &after, &left)?;
    apart(job)
}

/// Checks which pods were replaced.
fn moved(before: &[Pod], after: &[Pod], left: &str) -> Result<()> {
    for (old, new) in before.iter().zip(after) {
        let same = old.uid() == new.uid();
        ensure!(same == (node(old) != left), "{}: {same}", old.name_any());
        ensure!(node(new) != left, "{} is on {left}", new.name_any());
    }
    Ok(())
}

async fn saved_for(t: &Scenario<'_>, reason: CheckpointOccasion) -> Result<()> {
    // A regular checkpoint right after the request can be the reply.
    let most = i64::from(CHECKPOINT_EVERY);
    requests::saved_for(t, GPT, reason, most).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_leaves_a_node_once_for_each_kind_of_announcement() -> Result<()> {
    on_nodes("announced", async |_: &RealCluster, t| {
        let (job, _) = started(t, 4, saves(), json!({})).await?;
        let end = time_of_day() + TimeDelta::minutes(9);
        let event = "VMEventScheduled";
        let signals = [
            Signal::label(end),
            Signal::annotation(end),
            Signal::taint(),
            Signal::condition(event, "True", event, CauseKind::NodeLeaving),
        ];
        for signal in signals {
            leaves_once(t, &job, &signal).await?;
            saved_for(t, CheckpointOccasion::NodeLeaving).await?;
        }
        let status = t.restarted(GPT, 4).await?;
        ensure!(status.restarts.counted == 0, "{:?}", status.restarts);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_leaves_a_faulty_node_while_it_steps_and_while_it_hangs() -> Result<()> {
    on_nodes("faulty", async |_: &RealCluster, t| {
        let (job, before) = started(t, 4, saves(), json!({})).await?;
        let (type_, reason) = ("AcceleratedHardwareReady", "NvidiaXID79Error");
        let fault = || Signal::condition(type_, "False", reason, CauseKind::NodeFaulty);
        leaves_once(t, &job, &fault()).await?;
        saved_for(t, CheckpointOccasion::NodeFaulty).await?;
        ensure!(before.len() == 4);
        job.command(1, "hang")?;
        leaves_once(t, &job, &fault()).await?;
        let status = t.restarted(GPT, 2).await?;
        ensure!(status.restarts.counted == 0, "{:?}", status.restarts);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_without_another_node_saves_before_the_deadline_and_continues() -> Result<()> {
    on_nodes("no-node", async |real, t| {
        let (job, before) = started(t, 2 * real.nodes.len(), saves(), json!({})).await?;
        let left = node_to_lose(&before)?;
        let steps = job.step()?;
        let signal = Signal::label(time_of_day() + TimeDelta::seconds(100));
        signal.set(t, &left).await?;
        let asked = async || {
            let last = t.checkpoint_request(GPT).await?;
            ensure!(last.reason == CheckpointOccasion::NodeLeaving, "{last:?}");
            Ok(())
        };
        let request = eventually("a request before the deadline", LIMIT, asked).await;
        signal.remove(t, &left).await?;
        request?;
        eventually("further steps", LIMIT, async || {
            ensure!(job.step()? > steps, "no step after {steps}");
            Ok(())
        })
        .await?;
        kept(&before, &t.running(GPT).await?, 0)
    })
    .await
}
