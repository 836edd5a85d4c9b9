//! Converts protocol frames to and from the agent's messages. Pure.

use chrono::{DateTime, Utc};
use lockstep_api::restart_order::{SavePolicyOrder, SaveRequestOrder};
use lockstep_api::workload::{CauseKind, CheckpointSignal, ProgressPolicy};
use lockstep_node::{
    ChildEnd, ChildProgress, ChildReply, Saved, SupervisorCommand, SupervisorState,
};
use lockstep_supervisor_protocol::{
    ChildExit, ExitReason, FromAgent, FromSupervisor, Progress, ProgressLimits, Release,
    Rendezvous, SavePolicy, SaveReply, SaveRequest, Text,
};

use super::words;

/// Longest message of a report in bytes. The `NodeAgent` has up to 64 reports.
const MESSAGE: usize = 256;

/// State after a frame. `None`: the frame is invalid after the greeting.
pub fn on_frame(state: &SupervisorState, frame: &FromSupervisor) -> Option<SupervisorState> {
    Some(match frame {
        FromSupervisor::Hello { .. } => return None,
        FromSupervisor::Arrived { attempt } => SupervisorState {
            held: Some(number(*attempt)?),
            running: None,
            ..state.clone()
        },
        FromSupervisor::Started { attempt } => SupervisorState {
            held: None,
            running: Some(number(*attempt)?),
            exit: None,
            // A repeated `Started` of the running child keeps its progress.
            progress: (state.progress.as_ref())
                .filter(|p| p.attempt.unsigned_abs() == *attempt)
                .cloned(),
            ..state.clone()
        },
        FromSupervisor::Exited { exit, time } => SupervisorState {
            held: None,
            running: None,
            exit: Some(end(exit, *time)?),
            ..state.clone()
        },
        FromSupervisor::Survivors { .. } => state.clone(),
        FromSupervisor::Checkpoint { request, reply } => SupervisorState {
            reply: Some(ChildReply {
                attempt: number(request.attempt)?,
                request: SaveRequestOrder {
                    id: request.id.to_string(),
                    reason: request.reason.to_string(),
                    deadline: time(request.deadline)?,
                    watch: request.watch,
                },
                saved: match reply {
                    SaveReply::Requested => Saved::NotYet,
                    SaveReply::Saved(step) => Saved::Step(count(*step)),
                    SaveReply::Unsupported => Saved::Unsupported,
                },
            }),
            ..state.clone()
        },
        FromSupervisor::PassesStops { attempt } => SupervisorState {
            passes_stops: number(*attempt)?,
            ..state.clone()
        },
        FromSupervisor::Progress(progress) => SupervisorState {
            progress: Some(child_progress(progress)?),
            ..state.clone()
        },
    })
}

fn child_progress(progress: &Progress) -> Option<ChildProgress> {
    let (total, metrics) = words::read(&progress.words);
    Some(ChildProgress {
        attempt: number(progress.attempt)?,
        step: (count(progress.step), time(progress.step_time)?),
        checkpoint: match progress.checkpoint {
            Some(saved) => Some((count(saved.step), time(saved.time)?)),
            None => None,
        },
        total,
        metrics,
    })
}

/// Steps are signed in the API. A child may report any step, so larger steps are clamped.
fn count(step: u64) -> i64 {
    step.try_into().unwrap_or(i64::MAX)
}

fn time(seconds: u64) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(seconds.try_into().ok()?, 0)
}

/// `millis`: time of the exit in milliseconds since 1970.
fn end(exit: &ChildExit, millis: u64) -> Option<ChildEnd> {
    Some(ChildEnd {
        attempt: number(exit.attempt)?,
        at: DateTime::from_timestamp_millis(millis.try_into().ok()?)?,
        code: exit.code.into(),
        reason: reason(exit.reason).to_owned(),
        message: message(&exit.message),
    })
}

/// The end of a text, because the last line of a traceback names the error. Control characters
/// become spaces, because a terminal would obey them.
fn message(text: &str) -> String {
    let clean = text.replace(char::is_control, " ");
    let start = clean.ceil_char_boundary(clean.len().saturating_sub(MESSAGE));
    clean[start..].to_owned()
}

