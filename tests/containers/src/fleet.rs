//! Several nodes on one machine, run by the kubelet model: each has a containerd, a
//! `lockstep-agent` and a folder as its root.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use lockstep_api::NodeAgent;
use lockstep_api::node_agent::capabilities;
use lockstep_cluster::nodes::Shape;
use lockstep_cluster::process::{Launch, Process, workspace_binary};
use lockstep_cluster::scenario::{Scenario, node};
use lockstep_cluster::{Cluster, eventually, http, install, manifests};
use rustix::process::Signal;
use serde_json::json;
use xtask::image::Entry;

use crate::containerd::{self, Containerd, IMAGE};
use crate::daemon_set::{self, Ports};
use crate::images::Built;
use crate::job::{TRAINER, TRAINER_IMAGE};
use crate::processes;

/// Limit of each wait on a busy machine.
pub const LIMIT: Duration = Duration::from_mins(2);
/// Socket of the runtime, below the root of its node.
const SOCKET: &str = "run/containerd/containerd.sock";
const SUPERVISOR: &str = "lockstep-run";
/// User of the product's images that need no root.
pub const NONROOT: &str = "65532:65532";

/// The nodes of a scenario. On drop, everything on them ends.
#[derive(Debug)]
pub struct Fleet {
    folder: PathBuf,
    nodes: Vec<RealNode>,
}

/// One node.
#[derive(Debug)]
pub struct RealNode {
    /// Name of the node.
    pub name: String,
    /// Runtime of the node.
    pub containerd: Containerd,
    agent: Option<Agent>,
}

#[derive(Debug)]
struct Agent {
    health: String,
    metrics: String,
    /// The agent if it runs outside its pod.
    beside: Option<Beside>,
}

/// An agent as a process of the machine.
#[derive(Debug)]
struct Beside {
    launch: Launch,
    folder: PathBuf,
    process: Process,
}

impl Fleet {
    /// Starts the runtimes of the nodes `<pool>-0000` and up, with the images of the supervisor and
    /// the trainer.
    pub async fn start(cluster: &Cluster, pool: &str, nodes: i32) -> Result<Self> {
        let supervisor = containerd::image(
            &supervisor_image(cluster).await?,
            &["/usr/bin/lockstep-run"],
            NONROOT,
            vec![program(SUPERVISOR)?],
        )?;
        Self::with(cluster, pool, nodes, async |containerd| {
            containerd.import(&supervisor).await
        })
        .await
    }

    /// Like [`Fleet::start`], with the supervisor that `make image` built.
    pub async fn start_from(
        cluster: &Cluster,
        pool: &str,
        nodes: i32,
        supervisor: &Built,
    ) -> Result<Self> {
        let named = supervisor_image(cluster).await?;
        ensure!(
            named == supervisor.name,
            "{named} is not {}",
            supervisor.name
        );
        Self::with(cluster, pool, nodes, async |containerd| {
            containerd.import_archive(&supervisor.archive).await
        })
        .await
    }

    async fn with(
        cluster: &Cluster,
        pool: &str,
        nodes: i32,
        import_supervisor: impl AsyncFn(&Containerd) -> Result<()>,
    ) -> Result<Self> {
        let folder = cluster.folder().join(pool);
        let mut entries = containerd::tools().await?;
        entries.push(program(TRAINER)?);
        let trainer = ["/usr/bin/lockstep-trainer"];
        let trainer = containerd::image(TRAINER_IMAGE, &trainer, NONROOT, entries)?;
        let start = async |name: String| {
            let root = folder.join(&name);
            let containerd =
                Containerd::start(&root.join("containerd"), &root.join(SOCKET)).await?;
            import_supervisor(&containerd).await?;
            containerd.import(&trainer).await?;
            anyhow::Ok(RealNode {
                name,
                containerd,
                agent: None,
            })
        };
        let names = (0..nodes).map(|i| format!("{pool}-{i:04}"));
        let nodes = try_join_all(names.map(start)).await?;
        Ok(Self { folder, nodes })
    }

