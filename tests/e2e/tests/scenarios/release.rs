//! A release folder (`LOCKSTEP_RELEASE`) installs without sources: by kustomize, by one file, by Helm.

use std::path::PathBuf;

use anyhow::{Context, Result};
use lockstep_cluster::scenario::PATIENCE;
use lockstep_cluster::{Cluster, Options, scenario};
use lockstep_e2e::CLASSES;

use crate::elsewhere::{shape, story};
use crate::removal::nothing_is_left;

fn folder() -> Result<PathBuf> {
    let folder = std::env::var_os("LOCKSTEP_RELEASE");
    Ok(folder.context("LOCKSTEP_RELEASE is not set")?.into())
}

/// Path below the release folder.
fn below(path: &str) -> Result<String> {
    let path = folder()?.join(path);
    let path = path
        .canonicalize()
        .with_context(|| path.display().to_string())?;
    Ok(path.display().to_string())
}

async fn empty(name: &str) -> Result<Cluster> {
    let cluster = Cluster::empty(&Options::named(name)).await?;
    for (class, value) in CLASSES {
        let value = value.to_string();
        cluster
            .kubectl(&["create", "priorityclass", class, "--value", &value])
            .await?;
    }
    Ok(cluster)
}

/// A gang runs, restarts, and is preempted. Then the lines remove the installation.
async fn used(cluster: &Cluster, remove: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
    cluster.established(&["--all", "crd"]).await?;
    let manager = cluster.start_manager("a").await?;
    scenario(cluster, "release", &shape(), async |t| {
        story(t).await?;
        t.cluster.kubectl(&["delete", "tw", "-A", "--all"]).await?;
        let label = "training.lockstep.dev/workload";
        let gone = ["wait", "--for=delete", "pod", "-A", "-l", label];
        t.cluster.kubectl(&gone).await?;
        manager.process.terminate(PATIENCE).await?;
        remove().await?;
        nothing_is_left(t.cluster, &[]).await
    })
    .await
}

async fn by_manifests(name: &str, flag: &str, path: &str) -> Result<()> {
    let cluster = empty(name).await?;
    let path = below(path)?;
    cluster.kubectl(&["apply", flag, &path]).await?;
    let remove = async || cluster.kubectl(&["delete", flag, &path]).await.map(drop);
    used(&cluster, remove).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make release-test"]
async fn a_release_installs_by_kustomize() -> Result<()> {
    by_manifests("release-kustomize", "-k", "config/overlays/full").await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make release-test"]
async fn a_release_installs_by_one_file() -> Result<()> {
    by_manifests("release-file", "-f", "install.yaml").await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make release-test"]
async fn a_release_installs_by_helm() -> Result<()> {
    let cluster = empty("release-helm").await?;
    let chart = below(concat!("lockstep-", env!("CARGO_PKG_VERSION"), ".tgz"))?;
    let place = ["-n", "lockstep-system"];
    let install = ["install", "lockstep", &chart, "--create-namespace"];
    cluster.helm(&[&install[..], &place].concat()).await?;
    used(&cluster, async || {
        let uninstall = ["uninstall", "lockstep"];
        cluster.helm(&[&uninstall[..], &place].concat()).await?;
        let all = "app.kubernetes.io/name=lockstep";
        cluster.kubectl(&["delete", "crd", "-l", all]).await?;
        cluster
            .kubectl(&["delete", "namespace", "lockstep-system"])
            .await
            .map(drop)
    })
    .await
}
