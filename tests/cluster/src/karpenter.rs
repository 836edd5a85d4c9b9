//! A real Karpenter, whose nodes are hollow.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::cluster::{Cluster, built};
use crate::manifests::{POOL, merge};
use crate::nodes::{Nodes, Shape};
use crate::process::{Launch, Process};
use crate::scenario::node;
use crate::wait::eventually;

const START: Duration = Duration::from_mins(2);
/// Time between two looks for new nodes.
const LOOK: Duration = Duration::from_millis(300);
/// Label of the nodes that Karpenter manages.
const MANAGED: &str = "karpenter.sh/nodepool";
/// Name of the only type of machine.
const TYPE: &str = "accelerators-8";

/// A running Karpenter with its kwok provider, which creates Node objects and nothing behind them.
pub struct Karpenter<'a> {
    cluster: &'a Cluster,
    /// The process that runs a node, by node.
    machines: Mutex<BTreeMap<String, Arc<Nodes>>>,
    process: Process,
}

/// The types of machines: one, as [`Shape::default`] has it.
fn instance_types() -> Value {
    let offered = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    json!([{
        "name": TYPE,
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "110", "nvidia.com/gpu": "8"},
        "offerings": [{"Price": 1.0, "Available": true, "Requirements": [
            offered("karpenter.sh/capacity-type", "on-demand"),
            offered("topology.kubernetes.io/zone", "zone-0"),
        ]}],
    }])
}

impl<'a> Karpenter<'a> {
    /// Installs the definitions and starts the program as an administrator.
    pub async fn start(cluster: &'a Cluster) -> Result<Self> {
        let built = built("karpenter", &[], &[]).await?;
        let crds = built.join("crds").display().to_string();
        cluster.kubectl(&["apply", "-f", &crds]).await?;
        cluster.established(&["--all", "crd"]).await?;
        let types = cluster.folder().join("instance-types.json");
        std::fs::write(&types, instance_types().to_string())?;
        let kubeconfig = cluster
            .kubeconfig_for("user:karpenter:system:masters")
            .await?;
        let settings = [
            ("KUBECONFIG", kubeconfig.display().to_string()),
            ("INSTANCE_TYPES_FILE_PATH", types.display().to_string()),
            (
                "FEATURE_GATES",
                "NodeRepair=true,StaticCapacity=true".into(),
            ),
            ("DISABLE_LEADER_ELECTION", "true".into()),
            // Any free port.
            ("METRICS_PORT", "0".into()),
            ("HEALTH_PROBE_PORT", "0".into()),
        ];
        let launch = Launch {
            name: "karpenter".into(),
            program: built.join("karpenter"),
            args: Vec::new(),
            env: Some(settings.map(|(k, v)| (k.to_owned(), v)).into()),
        };
        let karpenter = Self {
            cluster,
            machines: Mutex::default(),
            process: Process::start(&launch, cluster.folder())?,
        };
        karpenter
            .apply(&json!({
                "apiVersion": "karpenter.kwok.sh/v1alpha1",
                "kind": "KWOKNodeClass",
                "metadata": {"name": "default"},
            }))
            .await?;
        Ok(karpenter)
    }

    async fn apply(&self, object: &Value) -> Result<()> {
        let name = object["metadata"]["name"].as_str().context("a name")?;
        let path = self.cluster.folder().join(format!("{name}.json"));
        std::fs::write(&path, object.to_string())?;
        let path = path.display().to_string();
        self.cluster
            .kubectl(&["apply", "-f", &path])
            .await
            .map(drop)
    }

    /// Sets the time that a machine needs to start, before its node is registered.
    pub async fn set_delay(&self, delay: &str) -> Result<()> {
        let patch = json!({"spec": {"nodeRegistrationDelay": delay}}).to_string();
        let patch = [
            "patch",
            "kwoknodeclass",
            "default",
            "--type=merge",
            "-p",
            &patch,
        ];
        self.cluster.kubectl(&patch).await.map(drop)
    }