/// Reason as in a container status. The exit after a stop signal has no reason there. A hang,
/// unknown to the kubelet, has its name from failure rules.
fn reason(reason: ExitReason) -> &'static str {
    match reason {
        ExitReason::Completed => "Completed",
        ExitReason::Error | ExitReason::Terminated => "Error",
        ExitReason::OomKilled => "OOMKilled",
        ExitReason::StartError => "StartError",
        ExitReason::Hang => CauseKind::Hang.as_str(),
    }
}

/// Attempts are signed in the API. A correct supervisor never exceeds that range.
fn number(attempt: u64) -> Option<i64> {
    attempt.try_into().ok()
}

/// The frame for a command. `None` if a value does not fit: without its coordinator, a child would
/// wait forever.
pub fn frame(command: &SupervisorCommand) -> Option<FromAgent> {
    Some(match command {
        SupervisorCommand::Hold { attempt } => FromAgent::Hold {
            attempt: ordered(*attempt)?,
        },
        SupervisorCommand::Complete { attempt } => FromAgent::Complete {
            attempt: ordered(*attempt)?,
        },
        SupervisorCommand::Exit { attempt } => FromAgent::Exit {
            attempt: ordered(*attempt)?,
        },
        SupervisorCommand::Release {
            attempt,
            coordinator,
            peers,
            progress,
            checkpoint,
        } => FromAgent::Release(Release {
            attempt: ordered(*attempt)?,
            coordinator: match coordinator {
                Some(address) => Some(Rendezvous {
                    ip: address.pod_ip.parse().ok()?,
                    port: address.port.try_into().ok()?,
                }),
                None => None,
            },
            // The values of the pod's environment apply. If one changes, the pods are recreated.
            world: 0,
            rank: None,
            // Separated by spaces, because a range contains commas. A longer text becomes empty.
            peers: Text::new(peers.join(" ")).unwrap_or_default(),
            progress: match progress {
                Some(policy) => Some(limits(*policy)?),
                None => None,
            },
            checkpoint: match checkpoint {
                Some(checkpoint) => Some(save_policy(checkpoint)?),
                None => None,
            },
        }),
        SupervisorCommand::Checkpoint { attempt, request } => FromAgent::Checkpoint(SaveRequest {
            attempt: ordered(*attempt)?,
            id: Text::new(&request.id)?,
            reason: Text::cut(&request.reason),
            deadline: request.deadline.timestamp().try_into().ok()?,
            watch: request.watch,
        }),
        SupervisorCommand::Stop { attempt } => FromAgent::Stop {
            attempt: ordered(*attempt)?,
        },
    })
}

fn limits(policy: ProgressPolicy) -> Option<ProgressLimits> {
    Some(ProgressLimits {
        timeout_seconds: policy.timeout_seconds.try_into().ok()?,
        startup_seconds: policy.startup_seconds.try_into().ok()?,
    })
}

fn save_policy(api: &SavePolicyOrder) -> Option<SavePolicy> {
    Some(SavePolicy {
        signal: api.signal.map(CheckpointSignal::number),
        timeout_seconds: api.timeout_seconds.try_into().ok()?,
        hold_stop_seconds: api.hold_stop_seconds.unwrap_or(0).try_into().ok()?,
    })
}

/// Kind and attempt of a command, for logs.
pub(super) fn named(command: &SupervisorCommand) -> (&'static str, i64) {
    match command {
        SupervisorCommand::Hold { attempt } => ("Hold", *attempt),
        SupervisorCommand::Release { attempt, .. } => ("Release", *attempt),
        SupervisorCommand::Complete { attempt } => ("Complete", *attempt),
        SupervisorCommand::Exit { attempt } => ("Exit", *attempt),
        SupervisorCommand::Checkpoint { attempt, .. } => ("Checkpoint", *attempt),
        SupervisorCommand::Stop { attempt } => ("Stop", *attempt),
    }
}

fn ordered(attempt: i64) -> Option<u64> {
    attempt.try_into().ok().filter(|n| *n > 0)
}

#[cfg(test)]
mod tests {
    use lockstep_api::restart_order::CoordinatorAddress;
    use lockstep_supervisor_protocol::{Checkpoint, VERSIONS};

    use super::*;

    fn exited(attempt: u64, code: u8, reason: ExitReason) -> FromSupervisor {
        exited_at(attempt, code, reason, 1_000_000_250)
    }

    fn exited_at(attempt: u64, code: u8, reason: ExitReason, time: u64) -> FromSupervisor {
        let exit = ChildExit {
            attempt,
            code,
            signal: None,
            oom_kills: 0,
            reason,
            message: Text::default(),
        };
        FromSupervisor::Exited { exit, time }
    }

