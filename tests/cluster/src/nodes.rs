//! Hollow nodes: real node and pod objects, run by a kubelet model instead of a machine.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use lockstep_api::NodeAgent;
use lockstep_api::node_agent::capabilities;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::http;
use crate::manifests::POOL;
use crate::process::{Launch, Process, workspace_binary};
use crate::wait::eventually;

const START: Duration = Duration::from_mins(1);
/// Additional time per node.
const EACH: Duration = Duration::from_millis(60);

/// The nodes of a pool.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Number of nodes.
    pub nodes: i32,
    /// Accelerators of each node.
    pub gpus: i32,
    /// Number of racks.
    pub racks: i32,
    /// True if the nodes have agents.
    pub agents: bool,
    /// Whether those are linked to supervisors; without, members restart with their containers.
    pub supervise: bool,
    /// Additional arguments of `lockstep-hollow`.
    pub args: Vec<String>,
    /// Kubeconfig of the kubelets and agents, instead of the cluster's.
    pub kubeconfig: Option<PathBuf>,
    /// Names of nodes that another component has created, instead of new nodes.
    pub adopted: Vec<String>,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            nodes: 4,
            gpus: 8,
            racks: 2,
            agents: true,
            supervise: false,
            args: Vec::new(),
            kubeconfig: None,
            adopted: Vec::new(),
        }
    }
}

impl Shape {
    /// Names of the nodes, sorted.
    fn names(&self, pool: &str) -> Vec<String> {
        let mut names = self.adopted.clone();
        if names.is_empty() {
            names.extend((0..self.nodes).map(|i| format!("{pool}-{i:04}")));
        }
        names.sort();
        names
    }
}

/// The nodes of a scenario.
#[derive(Debug)]
pub struct Nodes {
    /// The process that runs them and the address of its control interface. `None` for real nodes.
    hollow: Option<(Process, String)>,
    names: Vec<String>,
}