    /// The nodes for the kubelet model, with these additional arguments.
    pub fn shape(&self, args: &[&str]) -> Shape {
        let own = [
            "--runtime=cri".to_owned(),
            format!("--work-dir={}", self.folder.display()),
        ];
        Shape {
            nodes: i32::try_from(self.nodes.len()).unwrap_or(i32::MAX),
            agents: false,
            args: own
                .into_iter()
                .chain(args.iter().map(|&a| a.to_owned()))
                .collect(),
            ..Shape::default()
        }
    }

    /// Starts the agents as processes of the machine, with placeholder pods, and waits until they
    /// are linked to supervisors.
    pub async fn start_agents(&mut self, t: &Scenario<'_>) -> Result<()> {
        for machine in &mut self.nodes {
            let root = self.folder.join(&machine.name);
            let agent = start_agent(t, &machine.name, &root).await?;
            machine.agent = Some(agent);
        }
        self.agents_ready(t).await
    }

    /// Starts the agents from their image, with the pod template of their DaemonSet, and waits
    /// until they are linked to supervisors. Returns their pods.
    pub async fn start_agents_from(&mut self, t: &Scenario<'_>, image: &Built) -> Result<Vec<Pod>> {
        let mut pods = Vec::new();
        for machine in &mut self.nodes {
            machine.containerd.import_archive(&image.archive).await?;
            let root = self.folder.join(&machine.name);
            let ports = Ports::free()?;
            pods.push(daemon_set::start(t, &machine.name, &root, image, &ports).await?);
            machine.agent = Some(Agent {
                health: ports.health,
                metrics: ports.metrics,
                beside: None,
            });
        }
        self.agents_ready(t).await?;
        Ok(pods)
    }

    async fn agents_ready(&self, t: &Scenario<'_>) -> Result<()> {
        let api: Api<NodeAgent> = Api::all(t.client.clone());
        for machine in &self.nodes {
            eventually("the agent to reach supervisors", LIMIT, async || {
                let agent = machine.agent.as_ref().context("an agent")?;
                http::get(&agent.health, "/readyz").await?;
                let status = api.get(&machine.name).await?.status.unwrap_or_default();
                let beside = agent.beside.as_ref();
                ensure!(
                    status.has(capabilities::SUPERVISE),
                    "{:?}",
                    beside.map(|b| b.process.log_tail(5))
                );
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Loses a node with these pods as in a power failure: nothing runs on it any more, and no
    /// connection is closed.
    pub async fn lose(&mut self, t: &Scenario<'_>, name: &str, pods: &[Pod]) -> Result<()> {
        for pod in pods.iter().filter(|p| node(p) == name) {
            let first = first_process(t, pod).await?;
            processes::signal(first, Signal::STOP)?;
            for process in processes::descendants(first) {
                processes::signal(process, Signal::STOP)?;
            }
        }
        t.nodes.vanish(name).await?;
        let machine = self.node(name)?;
        machine.agent = None;
        machine.containerd.kill()
    }

    /// A node.
    pub fn node(&mut self, name: &str) -> Result<&mut RealNode> {
        let mut all = self.nodes.iter_mut();
        all.find(|n| n.name == name).context("a node")
    }

    /// All nodes.
    pub fn nodes(&mut self) -> &mut [RealNode] {
        &mut self.nodes
    }
}

impl RealNode {
    /// Kills the agent with SIGKILL and starts a new agent at once, as its DaemonSet does.
    pub fn replace_agent(&mut self) -> Result<()> {
        let agent = self.agent.as_mut().context("an agent")?;
        let beside = agent.beside.as_mut().context("it is in its pod")?;
        beside.process.kill()?;
        beside.process = Process::start(&beside.launch, &beside.folder)?;
        Ok(())
    }

    /// Address of its agent's metrics.
    pub fn agent_metrics_address(&self) -> Result<&str> {
        Ok(&self.agent.as_ref().context("an agent")?.metrics)
    }

    /// Metrics of its agent.
    pub async fn agent_metrics(&self) -> Result<String> {
        http::get(self.agent_metrics_address()?, "/metrics").await
    }
}

/// Sends a signal to the training process of a member, with or without supervisor.
pub async fn signal(t: &Scenario<'_>, pod: &Pod, signal: Signal) -> Result<()> {
    let first = first_process(t, pod).await?;
    let process = processes::named(first, TRAINER).context("no training process")?;
    processes::signal(process, signal)
}

/// Kills the first process of a member's training container with SIGKILL, which ends the container.
pub async fn kill_container(t: &Scenario<'_>, pod: &Pod) -> Result<()> {
    processes::signal(first_process(t, pod).await?, Signal::KILL)
}

/// The first process of a member's training container.
pub async fn first_process(t: &Scenario<'_>, pod: &Pod) -> Result<u32> {
    let (nodes, name) = (&t.nodes, pod.name_any());
    let first = nodes.pid(&t.name, &name, TRAINER_CONTAINER).await?;
    Ok(u32::try_from(first)?)
}

/// Name of the training container.
pub const TRAINER_CONTAINER: &str = "trainer";

async fn start_agent(t: &Scenario<'_>, node: &str, root: &Path) -> Result<Agent> {
    let pod = stand_in(t, node).await?;
    let uid = pod.uid().context("uid")?;
    let mut resolved = t.cluster.agent_on(node, &uid, root).await?;
    let token = format!(
        "sa:{}:{}:{node}",
        install::AGENT.0,
        resolved.service_account
    );
    let kubeconfig = t.cluster.kubeconfig_for(&token).await?;
    let env = &mut resolved.env;
    env.insert("KUBECONFIG".into(), kubeconfig.display().to_string());
    let ports = Ports::free()?;
    let kubelet = root.join("var/lib/kubelet");
    let own = [format!("--kubelet-dir={}", kubelet.display())];
    // Root without capabilities, as in the DaemonSet.
    let without = ["--bounding-set=-all", "--inh-caps=-all"].map(str::to_owned);
    let program = workspace_binary("lockstep-agent")?.display().to_string();
    let args = without.into_iter().chain([program]);
    let launch = Launch {
        name: format!("agent-{node}"),
        program: "setpriv".into(),
        args: args
            .chain(resolved.args)
            .chain(ports.args())
            .chain(own)
            .collect(),
        env: Some(resolved.env),
    };
    let folder = t.cluster.folder().to_owned();
    let process = Process::start(&launch, &folder)?;
    Ok(Agent {
        health: ports.health,
        metrics: ports.metrics,
        beside: Some(Beside {
            launch,
            folder,
            process,
        }),
    })
}

/// The pod of a node's agent. The agent itself runs as a process of the machine.
async fn stand_in(t: &Scenario<'_>, node: &str) -> Result<Pod> {
    let (namespace, name) = install::AGENT;
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": format!("{name}-{node}"), "labels": {"app.kubernetes.io/name": name}},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "agent", "image": IMAGE, "command": ["/bin/sleep", "2147483647"]}],
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
        },
    }))?;
    daemon_set::run(t, namespace, &pod).await
}

