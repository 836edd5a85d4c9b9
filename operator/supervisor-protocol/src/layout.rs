//! Layout of the messages in frames.

use crate::codec::{Fields, FrameError, Writer};
use crate::frame::Message;
use crate::message::{
    Checkpoint, ChildExit, ExitReason, FromAgent, FromSupervisor, Progress, ProgressLimits,
    Release, Rendezvous, SavePolicy, SaveReply, SaveRequest,
};
use crate::text::Text;
use crate::version::Versions;

mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const ARRIVED: u8 = 2;
    pub(super) const STARTED: u8 = 3;
    pub(super) const EXITED: u8 = 4;
    pub(super) const SURVIVORS: u8 = 5;
    pub(super) const PROGRESS: u8 = 6;
    pub(super) const ANSWER: u8 = 7;
    pub(super) const PASSES_STOPS: u8 = 8;

    pub(super) const WELCOME: u8 = 64;
    pub(super) const HOLD: u8 = 65;
    pub(super) const RELEASE: u8 = 66;
    pub(super) const COMPLETE: u8 = 67;
    pub(super) const EXIT: u8 = 68;
    pub(super) const CALL: u8 = 69;
    pub(super) const STOP: u8 = 70;
}

mod replies {
    pub(super) const REQUESTED: u8 = 0;
    pub(super) const SAVED: u8 = 1;
    pub(super) const UNSUPPORTED: u8 = 2;
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

fn save_policy(fields: &mut Fields<'_>) -> Result<SavePolicy, FrameError> {
    Ok(SavePolicy {
        signal: fields.optional("signal", Fields::u8)?,
        timeout_seconds: fields.u32()?,
        hold_stop_seconds: fields.u32()?,
    })
}

fn save_request(fields: &mut Fields<'_>) -> Result<SaveRequest, FrameError> {
    Ok(SaveRequest {
        attempt: attempt(fields)?,
        id: fields.text()?,
        reason: fields.text()?,
        deadline: fields.u64()?,
        watch: match fields.u8()? {
            0 => false,
            1 => true,
            _ => return Err(FrameError::Value("watch")),
        },
    })
}

fn write_request(kind: u8, request: &SaveRequest) -> Writer {
    let SaveRequest {
        attempt,
        id,
        reason,
        deadline,
        watch,
    } = request;
    Writer::new(kind)
        .u64(*attempt)
        .text(id)
        .text(reason)
        .u64(*deadline)
        .u8(u8::from(*watch))
}

fn release(fields: &mut Fields<'_>) -> Result<Release, FrameError> {
    Ok(Release {
        attempt: attempt(fields)?,
        coordinator: fields.optional("coordinator", coordinator)?,
        world: fields.u32()?,
        rank: fields.optional("rank", Fields::u32)?,
        peers: fields.text()?,
        progress: fields.optional("progress", limits)?,
        // Version 1 has no checkpoint.
        checkpoint: if fields.is_empty() {
            None
        } else {
            Some(save_policy(fields)?)
        },
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
            kind::ANSWER => Self::Checkpoint {
                request: save_request(&mut fields)?,
                reply: match fields.u8()? {
                    replies::REQUESTED => SaveReply::Requested,
                    replies::SAVED => SaveReply::Saved(fields.u64()?),
                    replies::UNSUPPORTED => SaveReply::Unsupported,
                    _ => return Err(FrameError::Value("answer")),
                },
            },
            kind::PASSES_STOPS => Self::PassesStops {
                attempt: attempt(&mut fields)?,
            },
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
            Self::Checkpoint { request, reply } => {
                let writer = write_request(kind::ANSWER, request);
                match reply {
                    SaveReply::Requested => writer.u8(replies::REQUESTED),
                    SaveReply::Saved(step) => writer.u8(replies::SAVED).u64(*step),
                    SaveReply::Unsupported => writer.u8(replies::UNSUPPORTED),
                }
            }
            Self::PassesStops { attempt } => Writer::new(kind::PASSES_STOPS).u64(*attempt),
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
            kind::CALL => Self::Checkpoint(save_request(&mut fields)?),
            kind::STOP => Self::Stop {
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
                checkpoint,
            }) => {
                let writer = Writer::new(kind::RELEASE)
                    .u64(*attempt)
                    .optional(*coordinator, |w, c| w.ip(c.ip).u16(c.port))
                    .u32(*world)
                    .optional(*rank, Writer::u32)
                    .text(peers)
                    .optional(*progress, |w, limits| {
                        w.u32(limits.timeout_seconds).u32(limits.startup_seconds)
                    });
                match checkpoint {
                    None => writer,
                    Some(policy) => writer
                        .optional(policy.signal, Writer::u8)
                        .u32(policy.timeout_seconds)
                        .u32(policy.hold_stop_seconds),
                }
            }
            Self::Complete { attempt } => Writer::new(kind::COMPLETE).u64(*attempt),
            Self::Exit { attempt } => Writer::new(kind::EXIT).u64(*attempt),
            Self::Checkpoint(request) => write_request(kind::CALL, request),
            Self::Stop { attempt } => Writer::new(kind::STOP).u64(*attempt),
        }
        .finish()
    }
}
