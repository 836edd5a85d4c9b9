//! Messages of both directions.

use std::net::IpAddr;

use crate::frame::Message;
use crate::text::Text;
use crate::version::{SECOND, Versions};

/// Address where the members of an attempt rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    /// IP of the coordinator's pod.
    pub ip: IpAddr,
    /// Port of the coordinator. It changes with each attempt, so a straggler of an earlier attempt
    /// finds no listener.
    pub port: u16,
}

/// Limits after which a child without progress counts as hung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressLimits {
    /// Longest time between two steps, in seconds.
    pub timeout_seconds: u32,
    /// Grace period after the start of the child, in seconds. Within it, the child never counts as
    /// hung.
    pub startup_seconds: u32,
}

/// Order to start the child of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// The attempt. The supervisor starts the child only if it is held at the barrier of exactly
    /// this attempt.
    pub attempt: u64,
    /// Rendezvous address. Without it the child keeps the addresses of the pod's environment.
    pub coordinator: Option<Rendezvous>,
    /// Number of members of this attempt. 0: the number in the pod's environment.
    pub world: u32,
    /// Rank of this member, if it differs from the rank in the pod's environment: ranks of an
    /// elastic gang have no gaps.
    pub rank: Option<u32>,
    /// Members of this attempt as ranges, for variable `LOCKSTEP_PEERS` of the child.
    pub peers: Text<32_768>,
    /// Limits for a child that reports progress. Without limits the supervisor never kills it for a
    /// hang.
    pub progress: Option<ProgressLimits>,
    /// How the child is asked for a checkpoint (from version 2). `None`: it is not asked.
    pub checkpoint: Option<SavePolicy>,
}

/// How a child is asked for a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavePolicy {
    /// Signal to the processes that have a handler for it. `None`: the file only.
    pub signal: Option<u8>,
    /// Longest wait for a checkpoint, in seconds.
    pub timeout_seconds: u32,
    /// How long the supervisor may hold back SIGTERM, in seconds. 0: not at all.
    pub hold_stop_seconds: u32,
}

/// Reason of a request for the eviction of a member. Only such a request extends the hold of
/// SIGTERM.
pub const EVICTION: &str = "Eviction";

/// Request for a checkpoint to the child of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaveRequest {
    /// Attempt of the child.
    pub attempt: u64,
    /// Id of the request.
    pub id: Text<128>,
    /// Reason, for the child.
    pub reason: Text<32>,
    /// Time at which the child is stopped without an answer, in seconds since 1970.
    pub deadline: u64,
    /// True: the child is not asked; its next checkpoint is the answer.
    pub watch: bool,
}

/// Answer of a supervisor to a [`SaveRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveReply {
    /// The checkpoint was requested from the child. Another answer follows if it saves one.
    Requested,
    /// The child saved this step, which is at least the step that the supervisor knew when it passed
    /// the request on.
    Saved(u64),
    /// The child cannot be asked.
    Unsupported,
}

/// Why a child ended, with the reasons of a Kubernetes container status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// Exit code 0.
    Completed,
    /// Another exit code, or a signal.
    Error,
    /// Not exit code 0, and the kernel OOM-killed a process of the container since the child
    /// started.
    OomKilled,
    /// The child did not start. The exit code is 127 if the program does not exist, 126 if it is
    /// not executable. A container without supervisor has code 128.
    StartError,
    /// The child ended after the supervisor forwarded a stop signal.
    Terminated,
    /// The child made no progress within the limits of its release, so the supervisor killed it.
    Hang,
}

/// Exit of the child of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildExit {
    /// Attempt of the child.
    pub attempt: u64,
    /// Exit code, or 128 + signal number. If the child exits 0 after a stop signal, the code is 128
    /// + number of that signal.
    pub code: u8,
    /// Signal that ended the child.
    pub signal: Option<u8>,
    /// Processes of the container that the kernel has OOM-killed since the child started.
    pub oom_kills: u32,
    /// Reason of the exit.
    pub reason: ExitReason,
    /// Message for people: why the child did not start, where it hung, or its termination message.
    pub message: Text<1024>,
}

/// Bytes of a child's report that count.
pub const MAX_PROGRESS: usize = 512;

/// Progress of the child of one attempt, as the child reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Attempt of the child.
    pub attempt: u64,
    /// Current step.
    pub step: u64,
    /// Time of the current step, in seconds since 1970 by the node's clock.
    pub step_time: u64,
    /// Last checkpoint, if the child has reported any.
    pub checkpoint: Option<Checkpoint>,
    /// Further words of the child's report, `key=value`, separated by spaces and not validated.
    pub words: Text<MAX_PROGRESS>,
}

