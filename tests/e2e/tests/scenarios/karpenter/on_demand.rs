//! Nodes that a real Karpenter creates for the signal pods of waiting gangs, and removes after them.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use lockstep_api::condition::{reasons, types};
use lockstep_api::scheduling::AutoscalerMode;
use lockstep_cluster::audit::Write;
use lockstep_cluster::eventually;
use lockstep_cluster::karpenter::Karpenter;
use lockstep_cluster::manifests::{gang, merge};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario::{Scenario, node, uids};
use lockstep_e2e::{demanding, patient, started};
use serde_json::{Value, json};

use super::with_pool;
use crate::provisioning::{BACKOFFS, failed, no_member, says, wait_shortened};

/// Namespace of signal pods.
const SIGNALS: &str = "lockstep-autoscaler";
/// Karpenter looks for nodes to remove every 10 s and decides twice with 15 s between.
const REMOVAL: Duration = Duration::from_mins(4);
/// After nodes have come in vain for a minute, a try has failed.
const IN_VAIN: Duration = Duration::from_mins(3);

/// Runs a test with an empty node pool, which `pool` (a JSON merge patch) changes.
async fn on_demand(
    name: &str,
    pool: Value,
    body: impl AsyncFnOnce(&Karpenter<'_>, &Scenario<'_>) -> Result<()>,
) -> Result<()> {
    let cluster = started(&demanding(name, AutoscalerMode::Pods, patient())).await?;
    if !cluster.has_nodes(name) {
        return Ok(());
    }
    let mut spec = json!({
        "disruption": {"consolidateAfter": "1s", "budgets": [{"nodes": "100%"}]},
    });
    merge(&mut spec, pool);
    // Pods of agents have no owner here, and would keep nodes from being empty.
    let shape = Shape {
        agents: false,
        ..Shape::default()
    };
    with_pool(&cluster, spec, &shape, body).await
}

fn signals(t: &Scenario<'_>) -> Api<Pod> {
    Api::namespaced(t.client.clone(), SIGNALS)
}

/// Waits for this number of signal pods.
async fn has_signals(t: &Scenario<'_>, number: usize) -> Result<()> {
    let pods = signals(t);
    eventually("signal pods", REMOVAL, async || {
        let there = pods.list(&ListParams::default()).await?.items;
        ensure!(there.len() == number, "{} of {number}", there.len());
        let bound = there.iter().filter(|p| !node(p).is_empty()).count();
        ensure!(bound == 0, "{bound} signal pods are bound");
        Ok(())
    })
    .await
}

async fn nodes(t: &Scenario<'_>) -> Result<Vec<Node>> {
    let nodes: Api<Node> = Api::all(t.client.clone());
    Ok(nodes.list(&ListParams::default()).await?.items)
}

/// Waits until Karpenter has removed all nodes but this number.
async fn has_nodes(t: &Scenario<'_>, karpenter: &Karpenter<'_>, number: usize) -> Result<()> {
    eventually("Karpenter to remove nodes", REMOVAL, async || {
        let (there, claims) = (nodes(t).await?.len(), karpenter.claims().await?);
        ensure!(
            (there, claims) == (number, number),
            "{there} nodes, {claims} claims"
        );
        Ok(())
    })
    .await
}

/// Names of objects of a kind that were created, oldest first.
fn created(t: &Scenario<'_>, namespace: &str, resource: &str) -> Result<Vec<Write>> {
    let mut writes = t.cluster.audit.writes()?;
    writes.retain(|w| {
        w.verb == "create" && w.changed() && w.namespace == namespace && w.target() == resource
    });
    Ok(writes)
}

/// Checks that no member of a gang had a pod before this number of nodes was created. Returns whether
/// one has had a pod.
fn started_on(t: &Scenario<'_>, name: &str, number: usize) -> Result<bool> {
    let nodes = created(t, "", "nodes")?;
    let mut pods = created(t, &t.name, "pods")?;
    pods.retain(|w| w.name.starts_with(&format!("{name}-")));
    if let Some(first) = pods.first() {
        let before = nodes.iter().filter(|n| n.time < first.time).count();
        ensure!(
            before >= number,
            "{} came on {before} of {number}",
            first.name
        );
    }
    Ok(!pods.is_empty())
}

