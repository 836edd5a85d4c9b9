//! The kubelet as a function: pod, what the runtime shows, time -> pod status, actions, when to
//! look again.
//!
//! It follows the structure of the kubelet: each [`PodWorker::sync`] first says what the runtime
//! shows (as `generateAPIPodStatus` does), then compares that with what the spec wants (as
//! `computePodActions` does). All that it remembers between two calls is what the kubelet keeps in
//! memory; after a restart it is rebuilt from the API status.
//!
//! Sources: KEP-5307 (restart rules), KEP-5532 (`RestartAllContainers`), KEP-753 (sidecars), and
//! the kubelet's behaviour where that differs.
//!
//! | module | content |
//! |---|---|
//! | [`admission`] | admission of pods |
//! | `view` | state in the runtime |
//! | `pod` | state in the API server |
//! | `exit` | effect of a container's exit: policy and rules |
//! | `backoff` | crash back-off |
//! | `plan` | actions |
//! | `status` | statuses, conditions, phase |

pub mod admission;
mod backoff;
mod exit;
mod plan;
mod pod;
mod status;
#[cfg(test)]
mod tests;
mod view;
mod worker;

pub use pod::{Kind, PodDesc};
pub use view::{ContainerView, PodView, SandboxView, State};
pub use worker::{Action, KubeletConfig, Outcome, PodWorker};

/// Condition of pods with a `RestartAllContainers` rule: True from the trigger until all containers
/// are removed.
pub const ALL_CONTAINERS_RESTARTING: &str = "AllContainersRestarting";
/// Condition of pods with a sandbox.
const READY_TO_START: &str = "PodReadyToStartContainers";
/// Reason and exit code in states of containers that a restart of all containers removed.
pub const RESTARTING_ALL_CONTAINERS: &str = "RestartingAllContainers";
/// Name of the declared node feature that `RestartAllContainers` rules require.
pub const FEATURE_RESTART_ALL: &str = "RestartAllContainersOnContainerExits";
