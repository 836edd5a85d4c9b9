//! Requests for checkpoints, and stop signals that wait for them.

use std::time::Duration;

use lockstep_supervisor_protocol::{
    EVICTION, ExitReason, FromAgent, FromSupervisor, ProgressLimits, Release, SaveReply,
    SaveRequest, Text,
};

use super::{HELD, START, Scene, TERM, USR1, arrived, call, exited, release_held, started};
use crate::machine::{Effect, Ending, Event, Waits};

const INT: u8 = 2;

/// The child of attempt 1 runs.
fn running() -> Scene {
    running_with(Waits::default(), None)
}

fn running_with(waits: Waits, progress: Option<ProgressLimits>) -> Scene {
    let mut scene = Scene::with(waits);
    scene.order(FromAgent::Hold { attempt: 1 });
    if let FromAgent::Release(release) = release_held(1) {
        scene.order(FromAgent::Release(Release {
            progress,
            ..release
        }));
    }
    scene.gives(Event::Started);
    scene
}

/// Requests a checkpoint with a deadline in 120 s.
fn called(scene: &mut Scene, id: &str, watch: bool) -> Vec<Effect> {
    let (request, deadline) = call((1, id), scene.now() + Duration::from_mins(2), watch);
    scene.gives(Event::Request { request, deadline })
}

/// An eviction joins the request, with a deadline in so many seconds.
fn evicted(scene: &mut Scene, id: &str, seconds: u64) -> Vec<Effect> {
    let deadline = scene.now() + Duration::from_secs(seconds);
    let request = eviction(id);
    scene.gives(Event::Request { request, deadline })
}

fn eviction(id: &str) -> SaveRequest {
    SaveRequest {
        reason: Text::cut(EVICTION),
        ..call((1, id), Duration::ZERO, false).0
    }
}

fn signalled(scene: &mut Scene, signalled: bool) -> Vec<Effect> {
    scene.gives(Event::Requested {
        written: true,
        signalled,
    })
}

/// Answer of a child that has a handler, after a request.
fn asked(scene: &mut Scene, id: &str) {
    assert!(matches!(
        called(scene, id, false)[..],
        [Effect::Request {
            signal: Some(USR1),
            ..
        }]
    ));
    assert_eq!(signalled(scene, true), [answered(id, SaveReply::Requested)]);
}

fn answered(id: &str, reply: SaveReply) -> Effect {
    let (request, _) = call((1, id), Duration::ZERO, false);
    Effect::Send(FromSupervisor::Checkpoint { request, reply })
}

fn answered_eviction(id: &str, reply: SaveReply) -> Effect {
    Effect::Send(FromSupervisor::Checkpoint {
        request: eviction(id),
        reply,
    })
}

fn saved(id: &str, step: u64) -> Effect {
    answered(id, SaveReply::Saved(step))
}

/// Effects of a report, without the report to the agent.
fn tells(scene: &mut Scene, step: u64, checkpoint: Option<u64>, words: &str) -> Vec<Effect> {
    let mut effects = scene.gives(Event::Progress {
        step,
        checkpoint,
        words: Text::cut(words),
    });
    effects.retain(|effect| !matches!(effect, Effect::SendProgress(_)));
    effects
}

#[test]
fn a_saved_step_answers_if_it_is_at_least_the_step_at_the_request() {
    let mut scene = running();
    tells(&mut scene, 100, Some(90), "");
    asked(&mut scene, "a");
    assert_eq!(tells(&mut scene, 100, Some(95), ""), [], "already running");
    assert_eq!(tells(&mut scene, 101, Some(95), ""), []);
    assert_eq!(tells(&mut scene, 101, Some(101), ""), [saved("a", 101)]);
    assert_eq!(tells(&mut scene, 102, Some(102), ""), [], "answered");
}

#[test]
fn a_checkpoint_from_before_the_request_is_no_answer_unless_it_is_saved_again() {
    let mut scene = running();
    tells(&mut scene, 100, Some(100), "");
    asked(&mut scene, "a");
    assert_eq!(tells(&mut scene, 120, Some(100), ""), []);
    asked(&mut scene, "b");
    tells(&mut scene, 140, Some(140), "");
    asked(&mut scene, "c");
    assert_eq!(
        tells(&mut scene, 140, Some(140), ""),
        [saved("c", 140)],
        "again"
    );
}

#[test]
fn without_a_step_each_new_checkpoint_answers() {
    let mut scene = running();
    asked(&mut scene, "a");
    assert_eq!(tells(&mut scene, 7, None, ""), []);
    assert_eq!(tells(&mut scene, 7, Some(3), ""), [saved("a", 3)]);
}

