//! Overlays and components of `config/`, alone and in pairs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use lockstep_api::names::labels;
use lockstep_cluster::cluster::repository;
use lockstep_cluster::install::{MANAGER, overlay};
use lockstep_cluster::scenario::PATIENCE;
use lockstep_cluster::{Cluster, eventually};
use lockstep_e2e::{IN_TURN, cluster};
use serde_json::json;

/// All components, in a valid order for an overlay.
const COMPONENTS: [&str; 11] = [
    "agent",
    "agent-network-policy",
    "crio",
    "dashboards",
    "ha-3",
    "k3s",
    "kueue",
    "network-policy",
    "prometheus",
    "provisioning-requests",
    "signal-pods",
];
/// Components that configure the agents for another runtime, and find the agents under their
/// shipped names.
const RUNTIMES: [&str; 2] = ["crio", "k3s"];

/// Maximum number of concurrent builds.
const AT_ONCE: usize = 7;
/// The component with objects for the Prometheus operator, which is not installed here.
const UNSERVED: &str = "prometheus";

/// Output of kustomize for the default overlay with these components, and with the agents if a
/// component changes the agents.
async fn built(cluster: &Cluster, components: &[&str]) -> Result<String> {
    let mut all = components.to_vec();
    if RUNTIMES.iter().any(|r| all.contains(r)) && !all.contains(&"agent") {
        all.insert(0, "agent");
    }
    let folder = overlay(&repository(), cluster.folder(), "default", &all)?;
    let folder = folder.display().to_string();
    let made = cluster.kubectl(&["kustomize", &folder]).await;
    made.with_context(|| all.join(" and "))
}

/// Objects of a stream of manifests whose kinds the API server serves.
fn served(manifests: &str) -> BTreeSet<String> {
    let objects = manifests.trim_end().split("\n---\n");
    objects
        .filter(|o| is_served(o))
        .map(str::to_owned)
        .collect()
}

/// A file with these objects.
fn file_of(cluster: &Cluster, name: &str, objects: &BTreeSet<String>) -> Result<PathBuf> {
    let file = cluster.folder().join(format!("{name}.yaml"));
    let objects: Vec<&str> = objects.iter().map(String::as_str).collect();
    std::fs::write(&file, objects.join("\n---\n"))?;
    Ok(file)
}

#[test]
fn every_component_is_tried() -> Result<()> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(repository().join("config/components"))? {
        found.insert(entry?.file_name().to_string_lossy().into_owned());
    }
    ensure!(found.iter().eq(COMPONENTS), "{found:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_pair_of_components_builds_and_the_api_server_takes_it_strictly() -> Result<()> {
    let cluster = cluster().await?;
    let pairs = COMPONENTS.iter().enumerate().flat_map(|(at, one)| {
        let others = COMPONENTS[at + 1..].iter();
        others.map(|other| [*one, *other])
    });
    let pairs: Vec<[&str; 2]> = pairs.filter(|pair| *pair != RUNTIMES).collect();
    // The API server's answer to an object depends only on the object: each object from a pair is
    // sent once.
    let mut objects = BTreeSet::new();
    for some in pairs.chunks(AT_ONCE) {
        let made = try_join_all(some.iter().map(|pair| built(cluster, pair))).await?;
        for (pair, made) in some.iter().zip(made) {
            ensure!(made.contains("name: lockstep-manager"), "{pair:?}");
            objects.extend(served(&made));
        }
    }
    if !cluster.is_ours("applying the manifests") {
        return Ok(());
    }
    let said = taken(cluster, "-f", &file_of(cluster, "pairs", &objects)?).await?;
    for line in [
        "configmap/lockstep-dashboards ",
        "deployment.apps/lockstep-manager configured (server dry run)",
        "daemonset.apps/lockstep-agent configured (server dry run)",
    ] {
        ensure!(said.contains(line), "{line}: {said}");
    }
    // Another runtime each, and the same number of managers.
    let agents = said.matches("daemonset.apps/lockstep-agent ").count();
    let managers = said.matches("deployment.apps/lockstep-manager ").count();
    ensure!((agents, managers) == (3, 2), "{said}");
    for overlay in ["default", "full"] {
        let folder = repository().join("config/overlays").join(overlay);
        taken(cluster, "-k", &folder).await?;
    }
    Ok(())
}

