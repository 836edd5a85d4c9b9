//! Calls to the runtime. Each has a deadline and is counted.

use std::error::Error;
use std::fmt::Write;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;
use tokio::time::{Instant, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status, Streaming};

use super::api::runtime_service_client::RuntimeServiceClient;
use super::api::{
    Container, ContainerEventResponse, ContainerStatus, ContainerStatusRequest, GetEventsRequest,
    ListContainersRequest, ListPodSandboxRequest, PodSandbox, StatusRequest, StopContainerRequest,
    VersionRequest, VersionResponse,
};
use crate::grpc_code;
use crate::metrics::Metrics;
use crate::runtime::RuntimeError;

/// Largest response in bytes, the same limit as in the kubelet. The listing of a full node exceeds
/// gRPC's default of 4 MiB.
const MAX_RESPONSE: usize = 16 << 20;
/// Requested version of the kubelet's runtime API.
const KUBELET_API: &str = "0.1.0";
/// While this condition is not true, the runtime accepts no calls.
const RUNTIME_READY: &str = "RuntimeReady";

/// The socket of a runtime, parsed from `unix:///run/containerd/containerd.sock` or a path.
#[derive(Clone, Debug)]
pub struct Socket {
    text: String,
    endpoint: Endpoint,
}

#[derive(Clone, Debug, Error)]
#[error("{0:?} is no unix socket: give unix:///PATH or an absolute path")]
pub struct EndpointError(String);

impl FromStr for Socket {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let refused = || EndpointError(text.to_owned());
        let path = text.strip_prefix("unix://").unwrap_or(text);
        if !path.starts_with('/') {
            return Err(refused());
        }
        let endpoint = Endpoint::from_shared(format!("unix://{path}")).map_err(|_| refused())?;
        Ok(Self {
            text: text.to_owned(),
            endpoint,
        })
    }
}

impl std::fmt::Display for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub code: Code,
    pub message: String,
}

impl Failure {
    fn of(status: &Status) -> Self {
        let mut message = status.message().to_owned();
        let mut cause = status.source();
        while let Some(error) = cause {
            // Writing to a string cannot fail.
            let _ = write!(message, ": {error}");
            cause = error.source();
        }
        Self {
            code: status.code(),
            message,
        }
    }

    fn at(self, call: &'static str) -> RuntimeError {
        match self.code {
            Code::DeadlineExceeded => RuntimeError::Deadline { call },
            code => RuntimeError::Refused {
                call,
                message: format!("{}: {}", grpc_code::name(code), self.message),
            },
        }
    }
}

/// gRPC client of the runtime. Clones share one connection.
#[derive(Clone)]
pub(super) struct Calls {
    client: RuntimeServiceClient<Channel>,
    deadline: Duration,
    metrics: Metrics,
}

impl Calls {
    pub(super) fn new(socket: &Socket, deadline: Duration, metrics: &Metrics) -> Self {
        let channel = socket.endpoint.connect_lazy();
        let client = RuntimeServiceClient::new(channel).max_decoding_message_size(MAX_RESPONSE);
        Self {
            client,
            deadline,
            metrics: metrics.clone(),
        }
    }

