//! A kubelet's calls to a container runtime.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tracing::warn;

use super::api::runtime_service_client::RuntimeServiceClient;
use super::api::{
    Container, ContainerConfig, ContainerStatus, ContainerStatusRequest, CreateContainerRequest,
    ListContainersRequest, PodSandboxConfig, RemoveContainerRequest, RemovePodSandboxRequest,
    RunPodSandboxRequest, StartContainerRequest, StopContainerRequest, StopPodSandboxRequest,
};

/// Limit of a call on a busy machine, in addition to a grace period in it.
const CALL: Duration = Duration::from_mins(2);
/// Pause between calls to an absent runtime.
const AWAY: Duration = Duration::from_millis(200);
/// Key of containerd's part of a verbose status, which contains the PID.
const INFO: &str = "info";
const PID: &str = "pid";

/// A connection to a runtime, created on demand and again after a restart of the runtime.
#[derive(Clone, Debug)]
pub(super) struct Calls(RuntimeServiceClient<Channel>);

impl Calls {
    pub(super) fn new(socket: &Path) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
        Ok(Self(RuntimeServiceClient::new(endpoint.connect_lazy())))
    }

    fn client(&self) -> RuntimeServiceClient<Channel> {
        self.0.clone()
    }

    pub(super) async fn run_pod(&self, config: PodSandboxConfig) -> Result<String, Status> {
        let request = RunPodSandboxRequest {
            config: Some(config),
        };
        let answer = within(CALL, self.client().run_pod_sandbox(request)).await?;
        Ok(answer.into_inner().pod_sandbox_id)
    }

    pub(super) async fn stop_pod(&self, sandbox: &str) -> Result<(), Status> {
        let request = StopPodSandboxRequest {
            pod_sandbox_id: sandbox.into(),
        };
        within(CALL, self.client().stop_pod_sandbox(request)).await?;
        Ok(())
    }

    pub(super) async fn remove_pod(&self, sandbox: &str) -> Result<(), Status> {
        let request = RemovePodSandboxRequest {
            pod_sandbox_id: sandbox.into(),
        };
        within(CALL, self.client().remove_pod_sandbox(request)).await?;
        Ok(())
    }

    pub(super) async fn create(
        &self,
        sandbox: &str,
        config: ContainerConfig,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String, Status> {
        let request = CreateContainerRequest {
            pod_sandbox_id: sandbox.into(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let answer = within(CALL, self.client().create_container(request)).await?;
        Ok(answer.into_inner().container_id)
    }

    pub(super) async fn start(&self, id: &str) -> Result<(), Status> {
        let request = StartContainerRequest {
            container_id: id.into(),
        };
        within(CALL, self.client().start_container(request)).await?;
        Ok(())
    }

    /// Sends SIGTERM, and SIGKILL after the grace period, in whole seconds as in CRI. Returns after
    /// the end of the container.
    pub(super) async fn stop(&self, id: &str, grace: Duration) -> Result<(), Status> {
        let seconds = grace.as_millis().div_ceil(1000);
        let request = StopContainerRequest {
            container_id: id.into(),
            timeout: i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        within(grace + CALL, self.client().stop_container(request)).await?;
        Ok(())
    }

    pub(super) async fn remove(&self, id: &str) -> Result<(), Status> {
        let request = RemoveContainerRequest {
            container_id: id.into(),
        };
        within(CALL, self.client().remove_container(request)).await?;
        Ok(())
    }

    pub(super) async fn list(&self) -> Result<Vec<Container>, Status> {
        let request = ListContainersRequest {};
        let answer = within(CALL, self.client().list_containers(request)).await?;
        Ok(answer.into_inner().containers)
    }

    /// `None` if the runtime has no such container.
    pub(super) async fn status(&self, id: &str) -> Result<Option<ContainerStatus>, Status> {
        let request = ContainerStatusRequest {
            container_id: id.into(),
            verbose: false,
        };
        match within(CALL, self.client().container_status(request)).await {
            Ok(answer) => Ok(answer.into_inner().status),
            Err(status) if status.code() == Code::NotFound => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// PID of a container's first process on the machine.
    pub(super) async fn pid(&self, id: &str) -> Option<u32> {
        let request = ContainerStatusRequest {
            container_id: id.into(),
            verbose: true,
        };
        let answer = within(CALL, self.client().container_status(request)).await;
        let info = answer.ok()?.into_inner().info.remove(INFO)?;
        let info: serde_json::Value = serde_json::from_str(&info).ok()?;
        u32::try_from(info[PID].as_u64()?).ok()
    }
}

async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    tokio::time::timeout(limit, call)
        .await
        .unwrap_or_else(|_| Err(Status::deadline_exceeded("the runtime does not answer")))
}

/// Repeats a call until the runtime answers.
pub(super) async fn patiently<T, F: Future<Output = Result<T, Status>>>(
    call: impl Fn() -> F,
) -> Result<T, Status> {
    let mut said = false;
    loop {
        match call().await {
            Err(status) if is_away(&status) => {
                if !std::mem::replace(&mut said, true) {
                    warn!(error = %status, "the runtime is away");
                }
                sleep(AWAY).await;
            }
            answer => return answer,
        }
    }
}

/// True without an answer: the connection broke, or the runtime is starting.
pub(super) fn is_away(status: &Status) -> bool {
    status.code() == Code::Unavailable
        || status.source().is_some()
        || status.message().contains("not initialized")
}
