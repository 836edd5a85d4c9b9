//! Messages of both directions.

use std::net::IpAddr;

use crate::codec::{Fields, FrameError, Writer};
use crate::frame::Message;
use crate::text::Text;
use crate::version::{PROGRESS_WORDS, Versions};

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
        }
    }

    /// Encodes without the fields that a connection of this version does not have.
    pub fn encode_for(&self, version: u16) -> Vec<u8> {
        match self {
            Self::Progress(progress) if version < PROGRESS_WORDS => Self::Progress(Progress {
                words: Text::default(),
                ..progress.clone()
            })
            .encode(),
            _ => self.encode(),
        }
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
}

mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const ARRIVED: u8 = 2;
    pub(super) const STARTED: u8 = 3;
    pub(super) const EXITED: u8 = 4;
    pub(super) const SURVIVORS: u8 = 5;
    pub(super) const PROGRESS: u8 = 6;

    pub(super) const WELCOME: u8 = 64;
    pub(super) const HOLD: u8 = 65;
    pub(super) const RELEASE: u8 = 66;
    pub(super) const COMPLETE: u8 = 67;
    pub(super) const EXIT: u8 = 68;
}

/// Reasons and their numbers in a frame.
const REASONS: [(u8, ExitReason); 6] = [
    (0, ExitReason::Completed),
    (1, ExitReason::Error),
    (2, ExitReason::OomKilled),
    (3, ExitReason::StartError),
    (4, ExitReason::Terminated),
    (5, ExitReason::Hang),
];

fn reason_from(number: u8) -> Result<ExitReason, FrameError> {
    let entry = REASONS.iter().find(|(n, _)| *n == number);
    entry
        .map(|(_, reason)| *reason)
        .ok_or(FrameError::Value("exit reason"))
}

fn number_of(reason: ExitReason) -> u8 {
    REASONS
        .iter()
        .find(|(_, r)| *r == reason)
        .map_or(1, |(number, _)| *number)
}

/// Reads an attempt; attempts start at 1.
fn attempt(fields: &mut Fields<'_>) -> Result<u64, FrameError> {
    match fields.u64()? {
        0 => Err(FrameError::Value("attempt")),
        attempt => Ok(attempt),
    }
}

fn exit(fields: &mut Fields<'_>) -> Result<ChildExit, FrameError> {
    Ok(ChildExit {
        attempt: attempt(fields)?,
        code: fields.u8()?,
        signal: fields.optional("signal", Fields::u8)?,
        oom_kills: fields.u32()?,
        reason: reason_from(fields.u8()?)?,
        message: fields.text()?,
    })
}

fn coordinator(fields: &mut Fields<'_>) -> Result<Rendezvous, FrameError> {
    Ok(Rendezvous {
        ip: fields.ip()?,
        port: fields.u16()?,
    })
}

fn limits(fields: &mut Fields<'_>) -> Result<ProgressLimits, FrameError> {
    Ok(ProgressLimits {
        timeout_seconds: fields.u32()?,
        startup_seconds: fields.u32()?,
    })
}

fn checkpoint(fields: &mut Fields<'_>) -> Result<Checkpoint, FrameError> {
    Ok(Checkpoint {
        step: fields.u64()?,
        time: fields.u64()?,
    })
}

fn progress(fields: &mut Fields<'_>) -> Result<Progress, FrameError> {
    Ok(Progress {
        attempt: attempt(fields)?,
        step: fields.u64()?,
        step_time: fields.u64()?,
        checkpoint: fields.optional("checkpoint", checkpoint)?,
        // Version 1 has no words.
        words: if fields.is_empty() {
            Text::default()
        } else {
            fields.text()?
        },
    })
}

fn release(fields: &mut Fields<'_>) -> Result<Release, FrameError> {
    Ok(Release {
        attempt: attempt(fields)?,
        coordinator: fields.optional("coordinator", coordinator)?,
        world: fields.u32()?,
        rank: fields.optional("rank", Fields::u32)?,
        peers: fields.text()?,
        progress: fields.optional("progress", limits)?,
    })
}