    fn after(frames: &[FromSupervisor]) -> Option<SupervisorState> {
        let mut state = SupervisorState::default();
        for frame in frames {
            state = on_frame(&state, frame)?;
        }
        Some(state)
    }

    fn end(attempt: i64, code: i32, reason: &str) -> ChildEnd {
        ChildEnd {
            attempt,
            at: DateTime::from_timestamp_millis(1_000_000_250).unwrap(),
            code,
            reason: reason.to_owned(),
            message: String::new(),
        }
    }

    #[test]
    fn a_supervisor_is_held_or_runs_and_its_last_exit_stays_until_the_next_start() {
        let (arrived, started) = (
            |attempt| FromSupervisor::Arrived { attempt },
            |attempt| FromSupervisor::Started { attempt },
        );
        let state = |held, running, exit| {
            Some(SupervisorState {
                held,
                running,
                exit,
                ..SupervisorState::default()
            })
        };
        let failed = || exited(1, 3, ExitReason::Error);
        assert_eq!(after(&[arrived(0)]), state(Some(0), None, None));
        assert_eq!(after(&[arrived(1), started(1)]), state(None, Some(1), None));
        assert_eq!(
            after(&[started(1), failed()]),
            state(None, None, Some(end(1, 3, "Error")))
        );
        assert_eq!(
            after(&[started(1), failed(), arrived(2)]),
            state(Some(2), None, Some(end(1, 3, "Error"))),
            "as it is told once more on a new link"
        );
        assert_eq!(
            after(&[failed(), arrived(2), started(2)]),
            state(None, Some(2), None)
        );
        let survivors = FromSupervisor::Survivors {
            attempt: 1,
            count: 2,
            message: Text::default(),
        };
        assert_eq!(
            after(&[failed(), survivors]),
            state(None, None, Some(end(1, 3, "Error")))
        );
    }

    #[test]
    fn an_exit_has_the_reason_that_the_status_of_a_container_would_have() {
        for (told, reason) in [
            (ExitReason::Completed, "Completed"),
            (ExitReason::Error, "Error"),
            (ExitReason::OomKilled, "OOMKilled"),
            (ExitReason::StartError, "StartError"),
            (ExitReason::Terminated, "Error"),
            (ExitReason::Hang, "Hang"),
        ] {
            let state = after(&[exited(1, 137, told)]).unwrap();
            assert_eq!(state.exit, Some(end(1, 137, reason)));
        }
    }

    #[test]
    fn a_message_is_the_end_of_the_text_without_control_characters() {
        let long = format!("é{}\n\x1b[2JRuntimeError", "x".repeat(238));
        for (said, told) in [("", ""), ("a\tb\u{9b}c", "a b c")] {
            assert_eq!(message(said), told);
        }
        assert_eq!(
            message(&long),
            format!("{}  [2JRuntimeError", "x".repeat(238))
        );
        assert!(message(&"é".repeat(300)).len() <= MESSAGE);
    }

    fn message_of_progress(
        attempt: u64,
        step: u64,
        checkpoint: Option<Checkpoint>,
    ) -> FromSupervisor {
        FromSupervisor::Progress(Progress {
            attempt,
            step,
            step_time: 1_000_000,
            checkpoint,
            words: Text::default(),
        })
    }

    #[test]
    fn progress_is_that_of_the_child_that_runs_or_ran_last() {
        let started = |attempt| FromSupervisor::Started { attempt };
        let saved = Some(Checkpoint {
            step: 5,
            time: 1_000_001,
        });
        let at = |second| DateTime::from_timestamp(second, 0).unwrap();
        let progress = |frames: &[FromSupervisor]| after(frames).unwrap().progress;
        let seen = Some(ChildProgress {
            attempt: 1,
            step: (7, at(1_000_000)),
            checkpoint: Some((5, at(1_000_001))),
            total: None,
            metrics: Vec::new(),
        });
        assert_eq!(
            progress(&[started(1), message_of_progress(1, 7, saved)]),
            seen
        );
        assert_eq!(
            progress(&[started(1), message_of_progress(1, 7, saved), started(1)]),
            seen,
            "the answer to a release that was said again"
        );
        let failed = exited(1, 3, ExitReason::Error);
        assert_eq!(
            progress(&[started(1), message_of_progress(1, 7, saved), failed]),
            seen
        );
        assert_eq!(
            progress(&[message_of_progress(1, 7, saved), started(2)]),
            None
        );
        assert_eq!(
            progress(&[started(1), message_of_progress(1, u64::MAX, None)]).map(|p| p.step.0),
            Some(i64::MAX)
        );
    }

