//! Restarts in place.

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use kube::ResourceExt;
use lockstep_api::condition::{reasons, types};
use lockstep_api::workload::FailureAction;
use lockstep_cluster::manifests::gang;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario;
use lockstep_cluster::scenario::{hostname, kept, node, restarts, uids};
use lockstep_e2e::cluster;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_in_place_keeps_every_uid_and_restarts_each_member_exactly_once() -> Result<()> {
    scenario(cluster().await?, "once", &Shape::default(), async |t| {
        t.create(gang("g", 4, 8, json!({}))).await?;
        let before = t.running("g").await?;
        t.exit(&before[1], 7).await?;
        let status = t.restarted("g", 1).await?;
        kept(&before, &t.running("g").await?, 1)?;
        ensure!(
            status.restarts.in_place == 1 && status.restarts.recreated == 0,
            "{:?}",
            status.restarts
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubelets_that_restart_disturb_no_gang_and_the_next_failure_is_the_first() -> Result<()> {
    let shape = Shape::default();
    scenario(cluster().await?, "kubelets", &shape, async |t| {
        t.create(gang("g", 4, 8, json!({}))).await?;
        let before = t.running("g").await?;
        for node in t.nodes.names() {
            let body = json!({"node": node});
            t.nodes.post("/node/restart-kubelet", body).await?;
        }
        t.exit(&before[1], 7).await?;
        let status = t.restarted("g", 1).await?;
        kept(&before, &t.running("g").await?, 1)?;
        ensure!(status.attempt == 2, "{status:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_all_die_within_a_second_are_one_incident_and_one_unit_of_budget() -> Result<()>
{
    scenario(cluster().await?, "all-die", &Shape::default(), async |t| {
        t.create(gang("g", 4, 8, json!({}))).await?;
        let before = t.running("g").await?;
        try_join_all(before.iter().map(|p| t.exit(p, 9))).await?;
        let status = t.restarted("g", 1).await?;
        kept(&before, &t.running("g").await?, 1)?;
        ensure!(
            status.attempt == 2 && status.restarts.counted == 1 && status.history.len() == 1,
            "{status:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_fails_on_137_does_not_kill_the_healthy_members_of_a_restart() -> Result<()> {
    scenario(cluster().await?, "mask", &Shape::default(), async |t| {
        let policy = json!({"failurePolicy": {"rules": [
            {"name": "killed", "match": {"exitCodes": {"operator": "In", "values": [137]}}, "action": "FailWorkload"}]}});
        t.create(gang("g", 4, 8, policy)).await?;
        let before = t.running("g").await?;
        t.exit(&before[0], 3).await?;
        let status = t.restarted("g", 1).await?;
        ensure!(uids(&before) == uids(&t.running("g").await?), "pods were replaced");
        let cause = &status.history.first().context("history")?.cause;
        ensure!(cause.exit_code == Some(3), "the kill hid the true exit code: {cause:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_true_exit_code_is_in_the_history_although_the_last_state_says_137() -> Result<()> {
    scenario(cluster().await?, "truth", &Shape::default(), async |t| {
        t.create(gang("g", 2, 8, json!({}))).await?;
        let before = t.running("g").await?;
        t.exit(&before[0], 42).await?;
        let status = t.restarted("g", 1).await?;
        let incident = status.history.first().context("history")?;
        ensure!(incident.cause.exit_code == Some(42), "{incident:?}");
        ensure!(
            incident.cause.container == "trainer" && incident.action == FailureAction::RestartGang,
            "{incident:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_a_lost_node_are_recreated_and_other_members_restart_in_place() -> Result<()> {
    // A node is silent after the end of its Lease.
    let args = vec!["--lease-seconds=4".into(), "--renew-seconds=1".into()];
    let shape = Shape {
        nodes: 5,
        args,
        ..Shape::default()
    };
    scenario(cluster().await?, "lost", &shape, async |t| {
        t.create(gang(
            "g",
            4,
            8,
            json!({"failurePolicy": {"nodeLostSeconds": 1}}),
        ))
        .await?;
        let before = t.running("g").await?;
        let lost = node(&before[2]);
        t.nodes.vanish(&lost).await?;
        let status = t.restarted("g", 1).await?;
        let after = t.running("g").await?;
        for (old, new) in before.iter().zip(&after) {
            ensure!(hostname(old) == hostname(new), "hostnames changed");
            let same = old.metadata.uid == new.metadata.uid;
            ensure!(
                same == (node(old) != lost),
                "{}: kept {same}",
                hostname(old)
            );
            ensure!(
                node(new) != lost && restarts(new) == i32::from(same),
                "{}: {} on {}",
                hostname(new),
                restarts(new),
                node(new)
            );
        }
        ensure!(status.restarts.recreated == 1, "{:?}", status.restarts);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_deleted_by_hand_is_replaced_and_other_members_restart_in_place() -> Result<()> {
    scenario(cluster().await?, "by-hand", &Shape::default(), async |t| {
        t.create(gang("g", 3, 8, json!({}))).await?;
        let before = t.running("g").await?;
        let name = before[0].metadata.name.clone().context("name")?;
        t.kubectl(&["delete", "pod", &name, "--wait=false"]).await?;
        t.restarted("g", 1).await?;
        let after = t.running("g").await?;
        ensure!(
            before[0].metadata.uid != after[0].metadata.uid,
            "the pod is still the old one"
        );
        ensure!(
            uids(&before[1..]) == uids(&after[1..]),
            "more than the deleted pod was replaced"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn raising_the_restart_nonce_restarts_the_gang_once_and_uncounted() -> Result<()> {
    scenario(cluster().await?, "nonce", &Shape::default(), async |t| {
        t.create(gang("g", 2, 8, json!({}))).await?;
        let before = t.running("g").await?;
        t.patch_spec("g", json!({"restartNonce": 1})).await?;
        let status = t.restarted("g", 1).await?;
        ensure!(status.restarts.counted == 0, "{:?}", status.restarts);
        ensure!(
            uids(&before) == uids(&t.running("g").await?),
            "pods were replaced"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn on_nodes_without_an_agent_a_gang_restarts_with_new_pods_and_a_condition_says_so()
-> Result<()> {
    scenario(
        cluster().await?,
        "agentless",
        &Shape {
            nodes: 2,
            agents: false,
            ..Shape::default()
        },
        async |t| {
            t.create(gang("g", 2, 8, json!({}))).await?;
            let before = t.running("g").await?;
            t.condition_is("g", types::RESTARTS_IN_PLACE, false, reasons::AGENT_MISSING)
                .await?;
            t.exit(&before[0], 3).await?;
            let status = t.restarted("g", 1).await?;
            let after = t.running("g").await?;
            ensure!(
                after
                    .iter()
                    .all(|p| before.iter().all(|b| b.uid() != p.uid())),
                "an old pod is still there"
            );
            ensure!(
                before.iter().map(node).eq(after.iter().map(node)),
                "members did not keep their nodes"
            );
            ensure!(
                status.restarts.recreated == 2 && status.restarts.counted == 1,
                "{:?}",
                status.restarts
            );
            Ok(())
        },
    )
    .await
}
