//! Conversion of a pod to the configuration of a container runtime.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Capabilities, Container, SeccompProfile, Volume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lockstep_model::pods::resources::{CPU, MEMORY, Resources};
use thiserror::Error;

use super::api::security_profile::ProfileType;
use super::api::{
    Capability, ContainerConfig, ContainerMetadata, ImageSpec, Int64Value, KeyValue,
    LinuxContainerConfig, LinuxContainerResources, LinuxContainerSecurityContext,
    LinuxPodSandboxConfig, LinuxSandboxSecurityContext, Mount, MountPropagation, NamespaceMode,
    NamespaceOption, PodSandboxConfig, PodSandboxMetadata, SecurityProfile,
};
use crate::model::PodDesc;
use crate::runtime::program::{Surroundings, Unstartable, environment, words};

/// Period of CPU limits, and shares of one CPU, as in the kubelet.
const CPU_PERIOD: i64 = 100_000;
const CPU_SHARES: i64 = 1024;
/// The kernel's minimum of the quota, in microseconds, and of the shares.
const LEAST_QUOTA: i64 = 1000;
const LEAST_SHARES: i64 = 2;
const MILLI: i64 = 1000;

/// Why the conversion failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum Undescribed {
    /// The command line or environment cannot be resolved.
    #[error("{0}")]
    Program(#[from] Unstartable),
    /// An amount does not parse.
    #[error("resources: {0}")]
    Resources(String),
    /// A volume is neither emptyDir nor hostPath.
    #[error("volume {0} is neither emptyDir nor hostPath")]
    Volume(String),
}

/// Folders of a pod's volumes on its node. `None` for unsupported kinds.
pub(super) fn volumes(pod: &PodDesc, pods: &Path) -> BTreeMap<String, Option<PathBuf>> {
    let own = pods.join(&pod.uid).join("volumes/kubernetes.io~empty-dir");
    let folder = |v: &Volume| match (&v.empty_dir, &v.host_path) {
        (Some(_), _) => Some(own.join(&v.name)),
        (None, Some(host)) => Some(PathBuf::from(&host.path)),
        (None, None) => None,
    };
    let all = pod.spec.volumes.iter().flatten();
    all.map(|v| (v.name.clone(), folder(v))).collect()
}

/// The sandbox of a pod, on the machine's network.
pub(super) fn sandbox(pod: &PodDesc, logs: &Path, attempt: u32) -> PodSandboxConfig {
    let mut labels: HashMap<String, String> = pod.labels.clone().into_iter().collect();
    labels.extend(own_labels(pod));
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            namespace: pod.namespace.clone(),
            attempt,
        }),
        log_directory: logs.join(&pod.uid).display().to_string(),
        labels,
        annotations: pod.annotations.clone().into_iter().collect(),
        linux: Some(LinuxPodSandboxConfig {
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces()),
            }),
        }),
    }
}

/// A container of a pod. `around` contains no folders, because paths stay as they are in a
/// container.
pub(super) fn container(
    pod: &PodDesc,
    container: &Container,
    attempt: u32,
    around: &Surroundings<'_>,
    volumes: &BTreeMap<String, Option<PathBuf>>,
) -> Result<ContainerConfig, Undescribed> {
    let env = environment(pod, container, around)?;
    let of = |raw: Option<&[String]>| words(pod, container, around, &env, raw);
    let (command, args) = (
        of(container.command.as_deref())?,
        of(container.args.as_deref())?,
    );
    let mut labels: HashMap<String, String> = own_labels(pod).into_iter().collect();
    labels.insert(
        "io.kubernetes.container.name".into(),
        container.name.clone(),
    );
    Ok(ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: container.name.clone(),
            attempt,
        }),
        image: Some(ImageSpec {
            image: container.image.clone().unwrap_or_default(),
        }),
        command,
        args,
        envs: env
            .into_iter()
            .map(|(key, value)| KeyValue { key, value })
            .collect(),
        mounts: mounts(container, volumes)?,
        labels,
        log_path: format!("{}-{attempt}.log", container.name),
        linux: Some(LinuxContainerConfig {
            resources: Some(resources(container)?),
            security_context: Some(security(pod, container)),
        }),
    })
}

fn own_labels(pod: &PodDesc) -> [(String, String); 3] {
    [
        ("io.kubernetes.pod.name", &pod.name),
        ("io.kubernetes.pod.namespace", &pod.namespace),
        ("io.kubernetes.pod.uid", &pod.uid),
    ]
    .map(|(key, value)| (key.to_owned(), value.clone()))
}

fn mounts(
    container: &Container,
    volumes: &BTreeMap<String, Option<PathBuf>>,
) -> Result<Vec<Mount>, Undescribed> {
    let mut out = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let folder = volumes.get(&mount.name).and_then(Option::as_ref);
        let folder = folder.ok_or_else(|| Undescribed::Volume(mount.name.clone()))?;
        let folder = match &mount.sub_path {
            Some(below) => folder.join(below),
            None => folder.clone(),
        };
        out.push(Mount {
            container_path: mount.mount_path.clone(),
            host_path: folder.display().to_string(),
            readonly: mount.read_only == Some(true),
            propagation: propagation(mount.mount_propagation.as_deref()).into(),
        });
    }
    Ok(out)
}

fn propagation(mode: Option<&str>) -> MountPropagation {
    match mode {
        Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => MountPropagation::PropagationBidirectional,
        _ => MountPropagation::PropagationPrivate,
    }
}

