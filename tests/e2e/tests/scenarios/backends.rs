//! Scheduling backends: changes of the configuration and of a workload, and tenants who change native
//! groups.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use kube::ResourceExt;
use lockstep_cluster::manifests::gang;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::scenario::{Scenario, uids};
use lockstep_cluster::{Cluster, eventually, scenario};
use lockstep_e2e::{
    NATIVE_IN_TURN, native, native_config, native_groups, no_native_groups, with_backend,
};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(30);
const KIND: &str = "podgroups.scheduling.k8s.io";

/// Waits until there is this number of native pod groups, none of which is being deleted.
async fn groups(t: &Scenario<'_>, number: usize) -> Result<Vec<PodGroup>> {
    eventually(&format!("{number} native groups"), PATIENCE, async || {
        let groups = native_groups(t).await?;
        let names: Vec<String> = groups.iter().map(ResourceExt::name_any).collect();
        let stay = groups
            .iter()
            .all(|g| g.metadata.deletion_timestamp.is_none());
        ensure!(stay && groups.len() == number, "{names:?}");
        Ok(groups)
    })
    .await
}

fn is_pinned(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|s| s.affinity.is_some())
}

fn is_grouped(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    spec.is_some_and(|s| s.scheduling_group.is_some())
}

/// Checks that the pods were created for a backend.
fn are_of(pods: &[Pod], backend: &str) -> Result<()> {
    let pinned = backend != "Kubernetes";
    let grouped = backend != "Lockstep";
    for pod in pods {
        let (is_pinned, is_grouped) = (is_pinned(pod), is_grouped(pod));
        ensure!(
            is_pinned == pinned && is_grouped == grouped,
            "{backend}: pinned {is_pinned}, grouped {is_grouped}"
        );
    }
    Ok(())
}

/// Suspends a workload, changes its spec, and resumes it. Returns its new pods.
async fn again(t: &Scenario<'_>, name: &str, change: Value) -> Result<Vec<Pod>> {
    t.patch_spec(name, json!({"suspend": true})).await?;
    t.no_pods(name).await?;
    t.patch_spec(name, change).await?;
    t.patch_spec(name, json!({"suspend": false})).await?;
    t.running(name).await
}

#[tokio::test(flavor = "multi_thread")]
async fn gangs_keep_their_pods_while_the_backend_of_the_installation_changes() -> Result<()> {
    NATIVE_IN_TURN
        .run("a change of the backend", native_config(json!({})), migrate)
        .await
}

