//! Messages between an agent and the supervisor of a training container. `docs/supervisor-protocol.md` describes
//! their frames.

use chrono::{DateTime, Utc};
use lockstep_api::restart_order::CoordinatorAddress;
use lockstep_api::workload::ProgressPolicy;

/// State that the supervisor has reported on the current link. It repeats all of it on each new
/// link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SupervisorState {
    /// Attempt at whose barrier it waits. 0: it knows no attempt. `None`: its child runs, or it is
    /// on the way to a barrier.
    pub held: Option<i64>,
    pub running: Option<i64>,
    /// How its last child ended. `None` after another child has started.
    pub exit: Option<ChildEnd>,
    /// `None` if the child reports none.
    pub progress: Option<ChildProgress>,
}

/// Progress of a child, as reported by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildProgress {
    pub attempt: i64,
    /// Its current step, and since when by the node's clock.
    pub step: (i64, DateTime<Utc>),
    /// Step of its last saved checkpoint, and when it was first reported.
    pub checkpoint: Option<(i64, DateTime<Utc>)>,
}

/// An exit of a child without an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildEnd {
    pub attempt: i64,
    /// Time of the exit by the node's clock. The agent may receive it much later.
    pub at: DateTime<Utc>,
    /// Exit code; 128 + number for a signal.
    pub code: i32,
    /// Reason as in container status, such as `OOMKilled`, or `Hang`.
    pub reason: String,
    /// Message for people: why it could not be started, where it hung, or its termination message.
    pub message: String,
}

/// Message to a supervisor, repeated until its state reflects it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tell {
    pub pod_uid: String,
    pub word: Word,
}

/// What an agent says to a supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// Stop all processes of earlier attempts, and wait at the barrier of this attempt.
    Hold { attempt: i64 },
    Release {
        /// The attempt. Only a supervisor at its barrier starts its child.
        attempt: i64,
        /// Address of the coordinator. `None`: as in the pod's environment.
        coordinator: Option<CoordinatorAddress>,
        peers: Vec<String>,
        /// Policy by which the child counts as hung. `None`: never.
        progress: Option<ProgressPolicy>,
    },
    /// All members have exited with 0: exit.
    Complete {
        /// Attempt of the child that exited with 0.
        attempt: i64,
    },
    /// The failure is handled for this member alone, or by a new pod: exit with the child's code.
    Exit {
        /// Attempt of the child that ended.
        attempt: i64,
    },
}
