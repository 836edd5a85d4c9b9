//! Gangs are placed as a whole or not at all.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use lockstep_api::condition::{reasons, types};
use lockstep_api::workload::Phase;
use lockstep_cluster::manifests::{gang, merge};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario::{PATIENCE, Scenario, in_one_domain, node};
use lockstep_cluster::{eventually, scenario};
use lockstep_e2e::cluster;
use serde_json::json;

use crate::claims::{unattachable_claim, with_claim};

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_of_which_one_member_does_not_fit_has_no_pod_at_all() -> Result<()> {
    let shape = Shape {
        nodes: 3,
        ..Shape::default()
    };
    scenario(cluster().await?, "unfit", &shape, async |t| {
        t.create(gang("big", 4, 8, json!({}))).await?;
        let message = t
            .condition_is("big", types::ADMITTED, false, reasons::EXCEEDS_CLUSTER)
            .await?;
        ensure!(!message.is_empty(), "the condition says nothing");
        let created = t
            .manager_writes()?
            .into_iter()
            .filter(|w| w.resource == "pods" && w.verb == "create" && !w.dry_run);
        ensure!(created.count() == 0, "pods were created");
        Ok(())
    })
    .await
}

/// Of two gangs that do not fit together, one runs completely and the other has no pods.
async fn compete(t: &Scenario<'_>, first: &str, second: &str) -> Result<()> {
    t.create(gang(first, 3, 8, json!({}))).await?;
    t.create(gang(second, 3, 8, json!({}))).await?;
    eventually("one of the two to run", PATIENCE, async || {
        let mut phases = Vec::new();
        for name in [first, second] {
            let status = t.workloads().get(name).await?.status.context("status")?;
            phases.push((status.phase, t.pods(name).await?.len()));
        }
        phases.sort_by_key(|(_, pods)| *pods);
        ensure!(
            phases == [(Some(Phase::Pending), 0), (Some(Phase::Running), 3)],
            "{phases:?}"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_gangs_that_do_not_fit_together_one_is_whole_and_the_other_holds_nothing()
-> Result<()> {
    scenario(cluster().await?, "compete", &Shape::default(), async |t| {
        compete(t, "a", "b").await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_gangs_compete_the_same_way_when_they_are_created_in_the_other_order() -> Result<()> {
    scenario(
        cluster().await?,
        "compete-again",
        &Shape::default(),
        async |t| compete(t, "b", "a").await,
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_waits_until_another_leaves() -> Result<()> {
    scenario(cluster().await?, "queue", &Shape::default(), async |t| {
        t.create(gang("first", 4, 8, json!({}))).await?;
        let pods = t.running("first").await?;
        t.create(gang("second", 2, 8, json!({}))).await?;
        t.condition_is("second", types::ADMITTED, false, reasons::UNSCHEDULABLE)
            .await?;
        for pod in &pods {
            t.exit(pod, 0).await?;
        }
        t.running("second").await?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_gang_at_the_head_is_not_starved_by_small_ones_behind_it() -> Result<()> {
    scenario(cluster().await?, "head", &Shape::default(), async |t| {
        t.create(gang("first", 2, 8, json!({}))).await?;
        let pods = t.running("first").await?;
        t.create(gang("large", 4, 8, json!({}))).await?;
        t.condition_is("large", types::ADMITTED, false, reasons::UNSCHEDULABLE)
            .await?;
        // Two nodes are free, and each of these small gangs would fit, without end.
        for name in ["small-a", "small-b"] {
            t.create(gang(name, 1, 8, json!({}))).await?;
            let why = t
                .condition_is(name, types::ADMITTED, false, reasons::UNSCHEDULABLE)
                .await?;
            ensure!(why.contains("queued behind"), "{name}: {why}");
        }
        let said = t.lockstep(&["explain", "small-a"]).await?;
        ensure!(said.contains("queued behind"), "{said}");
        for pod in &pods {
            t.exit(pod, 0).await?;
        }
        t.running("large").await?;
        ensure!(
            t.pods("small-a").await?.is_empty() && t.pods("small-b").await?.is_empty(),
            "the head was overtaken"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_the_scheduler_refuses_is_replaced_in_the_placement() -> Result<()> {
    let shape = Shape {
        nodes: 3,
        ..Shape::default()
    };
    scenario(cluster().await?, "refused", &shape, async |t| {
        let refused = t.nodes.names().first().context("a node")?.clone();
        unattachable_claim(t, std::slice::from_ref(&refused)).await?;
        let mut moved = gang("moved", 2, 8, json!({}));
        merge(
            &mut moved["spec"]["groups"][0]["template"]["spec"],
            with_claim(),
        );
        t.create(moved).await?;
        let pods = t.running("moved").await?;
        ensure!(
            pods.iter().all(|p| node(p) != refused),
            "{:?}",
            pods.iter().map(node).collect::<Vec<_>>()
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_required_topology_keeps_each_slice_within_one_rack() -> Result<()> {
    let shape = Shape {
        nodes: 8,
        racks: 2,
        ..Shape::default()
    };
    scenario(cluster().await?, "racks", &shape, async |t| {
        let mut slices = gang(
            "slices",
            2,
            8,
            json!({
            "scheduling": {"topology": {"key": "topology.kubernetes.io/rack", "scope": "Replica"}}}),
        );
        slices["spec"]["groups"][0]["size"] = json!(4);
        t.create(slices).await?;
        let racks = t.nodes.label_values("topology.kubernetes.io/rack", &t.client).await?;
        for slice in t.running("slices").await?.chunks(4) {
            in_one_domain(slice, &racks)?;
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_on_two_levels_has_one_zone_and_each_slice_one_rack() -> Result<()> {
    let shape = Shape {
        nodes: 8,
        racks: 4,
        args: vec!["--zones=2".to_owned()],
        ..Shape::default()
    };
    scenario(cluster().await?, "levels", &shape, async |t| {
        let zone = json!({"key": "topology.kubernetes.io/zone"});
        let rack = json!({"key": "topology.kubernetes.io/rack", "scope": "Replica"});
        let topology = json!({"scheduling": {"topology": {"levels": [zone, rack]}}});
        let mut slices = gang("slices", 2, 8, topology);
        slices["spec"]["groups"][0]["size"] = json!(2);
        t.create(slices).await?;
        let zones = t
            .nodes
            .label_values("topology.kubernetes.io/zone", &t.client)
            .await?;
        let racks = t
            .nodes
            .label_values("topology.kubernetes.io/rack", &t.client)
            .await?;
        let pods = t.running("slices").await?;
        in_one_domain(&pods, &zones)?;
        for slice in pods.chunks(2) {
            in_one_domain(slice, &racks)?;
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workload_deleted_and_created_again_under_its_name_starts_afresh() -> Result<()> {
    scenario(cluster().await?, "again", &Shape::default(), async |t| {
        t.create(gang("phoenix", 2, 8, json!({}))).await?;
        let before = t.running("phoenix").await?;
        t.exit(&before[0], 3).await?;
        t.restarted("phoenix", 1).await?;
        t.workloads()
            .delete("phoenix", &kube::api::DeleteParams::default())
            .await?;
        eventually("the name to be free", Duration::from_secs(10), async || {
            t.create(gang("phoenix", 2, 8, json!({}))).await
        })
        .await?;
        let after = t.running("phoenix").await?;
        let status = t
            .workloads()
            .get("phoenix")
            .await?
            .status
            .context("status")?;
        ensure!(
            status.attempt == 1 && status.restarts.total == 0,
            "{status:?}"
        );
        ensure!(
            after
                .iter()
                .all(|p| before.iter().all(|b| b.uid() != p.uid())),
            "old pods were taken over"
        );
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_run_together_never_share_a_pod() -> Result<()> {
    scenario(cluster().await?, "names", &Shape::default(), async |t| {
        for (name, group) in [("a", "b-c"), ("a-b", "c")] {
            let mut twin = gang(name, 2, 8, json!({}));
            twin["spec"]["groups"][0]["name"] = json!(group);
            t.create(twin).await?;
        }
        let (one, two) = (t.running("a").await?, t.running("a-b").await?);
        ensure!(
            one.len() == 2 && two.len() == 2,
            "{} and {}",
            one.len(),
            two.len()
        );
        Ok(())
    })
    .await
}