    async fn call<T>(
        &self,
        call: &'static str,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Failure> {
        let began = Instant::now();
        let result = match timeout(self.deadline, answer).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(Failure::of(&status)),
            Err(_) => Err(Failure {
                code: Code::DeadlineExceeded,
                message: String::new(),
            }),
        };
        let code = result.as_ref().err().map_or(Code::Ok, |f| f.code);
        self.metrics.called(call, code, began.elapsed());
        result
    }

    pub(super) async fn version(&self) -> Result<String, RuntimeError> {
        let version = self.runtime_version().await.map_err(|f| f.at("Version"))?;
        Ok(named(&version))
    }

    async fn runtime_version(&self) -> Result<VersionResponse, Failure> {
        let request = VersionRequest {
            version: KUBELET_API.into(),
        };
        let mut client = self.client.clone();
        self.call("Version", client.version(request)).await
    }

    /// Returns an error while condition `RuntimeReady` is false.
    pub(super) async fn ready(&self) -> Result<(), RuntimeError> {
        let mut client = self.client.clone();
        let answer = client.status(StatusRequest {});
        let status = self
            .call("Status", answer)
            .await
            .map_err(|f| f.at("Status"))?
            .status
            .unwrap_or_default();
        match status
            .conditions
            .into_iter()
            .find(|c| c.r#type == RUNTIME_READY && !c.status)
        {
            None => Ok(()),
            Some(condition) => {
                let message = format!(
                    "{RUNTIME_READY} is false: {} {}",
                    condition.reason, condition.message
                );
                Err(RuntimeError::Refused {
                    call: "Status",
                    message,
                })
            }
        }
    }

    pub(super) async fn list_pod_sandboxes(&self) -> Result<Vec<PodSandbox>, RuntimeError> {
        let mut client = self.client.clone();
        let answer = client.list_pod_sandbox(ListPodSandboxRequest {});
        Ok(self
            .call("ListPodSandbox", answer)
            .await
            .map_err(|f| f.at("ListPodSandbox"))?
            .items)
    }

    pub(super) async fn list_containers(&self) -> Result<Vec<Container>, RuntimeError> {
        let mut client = self.client.clone();
        let answer = client.list_containers(ListContainersRequest {});
        Ok(self
            .call("ListContainers", answer)
            .await
            .map_err(|f| f.at("ListContainers"))?
            .containers)
    }

    pub(super) async fn container_status(
        &self,
        id: &str,
    ) -> Result<Option<ContainerStatus>, RuntimeError> {
        let request = ContainerStatusRequest {
            container_id: id.to_owned(),
        };
        let mut client = self.client.clone();
        match self
            .call("ContainerStatus", client.container_status(request))
            .await
        {
            Ok(answer) => Ok(answer.status),
            Err(failure) if failure.code == Code::NotFound => Ok(None),
            Err(failure) => Err(failure.at("ContainerStatus")),
        }
    }

    /// Sends SIGKILL and returns when the container has ended. A removed container is no error.
    pub(super) async fn stop_container(&self, id: String) -> Result<(), RuntimeError> {
        let request = StopContainerRequest {
            container_id: id,
            timeout: 0,
        };
        let mut client = self.client.clone();
        match self
            .call("StopContainer", client.stop_container(request))
            .await
        {
            Err(failure) if failure.code != Code::NotFound => Err(failure.at("StopContainer")),
            _ => Ok(()),
        }
    }

    /// Not requested if the runtime has one stream for all clients. No deadline: a Go server sends
    /// the response headers with its first event, which can take hours on a quiet node.
    pub(super) async fn events(mut self) -> Result<Streaming<ContainerEventResponse>, Failure> {
        let version = self.runtime_version().await?;
        if has_one_stream(&version) {
            return Err(Failure {
                code: Code::Unimplemented,
                message: format!("the kubelet needs the only stream of {}", named(&version)),
            });
        }
        match self.client.get_container_events(GetEventsRequest {}).await {
            Ok(stream) => Ok(stream.into_inner()),
            Err(status) => Err(Failure::of(&status)),
        }
    }
}

fn named(version: &VersionResponse) -> String {
    format!("{} {}", version.runtime_name, version.runtime_version)
}

/// containerd before 2.0 has one channel of events for all clients, and each event reaches one
/// client (containerd issue 7318). The agent would take events from a kubelet with `EventedPLEG`.
fn has_one_stream(version: &VersionResponse) -> bool {
    let number = version.runtime_version.trim_start_matches('v');
    let major = number.split('.').next().and_then(|n| n.parse().ok());
    version.runtime_name == "containerd" && major.is_none_or(|major: u32| major < 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_containerd_before_version_2_has_one_stream_of_events() {
        for (name, number, one) in [
            ("containerd", "v1.7.27", true),
            ("containerd", "1.6.20~ds1", true),
            ("containerd", "unknown", true),
            ("containerd", "v2.0.0-rc.1", false),
            ("containerd", "2.1.4", false),
            ("cri-o", "1.33.0", false),
        ] {
            let version = VersionResponse {
                runtime_name: name.into(),
                runtime_version: number.into(),
            };
            assert_eq!(has_one_stream(&version), one, "{name} {number}");
        }
    }

    #[test]
    fn a_socket_is_a_path_or_a_unix_address_and_nothing_else() {
        for text in [
            "unix:///run/containerd/containerd.sock",
            "/run/crio/crio.sock",
        ] {
            assert_eq!(text.parse::<Socket>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "containerd.sock",
            "unix://containerd.sock",
            "http://localhost:1",
            "tcp://[::1]:2",
        ] {
            assert!(text.parse::<Socket>().is_err(), "{text}");
        }
    }
}