    #[test]
    fn frames_that_no_supervisor_sends_after_its_greeting_are_refused() {
        let hello = FromSupervisor::Hello {
            versions: VERSIONS,
            pod_uid: Text::default(),
            start_id: 1,
        };
        let beyond = i64::MAX as u64 + 1;
        for frame in [
            hello,
            FromSupervisor::Arrived { attempt: beyond },
            FromSupervisor::Started { attempt: beyond },
            exited(beyond, 1, ExitReason::Error),
            exited_at(1, 1, ExitReason::Error, u64::MAX),
            message_of_progress(beyond, 1, None),
            message_of_progress(
                1,
                1,
                Some(Checkpoint {
                    step: 1,
                    time: u64::MAX,
                }),
            ),
        ] {
            assert_eq!(after(std::slice::from_ref(&frame)), None, "{frame:?}");
        }
    }

    fn release(ip: &str, port: i32) -> SupervisorCommand {
        SupervisorCommand::Release {
            attempt: 2,
            coordinator: Some(CoordinatorAddress {
                pod_ip: ip.to_owned(),
                port,
            }),
            peers: vec!["ps/0/0".to_owned(), "workers/0/0-1,3".to_owned()],
            progress: Some(ProgressPolicy {
                timeout_seconds: 600,
                startup_seconds: 1800,
            }),
            checkpoint: None,
        }
    }

    #[test]
    fn a_release_carries_the_coordinator_and_the_members() {
        let Some(FromAgent::Release(said)) = frame(&release("fd00::7", 29_500)) else {
            panic!("no release");
        };
        let coordinator = said.coordinator.unwrap();
        assert_eq!(
            (coordinator.ip.to_string().as_str(), coordinator.port),
            ("fd00::7", 29_500)
        );
        assert_eq!((said.attempt, said.world, said.rank), (2, 0, None));
        assert_eq!(&*said.peers, "ps/0/0 workers/0/0-1,3");
        let limits = ProgressLimits {
            timeout_seconds: 600,
            startup_seconds: 1800,
        };
        assert_eq!(said.progress, Some(limits));
    }

    #[test]
    fn a_request_and_its_answer_are_converted() {
        let deadline = DateTime::from_timestamp(1_000_000, 0).unwrap();
        let ordered = SaveRequestOrder {
            id: "a".to_owned(),
            reason: "Preemption".to_owned(),
            deadline,
            watch: true,
        };
        let said = frame(&SupervisorCommand::Checkpoint {
            attempt: 2,
            request: ordered.clone(),
        });
        let request = SaveRequest {
            attempt: 2,
            id: Text::cut("a"),
            reason: Text::cut("Preemption"),
            deadline: 1_000_000,
            watch: true,
        };
        assert_eq!(said, Some(FromAgent::Checkpoint(request.clone())));
        let replies = |reply| {
            let request = request.clone();
            let frame = FromSupervisor::Checkpoint { request, reply };
            after(&[frame]).and_then(|state| state.reply)
        };
        for (reply, saved) in [
            (SaveReply::Requested, Saved::NotYet),
            (SaveReply::Saved(7), Saved::Step(7)),
            (SaveReply::Saved(u64::MAX), Saved::Step(i64::MAX)),
            (SaveReply::Unsupported, Saved::Unsupported),
        ] {
            let told = replies(reply).unwrap();
            assert_eq!((told.request, told.saved), (ordered.clone(), saved));
        }
        let passes = after(&[FromSupervisor::PassesStops { attempt: 2 }]).unwrap();
        assert_eq!(passes.passes_stops, 2);
    }

    #[test]
    fn commands_that_fit_no_frame_are_not_sent() {
        for command in [
            SupervisorCommand::Hold { attempt: 0 },
            SupervisorCommand::Exit { attempt: -1 },
            SupervisorCommand::Complete { attempt: 0 },
            release("workers-0", 29_500),
            release("10.0.0.7", 70_000),
        ] {
            assert_eq!(frame(&command), None, "{command:?}");
        }
        assert_eq!(
            frame(&SupervisorCommand::Hold { attempt: 3 }),
            Some(FromAgent::Hold { attempt: 3 })
        );
    }
}