#[test]
fn a_repeated_request_is_answered_again_and_the_child_is_not_asked_again() {
    let mut scene = running();
    asked(&mut scene, "a");
    let asked_before = answered("a", SaveReply::Requested);
    assert_eq!(
        called(&mut scene, "a", false),
        std::slice::from_ref(&asked_before)
    );
    scene.gives(Event::AgentWent);
    assert_eq!(scene.gives(Event::AgentCame), [started(1), asked_before]);
    tells(&mut scene, 5, Some(5), "");
    assert_eq!(called(&mut scene, "a", false), [saved("a", 5)]);
    let (other, deadline) = call((2, "a"), scene.now(), false);
    let called = scene.gives(Event::Request {
        request: other,
        deadline,
    });
    assert_eq!(called, [], "another attempt");
}

#[test]
fn a_child_without_a_handler_is_asked_by_the_file_if_it_has_shown_that_it_reads_it() {
    let unsupported = |id| [answered(id, SaveReply::Unsupported)];
    for (checkpoint, words) in [(None, "loss=1 requests=1"), (Some(0), "")] {
        let mut scene = running();
        called(&mut scene, "a", false);
        assert_eq!(signalled(&mut scene, false), unsupported("a"));
        tells(&mut scene, 1, None, "requests=10");
        called(&mut scene, "b", false);
        assert_eq!(signalled(&mut scene, false), unsupported("b"));
        tells(&mut scene, 1, checkpoint, words);
        called(&mut scene, "c", false);
        let asked = answered("c", SaveReply::Requested);
        assert_eq!(signalled(&mut scene, false), [asked]);
        called(&mut scene, "d", false);
        let unwritten = scene.gives(Event::Requested {
            written: false,
            signalled: false,
        });
        assert_eq!(unwritten, unsupported("d"));
    }
}

#[test]
fn a_child_whose_next_checkpoint_is_awaited_is_not_asked() {
    let answered = |id, reply| {
        let (request, _) = call((1, id), Duration::ZERO, true);
        Effect::Send(FromSupervisor::Checkpoint { request, reply })
    };
    let mut scene = running();
    let answer = called(&mut scene, "a", true);
    assert_eq!(
        answer,
        [answered("a", SaveReply::Unsupported)],
        "it has never saved"
    );
    tells(&mut scene, 100, Some(90), "");
    let answer = called(&mut scene, "b", true);
    assert_eq!(answer, [answered("b", SaveReply::Requested)]);
    assert_eq!(tells(&mut scene, 101, Some(90), ""), []);
    assert_eq!(
        tells(&mut scene, 101, Some(95), ""),
        [answered("b", SaveReply::Saved(95))],
        "any new one"
    );
}

#[test]
fn a_child_that_saves_on_request_does_not_hang_before_the_deadline() {
    let limits = ProgressLimits {
        timeout_seconds: 30,
        startup_seconds: 30,
    };
    let kills = |effects: &[Effect]| effects.contains(&Effect::KillTree);
    let mut scene = running_with(Waits::default(), Some(limits));
    tells(&mut scene, 1, None, "");
    scene.second += 29;
    asked(&mut scene, "a");
    assert!(!kills(&scene.after(119)));
    assert!(kills(&scene.after(1)), "the deadline has passed");

    let mut scene = running_with(Waits::default(), Some(limits));
    tells(&mut scene, 1, None, "");
    asked(&mut scene, "a");
    scene.after(100);
    assert_eq!(tells(&mut scene, 1, Some(1), ""), [saved("a", 1)]);
    assert!(!kills(&scene.after(29)), "the save was progress");
    assert!(kills(&scene.after(1)));
}

#[test]
fn a_restart_after_a_request_has_no_grace_because_the_child_has_saved() {
    let waits = Waits {
        stop_grace: Duration::from_secs(20),
        ..Waits::default()
    };
    for (handled, effect) in [(true, Effect::KillTree), (false, Effect::Forward(TERM))] {
        let mut scene = running_with(waits.clone(), None);
        called(&mut scene, "a", false);
        signalled(&mut scene, handled);
        assert_eq!(scene.order(FromAgent::Hold { attempt: 2 }), [effect]);
    }
}

