//! Tiers without a supervisor, by features of the kubelets.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use lockstep_api::names;
use lockstep_cluster::eventually;
use lockstep_cluster::scenario::{Scenario, kept, uids};
use lockstep_containers::job::now;
use lockstep_nodes::RealCluster;
use lockstep_nodes::incidents::started;
use lockstep_nodes::real_cluster::LIMIT;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{on_nodes, restarted};

/// In place without a supervisor.
fn unsupervised(without: &str) -> Value {
    json!({"failurePolicy": {"inPlace": {"supervisor": "Never", "withoutSupervisor": without}}})
}

/// Kills a member of a gang of this tier and checks that each container restarts once in its pod.
pub(crate) async fn restarts_in_place(
    real: &RealCluster,
    t: &Scenario<'_>,
    tier: &str,
) -> Result<()> {
    let (job, before) = started(t, real.members(), unsupervised("Allow"), json!({})).await?;
    for pod in &before {
        let label = pod.annotations().get(names::annotations::TIER);
        ensure!(label.is_some_and(|l| l == tier), "{label:?} and not {tier}");
    }
    let killed = now()?;
    real.signal(&before[1], Signal::KILL)?;
    let after = job.trains(t, killed).await?;
    let cause = restarted(t, 1).await?;
    ensure!(
        cause.exit_code == Some(137) && cause.pod == before[1].name_any(),
        "{cause:?}"
    );
    kept(&before, &after, 1)
}

/// Runs [`restarts_in_place`] with these feature gates of the kubelets.
async fn with_gates(name: &str, tier: &str, gates: Value) -> Result<()> {
    on_nodes(name, async |real, t| {
        for node in &real.nodes {
            node.configure(json!({"featureGates": gates}))?;
        }
        let outcome = async {
            declared(real, tier).await?;
            restarts_in_place(real, t, tier).await
        }
        .await;
        for node in &real.nodes {
            node.configure(json!({}))?;
        }
        declared(real, "restart-all").await?;
        outcome
    })
    .await
}

/// Waits until the nodes declare exactly the features that the tier needs.
async fn declared(real: &RealCluster, tier: &str) -> Result<()> {
    let nodes = Api::<Node>::all(real.cluster.client().await?);
    for node in &real.nodes {
        eventually("the declared features", LIMIT, async || {
            let status = nodes.get(&node.name).await?.status.unwrap_or_default();
            let features = status.declared_features.unwrap_or_default();
            let all = features
                .iter()
                .any(|f| f == "RestartAllContainersOnContainerExits");
            ensure!(all == (tier == "restart-all"), "{features:?}");
            Ok(())
        })
        .await?;
        // A kubelet that starts declares no accelerators.
        real.ready(&node.name).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn kubelets_restart_training_containers_by_restart_rules() -> Result<()> {
    let gates = json!({"RestartAllContainersOnContainerExits": false});
    with_gates("restart-rules", "restart-rules", gates).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_without_supervisor_is_recreated_by_default() -> Result<()> {
    on_nodes("deny", async |real, t| {
        let policy = json!({"failurePolicy": {"inPlace": {"supervisor": "Never"}}});
        let (job, before) = started(t, 4, policy, json!({})).await?;
        let killed = now()?;
        real.signal(&before[1], Signal::KILL)?;
        let after = job.trains(t, killed).await?;
        restarted(t, 1).await?;
        let old = uids(&before);
        let same = after
            .iter()
            .filter_map(ResourceExt::uid)
            .find(|uid| old.contains(uid));
        ensure!(same.is_none(), "pod {} is left", same.context("a UID")?);
        Ok(())
    })
    .await
}