/// Node of a pod, with its agent and runtime.
pub fn machine_of<'f>(fleet: &'f mut Fleet, pod: &Pod) -> Result<&'f mut RealNode> {
    fleet.node(&node(pod))
}

/// The image of the supervisor that the installed manager adds to pods.
async fn supervisor_image(cluster: &Cluster) -> Result<String> {
    // The name of the ConfigMap has a hash as its suffix.
    let (namespace, _) = install::MANAGER;
    let label = "app.kubernetes.io/component=manager";
    let path = "jsonpath={.items[0].data.config\\.yaml}";
    let config = cluster
        .kubectl(&["get", "configmap", "-l", label, "-n", namespace, "-o", path])
        .await?;
    let config = manifests::parse(&config).context("the manager's configuration")?;
    let image = config["supervisor"]["image"].as_str();
    Ok(image.context("supervisor.image")?.to_owned())
}

/// A static program of the workspace, for an image.
fn program(name: &str) -> Result<Entry> {
    let path = static_program(name)?;
    let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
    Ok(Entry::program(&format!("usr/bin/{name}"), bytes))
}

/// Path of a program of the workspace from `make static`.
pub fn static_program(name: &str) -> Result<PathBuf> {
    let exe = std::env::current_exe().context("path of this program")?;
    let below = format!(
        "{}-unknown-linux-gnu/release/{name}",
        std::env::consts::ARCH
    );
    let found = exe.ancestors().map(|folder| folder.join(&below));
    found
        .into_iter()
        .find(|path| path.is_file())
        .with_context(|| format!("{name} is not built: run `make static`"))
}
