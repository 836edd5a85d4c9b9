//! A real Kueue with its webhooks, as a process of this machine.

mod usage;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::{Value, json};

use crate::cluster::{Cluster, built};
use crate::http;
use crate::manifests::merge;
use crate::process::{Launch, Process, free_port};
use crate::wait::eventually;

pub use self::usage::{Usage, is_true, kind};

const START: Duration = Duration::from_mins(2);
/// Namespace of Kueue's own objects.
const NAMESPACE: &str = "kueue-system";
/// Secret with the certificates of its webhooks.
const CERTIFICATES: &str = "kueue-webhook-server-cert";
/// The kinds of its manifests that a program outside of the cluster needs.
const INSTALLED: [&str; 4] = [
    "Namespace",
    "Secret",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
];

/// A running Kueue that knows that another controller manages training workloads.
pub struct Kueue<'a> {
    cluster: &'a Cluster,
    launch: Launch,
    health: String,
    process: Process,
}

/// Replaces the port of each service that `value` names as the client of a webhook.
fn set_ports(value: &mut Value, port: u16) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::Object(service)) = fields.get_mut("service") {
                service.insert("port".into(), port.into());
            }
            fields.values_mut().for_each(|v| set_ports(v, port));
        }
        Value::Array(items) => items.iter_mut().for_each(|v| set_ports(v, port)),
        _ => {}
    }
}

/// The service of the webhooks, which the API server reaches on this machine.
fn service() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kueue-webhook-service", "namespace": NAMESPACE},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    })
}

impl<'a> Kueue<'a> {
    /// Installs its manifests and starts the program as an administrator. `settings` (a JSON merge
    /// patch) changes its configuration.
    pub async fn start(cluster: &'a Cluster, settings: Value) -> Result<Self> {
        let built = built("kueue", &[], &[]).await?;
        let (health, port) = (format!("127.0.0.1:{}", free_port()?), free_port()?);
        install(cluster, &built.join("config/default"), port).await?;
        let certificates = cluster.folder().join("kueue-certificates");
        std::fs::create_dir_all(&certificates)?;
        let mut config = json!({
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": health},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": port, "certDir": certificates},
            "leaderElection": {"leaderElect": false},
            "clientConnection": {"qps": 50, "burst": 100},
            "integrations": {
                "frameworks": ["batch/job", "pod"],
                "externalFrameworks": ["TrainingWorkload.v1alpha1.training.lockstep.dev"],
            },
            // Its server has a fixed folder.
            "featureGates": {"VisibilityOnDemand": false},
        });
        merge(&mut config, settings);
        let path = cluster.folder().join("kueue.json");
        std::fs::write(&path, config.to_string())?;
        let kubeconfig = cluster.kubeconfig_for("user:kueue:system:masters").await?;
        let launch = Launch {
            name: "kueue".into(),
            program: built.join("kueue"),
            args: vec![
                format!("--config={}", path.display()),
                "--zap-log-level=2".into(),
            ],
            env: Some([("KUBECONFIG".to_owned(), kubeconfig.display().to_string())].into()),
        };
        let mut kueue = Self {
            cluster,
            process: Process::start(&launch, cluster.folder())?,
            launch,
            health,
        };
        kueue.mount(&certificates).await?;
        kueue.ready().await?;
        Ok(kueue)
    }

    /// Copies the certificates that Kueue has made into its folder, as a kubelet does.
    async fn mount(&self, folder: &Path) -> Result<()> {
        let secrets: Api<Secret> = Api::namespaced(self.cluster.client().await?, NAMESPACE);
        eventually("the certificates of Kueue", START, async || {
            let data = secrets.get(CERTIFICATES).await?.data.unwrap_or_default();
            // The certificate last, for which Kueue waits.
            for name in ["tls.key", "tls.crt"] {
                let content = data.get(name).context("no certificates yet")?;
                std::fs::write(folder.join(name), &content.0)?;
            }
            Ok(())
        })
        .await
        .with_context(|| self.process.log_tail(20))
    }

    async fn ready(&mut self) -> Result<()> {
        let Self {
            process, health, ..
        } = self;
        eventually("Kueue to be ready", START, async || {
            if let Some(status) = process.ended()? {
                return Ok(Err(anyhow::anyhow!("Kueue ended with {status}")));
            }
            http::get(health, "/readyz").await.map(Ok)
        })
        .await
        .flatten()
        .with_context(|| self.process.log_tail(20))?;
        Ok(())
    }

    /// Kills the program.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Starts the program again and waits until its webhooks answer.
    pub async fn restart(&mut self) -> Result<()> {
        self.process = Process::start(&self.launch, self.cluster.folder())?;
        self.ready().await
    }

    /// Creates or changes an object.
    pub async fn apply(&self, object: &Value) -> Result<()> {
        apply(self.cluster, std::slice::from_ref(object)).await
    }

    /// Creates the LocalQueue `queue` of a namespace, with a ClusterQueue and a ResourceFlavor of
    /// the namespace's name. `flavor` is the flavor's spec.
    pub async fn create_queue(&self, namespace: &str, gpus: i32, flavor: Value) -> Result<()> {
        let quota = json!({"name": "nvidia.com/gpu", "nominalQuota": gpus});
        let group = json!({
            "coveredResources": ["nvidia.com/gpu"],
            "flavors": [{"name": namespace, "resources": [quota]}],
        });
        let object = |kind: &str, metadata: Value, spec: Value| json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, "spec": spec});
        let own = json!({"name": namespace});
        let queue = json!({
            "namespaceSelector": {},
            "queueingStrategy": "BestEffortFIFO",
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [group],
        });
        let objects = [
            object("ResourceFlavor", own.clone(), flavor),
            object("ClusterQueue", own, queue),
            object(
                "LocalQueue",
                json!({"name": "queue", "namespace": namespace}),
                json!({"clusterQueue": namespace}),
            ),
        ];
        apply(self.cluster, &objects).await
    }

    /// Applies Kueue's definitions again, after a test has deleted some.
    pub async fn define(&self) -> Result<()> {
        let path = definitions(self.cluster);
        let path = path.display().to_string();
        let applied = ["apply", "--server-side", "--force-conflicts", "-f", &path];
        self.cluster.kubectl(&applied).await?;
        self.cluster.established(&["--all", "crd"]).await
    }

    /// The last lines of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        self.process.log_tail(lines)
    }
}

