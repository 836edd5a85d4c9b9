//! Pods of the node agents from their `DaemonSet`, on a node whose root is a folder.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{EnvVar, HostPathVolumeSource, Pod, Volume, VolumeMount};
use kube::api::PostParams;
use kube::core::ObjectMeta;
use kube::{Api, ResourceExt};
use lockstep_cluster::process::{free_port, run as run_program};
use lockstep_cluster::scenario::Scenario;
use lockstep_cluster::{eventually, install};

use crate::fleet::LIMIT;
use crate::images::Built;

/// Folder with the service account's token of a container.
const IDENTITY: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const MOUNT: Duration = Duration::from_secs(10);

/// Ports of an agent, because all agents share the network of the machine.
pub(crate) struct Ports {
    pub(crate) health: String,
    pub(crate) metrics: String,
}

impl Ports {
    pub(crate) fn free() -> Result<Self> {
        Ok(Self {
            health: format!("127.0.0.1:{}", free_port()?),
            metrics: format!("127.0.0.1:{}", free_port()?),
        })
    }

    pub(crate) fn args(&self) -> [String; 2] {
        [
            format!("--health-address={}", self.health),
            format!("--metrics-address={}", self.metrics),
        ]
    }
}

/// Starts the agent of a node from its image, as in the applied `DaemonSet`. Arguments and a
/// kubeconfig replace what the agent gets from the kubelet and the network of a node.
pub(crate) async fn start(
    t: &Scenario<'_>,
    node: &str,
    root: &Path,
    image: &Built,
    ports: &Ports,
) -> Result<Pod> {
    let (namespace, name) = install::AGENT;
    let api: Api<DaemonSet> = Api::namespaced(t.client.clone(), namespace);
    let template = api.get(name).await?.spec.template;
    let mut pod = Pod {
        metadata: ObjectMeta {
            name: Some(format!("{name}-{node}")),
            ..template.metadata.unwrap_or_default()
        },
        spec: template.spec,
        status: None,
    };
    let spec = pod.spec.as_mut().context("a spec")?;
    spec.node_name = Some(node.to_owned());
    for host in spec.volumes.iter_mut().flatten() {
        let host = host.host_path.as_mut().context("a folder of the node")?;
        let here = root.join(host.path.trim_start_matches('/'));
        std::fs::create_dir_all(&here)?;
        host.path = here.display().to_string();
    }
    share(&root.join("var/lib/kubelet")).await?;

    let account = spec.service_account_name.as_deref().unwrap_or("default");
    let token = format!("sa:{namespace}:{account}:{node}");
    let kubeconfig = t.cluster.kubeconfig_for(&token).await?;
    let identity = root.join("identity");
    std::fs::create_dir_all(&identity)?;
    std::fs::copy(kubeconfig, identity.join("kubeconfig"))?;
    let container = spec.containers.first_mut().context("a container")?;
    let named = container.image.as_deref();
    ensure!(
        named == Some(&image.name),
        "{named:?} is not {}",
        image.name
    );
    container.args.get_or_insert_default().extend(ports.args());
    container.env.get_or_insert_default().push(EnvVar {
        name: "KUBECONFIG".into(),
        value: Some(format!("{IDENTITY}/kubeconfig")),
        value_from: None,
    });
    let mounts = container.volume_mounts.get_or_insert_default();
    mounts.push(VolumeMount {
        name: "identity".into(),
        mount_path: IDENTITY.into(),
        read_only: Some(true),
        ..VolumeMount::default()
    });
    spec.volumes.get_or_insert_default().push(Volume {
        name: "identity".into(),
        host_path: Some(HostPathVolumeSource {
            path: identity.display().to_string(),
            type_: None,
        }),
        ..Volume::default()
    });
    run(t, namespace, &pod).await
}

/// Makes the folder a shared mount, as on nodes. The runtime requires that for `HostToContainer`.
async fn share(folder: &Path) -> Result<()> {
    let folder = folder.display().to_string();
    for args in [
        &["--bind", &folder, &folder][..],
        &["--make-shared", &folder],
    ] {
        run_program(Path::new("mount"), args, &[], MOUNT).await?;
    }
    Ok(())
}

/// Creates a pod for this node and waits until it runs.
pub(crate) async fn run(t: &Scenario<'_>, namespace: &str, pod: &Pod) -> Result<Pod> {
    let api: Api<Pod> = Api::namespaced(t.client.clone(), namespace);
    let pod = api.create(&PostParams::default(), pod).await?;
    eventually("the pod of an agent to run", LIMIT, async || {
        let pod = api.get(&pod.name_any()).await?;
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        ensure!(phase == Some("Running"), "{phase:?}");
        Ok(pod)
    })
    .await
}
