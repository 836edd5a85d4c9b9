//! A cluster with real nodes, where the operator is installed as a user installs it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use k8s_openapi::api::core::v1::{Node as NodeObject, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use lockstep_api::NodeAgent;
use lockstep_api::node_agent::capabilities;
use lockstep_cluster::control_plane::{ADDRESS, Kubelets};
use lockstep_cluster::manifests::POOL;
use lockstep_cluster::nodes::Nodes;
use lockstep_cluster::process::{Launch, Process};
use lockstep_cluster::scenario::{Scenario, node, scenario_on};
use lockstep_cluster::{Cluster, Options, eventually, install, programs};
use lockstep_containers::fleet::TRAINER_CONTAINER;
use lockstep_containers::job::TRAINER;
use lockstep_containers::processes;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::images;
use crate::node::{Node, ip};

/// Set by `inside.sh`.
const INSIDE: &str = "LOCKSTEP_INSIDE";
/// The bridge that connects the nodes, and its address.
pub(crate) const BRIDGE: &str = "br0";
pub(crate) const ROUTER: &str = ADDRESS;
/// Addresses of the Services `kubernetes` and DNS.
const KUBERNETES: &str = "10.96.0.1";
pub(crate) const DNS: &str = "10.96.0.10";
/// Accelerators of each node.
pub const GPUS: u32 = 8;
/// Programs of Lockstep that run on nodes.
const PROGRAMS: [&str; 3] = ["lockstep-manager", "lockstep-agent", "lockstep-run"];
/// Limit of each wait on a busy machine.
pub const LIMIT: Duration = Duration::from_mins(3);

/// Signals of nodes count, among them an annotation, and a fault before the peers of a hung member
/// give up. Nodes that gangs have left are soon used again.
fn acts_on_signals() -> Value {
    let key = "lockstep.test/maintenance";
    let announced = json!({
        "name": "Announced", "level": "Leaving", "match": {"annotation": {"key": key}},
        "deadline": {"annotation": key},
    });
    let fault = json!({"name": "AcceleratedHardwareFault", "holdSeconds": 2});
    json!({
        "nodeHealth": {"mode": "Act", "signals": [announced, fault]},
        "workloads": {"avoidNode": "1s"},
    })
}

/// Feature gates of the API server and the kubelets, by name.
pub type Gates = BTreeMap<&'static str, bool>;

/// Source of the product's images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Images {
    /// Development binaries.
    Development,
    /// `make image`.
    Released,
    /// None. Only the image of recorded scenarios.
    Scenarios,
    /// None. The test imports them.
    Absent,
}

/// A running cluster. Its files are in subfolders of [`Cluster`]'s folder.
#[derive(Debug)]
pub struct RealCluster {
    /// The control plane.
    pub cluster: Cluster,
    /// The nodes, `n1` and up.
    pub nodes: Vec<Node>,
    options: Options,
    _dns: Process,
}

impl RealCluster {
    /// Starts a control plane, DNS and nodes with the images of product and tests, without the
    /// operator.
    pub async fn start(name: &str, count: u8, from: Images, gates: &Gates) -> Result<Self> {
        let gate = |(name, on)| format!("--feature-gates={name}={on}");
        let options = Options {
            kubelets: Kubelets::Real,
            api_server: gates.iter().map(gate).collect(),
            config: match from {
                Images::Development => acts_on_signals(),
                Images::Released | Images::Scenarios | Images::Absent => json!({}),
            },
            ..Options::named(name)
        };
        connect().await?;
        let programs = programs("nodes").await?;
        let cluster = Cluster::empty(&options).await?;
        let dns = start_dns(&cluster, &programs).await?;
        let archives = archives(cluster.folder(), from).await?;
        let start = async |number: u8| {
            let node = Node::start(&cluster, &programs, number, gates).await?;
            for archive in &archives {
                node.import(archive).await?;
            }
            anyhow::Ok(node)
        };
        let nodes = try_join_all((1..=count).map(start)).await?;
        let real = Self {
            cluster,
            nodes,
            options,
            _dns: dns,
        };
        for node in &real.nodes {
            real.ready(&node.name).await?;
        }
        Ok(real)
    }

    /// Applies `config/overlays/full` and waits until managers and agents are ready.
    pub async fn install(&self) -> Result<()> {
        self.cluster.install(&self.options).await?;
        let agents = Api::<NodeAgent>::all(self.cluster.client().await?);
        for node in &self.nodes {
            supervises(&agents, &node.name).await?;
        }
        let (namespace, name) = install::MANAGER;
        let deployment = format!("deployment/{name}");
        let rollout = async |verb: &[&str]| {
            let words = ["rollout", verb[0], &*deployment, "-n", namespace];
            self.cluster.kubectl(&[&words, &verb[1..]].concat()).await
        };
        if self.options.config != json!({}) {
            // It was merged into the ConfigMap after the managers had started.
            rollout(&["restart"]).await?;
        }
        eventually("the managers to be ready", LIMIT, async || {
            rollout(&["status", "--timeout=30s"]).await
        })
        .await?;
        Ok(())
    }

    /// Waits until no object of Lockstep is left, and no process on a node.
    pub async fn removed(&self) -> Result<()> {
        eventually("nothing of Lockstep to be left", LIMIT, async || {
            let objects = self.cluster.objects_of_lockstep().await?;
            ensure!(objects.is_empty(), "{objects:#?}");
            for node in &self.nodes {
                let program = PROGRAMS.into_iter().find(|program| node.has(program));
                ensure!(program.is_none(), "{program:?} runs on {}", node.name);
            }
            Ok(())
        })
        .await
    }

