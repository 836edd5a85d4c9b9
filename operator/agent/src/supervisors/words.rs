//! Frames of the protocol to and from the words of the decision. Pure.

use lockstep_lifecycle::node::{ChildEnd, SupervisorState, Word};
use lockstep_wire::{ChildExit, ExitReason, FromAgent, FromSupervisor, Release, Rendezvous, Text};

/// The state after a frame; None if the frame makes no sense after the greeting.
pub fn hear(state: &SupervisorState, frame: &FromSupervisor) -> Option<SupervisorState> {
    let exit = state.exit.clone();
    Some(match frame {
        FromSupervisor::Hello { .. } => return None,
        FromSupervisor::Arrived { attempt } => SupervisorState {
            held: Some(number(*attempt)?),
            running: None,
            exit,
        },
        FromSupervisor::Started { attempt } => SupervisorState {
            held: None,
            running: Some(number(*attempt)?),
            exit: None,
        },
        FromSupervisor::Exited(exit) => SupervisorState {
            held: None,
            running: None,
            exit: Some(end(exit)?),
        },
        FromSupervisor::Survivors { .. } => state.clone(),
    })
}

fn end(exit: &ChildExit) -> Option<ChildEnd> {
    Some(ChildEnd {
        attempt: number(exit.attempt)?,
        code: exit.code.into(),
        reason: reason(exit.reason).to_owned(),
    })
}

/// As in a container status, which has no word for an end after a signal to stop.
fn reason(reason: ExitReason) -> &'static str {
    match reason {
        ExitReason::Completed => "Completed",
        ExitReason::Error | ExitReason::Terminated => "Error",
        ExitReason::OomKilled => "OOMKilled",
        ExitReason::StartError => "StartError",
    }
}

/// Attempts are signed in the API. No supervisor comes to one beyond it by itself.
fn number(attempt: u64) -> Option<i64> {
    attempt.try_into().ok()
}

/// The frame that says the word; None if the word has values that no frame can have, which is not
/// said rather than said otherwise: a child without its coordinator would wait for nobody.
pub fn frame(word: &Word) -> Option<FromAgent> {
    Some(match word {
        Word::Hold { attempt } => FromAgent::Hold {
            attempt: ordered(*attempt)?,
        },
        Word::Complete { attempt } => FromAgent::Complete {
            attempt: ordered(*attempt)?,
        },
        Word::Exit { attempt } => FromAgent::Exit {
            attempt: ordered(*attempt)?,
        },
        Word::Release {
            attempt,
            coordinator,
            peers,
        } => FromAgent::Release(Release {
            attempt: ordered(*attempt)?,
            coordinator: match coordinator {
                Some(address) => Some(Rendezvous {
                    ip: address.pod_ip.parse().ok()?,
                    port: address.port.try_into().ok()?,
                }),
                None => None,
            },
            // Those of the pod's environment hold: a change of either makes new pods.
            world: 0,
            rank: None,
            // A range has commas of its own. Longer than a child's environment can well be: none.
            peers: Text::new(peers.join(" ")).unwrap_or_default(),
        }),
    })
}

/// Kind and attempt, for people.
pub(super) fn named(word: &Word) -> (&'static str, i64) {
    match word {
        Word::Hold { attempt } => ("Hold", *attempt),
        Word::Release { attempt, .. } => ("Release", *attempt),
        Word::Complete { attempt } => ("Complete", *attempt),
        Word::Exit { attempt } => ("Exit", *attempt),
    }
}

fn ordered(attempt: i64) -> Option<u64> {
    attempt.try_into().ok().filter(|n| *n > 0)
}

#[cfg(test)]
mod tests {
    use lockstep_api::restart_order::CoordinatorAddress;
    use lockstep_wire::VERSIONS;

    use super::*;

    fn exited(attempt: u64, code: u8, reason: ExitReason) -> FromSupervisor {
        FromSupervisor::Exited(ChildExit {
            attempt,
            code,
            signal: None,
            oom_kills: 0,
            reason,
            message: Text::default(),
        })
    }

    fn after(frames: &[FromSupervisor]) -> Option<SupervisorState> {
        let mut state = SupervisorState::default();
        for frame in frames {
            state = hear(&state, frame)?;
        }
        Some(state)
    }

    fn end(attempt: i64, code: i32, reason: &str) -> ChildEnd {
        ChildEnd {
            attempt,
            code,
            reason: reason.to_owned(),
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
        ] {
            let state = after(&[exited(1, 137, told)]).unwrap();
            assert_eq!(state.exit, Some(end(1, 137, reason)));
        }
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
        ] {
            assert_eq!(after(std::slice::from_ref(&frame)), None, "{frame:?}");
        }
    }

    fn release(ip: &str, port: i32) -> Word {
        Word::Release {
            attempt: 2,
            coordinator: Some(CoordinatorAddress {
                pod_ip: ip.to_owned(),
                port,
            }),
            peers: vec!["ps/0/0".to_owned(), "workers/0/0-1,3".to_owned()],
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
    }

    #[test]
    fn words_that_no_frame_can_say_are_not_said() {
        for word in [
            Word::Hold { attempt: 0 },
            Word::Exit { attempt: -1 },
            Word::Complete { attempt: 0 },
            release("workers-0", 29_500),
            release("10.0.0.7", 70_000),
        ] {
            assert_eq!(frame(&word), None, "{word:?}");
        }
        assert_eq!(
            frame(&Word::Hold { attempt: 3 }),
            Some(FromAgent::Hold { attempt: 3 })
        );
    }
}
