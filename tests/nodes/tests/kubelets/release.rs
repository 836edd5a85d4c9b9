//! The folder of a release (`LOCKSTEP_RELEASE`) on real nodes: each way of installation upgrades another
//! release (`LOCKSTEP_PREVIOUS`) under a running gang, and is removed as documented. `make release-nodes`
//! runs these tests in a separate process.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use lockstep_api::NodeAgent;
use lockstep_api::condition::{reasons, types};
use lockstep_cluster::install::{MANAGER, documented, play};
use lockstep_cluster::nodes::is_ready;
use lockstep_cluster::process::run;
use lockstep_cluster::scenario::kept;
use lockstep_cluster::{eventually, olm};
use lockstep_nodes::incidents::{GPT, started};
use lockstep_nodes::real_cluster::{Gates, LIMIT, supervises};
use lockstep_nodes::{Images, Node, RealCluster};
use serde_json::json;
use xtask::image::Target;

use crate::{kill_restarts_in_containers, on_cluster};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Namespace of the installation by OLM on the page.
const OPERATORS: &str = "operators";
const SOCKET: &str = "unix:///run/containerd/containerd.sock";
const CALL: Duration = Duration::from_mins(1);

/// A folder of `make release`.
struct Release(PathBuf);

impl Release {
    fn of(variable: &str) -> Result<Self> {
        let folder = std::env::var_os(variable);
        let folder = folder.with_context(|| format!("{variable} is not set"))?;
        let folder = Path::new(&folder).canonicalize();
        Ok(Self(folder.with_context(|| variable.to_owned())?))
    }

    fn new() -> Result<Self> {
        Self::of("LOCKSTEP_RELEASE")
    }

    fn previous() -> Result<Self> {
        Self::of("LOCKSTEP_PREVIOUS")
    }

    fn path(&self, file: &str) -> String {
        self.0.join(file).display().to_string()
    }

