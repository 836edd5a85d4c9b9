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
//! | [`admission`] | what a node refuses to run |
//! | `view` | what the runtime shows |
//! | `pod` | what the API server says |
//! | `exit` | what follows the exit of a container: policy and rules |
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

/// Condition of pods that have a `RestartAllContainers` rule: True from the trigger until no
/// container is left.
pub const ALL_CONTAINERS_RESTARTING: &str = "AllContainersRestarting";
/// Condition of pods that have a sandbox.
const READY_TO_START: &str = "PodReadyToStartContainers";
/// Reason of the states of containers that a restart of all containers removed, and the exit code
/// beside it.
pub const RESTARTING_ALL_CONTAINERS: &str = "RestartingAllContainers";
/// Name of the declared node feature that `RestartAllContainers` rules require.
pub const FEATURE_RESTART_ALL: &str = "RestartAllContainersOnContainerExits";