impl Nodes {
    /// Starts nodes `<pool>-...` with the pool's label, or the adopted ones, each with an agent
    /// according to the applied DaemonSet, and waits until all are registered and their agents are
    /// ready.
    pub async fn start(cluster: &Cluster, pool: &str, shape: &Shape) -> Result<Self> {
        let agent = cluster.agent().await?;
        let namespace = cluster.method.agent().namespace;
        let kubeconfig = shape.kubeconfig.as_deref().unwrap_or(cluster.kubeconfig());
        let mut args = vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            // The kubelets of all nodes are in one process and share one identity of the nodes'
            // group.
            "--token=user:hollow:system:nodes".into(),
            format!("--nodes={}", shape.nodes),
            format!("--name-prefix={pool}"),
            format!("--label={POOL}={pool}"),
            format!("--gpus={}", shape.gpus),
            format!("--racks={}", shape.racks),
            format!(
                "--agent-args={} --supervise={}",
                agent.args.join(" "),
                shape.supervise
            ),
            format!("--agent-account={}:{}", namespace, agent.service_account),
            format!("--agent-pods={namespace}"),
        ];
        if !shape.agents {
            args.push("--no-agent=*".into());
        }
        args.extend(shape.adopted.iter().map(|node| format!("--adopt={node}")));
        args.extend(shape.args.iter().cloned());
        let launch = Launch {
            name: format!(
                "nodes-{}",
                shape.adopted.first().map_or(pool, String::as_str)
            ),
            program: workspace_binary("lockstep-hollow")?,
            args,
            env: None,
        };
        let mut process = Process::start(&launch, cluster.folder())?;
        let control = process.ready_line("hollow: ready", patience(shape)).await?;
        let names = shape.names(pool);
        let nodes = Self {
            hollow: Some((process, control)),
            names,
        };
        if shape.agents {
            nodes.agents_ready(cluster, patience(shape)).await?;
        }
        Ok(nodes)
    }

    /// Real nodes that are already running.
    pub fn real(names: Vec<String>) -> Self {
        Self {
            hollow: None,
            names,
        }
    }

    fn control(&self) -> Result<&str> {
        let (_, control) = self.hollow.as_ref().context("hollow nodes")?;
        Ok(control)
    }

    /// Waits until all agents are ready, as restarts in place require: until each has reported its
    /// abilities. Hollow kubelets do not probe the agents' pods.
    async fn agents_ready(&self, cluster: &Cluster, within: Duration) -> Result<()> {
        let namespace = cluster.method.agent().namespace;
        let client = cluster.client().await?;
        let agents: Api<NodeAgent> = Api::all(client.clone());
        let pods: Api<Pod> = Api::namespaced(client, &namespace);
        eventually("the agents to say what they can do", within, async || {
            let all = agents.list(&ListParams::default()).await?.items;
            let able = all.iter().filter(|a| self.has(a) && is_able(a)).count();
            ensure!(able == self.names.len(), "{able} of {}", self.names.len());
            Ok(())
        })
        .await?;
        eventually("the agents to be ready", within, async || {
            let all = pods.list(&ListParams::default()).await?.items;
            let ready = all
                .iter()
                .filter(|p| self.is_ours(p) && is_ready(p))
                .count();
            ensure!(ready == self.names.len(), "{ready} of {}", self.names.len());
            Ok(())
        })
        .await
    }

    fn has(&self, agent: &NodeAgent) -> bool {
        self.names.binary_search(&agent.name_any()).is_ok()
    }

    fn is_ours(&self, pod: &Pod) -> bool {
        pod.spec
            .as_ref()
            .and_then(|s| s.node_name.as_ref())
            .is_some_and(|n| self.names.binary_search(n).is_ok())
    }

    /// Values of a label by node.
    pub async fn label_values(
        &self,
        label: &str,
        client: &Client,
    ) -> Result<BTreeMap<String, String>> {
        let selected = ListParams::default().labels(label);
        let nodes = Api::<Node>::all(client.clone())
            .list(&selected)
            .await?
            .items;
        let value = |n: &Node| n.labels().get(label).cloned().unwrap_or_default();
        Ok(nodes.iter().map(|n| (n.name_any(), value(n))).collect())
    }

    /// Names of the nodes, sorted.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The last lines of the process's output.
    pub fn log_tail(&self, lines: usize) -> String {
        let process = self.hollow.as_ref().map(|(process, _)| process);
        process.map_or_else(String::new, |p| p.log_tail(lines))
    }

    /// Ends a container of a pod with an exit code.
    pub async fn exit(&self, namespace: &str, pod: &str, container: &str, code: i32) -> Result<()> {
        let pod = format!("{namespace}/{pod}");
        self.post(
            "/exit",
            json!({"pod": pod, "container": container, "code": code}),
        )
        .await
    }

    /// PID of a running container, on nodes whose containers are processes.
    pub async fn pid(&self, namespace: &str, pod: &str, container: &str) -> Result<i32> {
        let state: Value = serde_json::from_str(&http::get(self.control()?, "/state").await?)?;
        let pod = format!("{namespace}/{pod}");
        let pods = state["nodes"]
            .as_object()
            .into_iter()
            .flat_map(|nodes| nodes.values());
        let mut containers = pods.filter_map(|pods| pods[&pod].as_array()).flatten();
        let running = containers.find(|c| c["name"] == container && c["state"] == "running");
        let pid = running
            .and_then(|c| c["pid"].as_i64())
            .and_then(|pid| i32::try_from(pid).ok());
        pid.with_context(|| format!("no process of container {container} of pod {pod}"))
    }

    /// Makes a node silent: its kubelet, its agent and its containers are gone.
    pub async fn vanish(&self, node: &str) -> Result<()> {
        self.post("/node/vanish", json!({"node": node})).await
    }

    /// Returns a node that has vanished.
    pub async fn come_back(&self, node: &str) -> Result<()> {
        self.post("/node/return", json!({"node": node})).await
    }

    /// Number of training processes under supervisors, by attempt.
    pub async fn training(&self) -> Result<BTreeMap<i64, usize>> {
        Ok(serde_json::from_str(
            &http::get(self.control()?, "/training").await?,
        )?)
    }

    /// Milliseconds from the failure that caused an attempt until each agent had the order for it,
    /// sorted.
    pub async fn deliveries(&self, workload_uid: &str, attempt: i64) -> Result<Vec<i64>> {
        let all: BTreeMap<String, BTreeMap<i64, Vec<i64>>> =
            serde_json::from_str(&http::get(self.control()?, "/deliveries").await?)?;
        let mut delays = all
            .get(workload_uid)
            .and_then(|attempts| attempts.get(&attempt).cloned())
            .unwrap_or_default();
        delays.sort_unstable();
        Ok(delays)
    }

    /// Any request to the control interface.
    pub async fn post(&self, path: &str, body: Value) -> Result<()> {
        http::post(self.control()?, path, &body).await.map(drop)
    }
}

fn patience(shape: &Shape) -> Duration {
    START + EACH * shape.nodes.unsigned_abs()
}

fn is_able(agent: &NodeAgent) -> bool {
    let status = agent.status.as_ref();
    status.is_some_and(|status| status.has(capabilities::STOP))
}

pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|c| c.type_ == "Ready" && c.status == "True")
}