impl Message for FromSupervisor {
    fn decode(body: &[u8]) -> Result<Self, FrameError> {
        let mut fields = Fields::new(body);
        let message = match fields.u8()? {
            kind::HELLO => {
                let versions = Versions {
                    oldest: fields.u16()?,
                    newest: fields.u16()?,
                };
                // No check for trailing bytes: a later version may append fields.
                return Ok(Self::Hello {
                    versions,
                    pod_uid: fields.text()?,
                    start_id: fields.u64()?,
                });
            }
            kind::ARRIVED => Self::Arrived {
                attempt: fields.u64()?,
            },
            kind::STARTED => Self::Started {
                attempt: attempt(&mut fields)?,
            },
            kind::EXITED => Self::Exited {
                exit: exit(&mut fields)?,
                time: fields.u64()?,
            },
            kind::SURVIVORS => Self::Survivors {
                attempt: attempt(&mut fields)?,
                count: fields.u32()?,
                message: fields.text()?,
            },
            kind::PROGRESS => Self::Progress(progress(&mut fields)?),
            other => return Err(FrameError::Kind(other)),
        };
        fields.end()?;
        Ok(message)
    }

    fn encode(&self) -> Vec<u8> {
        match self {
            Self::Hello {
                versions,
                pod_uid,
                start_id,
            } => Writer::new(kind::HELLO)
                .u16(versions.oldest)
                .u16(versions.newest)
                .text(pod_uid)
                .u64(*start_id),
            Self::Arrived { attempt } => Writer::new(kind::ARRIVED).u64(*attempt),
            Self::Started { attempt } => Writer::new(kind::STARTED).u64(*attempt),
            Self::Exited {
                exit:
                    ChildExit {
                        attempt,
                        code,
                        signal,
                        oom_kills,
                        reason,
                        message,
                    },
                time,
            } => Writer::new(kind::EXITED)
                .u64(*attempt)
                .u8(*code)
                .optional(*signal, Writer::u8)
                .u32(*oom_kills)
                .u8(number_of(*reason))
                .text(message)
                .u64(*time),
            Self::Survivors {
                attempt,
                count,
                message,
            } => Writer::new(kind::SURVIVORS)
                .u64(*attempt)
                .u32(*count)
                .text(message),
            Self::Progress(Progress {
                attempt,
                step,
                step_time,
                checkpoint,
                words,
            }) => {
                let writer = Writer::new(kind::PROGRESS)
                    .u64(*attempt)
                    .u64(*step)
                    .u64(*step_time)
                    .optional(*checkpoint, |w, c| w.u64(c.step).u64(c.time));
                if words.is_empty() {
                    writer
                } else {
                    writer.text(words)
                }
            }
        }
        .finish()
    }
}

impl Message for FromAgent {
    fn decode(body: &[u8]) -> Result<Self, FrameError> {
        let mut fields = Fields::new(body);
        let message = match fields.u8()? {
            // No check for trailing bytes: a later version may append fields.
            kind::WELCOME => {
                return Ok(Self::Welcome {
                    version: fields.u16()?,
                });
            }
            kind::HOLD => Self::Hold {
                attempt: attempt(&mut fields)?,
            },
            kind::RELEASE => Self::Release(release(&mut fields)?),
            kind::COMPLETE => Self::Complete {
                attempt: attempt(&mut fields)?,
            },
            kind::EXIT => Self::Exit {
                attempt: attempt(&mut fields)?,
            },
            other => return Err(FrameError::Kind(other)),
        };
        fields.end()?;
        Ok(message)
    }

    fn encode(&self) -> Vec<u8> {
        match self {
            Self::Welcome { version } => Writer::new(kind::WELCOME).u16(*version),
            Self::Hold { attempt } => Writer::new(kind::HOLD).u64(*attempt),
            Self::Release(Release {
                attempt,
                coordinator,
                world,
                rank,
                peers,
                progress,
            }) => Writer::new(kind::RELEASE)
                .u64(*attempt)
                .optional(*coordinator, |w, c| w.ip(c.ip).u16(c.port))
                .u32(*world)
                .optional(*rank, Writer::u32)
                .text(peers)
                .optional(*progress, |w, limits| {
                    w.u32(limits.timeout_seconds).u32(limits.startup_seconds)
                }),
            Self::Complete { attempt } => Writer::new(kind::COMPLETE).u64(*attempt),
            Self::Exit { attempt } => Writer::new(kind::EXIT).u64(*attempt),
        }
        .finish()
    }
}