/// A checkpoint that the child reports as saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Step of the checkpoint.
    pub step: u64,
    /// Time of the first report of this checkpoint, in seconds since 1970 by the node's clock.
    pub time: u64,
}

/// Messages from the supervisor to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromSupervisor {
    /// First frame of a connection. Its layout never changes. Later versions may append fields.
    Hello {
        /// Versions that the supervisor supports.
        versions: Versions,
        /// UID of the pod, empty if unknown. Only a hint: the path of the socket identifies the
        /// pod.
        pod_uid: Text<64>,
        /// Random number of this start of the container. It separates the reports of two starts.
        start_id: u64,
    },
    /// All processes of earlier attempts have exited, and the supervisor is held at the barrier of
    /// this attempt.
    Arrived {
        /// Attempt of the last `Hold`; 0 before the first `Hold`.
        attempt: u64,
    },
    /// The child of this attempt runs.
    Started {
        /// Attempt of the child.
        attempt: u64,
    },
    /// The child ended without an order.
    Exited {
        /// Exit of the child.
        exit: ChildExit,
        /// Time of the exit, in milliseconds since 1970 by the node's clock. It orders the failures
        /// of a gang even if a disconnected agent receives the report later.
        time: u64,
    },
    /// Processes of this attempt are still alive some time after SIGKILL: the node is unusable.
    Survivors {
        /// Attempt of the processes.
        attempt: u64,
        /// Number of processes.
        count: u32,
        /// Message for people: process IDs, names and states of the first processes.
        message: Text<1024>,
    },
    /// Progress of the running child.
    Progress(Progress),
    /// Answer to a [`SaveRequest`] (from version 2). An end of the child is an answer without
    /// this message.
    Checkpoint {
        /// The request as it was received last.
        request: SaveRequest,
        /// The answer.
        reply: SaveReply,
    },
    /// Answer to `Stop`: stop signals are passed on to the child (from version 2).
    PassesStops {
        /// Attempt of the child.
        attempt: u64,
    },
}

impl FromSupervisor {
    /// Name of the message in `docs/supervisor-protocol.md`, for logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "Hello",
            Self::Arrived { .. } => "Arrived",
            Self::Started { .. } => "Started",
            Self::Exited { .. } => "Exited",
            Self::Survivors { .. } => "Survivors",
            Self::Progress(_) => "Progress",
            Self::Checkpoint { .. } => "Checkpoint",
            Self::PassesStops { .. } => "PassesStops",
        }
    }

    /// Encodes without the fields that a connection of this version does not have; `None` if the
    /// version does not have the message.
    pub fn encode_for(&self, version: u16) -> Option<Vec<u8>> {
        Some(match self {
            Self::Checkpoint { .. } | Self::PassesStops { .. } if version < SECOND => return None,
            Self::Progress(progress) if version < SECOND => Self::Progress(Progress {
                words: Text::default(),
                ..progress.clone()
            })
            .encode(),
            _ => self.encode(),
        })
    }
}

/// Messages from the agent to the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromAgent {
    /// First frame of a connection, the answer to `Hello`. Its layout never changes. Later versions
    /// may append fields.
    Welcome {
        /// Version for the rest of the connection.
        version: u16,
    },
    /// Stop all processes of earlier attempts and arrive at the barrier of this attempt.
    Hold {
        /// Attempt of the barrier.
        attempt: u64,
    },
    /// Start the child.
    Release(Release),
    /// All members of the restart domain have exited 0: exit.
    Complete {
        /// Attempt of the child that exited 0.
        attempt: u64,
    },
    /// Exit with the child's code, so that the pod status reports it. The failure policy recreates
    /// the pod or fails the workload.
    Exit {
        /// Attempt of the child that ended.
        attempt: u64,
    },
    /// Ask the child for a checkpoint (from version 2). A call with another id replaces the request, a
    /// call with the same id changes its reason and deadline.
    Checkpoint(SaveRequest),
    /// The manager stops the child of this attempt, or makes no request: a stop signal that the
    /// supervisor holds back, or will receive, is passed on (from version 2).
    Stop {
        /// Attempt of the child.
        attempt: u64,
    },
}

impl FromAgent {
    /// Encodes for a connection of this version; `None` if the version does not have the message.
    pub fn encode_for(&self, version: u16) -> Option<Vec<u8>> {
        match self {
            Self::Checkpoint(_) | Self::Stop { .. } if version < SECOND => None,
            Self::Release(release) if version < SECOND => Some(
                Self::Release(Release {
                    checkpoint: None,
                    ..release.clone()
                })
                .encode(),
            ),
            _ => Some(self.encode()),
        }
    }
}