/// Namespace of signal pods.
const SIGNALS: &str = "lockstep-autoscaler";

/// A pod as the manager makes it for a member that lacks a node.
fn signal_pod(host_network: bool) -> Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": "signal", "labels": {labels::WORKLOAD_UID: "u"}},
        "spec": {
            "schedulerName": "lockstep-autoscaler",
            "hostNetwork": host_network,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "t",
                "image": "i",
                "resources": {"requests": {"cpu": "1"}},
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]},
                    "runAsNonRoot": true,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            }],
        },
    }))?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_manager_alone_writes_signal_pods_in_the_namespace_of_the_component() -> Result<()> {
    let cluster = cluster().await?;
    if !cluster.is_ours("applying the manifests") {
        return Ok(());
    }
    let file = repository().join("config/components/signal-pods/namespace.yaml");
    let file = file.display().to_string();
    cluster.kubectl(&["apply", "-f", &file]).await?;
    let (namespace, name) = MANAGER;
    let manager = cluster.client_as(&format!("sa:{namespace}:{name}")).await?;
    let pods: Api<Pod> = Api::namespaced(manager, SIGNALS);
    let create = PostParams::default();
    // The controller manager creates the default account of a new namespace.
    eventually("the pod to be taken", PATIENCE, async || {
        pods.create(&create, &signal_pod(false)?).await?;
        Ok(())
    })
    .await?;
    let unschedulable =
        json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable"});
    let status = Patch::Merge(json!({"status": {"conditions": [unschedulable]}}));
    pods.patch_status("signal", &PatchParams::default(), &status)
        .await?;
    pods.delete("signal", &DeleteParams::default().grace_period(0))
        .await?;
    let host = pods.create(&create, &signal_pod(true)?).await.err();
    let host = host.context("a pod in the network of its node is taken")?;
    ensure!(
        host.to_string()
            .contains("host namespaces (hostNetwork=true)"),
        "{host}"
    );
    let user = ["--clusterrole=cluster-admin", "--user=signaller"];
    let grant = [
        &["create", "rolebinding", "signaller", "-n", SIGNALS],
        &user[..],
    ]
    .concat();
    cluster.kubectl(&grant).await?;
    let user = cluster.client_as("user:signaller").await?;
    let pods: Api<Pod> = Api::namespaced(user, SIGNALS);
    eventually("the copy to be refused", PATIENCE, async || {
        let refused = pods.create(&create, &signal_pod(false)?).await.err();
        let refused = refused.context("a copy is taken")?.to_string();
        ensure!(refused.contains("is for members"), "{refused}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_field_that_does_not_exist_in_one_component_is_named() -> Result<()> {
    let cluster = cluster().await?;
    if !cluster.is_ours("applying the manifests") {
        return Ok(());
    }
    let made = served(&built(cluster, &["ha-3"]).await?);
    let mistaken = made.into_iter().filter(|o| o.contains("\n  replicas: 3\n"));
    let mistaken = mistaken.map(|o| o.replace("\n  replicas:", "\n  replica:"));
    let file = file_of(cluster, "mistaken", &mistaken.collect())?;
    let refused = taken(cluster, "-f", &file).await.err();
    let refused = refused.context("taken")?;
    ensure!(
        format!("{refused:#}").contains("unknown field \"spec.replica\""),
        "{refused:#}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agents_have_one_runtime_and_mount_its_folder() -> Result<()> {
    let cluster = cluster().await?;
    let [crio, k3s] = RUNTIMES;
    let both = built(cluster, &["agent", crio, k3s]).await;
    ensure!(both.is_err(), "agents have two runtimes");
    for (runtime, socket) in [
        (crio, "unix:///run/crio/crio.sock"),
        (k3s, "unix:///run/k3s/containerd/containerd.sock"),
    ] {
        let made = built(cluster, &["agent", runtime]).await?;
        let folder = Path::new(socket.trim_start_matches("unix://")).parent();
        let folder = folder.context("a folder")?.display();
        let mounted = [
            format!("mountPath: {folder}\n"),
            format!("path: {folder}\n"),
        ];
        ensure!(
            made.contains(socket) && mounted.iter().all(|m| made.contains(m)),
            "{runtime}: {made}"
        );
        ensure!(!made.contains("/run/containerd/"), "{runtime}: {made}");
    }
    Ok(())
}

/// Objects for the Prometheus operator, which is not installed here, have separate tests.
fn is_served(object: &str) -> bool {
    let unknown = |line: &str| line.starts_with("apiVersion: monitoring.coreos.com/");
    !object.lines().any(unknown)
}

/// Answer of the API server to these manifests in a dry run.
pub async fn taken(cluster: &Cluster, flag: &str, path: &Path) -> Result<String> {
    let path = path.display().to_string();
    let args = [
        "apply",
        "--dry-run=server",
        "--validate=strict",
        flag,
        &path,
    ];
    cluster.kubectl(&args).await.with_context(|| path.clone())
}

/// Objects and their versions. For disruption budgets, whose status a controller writes at any
/// time, the generation of the spec.
async fn versions(cluster: &Cluster, flag: &str, path: &str) -> Result<Vec<String>> {
    let columns =
        "custom-columns=:.kind,:.metadata.name,:.metadata.generation,:.metadata.resourceVersion";
    let args = ["get", "--no-headers", flag, path, "-o", columns];
    let objects = cluster.kubectl(&args).await?;
    let lines = objects.lines().map(|line| {
        let mut fields: Vec<&str> = line.split_whitespace().collect();
        if fields.first() == Some(&"PodDisruptionBudget") {
            fields.pop();
        }
        fields.join(" ")
    });
    Ok(lines.collect())
}

/// Applies objects again, which must change nothing. Returns their number.
async fn again(cluster: &Cluster, flag: &str, path: &str) -> Result<usize> {
    let before = versions(cluster, flag, path).await?;
    let said = cluster.kubectl(&["apply", flag, path]).await?;
    // kubectl prints "configured" for every disruption budget, because it sends the selector again,
    // which is replaced as a whole. The API server writes nothing.
    let same = |l: &str| l.ends_with(" unchanged") || l.starts_with("poddisruptionbudget");
    ensure!(said.lines().all(same), "{path}: {said}");
    let after = versions(cluster, flag, path).await?;
    ensure!(
        before == after && !before.is_empty(),
        "{path}: {before:?} {after:?}"
    );
    Ok(before.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn applying_the_manifests_again_changes_nothing() -> Result<()> {
    IN_TURN
        .run("applying the manifests", json!({}), all_again)
        .await
}

async fn all_again(cluster: &mut Cluster) -> Result<()> {
    for overlay in ["full", "default"] {
        let folder = repository().join("config/overlays").join(overlay);
        let folder = folder.display().to_string();
        // The first call reverts the changes of the tests in the configuration.
        cluster.kubectl(&["apply", "-k", &folder]).await?;
        let objects = again(cluster, "-k", &folder).await.context(overlay)?;
        ensure!(objects > 10, "{overlay} has {objects} objects");
    }
    let without = served(&built(cluster, &[]).await?);
    for component in COMPONENTS {
        let all = served(&built(cluster, &[component]).await?);
        let own: BTreeSet<String> = all.difference(&without).cloned().collect();
        if component == UNSERVED {
            ensure!(own.is_empty(), "{component}: {own:?}");
            continue;
        }
        let file = file_of(cluster, component, &own)?.display().to_string();
        cluster.kubectl(&["apply", "-f", &file]).await?;
        again(cluster, "-f", &file).await.context(component)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_changes_with_each_apply_is_found() -> Result<()> {
    let cluster = cluster().await?;
    if !cluster.is_ours("applying the manifests") {
        return Ok(());
    }
    let object = |value: &str| {
        let text = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: again, namespace: default}}\ndata: {{at: {value}}}"
        );
        file_of(cluster, "again", &BTreeSet::from([text]))
    };
    let file = object("first")?.display().to_string();
    cluster.kubectl(&["apply", "-f", &file]).await?;
    object("second")?;
    let found = again(cluster, "-f", &file).await;
    ensure!(found.is_err(), "a change was not seen");
    cluster.kubectl(&["delete", "-f", &file]).await.map(drop)
}