#[test]
fn a_stop_signal_waits_3_seconds_for_a_request_before_an_eviction_and_then_for_stop() {
    let passed_on = || [Effect::Forward(TERM)];
    let mut scene = running();
    assert_eq!(scene.gives(Event::Signal(TERM)), []);
    assert_eq!(scene.after(2), []);
    assert_eq!(scene.after(1), passed_on());
    assert_eq!(scene.after(100), [], "once");

    let mut scene = running();
    scene.gives(Event::Signal(TERM));
    evicted(&mut scene, "a", 120);
    signalled(&mut scene, true);
    scene.after(10);
    assert_eq!(
        tells(&mut scene, 5, Some(5), ""),
        [answered_eviction("a", SaveReply::Saved(5))],
        "for the others"
    );
    let stop = || FromAgent::Stop { attempt: 1 };
    let passes = || Effect::Send(FromSupervisor::PassesStops { attempt: 1 });
    assert_eq!(scene.order(stop()), [Effect::Forward(TERM), passes()]);
    assert_eq!(scene.order(stop()), [passes()], "repeated");

    let mut scene = running();
    evicted(&mut scene, "a", 120);
    tells(&mut scene, 5, Some(5), "");
    assert_eq!(scene.gives(Event::Signal(TERM)), []);
    assert_eq!(
        scene.after(u64::from(HELD) - 1),
        [],
        "the request is open for others"
    );
    assert_eq!(scene.after(1), passed_on(), "the longest time");

    let mut scene = running();
    assert_eq!(scene.order(stop()), [passes()]);
    assert_eq!(scene.gives(Event::Signal(TERM)), passed_on());
}

#[test]
fn a_request_for_another_reason_does_not_extend_the_hold_of_a_stop_signal() {
    for before in [true, false] {
        let mut scene = running();
        if before {
            asked(&mut scene, "a");
        }
        scene.gives(Event::Signal(TERM));
        if !before {
            asked(&mut scene, "a");
        }
        assert_eq!(scene.after(2), []);
        assert_eq!(scene.after(1), [Effect::Forward(TERM)], "{before}");
    }
}

#[test]
fn a_held_stop_signal_is_passed_on_5_seconds_before_the_pod_ends() {
    // The manager has read an end of the grace period 10 s after the deadline.
    for signal_first in [true, false] {
        let mut scene = running();
        asked(&mut scene, "a");
        if signal_first {
            scene.gives(Event::Signal(TERM));
        }
        let known = evicted(&mut scene, "a", 10);
        assert_eq!(
            known,
            [answered_eviction("a", SaveReply::Requested)],
            "it joins the request"
        );
        if !signal_first {
            scene.gives(Event::Signal(TERM));
        }
        assert_eq!(scene.after(14), []);
        assert_eq!(scene.after(1), [Effect::Forward(TERM)], "{signal_first}");
    }
}

#[test]
fn a_second_stop_signal_is_passed_on_at_once() {
    for signal in [TERM, INT] {
        let mut scene = running();
        scene.gives(Event::Signal(TERM));
        assert_eq!(
            scene.gives(Event::Signal(signal)),
            [Effect::Forward(signal)]
        );
        assert_eq!(scene.after(100), [], "the first one is forgotten");
    }
    let mut scene = running();
    scene.gives(Event::Signal(TERM));
    assert_eq!(scene.gives(Event::Signal(USR1)), [Effect::Forward(USR1)]);
    assert_eq!(scene.after(3), [Effect::Forward(TERM)]);
}

#[test]
fn a_child_that_ends_while_its_stop_signal_waits_was_stopped() {
    let mut scene = running();
    scene.gives(Event::Signal(TERM));
    let stopped = exited(1, 128 + TERM, None, ExitReason::Terminated);
    assert_eq!(scene.ends(Ending::Code(0)), [stopped, Effect::KillTree]);
    assert_eq!(scene.gives(Event::TreeEnded), [Effect::Exit(128 + TERM)]);
}

#[test]
fn the_next_child_starts_without_the_request_to_the_last_one() {
    let mut scene = running();
    asked(&mut scene, "a");
    scene.order(FromAgent::Stop { attempt: 1 });
    scene.order(FromAgent::Hold { attempt: 2 });
    scene.ends(Ending::Signal(9));
    assert_eq!(
        scene.gives(Event::TreeEnded),
        [Effect::CleanSharedMemory, arrived(2)]
    );
    scene.order(release_held(2));
    scene.gives(Event::Started);
    assert_eq!(tells(&mut scene, 9, Some(9), ""), []);
    assert!(!scene.machine.awaits_checkpoint(Duration::from_secs(START)));
    assert_eq!(scene.gives(Event::Signal(TERM)), [], "held back again");
}