fn definitions(cluster: &Cluster) -> PathBuf {
    cluster.folder().join("kueue-crds.json")
}

fn list(objects: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}

async fn apply(cluster: &Cluster, objects: &[Value]) -> Result<()> {
    let path = cluster.folder().join("kueue-objects.json");
    std::fs::write(&path, list(objects))?;
    let path = path.display().to_string();
    // Larger than what fits into the annotation of a client-side apply.
    let apply = ["apply", "--server-side", "-f", &path];
    cluster.kubectl(&apply).await.map(drop)
}

/// Applies Kueue's manifests, with webhooks on a port of this machine.
async fn install(cluster: &Cluster, manifests: &Path, port: u16) -> Result<()> {
    let manifests = manifests.display().to_string();
    let all = cluster.kubectl(&["kustomize", &manifests]).await?;
    let (mut crds, mut others) = (Vec::new(), vec![]);
    for text in all.split("\n---\n") {
        let mut object: Value = serde_saphyr::from_str(text).context("a manifest of Kueue")?;
        set_ports(&mut object, port);
        match object["kind"].as_str() {
            Some("CustomResourceDefinition") => crds.push(object),
            Some(kind) if INSTALLED.contains(&kind) => others.push(object),
            _ => {}
        }
    }
    ensure!(!crds.is_empty() && others.len() == INSTALLED.len());
    others.push(service());
    std::fs::write(definitions(cluster), list(&crds))?;
    let path = definitions(cluster).display().to_string();
    let apply_crds = ["apply", "--server-side", "-f", &path];
    cluster.kubectl(&apply_crds).await?;
    apply(cluster, &others).await?;
    cluster.established(&["--all", "crd"]).await
}
