//! Calls of a kubelet to a runtime, for tests without kubelet.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use lockstep_api::names::SUPERVISOR_DIR;
use lockstep_cluster::eventually;
use tonic::transport::{Channel, Endpoint};

use crate::api::runtime_service_client::RuntimeServiceClient;
use crate::api::{
    ContainerConfig, ContainerMetadata, ContainerState, ContainerStatus, ContainerStatusRequest,
    CreateContainerRequest, ImageSpec, Int64Value, LinuxContainerConfig,
    LinuxContainerSecurityContext, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, Mount,
    NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxMetadata, RemovePodSandboxRequest,
    RunPodSandboxRequest, StartContainerRequest, StopPodSandboxRequest, VersionRequest,
};
use crate::containerd::IMAGE;

/// Limit of a call on a busy machine.
const CALL: Duration = Duration::from_mins(1);

/// User of supervised containers.
const USER: i64 = 1000;

/// A connection to a runtime.
#[derive(Clone, Debug)]
pub struct Kubelet {
    client: RuntimeServiceClient<Channel>,
    logs: PathBuf,
}

/// A pod's sandbox.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Id of the sandbox.
    pub sandbox: String,
    config: PodSandboxConfig,
}

impl Kubelet {
    /// Connects at the first call. Container logs are below `logs`.
    pub fn new(socket: &Path, logs: &Path) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?.timeout(CALL);
        Ok(Self {
            client: RuntimeServiceClient::new(endpoint.connect_lazy()),
            logs: logs.to_owned(),
        })
    }

    /// Name and version.
    pub async fn version(&self) -> Result<String> {
        let version = self
            .client
            .clone()
            .version(VersionRequest {})
            .await?
            .into_inner();
        Ok(format!(
            "{} {}",
            version.runtime_name, version.runtime_version
        ))
    }

    /// Creates a pod on the machine's network.
    pub async fn run_pod(
        &self,
        uid: &str,
        labels: &[(&str, &str)],
        annotations: &[(&str, &str)],
    ) -> Result<Pod> {
        let options = NamespaceOption {
            network: NamespaceMode::Node.into(),
            pid: NamespaceMode::Container.into(),
        };
        let config = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: uid.into(),
                uid: uid.into(),
                namespace: "default".into(),
                attempt: 0,
            }),
            log_directory: self.logs.join(uid).display().to_string(),
            labels: text(labels),
            annotations: text(annotations),
            linux: Some(LinuxPodSandboxConfig {
                security_context: Some(LinuxSandboxSecurityContext {
                    namespace_options: Some(options),
                }),
            }),
        };
        let request = RunPodSandboxRequest {
            config: Some(config.clone()),
        };
        let answer = self
            .client
            .clone()
            .run_pod_sandbox(request)
            .await
            .context("RunPodSandbox")?;
        Ok(Pod {
            sandbox: answer.into_inner().pod_sandbox_id,
            config,
        })
    }

    /// Creates and starts a container that runs a script. Returns its ID. Containers of the same
    /// name have different attempts.
    pub async fn run_container(
        &self,
        pod: &Pod,
        name: &str,
        attempt: u32,
        script: &str,
    ) -> Result<String> {
        let config = config(name, attempt, &["/bin/sh", "-c", script]);
        self.start(pod, config).await
    }

    /// Like [`Kubelet::run_container`], under the supervisor in the volume and as another user than
    /// root.
    pub async fn run_supervised(
        &self,
        pod: &Pod,
        name: &str,
        attempt: u32,
        script: &str,
        volume: &Path,
    ) -> Result<String> {
        let run = format!("{SUPERVISOR_DIR}/lockstep-run");
        let command = [run.as_str(), "exec", "--", "/bin/sh", "-c", script];
        let mount = |host: &Path, container: &str, readonly| Mount {
            container_path: container.into(),
            host_path: host.display().to_string(),
            readonly,
            ..Mount::default()
        };
        let mut config = config(name, attempt, &command);
        // The shipped supervisor is static. The supervisor that tests build needs these libraries.
        let libraries = ["/lib", "/lib64"].map(|path| mount(Path::new(path), path, true));
        config.mounts = vec![mount(volume, SUPERVISOR_DIR, false)];
        config.mounts.extend(libraries);
        let linux = config.linux.get_or_insert_default();
        let context = linux.security_context.get_or_insert_default();
        context.run_as_user = Some(Int64Value { value: USER });
        self.start(pod, config).await
    }

    async fn start(&self, pod: &Pod, config: ContainerConfig) -> Result<String> {
        let request = CreateContainerRequest {
            pod_sandbox_id: pod.sandbox.clone(),
            config: Some(config),
            sandbox_config: Some(pod.config.clone()),
        };
        let mut client = self.client.clone();
        let id = client
            .create_container(request)
            .await
            .context("CreateContainer")?
            .into_inner()
            .container_id;
        client
            .start_container(StartContainerRequest {
                container_id: id.clone(),
            })
            .await
            .context("StartContainer")?;
        Ok(id)
    }

    /// Status of a container.
    pub async fn status(&self, id: &str) -> Result<ContainerStatus> {
        let request = ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose: false,
        };
        let answer = self
            .client
            .clone()
            .container_status(request)
            .await
            .context("ContainerStatus")?;
        answer.into_inner().status.context("a status")
    }

    /// True if the container runs.
    pub async fn runs(&self, id: &str) -> Result<bool> {
        Ok(self.status(id).await?.state() == ContainerState::ContainerRunning)
    }

    /// Waits for the end of a container.
    pub async fn ended(&self, id: &str, within: Duration) -> Result<ContainerStatus> {
        eventually(&format!("the end of container {id}"), within, async || {
            let status = self.status(id).await?;
            (status.state() == ContainerState::ContainerExited)
                .then_some(status)
                .context("it runs")
        })
        .await
    }

    /// Ends and removes a pod.
    pub async fn remove(&self, pod: &Pod) -> Result<()> {
        let (mut client, pod_sandbox_id) = (self.client.clone(), pod.sandbox.clone());
        client
            .stop_pod_sandbox(StopPodSandboxRequest {
                pod_sandbox_id: pod_sandbox_id.clone(),
            })
            .await?;
        client
            .remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id })
            .await?;
        Ok(())
    }
}

fn config(name: &str, attempt: u32, command: &[&str]) -> ContainerConfig {
    let options = NamespaceOption {
        network: NamespaceMode::Node.into(),
        pid: NamespaceMode::Container.into(),
    };
    ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: name.into(),
            attempt,
        }),
        image: Some(ImageSpec {
            image: IMAGE.into(),
        }),
        command: command.iter().map(|&word| word.to_owned()).collect(),
        log_path: format!("{name}-{attempt}.log"),
        linux: Some(LinuxContainerConfig {
            resources: None,
            security_context: Some(LinuxContainerSecurityContext {
                namespace_options: Some(options),
                ..LinuxContainerSecurityContext::default()
            }),
        }),
        ..ContainerConfig::default()
    }
}

fn text(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}