/// Number of signal pods that a gang has had so far.
fn signalled(t: &Scenario<'_>, name: &str) -> Result<usize> {
    let all = created(t, SIGNALS, "pods")?;
    Ok(all
        .iter()
        .filter(|w| w.name.starts_with(&format!("{name}-")))
        .count())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-karpenter"]
async fn a_gang_of_64_nodes_runs_on_exactly_those_that_karpenter_creates() -> Result<()> {
    on_demand("demand-64", json!({}), async |karpenter, t| {
        t.create(gang("g", 64, 8, json!({}))).await?;
        karpenter.has_machines(64).await?;
        let pods = t.running("g").await?;
        ensure!(pods.len() == 64);
        ensure!(started_on(t, "g", 64)?);
        has_signals(t, 0).await?;
        ensure!(
            signalled(t, "g")? == 64,
            "{} signal pods",
            signalled(t, "g")?
        );
        let bought = created(t, "", "nodeclaims")?.len();
        ensure!(bought == 64, "{bought} nodes were bought");
        Ok(())
    })
    .await
}

/// Changes the most accelerators that Karpenter may provide.
async fn limit(t: &Scenario<'_>, accelerators: u32) -> Result<()> {
    let patch = json!({"spec": {"limits": {"nvidia.com/gpu": accelerators.to_string()}}});
    let (patch, pool) = (patch.to_string(), &t.name);
    let patch = ["patch", "nodepool", pool, "--type=merge", "-p", &patch];
    t.cluster.kubectl(&patch).await.map(drop)
}

/// Waits for this number of NodeClaims.
async fn has_claims(karpenter: &Karpenter<'_>, number: usize) -> Result<()> {
    eventually("Karpenter to order nodes", REMOVAL, async || {
        let claims = karpenter.claims().await?;
        ensure!(claims == number, "{claims} of {number}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-karpenter"]
async fn nothing_is_left_of_a_gang_that_is_cancelled_in_each_state() -> Result<()> {
    let none = json!({"limits": {"nvidia.com/gpu": "0"}});
    on_demand("demand-cancel", none, async |karpenter, t| {
        karpenter.set_delay("3s").await?;
        let suspend = async |suspended: bool| {
            t.patch_spec("g", json!({"suspend": suspended})).await?;
            has_signals(t, if suspended { 0 } else { 4 }).await
        };
        // No node is ordered.
        t.create(gang("g", 4, 8, json!({}))).await?;
        has_signals(t, 4).await?;
        suspend(true).await?;
        // Half the nodes are ordered.
        suspend(false).await?;
        limit(t, 16).await?;
        has_claims(karpenter, 2).await?;
        suspend(true).await?;
        has_nodes(t, karpenter, 0).await?;
        // Half the nodes are there.
        suspend(false).await?;
        karpenter.has_machines(2).await?;
        says(t, "g", "nodes are requested since").await?;
        no_member(t, "g").await?;
        t.workloads()
            .delete("g", &DeleteParams::background())
            .await?;
        has_signals(t, 0).await?;
        has_nodes(t, karpenter, 0).await?;
        ensure!(!started_on(t, "g", 4)?, "a part of the gang had pods");
        // It runs.
        limit(t, 32).await?;
        t.create(gang("h", 4, 8, json!({}))).await?;
        t.running("h").await?;
        has_signals(t, 0).await?;
        t.workloads()
            .delete("h", &DeleteParams::background())
            .await?;
        has_nodes(t, karpenter, 0).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-karpenter"]
async fn of_two_gangs_that_compete_for_nodes_one_runs_whole_and_the_other_after_it() -> Result<()> {
    let four = json!({"limits": {"nvidia.com/gpu": "32"}});
    on_demand("demand-two", four, async |karpenter, t| {
        t.create(gang("first", 3, 8, json!({}))).await?;
        // Gangs that are queued by the same cycle have no order of time.
        has_signals(t, 3).await?;
        t.create(gang("second", 3, 8, json!({}))).await?;
        let pods = t.running("first").await?;
        karpenter.has_machines(4).await?;
        has_signals(t, 3).await?;
        ensure!(started_on(t, "first", 3)?);
        ensure!(!started_on(t, "second", 4)?, "a part of the gang has pods");
        for pod in &pods {
            karpenter.end(pod).await?;
        }
        t.running("second").await?;
        ensure!(started_on(t, "second", 4)?);
        has_signals(t, 0).await
    })
    .await
}

/// Waits until Karpenter reports that it removes no node of this pod because of its mark.
async fn blocked(t: &Scenario<'_>, pod: &Pod) -> Result<()> {
    let events: Api<Event> = Api::all(t.client.clone());
    eventually("Karpenter to consider the node", REMOVAL, async || {
        let all = events.list(&ListParams::default()).await?.items;
        let is_this = |e: &Event| {
            let regarding = e.regarding.as_ref().and_then(|r| r.name.as_deref());
            let note = e.note.as_deref().unwrap_or_default();
            regarding == Some(&node(pod))
                && e.reason.as_deref() == Some("DisruptionBlocked")
                && note.contains("do-not-disrupt")
        };
        ensure!(all.iter().any(is_this), "no event about {}", node(pod));
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-karpenter"]
async fn consolidation_takes_no_node_of_a_running_gang() -> Result<()> {
    on_demand("demand-kept", json!({}), async |karpenter, t| {
        // On a node each. One node would hold both.
        t.create(gang("filler", 1, 4, json!({}))).await?;
        let filler = t.running("filler").await?;
        t.create(gang("kept", 1, 4, json!({}))).await?;
        let kept = t.running("kept").await?;
        ensure!(node(&filler[0]) == node(&kept[0]));
        t.create(gang("other", 1, 4, json!({}))).await?;
        let other = t.running("other").await?;
        ensure!(node(&other[0]) != node(&kept[0]));
        karpenter.end(&filler[0]).await?;
        blocked(t, &kept[0]).await?;
        blocked(t, &other[0]).await?;
        has_nodes(t, karpenter, 2).await?;
        ensure!(uids(&t.running("kept").await?) == uids(&kept));
        ensure!(uids(&t.running("other").await?) == uids(&other));
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-karpenter"]
async fn a_gang_that_waits_for_its_victims_creates_no_node() -> Result<()> {
    on_demand("demand-preempts", json!({}), async |karpenter, t| {
        let of_class = |name: &str, class: &str| {
            let mut slow = gang(name, 2, 8, json!({"priorityClassName": class}));
            let template = &mut slow["spec"]["groups"][0]["template"]["spec"];
            template["terminationGracePeriodSeconds"] = json!(15);
            slow
        };
        t.create(of_class("victim", "low")).await?;
        t.running("victim").await?;
        has_signals(t, 0).await?;
        t.create(of_class("vip", "high")).await?;
        t.condition("victim", types::DISRUPTION_TARGET).await?;
        t.running("vip").await?;
        // The victim demands nodes of its own, after it has been evicted.
        t.running("victim").await?;
        let of_both = (signalled(t, "vip")?, signalled(t, "victim")?);
        ensure!(of_both == (0, 4), "{of_both:?}");
        has_nodes(t, karpenter, 4).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-karpenter"]
async fn a_level_that_karpenter_cannot_meet_costs_three_purchases() -> Result<()> {
    on_demand("demand-level", json!({}), async |karpenter, t| {
        let level = json!({"key": "topology.kubernetes.io/rack"});
        t.create(gang("g", 2, 8, json!({"scheduling": {"topology": level}})))
            .await?;
        for (number, wait) in (1..).zip(BACKOFFS.map(Some).into_iter().chain([None])) {
            has_signals(t, 2).await?;
            karpenter.has_machines(2).await?;
            eventually("the try to fail", IN_VAIN, async || {
                failed(t, "g", number, "").await.map(drop)
            })
            .await?;
            has_signals(t, 0).await?;
            has_nodes(t, karpenter, 0).await?;
            if let Some(wait) = wait {
                says(t, "g", &format!("of try {number} did not suffice")).await?;
                wait_shortened(t, "g", wait).await?;
            }
        }
        let held = t.condition_is("g", types::ADMITTED, false, reasons::NODES_NOT_PROVIDED);
        held.await?;
        wait_shortened(t, "g", BACKOFFS[1] * 10).await?;
        says(t, "g", "").await?;
        let bought = created(t, "", "nodeclaims")?.len();
        ensure!(
            bought == 6 && signalled(t, "g")? == 6,
            "{bought} nodes were bought"
        );
        ensure!(!started_on(t, "g", usize::MAX)?);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-karpenter"]
async fn with_quota_for_one_gang_the_other_demands_no_node() -> Result<()> {
    on_demand("demand-quota", json!({}), async |karpenter, t| {
        let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "quota"},
            "spec": {"hard": {"requests.nvidia.com/gpu": "16", "pods": "2"}}});
        t.create(quota).await?;
        t.create(gang("first", 2, 8, json!({}))).await?;
        let pods = t.running("first").await?;
        t.create(gang("second", 2, 8, json!({}))).await?;
        says(t, "second", "quota").await?;
        ensure!(signalled(t, "second")? == 0);
        has_nodes(t, karpenter, 2).await?;
        for pod in &pods {
            karpenter.end(pod).await?;
        }
        t.workloads().delete("first", &DeleteParams::background()).await?;
        t.running("second").await?;
        ensure!(started_on(t, "second", 2)?);
        Ok(())
    })
    .await
}