    /// Images of manager, agent and supervisor, by digest.
    fn images(&self) -> Result<Vec<String>> {
        let text = std::fs::read_to_string(self.0.join("images.txt")).context("images.txt")?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Imports the images under the names that the manifests have.
    async fn import(&self, node: &Node) -> Result<()> {
        for image in self.images()? {
            let (name, _) = image.split_once('@').context("a digest")?;
            let program = name.rsplit('/').next().context("a name")?;
            let archive = self.0.join(format!("images/{program}.tar"));
            node.import(&archive).await?;
            let tagged = format!("{name}:v{VERSION}");
            let tag = ["images", "tag", "--force", &tagged, &image];
            node.ctr(&tag).await?;
        }
        Ok(())
    }

    /// Waits until all pods of the operator are ready and run images of this release.
    async fn operates(&self, real: &RealCluster) -> Result<()> {
        real.cluster.established(&["--all", "crd"]).await?;
        let client = real.cluster.client().await?;
        let pods = Api::<Pod>::all(client.clone());
        let ours = "app.kubernetes.io/name in (lockstep, lockstep-agent)";
        let ours = ListParams::default().labels(ours);
        let expected: BTreeSet<String> = self.images()?.into_iter().take(2).collect();
        eventually("the pods of the release to be ready", LIMIT, async || {
            let pods = pods.list(&ours).await?.items;
            let images = pods.iter().filter_map(|p| p.spec.as_ref());
            let images = images.flat_map(|s| &s.containers);
            let images: BTreeSet<String> = images.filter_map(|c| c.image.clone()).collect();
            ensure!(images == expected, "{images:?}");
            let waiting = pods.iter().find(|p| !is_ready(p));
            ensure!(waiting.is_none(), "{waiting:?}");
            Ok(())
        })
        .await?;
        let agents = Api::<NodeAgent>::all(client);
        for node in &real.nodes {
            supervises(&agents, &node.name).await?;
        }
        Ok(())
    }

    /// Runs `kubectl lockstep doctor` of this release, which fails if a check fails.
    async fn doctor(&self, real: &RealCluster) -> Result<()> {
        let processor = Target::here().architecture();
        let archive = self.path(&format!("kubectl-lockstep_linux_{processor}.tar.gz"));
        let folder = real.cluster.folder().display().to_string();
        let unpack = ["-xzf", &archive, "-C", &folder];
        run(Path::new("tar"), &unpack, &[], CALL).await?;
        let plugin = real.cluster.folder().join("kubectl-lockstep");
        let kubeconfig = real.cluster.kubeconfig().display().to_string();
        let env = [("KUBECONFIG", &*kubeconfig)];
        run(&plugin, &["doctor"], &env, CALL).await.map(drop)
    }
}

/// Installs the previous release and upgrades it while a gang runs. The gang restarts in place under the
/// new release. Then removes everything.
async fn upgraded_and_removed(
    name: &str,
    apply: impl AsyncFn(&RealCluster, &Release) -> Result<()>,
    remove: impl AsyncFnOnce(&RealCluster, &Release) -> Result<()>,
) -> Result<()> {
    let (previous, new) = (Release::previous()?, Release::new()?);
    let start = async |nodes| {
        let real = RealCluster::start("release", nodes, Images::Absent, &Gates::new()).await?;
        for node in &real.nodes {
            previous.import(node).await?;
            new.import(node).await?;
        }
        Ok(real)
    };
    on_cluster(name, start, async |real, t| {
        apply(real, &previous).await?;
        previous.operates(real).await?;
        let (job, before) = started(t, real.members(), json!({}), json!({})).await?;
        apply(real, &new).await?;
        new.operates(real).await?;
        kept(&before, &t.running(GPT).await?, 0)?;
        t.condition_is(GPT, types::RESTARTS_IN_PLACE, true, reasons::SUPERVISED)
            .await?;
        kill_restarts_in_containers(real, t, &job, &before, 1).await?;
        new.doctor(real).await?;
        for line in documented("### Remove\n")?.iter().take(2) {
            play(&real.cluster, &new.0, line).await?;
        }
        remove(real, &new).await?;
        real.removed().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_by_kustomize_is_upgraded_and_removed() -> Result<()> {
    let apply = async |real: &RealCluster, release: &Release| {
        let overlay = release.path("config/overlays/full");
        real.cluster
            .kubectl(&["apply", "-k", &overlay])
            .await
            .map(drop)
    };
    upgraded_and_removed("kustomize", apply, async |real, release| {
        for line in documented("### Remove\n")?.iter().skip(2) {
            play(&real.cluster, &release.0, line).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_by_helm_is_upgraded_and_removed() -> Result<()> {
    let (namespace, _) = MANAGER;
    let apply = async |real: &RealCluster, release: &Release| {
        let chart = release.path(&format!("lockstep-{VERSION}.tgz"));
        let to = ["-n", namespace, "--create-namespace"];
        let upgrade = ["upgrade", "--install", "lockstep", &chart];
        real.cluster
            .helm(&[&upgrade[..], &to].concat())
            .await
            .map(drop)
    };
    upgraded_and_removed("helm", apply, async |real, _| {
        let uninstall = ["uninstall", "lockstep", "-n", namespace, "--wait"];
        real.cluster.helm(&uninstall).await?;
        let all = "app.kubernetes.io/name=lockstep";
        for what in [&["crd", "-l", all], &["namespace", namespace][..]] {
            real.cluster.kubectl(&[&["delete"], what].concat()).await?;
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_by_olm_is_upgraded_and_removed() -> Result<()> {
    let file = |real: &RealCluster| real.cluster.folder().join("olm.json").display().to_string();
    let apply = async |real: &RealCluster, release: &Release| {
        let mut objects = olm::objects(&release.0.join("bundle"), OPERATORS)?;
        // The Subscription's setting.
        let components = objects
            .iter_mut()
            .find(|o| o["kind"] == "Deployment" && o["metadata"]["name"] == "lockstep-components");
        let components = components.context("the components")?;
        let env = &mut components["spec"]["template"]["spec"]["containers"][0]["env"];
        let mut env = env.as_array_mut().into_iter().flatten();
        let endpoint = env.find(|e| e["name"] == "LOCKSTEP_AGENT_RUNTIME_ENDPOINT");
        endpoint.context("the endpoint")?["value"] = json!(SOCKET);
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let file = file(real);
        std::fs::write(&file, list.to_string())?;
        // Exists at the upgrade.
        let _ = real
            .cluster
            .kubectl(&["create", "namespace", OPERATORS])
            .await;
        let apply = ["apply", "--server-side", "--validate=strict", "-f", &file];
        real.cluster.kubectl(&apply).await.map(drop)
    };
    upgraded_and_removed("olm", apply, async |real, release| {
        real.cluster.kubectl(&["delete", "-f", &file(real)]).await?;
        for line in documented("### Remove under OLM")? {
            play(&real.cluster, &release.0, &line).await?;
        }
        let namespace = ["delete", "namespace", OPERATORS];
        real.cluster.kubectl(&namespace).await.map(drop)
    })
    .await
}