    /// Waits until a node is ready, and adds accelerators to it.
    pub async fn ready(&self, name: &str) -> Result<()> {
        let nodes = Api::<NodeObject>::all(self.cluster.client().await?);
        eventually(&format!("{name} to be ready"), LIMIT, async || {
            let status = nodes.get(name).await?.status.unwrap_or_default();
            let all = status.conditions.unwrap_or_default();
            let found = all.iter().find(|c| c.type_ == "Ready");
            let found = found.context("no condition Ready")?;
            ensure!(found.status == "True", "{:?}", found.message);
            Ok(())
        })
        .await?;
        let gpus = json!({"nvidia.com/gpu": GPUS.to_string()});
        let status = json!({"status": {"capacity": gpus, "allocatable": gpus}});
        let params = PatchParams::default();
        nodes
            .patch_status(name, &params, &Patch::Merge(status))
            .await?;
        Ok(())
    }

    /// Number of members that fill the nodes: two per node.
    pub fn members(&self) -> usize {
        2 * self.nodes.len()
    }

    /// A node.
    pub fn node(&self, name: &str) -> Result<&Node> {
        let mut all = self.nodes.iter();
        all.find(|n| n.name == name)
            .with_context(|| format!("no node {name}"))
    }

    /// The node of a pod.
    pub fn node_of(&self, pod: &Pod) -> Result<&Node> {
        self.node(&node(pod))
    }

    /// PID of a program in the training container of a pod.
    pub fn process(&self, pod: &Pod, program: &str) -> Result<u32> {
        let statuses = pod
            .status
            .as_ref()
            .and_then(|s| s.container_statuses.as_ref());
        let mut statuses = statuses.into_iter().flatten();
        let id = statuses
            .find(|s| s.name == TRAINER_CONTAINER)
            .and_then(|s| s.container_id.as_deref());
        let id = id.with_context(|| format!("no container of {}", pod.name_any()))?;
        let id = id.trim_start_matches("containerd://");
        self.node_of(pod)?.process(id, program)
    }

    /// Sends a signal to the training process of a member.
    pub fn signal(&self, pod: &Pod, signal: Signal) -> Result<()> {
        processes::signal(self.process(pod, TRAINER)?, signal)
    }

    /// Runs a test in a separate namespace, whose pods can use every node. Afterwards waits until
    /// its pods are gone.
    pub async fn scenario(
        &self,
        name: &str,
        body: impl AsyncFnOnce(&Scenario<'_>) -> Result<()>,
    ) -> Result<()> {
        let label = format!("{POOL}={name}");
        let nodes = ["label", "nodes", "--all", "--overwrite", &label];
        self.cluster.kubectl(&nodes).await?;
        let names = self.nodes.iter().map(|n| n.name.clone()).collect();
        scenario_on(&self.cluster, name, Nodes::real(names), body).await?;
        let pods: Api<Pod> = Api::namespaced(self.cluster.client().await?, name);
        eventually("the pods of the scenario to be gone", LIMIT, async || {
            let left = pods
                .list(&kube::api::ListParams::default())
                .await?
                .items
                .len();
            ensure!(left == 0, "{left} pods");
            Ok(())
        })
        .await
    }
}

/// Waits until the agent of a node is linked to supervisors.
pub async fn supervises(agents: &Api<NodeAgent>, node: &str) -> Result<()> {
    eventually(
        &format!("the agent of {node} to be ready"),
        LIMIT,
        async || {
            let status = agents.get(node).await?.status.unwrap_or_default();
            let able = status.has(capabilities::SUPERVISE);
            ensure!(able, "capabilities {:?}", status.capabilities);
            Ok(())
        },
    )
    .await
}

/// Creates the bridge of the nodes and the addresses of the Services.
async fn connect() -> Result<()> {
    ensure!(
        std::env::var_os(INSIDE).is_some(),
        "this program changes the network: start it by tests/nodes/inside.sh"
    );
    let hardware = "02:00:00:00:00:01";
    ip(&[
        "link", "add", "name", BRIDGE, "address", hardware, "type", "bridge",
    ])
    .await?;
    ip(&["address", "add", &format!("{ROUTER}/16"), "dev", BRIDGE]).await?;
    ip(&["link", "set", BRIDGE, "up"]).await?;
    for service in [KUBERNETES, DNS] {
        ip(&["address", "add", &format!("{service}/32"), "dev", "lo"]).await?;
    }
    Ok(())
}

async fn start_dns(cluster: &Cluster, programs: &Path) -> Result<Process> {
    let kubeconfig = cluster.kubeconfig_for("user:dns:system:masters").await?;
    let file = cluster.folder().join("Corefile");
    let text = format!(
        "cluster.local in-addr.arpa {{\n bind {DNS}\n errors\n kubernetes {{\n  kubeconfig {}\n }}\n}}\n",
        kubeconfig.display()
    );
    fs::write(&file, text)?;
    let launch = Launch {
        name: "coredns".into(),
        program: programs.join("coredns"),
        args: vec!["-conf".into(), file.display().to_string()],
        env: None,
    };
    Process::start(&launch, cluster.folder())
}

/// Archives of all images.
async fn archives(folder: &Path, from: Images) -> Result<Vec<PathBuf>> {
    let folder = folder.join("images");
    fs::create_dir_all(&folder)?;
    let mut archives = Vec::new();
    let mut images = images::of_tests().await?;
    match from {
        Images::Released => archives = images::released()?,
        Images::Development => {
            images.extend(images::packed(&folder).await?);
        }
        Images::Scenarios => images.push(images::of_scenarios()?),
        Images::Absent => {}
    }
    for (number, image) in images.iter().enumerate() {
        let archive = folder.join(format!("{number}.tar"));
        fs::write(&archive, image.archive()?)?;
        archives.push(archive);
    }
    Ok(archives)
}
