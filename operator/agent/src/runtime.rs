//! The agent's interface to a container runtime.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockstep_node::{NodePod, ObservedContainer};
use thiserror::Error;
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(10);

pub trait Runtime: Send {
    /// Name and version, such as `containerd 2.4.2`.
    fn version(&mut self) -> impl Future<Output = Result<String, RuntimeError>> + Send;

    /// Every pod of a training workload on the node. Includes containers that ended and were
    /// removed since the last call: only this list has their exit codes.
    fn list(&mut self) -> impl Future<Output = Result<Vec<Sandbox>, RuntimeError>> + Send;

    /// Kills a container and returns when it has ended. An ended or removed container is no error.
    /// Runs concurrently with all other calls.
    fn stop(&self, container_id: &str) -> BoxFuture<'static, Result<(), RuntimeError>>;

    /// Returns after a possible change since the last [`Runtime::list`]. Cancel safe.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    pub pod_uid: String,
    pub namespace: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Started containers of the pod, by name.
    pub containers: BTreeMap<String, Vec<ObservedContainer>>,
}

impl Sandbox {
    pub fn into_member(mut self) -> Option<NodePod> {
        let mut pod = NodePod::read(
            &self.pod_uid,
            &self.namespace,
            &self.labels,
            &self.annotations,
        )?;
        pod.containers = self.containers.remove(&pod.training).unwrap_or_default();
        pod.others = self.containers;
        Some(pod)
    }
}

#[derive(Clone, Debug, Error)]
pub enum RuntimeError {
    #[error("container runtime refused {call}: {message}")]
    Refused { call: &'static str, message: String },
    /// The call exceeded its deadline.
    #[error("container runtime did not answer {call} in time")]
    Deadline { call: &'static str },
}

pub(crate) async fn in_time<T>(
    call: &'static str,
    running: impl Future<Output = Result<T, RuntimeError>>,
) -> Result<T, RuntimeError> {
    timeout(DEADLINE, running)
        .await
        .map_err(|_| RuntimeError::Deadline { call })?
}
