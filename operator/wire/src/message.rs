//! What the two sides say to each other.

use std::net::IpAddr;

use crate::codec::{Fields, FrameError, Writer};
use crate::frame::Message;
use crate::text::Text;
use crate::version::Versions;

/// Where the members of an attempt rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rendezvous {
    /// IP of the coordinator's pod.
    pub ip: IpAddr,
    /// Port, other for each attempt, so that a straggler of an old attempt finds no listener.
    pub port: u16,
}

/// How long a child may go without progress before it has hung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressLimits {
    /// From one step to the next, in seconds.
    pub timeout_seconds: u32,
    /// Before that long after its start, in seconds, no child has hung.
    pub startup_seconds: u32,
}

/// Lets the child of one attempt start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// The attempt. Only a supervisor that is held for exactly this attempt starts its child.
    pub attempt: u64,
    /// Where the members rendezvous; without it the child keeps the addresses of its pod's
    /// environment.
    pub coordinator: Option<Rendezvous>,
    /// Number of members of this attempt; 0: that of the pod's environment.
    pub world: u32,
    /// This member's rank among them, where it differs from that of its pod's environment: ranks of
    /// an elastic gang close up.
    pub rank: Option<u32>,
    /// The members of this attempt, as ranges. For the child, in `LOCKSTEP_PEERS`.
    pub peers: Text<32_768>,
    /// A child that reports progress and stops doing so is ended; without limits it never is.
    pub progress: Option<ProgressLimits>,
}

/// Why a child ended. Names are the reasons of a container status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// It exited 0.
    Completed,
    /// It exited otherwise, or a signal ended it.
    Error,
    /// It did not exit 0, and the kernel has killed a process of the container for memory since it
    /// started.
    OomKilled,
    /// It could not be started. A container without supervisor shows code 128 then; here it is 127
    /// where the program does not exist and 126 where it cannot be executed.
    StartError,
    /// It ended after the supervisor had passed on a signal to stop.
    Terminated,
    /// It made no progress within the limits of its release, and the supervisor has killed it.
    Hang,
}

/// How the child of one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildExit {
    /// The attempt.
    pub attempt: u64,
    /// Its exit code; 128 + number for a signal. 0 after a signal to stop is 128 + number of that
    /// signal.
    pub code: u8,
    /// The signal that ended it.
    pub signal: Option<u8>,
    /// Processes of the container that the kernel has killed for memory since the child started.
    pub oom_kills: u32,
    /// What it means.
    pub reason: ExitReason,
    /// For people: why the child could not be started, or where it hung.
    pub message: Text<1024>,
}

/// How far the child of one attempt has come, by what it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The attempt.
    pub attempt: u64,
    /// The step that it is at.
    pub step: u64,
    /// When it came to that step, in seconds since 1970 by the node's clock.
    pub step_time: u64,
    /// Its last checkpoint, if it has told of one.
    pub checkpoint: Option<Checkpoint>,
}

/// A checkpoint that the child says it has saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The step that it holds.
    pub step: u64,
    /// When the child first told of it, in seconds since 1970 by the node's clock.
    pub time: u64,
}

/// From the supervisor to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromSupervisor {
    /// First frame of a connection. Its layout never changes; later versions may add fields at its
    /// end.
    Hello {
        /// Versions that the supervisor knows.
        versions: Versions,
        /// UID of the pod, empty if the supervisor does not know it. A hint: which pod it is
        /// follows from the socket's path.
        pod_uid: Text<64>,
        /// Random number of this start of the container. Reports of two starts are never taken for
        /// one.
        start_id: u64,
    },
    /// No process of an earlier attempt is alive, and the supervisor is held at the barrier of this
    /// attempt. 0 before the first `Hold`.
    Arrived {
        /// The attempt of the last `Hold`.
        attempt: u64,
    },
    /// The child of this attempt runs.
    Started {
        /// The attempt.
        attempt: u64,
    },
    /// The child has ended by itself, without an order.
    Exited {
        /// How.
        exit: ChildExit,
        /// When, in milliseconds since 1970 by the node's clock: an agent that has been away hears
        /// of it late, and which member of a gang failed first is to be known all the same.
        time: u64,
    },
    /// Processes of this attempt are still alive although they were killed some time ago: the node
    /// cannot be used.
    Survivors {
        /// The attempt that they belong to.
        attempt: u64,
        /// How many.
        count: u32,
        /// For people: process IDs, names and states of the first of them.
        message: Text<1024>,
    },
    /// How far the child that runs has come.
    Progress(Progress),
}

impl FromSupervisor {
    /// Its name in `docs/wire.md`, for messages.
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
}

/// From the agent to the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromAgent {
    /// First frame of a connection, answers `Hello`. Its layout never changes; later versions may
    /// add fields at its end.
    Welcome {
        /// Version that both sides speak from here on.
        version: u16,
    },
    /// Stop what runs of any earlier attempt, and arrive at the barrier of this one.
    Hold {
        /// The attempt.
        attempt: u64,
    },
    /// Start the child.
    Release(Release),
    /// All members of the restart domain have exited 0: exit.
    Complete {
        /// The attempt whose child exited 0.
        attempt: u64,
    },
    /// The policy recreates the pod or fails the workload: exit with the child's code, so that the
    /// pod's status has it.
    Exit {
        /// The attempt whose child has ended.
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
    let known = REASONS.iter().find(|(n, _)| *n == number);
    known
        .map(|(_, reason)| *reason)
        .ok_or(FrameError::Value("exit reason"))
}

fn number_of(reason: ExitReason) -> u8 {
    REASONS
        .iter()
        .find(|(_, r)| *r == reason)
        .map_or(1, |(number, _)| *number)
}

/// Attempts are numbered from 1.
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
                // Not to the end: a later version may say more.
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
            }) => Writer::new(kind::PROGRESS)
                .u64(*attempt)
                .u64(*step)
                .u64(*step_time)
                .optional(*checkpoint, |w, c| w.u64(c.step).u64(c.time)),
        }
        .finish()
    }
}

impl Message for FromAgent {
    fn decode(body: &[u8]) -> Result<Self, FrameError> {
        let mut fields = Fields::new(body);
        let message = match fields.u8()? {
            // Not to the end: a later version may say more.
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
