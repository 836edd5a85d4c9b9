//! Checkpoints on request: what a gang is asked before it is stopped, and its answers.

use chrono::{DateTime, TimeDelta, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::words::{count, took};

/// Checkpoints of the training processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointPolicy {
    /// The processes can save a checkpoint on request, so they are asked before the gang is stopped.
    /// A change takes effect at the next start of the processes.
    pub on_request: CheckpointOnRequest,
}

/// How the processes are asked to save a checkpoint, when, and for how long the stop waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointOnRequest {
    /// Signal to the processes that have a handler for it, after the file that
    /// `LOCKSTEP_CHECKPOINT_REQUEST` names was written. With SIGTERM the processes save and end.
    /// Absent: the file only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<CheckpointSignal>,
    /// Longest time for which a stop waits for the checkpoint, in seconds; 5 to 3600, default 120.
    #[serde(default = "timeout_seconds")]
    #[schemars(range(min = 5, max = 3600))]
    pub timeout_seconds: i64,
    /// Stops before which a checkpoint is requested. Default: all.
    #[serde(default = "all_occasions")]
    #[schemars(length(min = 1, max = 16))]
    pub occasions: Vec<CheckpointOccasion>,
}

crate::worded! {
    /// Signal by which a process is asked to save a checkpoint.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum CheckpointSignal {
        /// The process saves and continues.
        #[serde(rename = "SIGUSR1")]
        Usr1 = "SIGUSR1",
        /// The process saves and continues.
        #[serde(rename = "SIGUSR2")]
        Usr2 = "SIGUSR2",
        /// The process saves and ends.
        #[serde(rename = "SIGTERM")]
        Term = "SIGTERM",
    }
}

impl CheckpointSignal {
    /// Number of the signal on Linux.
    pub fn number(self) -> u8 {
        match self {
            Self::Usr1 => 10,
            Self::Usr2 => 12,
            Self::Term => 15,
        }
    }
}

/// True if the end of a process with this code replies to a request by this signal: 0, or 128 plus
/// the number of SIGTERM or of the signal.
pub fn ends_on_request(code: i32, signal: Option<CheckpointSignal>) -> bool {
    let by = |signal: CheckpointSignal| code == 128 + i32::from(signal.number());
    code == 0 || by(CheckpointSignal::Term) || signal.is_some_and(by)
}

crate::worded! {
    /// Why a checkpoint is requested.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum CheckpointOccasion {
        /// A gang of higher priority needs the nodes.
        Preemption = "Preemption",
        /// The gang moves from a node that will be removed or stopped.
        NodeLeaving = "NodeLeaving",
        /// The gang moves from a node with a fault that is certain.
        NodeFaulty = "NodeFaulty",
        /// A pod of the gang is deleted or evicted, as by `kubectl drain`.
        Eviction = "Eviction",
        /// `spec.suspend` is true.
        Suspend = "Suspend",
        /// Replicas are added or removed.
        Resize = "Resize",
        /// `spec.restartNonce` was changed.
        Restart = "Restart",
        /// `activeDeadlineSeconds` is about to pass.
        Deadline = "Deadline",
        /// A user requests it, as by `kubectl lockstep checkpoint`; nothing is stopped.
        User = "User",
    }
}

/// Request for a checkpoint to the processes of a restart domain, and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct CheckpointRequest {
    /// Id of the request, unique for the workload.
    pub id: String,
    /// Why it was made.
    pub reason: CheckpointOccasion,
    /// Attempt of the processes.
    pub attempt: i64,
    /// Time of the request.
    pub requested_at: DateTime<Utc>,
    /// End of the wait for the answer. Absent once the outcome is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<DateTime<Utc>>,
    /// True if the processes are not asked: their next regular checkpoint is awaited.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub watch: bool,
    /// Absent while the request is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<CheckpointOutcome>,
    /// Milliseconds from the request to the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub millis: Option<i64>,
    /// Saved step, of outcome Saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_step: Option<i64>,
    /// Last step that was known at the outcome, less the last saved step. Absent without progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_lost: Option<i64>,
}

impl CheckpointRequest {
    /// True if no outcome is recorded.
    pub fn is_open(&self) -> bool {
        self.outcome.is_none()
    }

    /// The outcome in words; `None` while the request is open.
    pub fn summary(&self) -> Option<String> {
        let after = took(TimeDelta::milliseconds(self.millis.unwrap_or_default()));
        let lost = self.steps_lost.map_or(String::new(), |steps| {
            format!(", {} lost", count(steps.max(0) as usize, "step"))
        });
        Some(match self.outcome? {
            CheckpointOutcome::Saved => {
                let step = self.saved_step.unwrap_or_default();
                format!("step {step} was saved after {after}{lost}")
            }
            CheckpointOutcome::Ended => format!("the processes ended after {after}{lost}"),
            CheckpointOutcome::TimedOut => format!("no checkpoint in {after}{lost}"),
            CheckpointOutcome::Withdrawn => format!("withdrawn after {after}"),
            CheckpointOutcome::Unsupported => {
                "no process could be asked: none runs with a supervisor, has a \
                 handler for the signal, or shows by its progress file that it reads requests"
                    .to_owned()
            }
        })
    }
}

crate::worded! {
    /// Outcome of a request for a checkpoint.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    pub enum CheckpointOutcome {
        /// A member saved the step at which it was asked, or a later one.
        Saved = "Saved",
        /// The processes of all members have ended, or one has failed.
        Ended = "Ended",
        /// No answer came before the deadline.
        TimedOut = "TimedOut",
        /// The stop was cancelled.
        Withdrawn = "Withdrawn",
        /// No member can be asked.
        Unsupported = "Unsupported",
    }
}

fn timeout_seconds() -> i64 {
    120
}

fn all_occasions() -> Vec<CheckpointOccasion> {
    CheckpointOccasion::ALL.to_vec()
}
