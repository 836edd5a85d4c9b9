//! What an agent hears from the supervisor of a training container, and says to it. The frames that
//! carry it are those of `docs/wire.md`.

use chrono::{DateTime, Utc};
use lockstep_api::restart_order::CoordinatorAddress;
use lockstep_api::workload::ProgressPolicy;

/// What the supervisor in a pod's training container has told since the agent is linked to it. It
/// says all of it again on each link, so nothing of this is remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SupervisorState {
    /// Attempt at whose barrier it is held, with no process of an older one alive. 0: it has been
    /// told of none. None: its child runs, or it is on its way to a barrier.
    pub held: Option<i64>,
    /// Attempt of the child that runs.
    pub running: Option<i64>,
    /// How its last child ended by itself, while none has started since.
    pub exit: Option<ChildEnd>,
    /// How far the child that runs, or ran last, has come; None: it tells nothing.
    pub progress: Option<ChildProgress>,
}

/// How far a child has come, by what it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildProgress {
    /// Its attempt.
    pub attempt: i64,
    /// The step that it is at, and since when by the node's clock.
    pub step: (i64, DateTime<Utc>),
    /// The step of the last checkpoint that it has saved, and when it first told of it.
    pub checkpoint: Option<(i64, DateTime<Utc>)>,
}

/// The end of a child that nobody had ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildEnd {
    /// Its attempt.
    pub attempt: i64,
    /// When, by the node's clock and the word of its supervisor. The agent may hear of it much later.
    pub at: DateTime<Utc>,
    /// Exit code; 128 + number for a signal.
    pub code: i32,
    /// Reason in the words of a container status, such as `OOMKilled`, or `Hang`.
    pub reason: String,
    /// For people: why it could not be started, or where it hung.
    pub message: String,
}

/// Something to say to the supervisor of a pod. Said again until its state shows that it has heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tell {
    /// UID of the pod.
    pub pod_uid: String,
    /// What.
    pub word: Word,
}

/// What an agent says to a supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// Stop what runs of any earlier attempt, and come to the barrier of this one.
    Hold {
        /// The attempt.
        attempt: i64,
    },
    /// Start the child.
    Release {
        /// The attempt. Only a supervisor that is held for it starts its child.
        attempt: i64,
        /// Where the members rendezvous; None: where the pod's environment says.
        coordinator: Option<CoordinatorAddress>,
        /// The members, as ranges.
        peers: Vec<String>,
        /// When the child has hung; None: never.
        progress: Option<ProgressPolicy>,
    },
    /// All members have exited 0: exit.
    Complete {
        /// The attempt whose child exited 0.
        attempt: i64,
    },
    /// The failure is answered for this member alone, or by a new pod: exit with the child's code.
    Exit {
        /// The attempt whose child has ended.
        attempt: i64,
    },
}