fn resources(container: &Container) -> Result<LinuxContainerResources, Undescribed> {
    let parsed = |amounts: Option<&BTreeMap<String, Quantity>>| {
        let amounts = amounts.cloned().unwrap_or_default();
        Resources::parse(&amounts).map_err(|e| Undescribed::Resources(e.to_string()))
    };
    let asked = container.resources.as_ref();
    let limits = parsed(asked.and_then(|r| r.limits.as_ref()))?;
    let requests = parsed(asked.and_then(|r| r.requests.as_ref()))?;
    let quota = match limits.get(CPU) {
        0 => 0,
        milli => (milli * CPU_PERIOD / MILLI).max(LEAST_QUOTA),
    };
    Ok(LinuxContainerResources {
        cpu_period: CPU_PERIOD,
        cpu_quota: quota,
        cpu_shares: (requests.get(CPU) * CPU_SHARES / MILLI).max(LEAST_SHARES),
        memory_limit_in_bytes: limits.get(MEMORY),
    })
}

/// Settings of the container, else of the pod, else of the image.
fn security(pod: &PodDesc, container: &Container) -> LinuxContainerSecurityContext {
    let (own, pods) = (
        container.security_context.as_ref(),
        pod.spec.security_context.as_ref(),
    );
    let user = own
        .and_then(|c| c.run_as_user)
        .or_else(|| pods.and_then(|c| c.run_as_user));
    let group = own
        .and_then(|c| c.run_as_group)
        .or_else(|| pods.and_then(|c| c.run_as_group));
    let seccomp = own
        .and_then(|c| c.seccomp_profile.as_ref())
        .or_else(|| pods.and_then(|c| c.seccomp_profile.as_ref()));
    LinuxContainerSecurityContext {
        capabilities: own.and_then(|c| c.capabilities.as_ref()).map(capabilities),
        seccomp: seccomp.map(profile),
        namespace_options: Some(namespaces()),
        run_as_user: user.map(|value| Int64Value { value }),
        readonly_rootfs: own.and_then(|c| c.read_only_root_filesystem) == Some(true),
        no_new_privs: own.and_then(|c| c.allow_privilege_escalation) == Some(false),
        run_as_group: group.map(|value| Int64Value { value }),
    }
}

fn capabilities(changed: &Capabilities) -> Capability {
    Capability {
        add_capabilities: changed.add.clone().unwrap_or_default(),
        drop_capabilities: changed.drop.clone().unwrap_or_default(),
    }
}

fn profile(profile: &SeccompProfile) -> SecurityProfile {
    let profile_type = match profile.type_.as_str() {
        "RuntimeDefault" => ProfileType::RuntimeDefault,
        "Localhost" => ProfileType::Localhost,
        _ => ProfileType::Unconfined,
    };
    SecurityProfile {
        profile_type: profile_type.into(),
        localhost_ref: profile.localhost_profile.clone().unwrap_or_default(),
    }
}

fn namespaces() -> NamespaceOption {
    NamespaceOption {
        network: NamespaceMode::Node.into(),
        pid: NamespaceMode::Container.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::addresses::Names;
    use serde_json::json;

    #[test]
    fn a_container_is_described_with_its_limits_rights_and_the_folders_of_its_volumes() {
        let spec = json!({
            "securityContext": {"runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "own", "emptyDir": {}}, {"name": "data", "hostPath": {"path": "/data"}}],
            "containers": [{
                "name": "c", "image": "i:1", "args": ["--to=$(TO)", "/own/x"],
                "env": [{"name": "TO", "value": "/data"}],
                "resources": {"limits": {"cpu": "10m", "memory": "16Mi"}, "requests": {"cpu": "500m"}},
                "securityContext": {"capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [
                    {"name": "own", "mountPath": "/own"},
                    {"name": "data", "mountPath": "/data", "mountPropagation": "HostToContainer"},
                ],
            }],
        });
        let pod = PodDesc {
            uid: "u".into(),
            spec: serde_json::from_value(spec).unwrap(),
            ..PodDesc::default()
        };
        let names = Names::new();
        let around = Surroundings {
            ip: "127.1.0.2",
            node: "n1",
            names: &names,
            volumes: None,
        };
        let volumes = volumes(&pod, Path::new("/k/pods"));
        let made = container(&pod, &pod.spec.containers[0], 3, &around, &volumes).unwrap();
        assert_eq!(made.args, ["--to=/data", "/own/x"]);
        let folders: Vec<_> = made.mounts.iter().map(|m| m.host_path.as_str()).collect();
        assert_eq!(
            folders,
            ["/k/pods/u/volumes/kubernetes.io~empty-dir/own", "/data"]
        );
        let linux = made.linux.unwrap();
        let resources = linux.resources.unwrap();
        assert_eq!(
            (
                resources.cpu_quota,
                resources.cpu_shares,
                resources.memory_limit_in_bytes
            ),
            (1000, 512, 16 << 20)
        );
        let propagation: Vec<_> = made.mounts.iter().map(Mount::propagation).collect();
        assert_eq!(
            propagation,
            [
                MountPropagation::PropagationPrivate,
                MountPropagation::PropagationHostToContainer
            ]
        );
        let security = linux.security_context.unwrap();
        assert_eq!(security.run_as_user, Some(Int64Value { value: 1000 }));
        assert_eq!(security.capabilities.unwrap().drop_capabilities, ["ALL"]);
        let seccomp = security.seccomp.unwrap();
        assert_eq!(seccomp.profile_type(), ProfileType::RuntimeDefault);
    }
}