    /// Number of NodeClaims: machines that exist or are ordered.
    pub async fn claims(&self) -> Result<usize> {
        let claims = ["get", "nodeclaims", "-o", "name"];
        Ok(self.cluster.kubectl(&claims).await?.lines().count())
    }

    /// Creates a node pool for the workloads of a scenario. `spec` (a JSON merge patch) changes its
    /// spec: with `replicas`, Karpenter keeps this number of nodes, else it creates nodes for pods.
    pub async fn create_pool(&self, name: &str, spec: Value) -> Result<()> {
        let mut object = json!({
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodePool",
            "metadata": {"name": name},
            "spec": {"template": {
                "metadata": {"labels": {POOL: name}},
                "spec": {
                    "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"},
                    // Without it, the provider creates no node of a static pool.
                    "requirements": [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [TYPE]}],
                    "expireAfter": "Never",
                },
            }},
        });
        merge(&mut object["spec"], spec);
        self.apply(&object).await
    }

    /// Runs a machine of this shape on each node that Karpenter creates, until the node is deleted.
    /// Dropping the future ends all.
    pub async fn run_machines(&self, shape: &Shape) -> Result<Infallible> {
        let nodes: Api<Node> = Api::all(self.cluster.client().await?);
        let managed = ListParams::default().labels(MANAGED);
        loop {
            let listed = nodes.list(&managed).await?.items;
            let there: BTreeSet<String> = listed.iter().map(ResourceExt::name_any).collect();
            let mut machines = self.machines.lock().await;
            let gone: Vec<_> = machines
                .extract_if(.., |node, _| !there.contains(node))
                .collect();
            for (node, machine) in gone {
                machine.vanish(&node).await?;
            }
            let shape = Shape {
                adopted: there
                    .into_iter()
                    .filter(|n| !machines.contains_key(n))
                    .collect(),
                ..shape.clone()
            };
            if !shape.adopted.is_empty() {
                let started = Nodes::start(self.cluster, "karpenter", &shape).await;
                let started = Arc::new(started.context("nodes of Karpenter")?);
                machines.extend(shape.adopted.into_iter().map(|n| (n, started.clone())));
            }
            drop(machines);
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until this number of nodes runs, each with its agent.
    pub async fn has_machines(&self, number: usize) -> Result<()> {
        let found = eventually("the nodes of Karpenter", START, async || {
            let running = self.machines.lock().await.len();
            ensure!(running == number, "{running} of {number}");
            Ok(())
        });
        found.await.with_context(|| self.process.log_tail(5))
    }

    /// Makes a node silent: its kubelet, its agent and its containers are gone.
    pub async fn vanish(&self, node: &str) -> Result<()> {
        let machines = self.machines.lock().await;
        machines
            .get(node)
            .context("no such node")?
            .vanish(node)
            .await
    }

    /// Ends the training process of a pod with exit code 0, as soon as it runs.
    pub async fn end(&self, pod: &Pod) -> Result<()> {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let node = node(pod);
        eventually(&format!("{name} to end"), START, async || {
            let machine = self.machines.lock().await.get(&node).cloned();
            let machine = machine.context("no such node")?;
            machine.exit(&namespace, &name, "trainer", 0).await
        })
        .await
    }

    /// Deletes the NodeClaim of a node, as a user does to have the node removed.
    pub async fn delete_claim(&self, node: &str) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.cluster.client().await?);
        let owners = nodes.get(node).await?.metadata.owner_references;
        let mut owners = owners.into_iter().flatten();
        let claim = owners
            .find(|o| o.kind == "NodeClaim")
            .context("no NodeClaim owns the node")?;
        let delete = ["delete", "nodeclaim", &claim.name, "--wait=false"];
        self.cluster.kubectl(&delete).await.map(drop)
    }
}
