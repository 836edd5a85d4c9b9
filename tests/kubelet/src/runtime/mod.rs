//! Container runtimes under the kubelet model: simulated, real child processes, and a real runtime
//! over CRI.
//!
//! A runtime carries out the kubelet's actions, and what becomes of them shows in the [`Table`] of
//! its node, which the kubelet reads at its relist and the node's agent at once, as over CRI.

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
pub use table::{Changed, Ended, Seen, Snapshot, Table};

/// The kubelet's side of the runtime of one node.
pub trait Runtime: Send + Sync + 'static {
    /// Carries out an action. Returns at once: the outcome shows in the view later. Repeating an
    /// action that is under way does nothing.
    fn act(&self, pod: &Arc<PodDesc>, action: &Action);

    /// What there is of a pod now.
    fn view(&self, uid: &str) -> PodView;

    /// Drops the records of a pod of which nothing runs any more.
    fn forget(&self, uid: &str);

    /// Kills a container at once, as `StopContainer` with timeout 0 does.
    fn kill(&self, container_id: &str);

    /// What the node's agent sees.
    fn table(&self) -> &Arc<Table>;

    /// Makes something go wrong.
    fn inject(&self, fault: &Fault) -> Result<(), Unsupported>;

    /// What the supervisor of a pod's training container has told; None where there is none.
    fn supervisor(&self, _pod_uid: &str) -> Option<SupervisorState> {
        None
    }

    /// Whether a supervisor holds the process of a container back.
    fn is_held(&self, _container_id: &str) -> bool {
        false
    }

    /// The node's agent is linked to supervisors, or is not any more.
    fn link(&self, _linked: bool) {}

    /// The node's agent says something to the supervisor of a pod.
    fn command(&self, _pod_uid: &str, _command: &SupervisorCommand) {}

    /// Process id of a running container, where there is a process.
    fn pid(&self, _container_id: &str) -> Option<u32> {
        None
    }
}

/// What a test makes go wrong on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A running container ends.
    End {
        /// Its id.
        id: String,
        /// How.
        ended: Ended,
    },
    /// A running container does nothing any more: no reaction to SIGTERM, no passed probe.
    Hang {
        /// Its id.
        id: String,
    },
    /// Starts of containers on the node take this much longer.
    SlowStart {
        /// How much.
        by: Duration,
    },
}

/// A fault that this runtime cannot bring about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("this runtime cannot bring that about")]
pub struct Unsupported;
