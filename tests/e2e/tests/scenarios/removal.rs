//! Removal of Lockstep with the pages of `docs/install` and `make undeploy`, also in other orders.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use lockstep_cluster::cluster::repository;
use lockstep_cluster::install::{self, Method, commands, documented};
use lockstep_cluster::manifests::gang;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario;
use lockstep_cluster::scenario::{PATIENCE, Scenario, uids};
use lockstep_cluster::{Cluster, eventually, olm};
use lockstep_e2e::{fresh, installed, patient};
use serde_json::json;

use crate::elsewhere::with_agents;

/// Namespace of an installation by OLM on the page: OLM's default for all namespaces.
const OPERATORS: &str = "operators";

fn shape() -> Shape {
    Shape {
        nodes: 2,
        ..Shape::default()
    }
}

/// Runs a command of the page on a cluster.
async fn play(cluster: &Cluster, line: &str) -> Result<()> {
    install::play(cluster, &repository(), line).await
}

/// Checks before the removal that the search finds the objects of every installation, and these
/// objects.
async fn finds_what_is_installed(cluster: &Cluster, more: &[&str]) -> Result<()> {
    let found = cluster.objects_of_lockstep().await?;
    let every = [
        "ClusterRole ",
        "ClusterRoleBinding ",
        "ConfigMap ",
        "CustomResourceDefinition ",
        "FlowSchema ",
        "Lease ",
        "NodeAgent ",
        "Pod ",
        "PodGroup ",
        "PriorityLevelConfiguration ",
        "RestartOrder ",
        "Service ",
        "ValidatingAdmissionPolicy ",
        "ValidatingAdmissionPolicyBinding ",
    ];
    for kind in every.iter().chain(more) {
        ensure!(
            found.iter().any(|o| o.starts_with(kind)),
            "{kind}: {found:#?}"
        );
    }
    Ok(())
}

pub async fn nothing_is_left(cluster: &Cluster, but: &[&str]) -> Result<()> {
    eventually("nothing of ours to be left", PATIENCE, async || {
        let mut left = cluster.objects_of_lockstep().await?;
        left.retain(|o| !but.iter().any(|b| o.starts_with(b)));
        ensure!(left.is_empty(), "{left:#?}");
        Ok(())
    })
    .await
}

/// A gang that was restarted, and a gang that waits.
async fn at_work(t: &Scenario<'_>) -> Result<Vec<Pod>> {
    t.create(gang("runs", 2, 8, json!({}))).await?;
    let pods = t.running("runs").await?;
    t.exit(pods.first().context("a pod")?, 3).await?;
    t.restarted("runs", 1).await?;
    t.create(gang("waits", 2, 8, json!({}))).await?;
    eventually("the second to wait", PATIENCE, async || {
        t.pod_group("waits").await
    })
    .await?;
    t.running("runs").await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_lines_remove_everything_that_is_ours() -> Result<()> {
    let cluster = fresh("removal", patient()).await?;
    if !cluster.is_ours("removing the installation") {
        return Ok(());
    }
    let mut manager = Some(cluster.start_manager("a").await?);
    scenario(&cluster, "leaving", &shape(), async |t| {
        at_work(t).await?;
        finds_what_is_installed(t.cluster, &["Namespace "]).await?;
        for line in documented("Remove\n")? {
            play(t.cluster, &line).await?;
            if line.starts_with("delete deployment ") {
                let manager = manager.take().context("the manager")?;
                manager.process.terminate(PATIENCE).await?;
            }
        }
        nothing_is_left(t.cluster, &[]).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_lines_remove_what_olm_leaves() -> Result<()> {
    let method = Method::Olm(OPERATORS.to_owned());
    let cluster = installed("removal-olm", patient(), method).await?;
    if !cluster.is_ours("removing the installation") {
        return Ok(());
    }
    let (components, _) = with_agents(&cluster, OPERATORS).await?;
    let manager = cluster.start_manager("a").await?;
    scenario(&cluster, "leaving", &shape(), async |t| {
        at_work(t).await?;
        finds_what_is_installed(t.cluster, &["ClusterServiceVersion ", "DaemonSet "]).await?;
        for line in documented("Remove\n")?.iter().take(2) {
            play(t.cluster, line).await?;
        }
        olm::uninstall(t.cluster, OPERATORS).await?;
        manager.process.terminate(PATIENCE).await?;
        components.terminate(PATIENCE).await?;
        for line in documented("Remove under OLM")? {
            play(t.cluster, &line).await?;
        }
        nothing_is_left(t.cluster, &[]).await
    })
    .await
}

#[test]
fn the_olm_description_has_the_documented_uninstall_lines() -> Result<()> {
    let page = std::fs::read_to_string(repository().join("config/olm/description.md"))?;
    let told = commands(&page.replace("NAMESPACE", OPERATORS))?;
    ensure!(told == documented("Remove under OLM")?, "{told:#?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn make_undeploy_with_keep_pods_keeps_running_jobs() -> Result<()> {
    let cluster = fresh("undeploy", patient()).await?;
    if !cluster.is_ours("removing the installation") {
        return Ok(());
    }
    let _manager = cluster.start_manager("a").await?;
    scenario(&cluster, "keeping", &shape(), async |t| {
        let before = at_work(t).await?;
        t.cluster.make(&["undeploy", "KEEP_PODS=1"]).await?;
        nothing_is_left(t.cluster, &["Pod keeping/", "Service keeping/"]).await?;
        let after = t.pods("runs").await?;
        ensure!(
            uids(&before) == uids(&after),
            "{} pods of {}",
            after.len(),
            before.len()
        );
        for pod in &after {
            let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
            let owners = pod.owner_references();
            ensure!(
                phase == Some("Running") && owners.is_empty(),
                "{phase:?} {owners:?}"
            );
        }
        let services: Api<Service> = Api::namespaced(t.client.clone(), &t.name);
        let services = services.list(&ListParams::default()).await?;
        ensure!(
            !services.items.is_empty(),
            "their names lead nowhere any more"
        );

        // According to the page.
        let label = "training.lockstep.dev/workload";
        t.kubectl(&["delete", "pod,service", "-l", label]).await?;
        nothing_is_left(t.cluster, &[]).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_other_order_of_removal_hangs() -> Result<()> {
    let cluster = fresh("disorder", patient()).await?;
    if !cluster.is_ours("removing the installation") {
        return Ok(());
    }
    let manager = cluster.start_manager("a").await?;
    scenario(&cluster, "disorder", &shape(), async |t| {
        at_work(t).await?;
        manager.process.terminate(PATIENCE).await?;
        // The garbage collector removes finalizers from the owner and owner references from its
        // objects, which otherwise only the manager writes.
        for (what, how) in [
            (&["lpg", "--all"][..], "foreground"),
            (&["tw", "waits"], "orphan"),
            (&["restartorders", "--all"], "orphan"),
        ] {
            let how = format!("--cascade={how}");
            t.kubectl(&[&["delete"], what, &[&*how]].concat()).await?;
        }
        let node = format!("{}-0001", t.name);
        for (kind, how) in [("nodeagent", "foreground"), ("node", "orphan")] {
            let how = format!("--cascade={how}");
            let delete = ["delete", kind, &node, &how];
            t.cluster.kubectl(&delete).await?;
        }
        // Only the last line of the page, with running workloads.
        let last = documented("Remove\n")?;
        play(t.cluster, last.last().context("a line")?).await?;
        // The Service of the workload whose dependents were to be kept.
        nothing_is_left(t.cluster, &["Service disorder/waits"]).await
    })
    .await
}
