//! Components of `config/`: alone, in pairs and all together.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use lockstep_cluster::Cluster;
use lockstep_cluster::cluster::repository;
use lockstep_cluster::install::overlay;
use lockstep_cluster::manifests::parse;
use lockstep_e2e::cluster;
use serde_json::Value;

/// All there are, in an order in which they may stand in an overlay.
const COMPONENTS: [&str; 8] = [
    "agent",
    "crio",
    "dashboards",
    "ha-3",
    "k3s",
    "kube-state-metrics",
    "network-policy",
    "prometheus",
];
/// Each moves the agents to another runtime, and finds them where the manifests have them.
const RUNTIMES: [&str; 2] = ["crio", "k3s"];

/// What kustomize makes of the default overlay with these.
async fn built(cluster: &Cluster, components: &[&str]) -> Result<String> {
    let folder = overlay(&repository(), cluster.folder(), components)?;
    let folder = folder.display().to_string();
    let made = cluster.kubectl(&["kustomize", &folder]).await;
    made.with_context(|| components.join(" and "))
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
async fn every_pair_of_components_builds_but_two_runtimes_of_the_agents() -> Result<()> {
    let cluster = cluster().await?;
    for (at, one) in COMPONENTS.iter().enumerate() {
        let others = &COMPONENTS[at + 1..];
        try_join_all(others.iter().map(async |other| {
            let made = built(cluster, &[one, other]).await?;
            ensure!(made.contains("name: lockstep-manager"), "{one}, {other}");
            anyhow::Ok(())
        }))
        .await?;
    }
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

#[test]
fn the_network_policy_has_no_field_that_its_kind_has_not() -> Result<()> {
    let path = repository().join("config/components/network-policy/network_policy.yaml");
    let written: Value = parse(&std::fs::read_to_string(path)?)?;
    let read: NetworkPolicy = serde_json::from_value(written.clone())?;
    // What the type does not know would be gone.
    ensure!(serde_json::to_value(&read)? == written, "{read:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_takes_the_components_strictly() -> Result<()> {
    let cluster = cluster().await?;
    if !cluster.is_ours("applying the manifests") {
        return Ok(());
    }
    for overlay in ["default", "full"] {
        let folder = repository().join("config/overlays").join(overlay);
        taken(cluster, "-k", &folder).await?;
    }
    // Every pair is in one of the two, but for that of the runtimes.
    for other in RUNTIMES {
        let all: Vec<&str> = COMPONENTS.into_iter().filter(|c| *c != other).collect();
        let made = built(cluster, &all).await?;
        let known: Vec<&str> = made.split("\n---\n").filter(|o| is_served(o)).collect();
        let file = cluster.folder().join(format!("all-but-{other}.yaml"));
        std::fs::write(&file, known.join("\n---\n"))?;
        let said = taken(cluster, "-f", &file).await?;
        for line in [
            "clusterrole.rbac.authorization.k8s.io/lockstep-kube-state-metrics ",
            "configmap/lockstep-dashboards ",
            "deployment.apps/lockstep-manager configured (server dry run)",
            "daemonset.apps/lockstep-agent configured (server dry run)",
        ] {
            ensure!(said.contains(line), "{line}: {said}");
        }
    }
    Ok(())
}

/// Prometheus' operator is not installed here, and the stand-in serves no NetworkPolicies: both have
/// tests of their own.
fn is_served(object: &str) -> bool {
    let unknown = |line: &str| {
        line.starts_with("apiVersion: monitoring.coreos.com/") || line == "kind: NetworkPolicy"
    };
    !object.lines().any(unknown)
}

/// What the API server says to these manifests, of which it keeps nothing.
async fn taken(cluster: &Cluster, flag: &str, path: &Path) -> Result<String> {
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
