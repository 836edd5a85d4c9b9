//! Nodes that are lost, come back, and reboot.

use anyhow::{Context, Result, ensure};
use kube::{Api, ResourceExt};
use lockstep_api::NodeAgent;
use lockstep_api::workload::CauseKind;
use lockstep_cluster::eventually;
use lockstep_cluster::scenario::{node, restarts, uids};
use lockstep_containers::job::now;
use lockstep_nodes::real_cluster::{LIMIT, supervises};
use serde_json::json;

use crate::{apart, on_nodes, restarted, started};

#[tokio::test(flavor = "multi_thread")]
async fn members_of_a_node_without_network_move_and_the_others_restart_in_place() -> Result<()> {
    on_nodes("partition", async |real, t| {
        let policy = json!({"failurePolicy": {"nodeLostSeconds": 5}});
        let (job, before) = started(t, 4, policy, json!({})).await?;
        let lost = before
            .iter()
            .map(node)
            .find(|name| *name != node(&before[0]));
        let lost = lost.context("all members are on one node")?;
        let machine = real.node(&lost)?;
        let cut = now()?;
        machine.cut().await?;
        let outcome = job.trains(t, cut).await;
        machine.reconnect().await?;
        let after = outcome?;
        let (_, cause) = restarted(t, "gpt", 1).await?;
        ensure!(
            cause.kind == CauseKind::NodeLost && cause.node == lost,
            "{cause:?}"
        );
        for (old, new) in before.iter().zip(&after) {
            let same = old.uid() == new.uid();
            ensure!(same == (node(old) != lost), "{}: {same}", old.name_any());
            ensure!(node(new) != lost && restarts(new) == 0, "{new:?}");
        }
        // The node is back: what is left of the old attempt ends there.
        real.ready(&lost).await?;
        eventually("the old pods to be gone", LIMIT, async || {
            let all = t.all_pods().list(&kube::api::ListParams::default()).await?;
            let left = all.items.iter().filter(|p| node(p) == lost).count();
            ensure!(left == 0, "{left} pods on {lost}");
            Ok(())
        })
        .await?;
        eventually("the old processes to end", LIMIT, async || {
            let left = machine.has("lockstep-trainer");
            ensure!(!left, "a trainer runs on {lost}");
            Ok(())
        })
        .await?;
        let agents = Api::<NodeAgent>::all(t.client.clone());
        supervises(&agents, &lost).await?;
        let running = t.running("gpt").await?;
        ensure!(uids(&running) == uids(&after), "pods were replaced again");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_trains_again_after_a_node_has_rebooted() -> Result<()> {
    on_nodes("reboot", async |real, t| {
        let (job, before) = started(t, 4, json!({}), json!({})).await?;
        let machine = real.node_of(&before[3])?;
        let rebooted = now()?;
        machine.reboot().await?;
        real.ready(&machine.name).await?;
        job.trains(t, rebooted).await?;
        apart(&job)?;
        let agents = Api::<NodeAgent>::all(t.client.clone());
        supervises(&agents, &machine.name).await
    })
    .await
}
