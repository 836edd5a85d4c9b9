//! Gangs that can run with part of their members.

use anyhow::{Context, Result, bail, ensure};
use chrono::TimeDelta;
use kube::ResourceExt;
use kube::api::ListParams;
use lockstep_api::condition::types;
use lockstep_api::workload::CauseKind;
use lockstep_cluster::manifests::{gang, merge, parse};
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario::{PATIENCE, Scenario, node, uids};
use lockstep_cluster::{eventually, scenario, time_of_day};
use lockstep_e2e::cluster;
use serde_json::{Value, json};

use crate::console::blocks;
use crate::steering::env;

/// A gang of four whole nodes that can run with two members.
fn elastic(more: Value) -> Value {
    let mut spec = json!({"scheduling": {"gang": {"minCount": 2}}});
    merge(&mut spec, more);
    gang("g", 4, 8, spec)
}

/// Number of members and rank, according to each member.
async fn world(t: &Scenario<'_>) -> Result<Vec<(String, String)>> {
    let pods = t.pods("g").await?;
    let of = |pod, name| env(pod, name).unwrap_or_default().to_owned();
    Ok(pods
        .iter()
        .map(|p| (of(p, "PET_NNODES"), of(p, "PET_NODE_RANK")))
        .collect())
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected
        .iter()
        .map(|(n, rank)| ((*n).to_owned(), (*rank).to_owned()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gang_with_room_for_its_minimum_only_starts_with_it_and_its_world_says_so() -> Result<()>
{
    scenario(
        cluster().await?,
        "minimum",
        &Shape {
            nodes: 2,
            ..Shape::default()
        },
        async |t| {
            t.create(elastic(json!({}))).await?;
            let pods = t.running("g").await?;
            ensure!(
                pods.len() == 2 && world(t).await? == pairs(&[("2", "0"), ("2", "1")]),
                "{:?}",
                world(t).await?
            );
            let (_, message) = t.condition("g", types::ADMITTED).await?;
            ensure!(
                message.contains("placed with 2 of 4 members (minCount 2)"),
                "{message}"
            );
            let status = t.workloads().get("g").await?.status.context("status")?;
            ensure!(
                status.ready == "2/4" && status.restarts.total == 0,
                "{status:?}"
            );
            Ok(())
        },
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_elastic_gang_grows_with_one_uncounted_restart_and_without_evictions() -> Result<()> {
    scenario(cluster().await?, "grow", &Shape::default(), async |t| {
        t.create(gang("low", 1, 8, json!({"priorityClassName": "low"})))
            .await?;
        let low = t.running("low").await?;
        t.create(elastic(json!({"priorityClassName": "high"})))
            .await?;
        let before = t.running("g").await?;
        ensure!(before.len() == 3, "{} members", before.len());
        t.workload("g", "to have run for long enough to grow", |w| {
            let since = w
                .status
                .iter()
                .flat_map(|s| &s.domains)
                .find_map(|d| d.healthy_since)
                .context("not healthy")?;
            ensure!(
                time_of_day() - since > TimeDelta::seconds(4),
                "healthy since {since}"
            );
            Ok(())
        })
        .await?;
        ensure!(
            uids(&low) == uids(&t.running("low").await?),
            "a pod was evicted"
        );
        ensure!(
            uids(&before) == uids(&t.running("g").await?),
            "it restarted for nothing"
        );
        for pod in &low {
            t.exit(pod, 0).await?;
        }
        let status = t.restarted("g", 1).await?;
        let after = t.running("g").await?;
        ensure!(
            world(t).await? == pairs(&[("4", "0"), ("4", "1"), ("4", "2"), ("4", "3")]),
            "{:?}",
            world(t).await?
        );
        ensure!(
            before.iter().map(node).eq(after.iter().take(3).map(node)),
            "members did not keep their nodes"
        );
        let cause = status.history.first().map(|h| h.cause.kind);
        ensure!(
            status.restarts.counted == 0 && cause == Some(CauseKind::Resize),
            "{status:?}"
        );
        let low = t.workloads().get("low").await?.status.context("status")?;
        ensure!(low.preemptions == 0, "a pod was evicted");
        Ok(())
    })
    .await
}

/// Reads the scale of a workload, and checks that its selector selects as many pods as it counts.
async fn scale_of(t: &Scenario<'_>, path: &str) -> Result<Value> {
    eventually("the scale to count the pods", PATIENCE, async || {
        let text = t.kubectl(&["get", "--raw", path, AUTOSCALER]).await?;
        let scale: Value = serde_json::from_str(&text)?;
        let selector = scale["status"]["selector"].as_str().context("a selector")?;
        let pods = t.all_pods();
        let pods = pods.list(&ListParams::default().labels(selector)).await?;
        let (counted, wanted) = (&scale["status"]["replicas"], &scale["spec"]["replicas"]);
        ensure!(counted == pods.items.len() && counted == wanted, "{scale}");
        Ok(scale)
    })
    .await
}

/// The identity of Kubernetes' autoscaler, which every cluster allows to update all scales.
const AUTOSCALER: &str = "--as=system:serviceaccount:kube-system:horizontal-pod-autoscaler";

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_scale_and_an_autoscaler_change_a_running_elastic_gang() -> Result<()> {
    let shape = Shape {
        nodes: 3,
        ..Shape::default()
    };
    scenario(cluster().await?, "scale", &shape, async |t| {
        let manifests = blocks("docs/how-to/scale.md", "yaml")?;
        let [workload, autoscaler] = manifests.as_slice() else {
            bail!("{} manifests", manifests.len());
        };
        let name = t.create(parse(workload)?).await?.name_any();
        let pods = t.running(&name).await?;
        ensure!(pods.len() == 3, "{} of 3 nodes in use", pods.len());
        let refused = t.kubectl(&["scale", "tw", &name, "--replicas=1"]).await;
        let refused = refused.err().context("scaled below minCount")?;
        ensure!(
            format!("{refused:#}").contains("minCount must be at most the number of members"),
            "{refused:#}"
        );
        t.kubectl(&["scale", "tw", &name, "--replicas=2"]).await?;
        let status = t.restarted(&name, 1).await?;
        let pods = t.running(&name).await?;
        ensure!(pods.len() == 2, "{} members of 2", pods.len());
        ensure!(status.restarts.counted == 0, "{:?}", status.restarts);

        let autoscaler = t.create(parse(autoscaler)?).await?;
        let target = &autoscaler.data["spec"]["scaleTargetRef"];
        let kind = "trainingworkloads";
        let api = target["apiVersion"].as_str().context("a version")?;
        let path = format!("/apis/{api}/namespaces/{}/{kind}/{name}/scale", t.name);
        ensure!(target["name"] == *name, "{target}");
        let mut scale = scale_of(t, &path).await?;
        scale["spec"]["replicas"] = json!(3);
        let file = t.cluster.folder().join("scale.json");
        std::fs::write(&file, scale.to_string())?;
        let file = file.display().to_string();
        t.kubectl(&["replace", "--raw", &path, "-f", &file, AUTOSCALER])
            .await?;
        let status = t.restarted(&name, 2).await?;
        ensure!(status.restarts.counted == 0, "{:?}", status.restarts);
        scale_of(t, &path).await?;
        let pods = t.running(&name).await?;
        ensure!(pods.len() == 3, "{} members of 3", pods.len());
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_elastic_gang_continues_with_fewer_members_without_a_node_for_a_lost_member()
-> Result<()> {
    // A node is silent after the end of its Lease.
    let args = vec!["--lease-seconds=4".into(), "--renew-seconds=1".into()];
    scenario(
        cluster().await?,
        "shrink",
        &Shape {
            args,
            ..Shape::default()
        },
        async |t| {
            t.create(elastic(json!({"failurePolicy": {"nodeLostSeconds": 1}})))
                .await?;
            let before = t.running("g").await?;
            ensure!(before.len() == 4, "{} members", before.len());
            let lost = before.get(1).map(node).context("a node")?;
            t.nodes.vanish(&lost).await?;
            let status = t.restarted("g", 1).await?;
            ensure!(
                world(t).await? == pairs(&[("3", "0"), ("3", "1"), ("3", "2")]),
                "{:?}",
                world(t).await?
            );
            ensure!(
                status.ready == "3/4" && status.restarts.counted == 1 && status.history.len() == 1,
                "{status:?}"
            );
            Ok(())
        },
    )
    .await
}