async fn migrate(cluster: &mut Cluster) -> Result<()> {
    let cluster = &*cluster;
    let mut manager = cluster.start_manager("a").await?;
    scenario(cluster, "migration", &Shape::default(), async |t| {
        // Of higher priority than the gang that waits, which reserves nodes.
        let high = json!({"priorityClassName": "high"});
        t.create(gang("stays", 2, 8, high.clone())).await?;
        t.create(gang("moves", 2, 8, high)).await?;
        let stays = uids(&t.running("stays").await?);
        let mut moves = uids(&t.running("moves").await?);
        // It does not fit, also while the other gang is suspended.
        t.create(gang("waits", 3, 8, json!({}))).await?;
        let mut before = 0;
        for backend in ["Both", "Kubernetes", "Lockstep"] {
            manager.process.kill()?;
            let change = json!({"scheduling": {"backend": backend}});
            cluster.reconfigure("a", change).await?;
            manager = cluster.start_manager("a").await?;
            let unbound = if backend == "Kubernetes" { 3 } else { 0 };
            eventually("the waiting gang to follow", PATIENCE, async || {
                let pods = t.pods("waits").await?;
                ensure!(pods.len() == unbound, "{} pods", pods.len());
                are_of(&pods, backend)
            })
            .await?;
            let waiting = usize::from(unbound > 0);
            groups(t, before + waiting).await?;
            ensure!(uids(&t.running("stays").await?) == stays, "{backend}");
            ensure!(uids(&t.running("moves").await?) == moves, "{backend}");
            let pods = again(t, "moves", json!({})).await?;
            are_of(&pods, backend)?;
            moves = uids(&pods);
            // The group of the earlier placement is deleted.
            before = usize::from(backend != "Lockstep");
            groups(t, before + waiting).await?;
        }
        for name in ["stays", "moves"] {
            t.kubectl(&["delete", "tw", name]).await?;
        }
        are_of(&t.running("waits").await?, "Lockstep")?;
        t.kubectl(&["delete", "tw", "waits"]).await?;
        t.no_pods("waits").await?;
        no_native_groups(t).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_workload_changes_its_backend() -> Result<()> {
    let cluster = native().await?;
    scenario(cluster, "override", &Shape::default(), async |t| {
        let backend = |name: &str| with_backend(name, json!({}));
        t.create(gang("g", 2, 8, backend("Kubernetes"))).await?;
        are_of(&t.running("g").await?, "Kubernetes")?;
        let shown = t.lockstep(&["status", "g"]).await?;
        ensure!(shown.contains("Backend: Kubernetes"), "{shown}");
        let refused = t.patch_spec("g", backend("Both")).await;
        let why = refused.err().context("a running workload has changed")?;
        ensure!(
            format!("{why:#}").contains("scheduling is immutable while running"),
            "{why:#}"
        );
        for name in ["Both", "Lockstep", "Kubernetes"] {
            are_of(&again(t, "g", backend(name)).await?, name)?;
        }
        are_of(
            &again(t, "g", json!({"scheduling": {"backend": null}})).await?,
            "Lockstep",
        )?;
        no_native_groups(t).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_gang_of_backend_kubernetes_survives_changes_of_its_group() -> Result<()> {
    let cluster = native().await?;
    let backend = with_backend("Kubernetes", json!({}));
    let shape = Shape {
        nodes: 2,
        ..Shape::default()
    };
    scenario(cluster, "tenants-groups", &shape, async |t| {
        t.create(gang("blocker", 1, 8, backend.clone())).await?;
        t.running("blocker").await?;
        t.create(gang("g", 2, 8, backend)).await?;
        let own = async || {
            eventually("a group that needs two members", PATIENCE, async || {
                let groups = groups(t, 2).await?;
                let needs = |g: &PodGroup| {
                    let gang = g.spec.scheduling_policy.gang.as_ref();
                    gang.is_some_and(|g| g.min_count == 2)
                };
                let group = groups.into_iter().find(needs);
                group.context("no group").map(|g| g.name_any())
            })
            .await
        };
        let name = own().await?;
        let raised = r#"{"spec":{"schedulingPolicy":{"gang":{"minCount":7}}}}"#;
        t.kubectl(&["patch", KIND, &name, "--type=merge", "-p", raised])
            .await?;
        own().await?;
        // The finalizer keeps a deleted group while its pods exist.
        t.kubectl(&["delete", KIND, &name, "--wait=false"]).await?;
        let bare = r#"{"metadata":{"finalizers":null}}"#;
        t.kubectl(&["patch", KIND, &name, "--type=merge", "-p", bare])
            .await?;
        own().await?;
        t.kubectl(&["delete", "tw", "blocker"]).await?;
        are_of(&t.running("g").await?, "Kubernetes")?;
        // A running gang needs no group: its pods stay.
        let pods = t.running("g").await?;
        t.kubectl(&["delete", KIND, "--all", "--wait=false"])
            .await?;
        t.exit(&pods[0], 3).await?;
        t.restarted("g", 1).await?;
        let now = uids(&t.running("g").await?);
        ensure!(now == uids(&pods), "members were replaced");
        t.kubectl(&["delete", "tw", "g"]).await?;
        t.no_pods("g").await?;
        no_native_groups(t).await
    })
    .await
}
