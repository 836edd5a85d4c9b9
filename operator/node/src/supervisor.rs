//! Messages between an agent and the supervisor of a training container. Frames:
//! `docs/supervisor-protocol.md`.

use chrono::{DateTime, Utc};
use lockstep_api::restart_order::{CoordinatorAddress, SavePolicyOrder, SaveRequestOrder};
use lockstep_api::workload::{ProgressMetric, ProgressPolicy};

/// State that the supervisor has reported on the current link. A new link repeats all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SupervisorState {
    /// Attempt of the barrier at which it waits; 0 before the first. `None`: its child runs, or is
    /// being stopped.
    pub held: Option<i64>,
    pub running: Option<i64>,
    /// Exit of the last child. `None` after the next start.
    pub exit: Option<ChildEnd>,
    pub progress: Option<ChildProgress>,
    /// True if the supervisor passes on requests for checkpoints. Version 1 of the protocol has none.
    pub takes_requests: bool,
    /// Answer to the last request to the child.
    pub reply: Option<ChildReply>,
    /// Attempt of the child to which stop signals are passed on; 0 before `Stop`.
    pub passes_stops: i64,
}

impl SupervisorState {
    /// Answer to the request with this id to the child of this attempt.
    pub(super) fn answer_to(&self, attempt: i64, id: &str) -> Option<Saved> {
        let reply = self.reply.as_ref()?;
        (reply.attempt == attempt && reply.request.id == id).then_some(reply.saved)
    }

    /// True if the supervisor knows the reason and the deadline of this request. Frames have whole
    /// seconds.
    pub(super) fn knows(&self, attempt: i64, request: &SaveRequestOrder) -> bool {
        self.reply.as_ref().is_some_and(|reply| {
            let (known, ends) = (&reply.request, reply.request.deadline.timestamp());
            reply.attempt == attempt
                && (&known.id, &known.reason) == (&request.id, &request.reason)
                && ends == request.deadline.timestamp()
        })
    }
}

/// Answer of a child, or of its supervisor, to a request for a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildReply {
    pub attempt: i64,
    /// The request as the supervisor received it.
    pub request: SaveRequestOrder,
    pub saved: Saved,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// The child was asked and has not answered.
    NotYet,
    /// It saved this step.
    Step(i64),
    /// It cannot be asked.
    Unsupported,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildProgress {
    pub attempt: i64,
    /// Current step, and its start by the node's clock.
    pub step: (i64, DateTime<Utc>),
    /// Step of the last saved checkpoint, and the time of its first report.
    pub checkpoint: Option<(i64, DateTime<Utc>)>,
    /// Steps of the whole training.
    pub total: Option<i64>,
    pub metrics: Vec<ProgressMetric>,
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
    /// Message for people: why the child did not start, where it hung, or its termination message.
    pub message: String,
}

/// Message to a supervisor, repeated until its state reflects the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SupervisorMessage {
    pub pod_uid: String,
    pub command: SupervisorCommand,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SupervisorCommand {
    /// Stop all processes of earlier attempts, and wait at the barrier of this attempt.
    Hold { attempt: i64 },
    Release {
        /// The attempt. Only a supervisor at its barrier starts its child.
        attempt: i64,
        /// Address of the coordinator. `None`: the address in the pod's environment.
        coordinator: Option<CoordinatorAddress>,
        peers: Vec<String>,
        /// Policy by which the child counts as hung. `None`: never.
        progress: Option<ProgressPolicy>,
        /// How the child is asked for a checkpoint. `None`: not at all.
        checkpoint: Option<SavePolicyOrder>,
    },
    /// Ask the child for a checkpoint.
    Checkpoint {
        /// Attempt of the child.
        attempt: i64,
        request: SaveRequestOrder,
    },
    /// Hold back no stop signal.
    Stop {
        /// Attempt of the child.
        attempt: i64,
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
