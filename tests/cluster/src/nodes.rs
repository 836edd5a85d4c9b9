//! Hollow nodes: real node and pod objects, kept by a kubelet model instead of a machine.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::http;
use crate::install;
use crate::manifests::POOL;
use crate::process::{Launch, Process, workspace_binary};
use crate::wait::eventually;

const START: Duration = Duration::from_mins(1);

/// The nodes of one pool.
#[derive(Clone, Debug)]
pub struct Shape {
    /// How many.
    pub nodes: i32,
    /// Accelerators of each.
    pub gpus: i32,
    /// Racks that they are spread over.
    pub racks: i32,
    /// Further arguments of `lockstep-hollow`.
    pub args: Vec<String>,
}

impl Default for Shape {
    fn default() -> Self {
        Self { nodes: 4, gpus: 8, racks: 2, args: Vec::new() }
    }
}

/// A process that plays nodes.
#[derive(Debug)]
pub struct Nodes {
    process: Process,
    control: String,
    names: Vec<String>,
}

impl Nodes {
    /// Starts nodes `<pool>-...` that carry the pool's label, each with an agent as the applied DaemonSet says, and
    /// waits until all are ready.
    pub async fn start(cluster: &Cluster, client: &Client, pool: &str, shape: &Shape) -> Result<Self> {
        let agent = cluster.agent().await?;
        let mut args = vec![
            format!("--kubeconfig={}", cluster.kubeconfig().display()),
            format!("--nodes={}", shape.nodes),
            format!("--name-prefix={pool}"),
            format!("--gpus={}", shape.gpus),
            format!("--racks={}", shape.racks),
            format!("--agent-args={}", agent.args.join(" ")),
            format!("--agent-pods={}", install::AGENT.0),
            "--control=127.0.0.1:0".into(),
        ];
        args.extend(shape.args.iter().cloned());
        let launch =
            Launch { name: format!("nodes-{pool}"), program: workspace_binary("lockstep-hollow")?, args, env: None };
        let mut process = Process::start(&launch, cluster.folder())?;
        let control = process.ready_line("hollow: ready", START).await?;
        let control = control.rsplit(' ').next().context("address of the control interface")?.to_owned();
        let mut nodes = Self { process, control, names: Vec::new() };
        nodes.names = nodes.label(client, pool, shape).await?;
        Ok(nodes)
    }

    async fn label(&self, client: &Client, pool: &str, shape: &Shape) -> Result<Vec<String>> {
        let api = Api::<Node>::all(client.clone());
        let prefix = format!("{pool}-");
        let mut names = eventually("all nodes to be registered", START, async || {
            let all = api.list(&ListParams::default()).await?;
            let ours: Vec<String> =
                all.items.into_iter().filter_map(|n| n.metadata.name).filter(|n| n.starts_with(&prefix)).collect();
            anyhow::ensure!(ours.len() == shape.nodes as usize, "{} of {}", ours.len(), shape.nodes);
            Ok(ours)
        })
        .await?;
        names.sort();
        for name in &names {
            let patch = json!({"metadata": {"labels": {POOL: pool}}});
            api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        Ok(names)
    }

    /// Values of a label by node.
    pub async fn label_values(&self, label: &str, client: &Client) -> Result<BTreeMap<String, String>> {
        let selected = ListParams::default().labels(label);
        let nodes = Api::<Node>::all(client.clone()).list(&selected).await?.items;
        let value = |n: &Node| n.labels().get(label).cloned().unwrap_or_default();
        Ok(nodes.iter().map(|n| (n.name_any(), value(n))).collect())
    }

    /// Names of the nodes, sorted.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The last lines that the process has written.
    pub fn log_tail(&self, lines: usize) -> String {
        self.process.log_tail(lines)
    }

    /// Ends a container of a pod with an exit code.
    pub async fn exit(&self, namespace: &str, pod: &str, container: &str, code: i32) -> Result<()> {
        let pod = format!("{namespace}/{pod}");
        self.post("/exit", json!({"pod": pod, "container": container, "code": code})).await
    }

    /// A node falls silent: its kubelet and its agent are gone, its containers with them.
    pub async fn vanish(&self, node: &str) -> Result<()> {
        self.post("/node/vanish", json!({"node": node})).await
    }

    /// A node that has vanished comes back.
    pub async fn come_back(&self, node: &str) -> Result<()> {
        self.post("/node/return", json!({"node": node})).await
    }

    /// Any request of the control interface.
    pub async fn post(&self, path: &str, body: Value) -> Result<()> {
        http::post(&self.control, path, &body).await.map(drop)
    }
}
