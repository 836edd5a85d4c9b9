//! What the agent needs of a container runtime.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use futures_util::future::BoxFuture;
use lockstep_lifecycle::node::{NodePod, SeenContainer};
use thiserror::Error;
use tokio::time::timeout;

/// Longest time that a call may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// A container runtime as one node's agent sees it.
pub trait Runtime: Send {
    /// Name and version, such as `containerd 2.4.2`.
    fn version(&mut self) -> impl Future<Output = Result<String, RuntimeError>> + Send;

    /// Every pod of a training workload on the node. A container that ended since the last call is
    /// listed even if it has been removed in between (a runtime's event stream tells of it): its
    /// exit code is true only there.
    fn list(&mut self) -> impl Future<Output = Result<Vec<Sandbox>, RuntimeError>> + Send;

    /// Kills a container without grace and returns when it has ended. One that has ended or is gone
    /// is no error. Runs beside every other call.
    fn stop(&self, container_id: &str) -> BoxFuture<'static, Result<(), RuntimeError>>;

    /// Returns when something may have changed since the last call of [`Runtime::list`]. May be
    /// dropped at any time without a loss.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
}

/// The sandbox of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// UID of the pod.
    pub pod_uid: String,
    /// Labels of the pod.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pod.
    pub annotations: BTreeMap<String, String>,
    /// Its containers that were started, by name.
    pub containers: BTreeMap<String, Vec<SeenContainer>>,
}

impl Sandbox {
    /// A member's pod with its training containers; None for other pods.
    pub fn into_member(mut self) -> Option<NodePod> {
        let mut pod = NodePod::read(&self.pod_uid, &self.labels, &self.annotations)?;
        pod.containers = self.containers.remove(&pod.training).unwrap_or_default();
        pod.others = self.containers;
        Some(pod)
    }
}

/// Why the runtime did not answer.
#[derive(Clone, Debug, Error)]
pub enum RuntimeError {
    /// The call failed.
    #[error("container runtime refused {call}: {message}")]
    Refused {
        /// The call.
        call: &'static str,
        /// What the runtime said.
        message: String,
    },
    /// The call took too long.
    #[error("container runtime did not answer {call} in time")]
    Deadline {
        /// The call.
        call: &'static str,
    },
}

/// The answer to a call, or an error when it takes too long.
pub(crate) async fn in_time<T>(
    call: &'static str,
    answer: impl Future<Output = Result<T, RuntimeError>>,
) -> Result<T, RuntimeError> {
    timeout(DEADLINE, answer)
        .await
        .map_err(|_| RuntimeError::Deadline { call })?
}
