//! Container runtimes under the kubelet model: simulated, real child processes, and a real runtime
//! over CRI.
//!
//! A runtime executes the kubelet's actions. Their results appear in the [`Table`] of its node,
//! which the kubelet reads at its relist and the node's agent at once, as over CRI.

mod addresses;
pub mod cri;
mod later;
mod pretend;
mod program;
mod reaper;
mod script;
mod simulated;
pub mod subprocess;
mod supervised;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use lockstep_node::{SupervisorCommand, SupervisorState};
use thiserror::Error;

use crate::model::{Action, PodDesc, PodView};

pub use addresses::Addresses;
pub use cri::Cri;
pub use pretend::{Effect, Pretend};
pub use reaper::Reaper;
pub use script::{FAILED_MOUNT, OnTerm, Script};
pub use simulated::Simulated;
pub use subprocess::Subprocess;
pub use supervised::{Patience, ReportedProgress};
pub use table::{Changed, Ended, Seen, Snapshot, Table};

/// The kubelet's side of the runtime of one node.
pub trait Runtime: Send + Sync + 'static {
    /// Starts an action. Returns at once. The result appears in the view later. Repeating an action
    /// in progress has no effect.
    fn act(&self, pod: &Arc<PodDesc>, action: &Action);

    /// Current state of a pod.
    fn view(&self, uid: &str) -> PodView;

    /// Drops the records of a pod without running parts.
    fn forget(&self, uid: &str);

    /// Kills a container at once, as `StopContainer` with timeout 0 does.
    fn kill(&self, container_id: &str);

    /// The table that the node's agent reads.
    fn table(&self) -> &Arc<Table>;

    /// Injects a fault.
    fn inject(&self, fault: &Fault) -> Result<(), Unsupported>;

    /// State that the supervisor of a pod's training container has reported. `None` without
    /// supervisor.
    fn supervisor(&self, _pod_uid: &str) -> Option<SupervisorState> {
        None
    }

    /// True if a supervisor holds the process of a container back.
    fn is_held(&self, _container_id: &str) -> bool {
        false
    }

    /// Links the node's agent to supervisors, or unlinks it.
    fn link(&self, _linked: bool) {}

    /// Sends a command of the node's agent to the supervisor of a pod.
    fn command(&self, _pod_uid: &str, _command: &SupervisorCommand) {}

    /// PID of a running container, if it is a process.
    fn pid(&self, _container_id: &str) -> Option<u32> {
        None
    }
}

/// A fault on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A running container ends.
    End {
        /// ID of the container.
        id: String,
        /// Kind of end.
        ended: Ended,
    },
    /// A running container hangs: it ignores SIGTERM and fails its probes.
    Hang {
        /// ID of the container.
        id: String,
    },
    /// Starts of containers on the node take this much longer.
    SlowStart {
        /// Additional time.
        by: Duration,
    },
}

/// A fault that this runtime cannot inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("this runtime cannot bring that about")]
pub struct Unsupported;
