//! A child that reports progress and then stops.

use std::time::Duration;

use lockstep_supervisor_protocol::{ChildExit, ExitReason, FromAgent, ProgressLimits, Text};

use super::{START, Scene, TERM, arrived, release_with, sent_exit, started};
use crate::machine::{Effect, Ending, Event, ObservedProgress};

const LIMITS: ProgressLimits = ProgressLimits {
    timeout_seconds: 60,
    startup_seconds: 600,
};

/// The child of attempt 1 runs, with limits.
fn running() -> Scene {
    let mut scene = Scene::with_agent();
    scene.order(FromAgent::Hold { attempt: 1 });
    starts(&mut scene, 1);
    scene
}

fn starts(scene: &mut Scene, attempt: u64) {
    scene.order(release_with(attempt, Some(LIMITS)));
    assert_eq!(scene.gives(Event::Started), [started(attempt)]);
}

fn reports_progress(scene: &mut Scene, step: u64) -> Vec<Effect> {
    scene.gives(Event::Progress {
        step,
        checkpoint: None,
        words: Text::default(),
    })
}

fn sent(step: u64, second: u64, checkpoint: Option<(u64, u64)>) -> Effect {
    let at = |second| Duration::from_secs(START + second);
    Effect::SendProgress(ObservedProgress {
        attempt: 1,
        step,
        step_at: at(second),
        checkpoint: checkpoint.map(|(step, second)| (step, at(second))),
        words: Text::default(),
    })
}

fn hung(second: u64, attempt: u64, message: &str) -> [Effect; 2] {
    let exit = ChildExit {
        attempt,
        code: 137,
        signal: Some(9),
        oom_kills: 0,
        reason: ExitReason::Hang,
        message: Text::cut(message),
    };
    [sent_exit(exit, second), Effect::KillTree]
}

#[test]
fn a_child_that_stops_making_progress_has_failed_and_is_killed() {
    let mut scene = running();
    reports_progress(&mut scene, 0);
    scene.after(599);
    reports_progress(&mut scene, 1);
    assert_eq!(scene.after(59), []);
    reports_progress(&mut scene, 2);
    assert_eq!(scene.after(59), []);
    assert_eq!(
        reports_progress(&mut scene, 2),
        [sent(2, 658, None)],
        "told again, the same step"
    );
    assert_eq!(
        scene.after(1),
        hung(scene.second, 1, "no progress for 60 s after step 2")
    );
    assert_eq!(
        scene.ends(Ending::Signal(9)),
        [],
        "its end was told already"
    );
    scene.gives(Event::TreeEnded);
    assert_eq!(
        scene.order(FromAgent::Hold { attempt: 2 }),
        [Effect::CleanSharedMemory, arrived(2)]
    );
}

#[test]
fn one_that_cannot_be_killed_has_failed_all_the_same_and_does_not_arrive() {
    let mut scene = running();
    reports_progress(&mut scene, 0);
    scene.after(700);
    assert_eq!(scene.order(FromAgent::Hold { attempt: 2 }), []);
    assert_eq!(scene.after(10), [Effect::ReportSurvivors { attempt: 1 }]);
}

#[test]
fn the_first_step_has_the_time_of_the_start() {
    let mut scene = running();
    scene.after(10);
    reports_progress(&mut scene, 0);
    assert_eq!(scene.after(589), []);
    assert_eq!(
        scene.after(1),
        hung(scene.second, 1, "no progress for 590 s after step 0")
    );
}

#[test]
fn a_child_does_not_hang_during_startup_at_any_reported_step() {
    let mut scene = running();
    for (second, step) in [(0, 0), (20, 1200), (10, 1201)] {
        scene.after(second);
        reports_progress(&mut scene, step);
    }
    assert_eq!(scene.after(569), [], "it compiles");
    assert_eq!(
        scene.after(1),
        hung(scene.second, 1, "no progress for 570 s after step 1201")
    );
}

#[test]
fn the_last_step_is_reported_before_the_exit() {
    let mut scene = running();
    reports_progress(&mut scene, 1);
    scene.after(2);
    assert_eq!(reports_progress(&mut scene, 2), []);
    let exit = ChildExit {
        attempt: 1,
        code: 7,
        signal: None,
        oom_kills: 0,
        reason: ExitReason::Error,
        message: Text::default(),
    };
    let ended = sent_exit(exit, scene.second);
    assert_eq!(
        scene.ends(Ending::Code(7)),
        [sent(2, 2, None), ended, Effect::KillTree]
    );
}

#[test]
fn a_first_step_reported_late_has_the_normal_timeout() {
    let mut scene = running();
    scene.after(590);
    reports_progress(&mut scene, 1);
    assert_eq!(scene.after(59), []);
    assert_eq!(
        scene.after(1),
        hung(scene.second, 1, "no progress for 60 s after step 1")
    );
}

#[test]
fn a_child_is_never_treated_as_hung_before_its_first_progress_report() {
    let mut scene = running();
    assert_eq!(scene.after(100_000), []);
    reports_progress(&mut scene, 7);
    scene.order(FromAgent::Hold { attempt: 2 });
    scene.ends(Ending::Signal(9));
    scene.gives(Event::TreeEnded);
    starts(&mut scene, 2);
    assert_eq!(scene.after(599), []);
    assert_eq!(
        scene.after(1),
        hung(scene.second, 2, "no progress for 600 s after it started")
    );
}

#[test]
fn without_limits_nothing_hangs() {
    let mut scene = Scene::running(1);
    reports_progress(&mut scene, 1);
    assert_eq!(scene.after(100_000), []);
}

#[test]
fn a_child_that_received_a_stop_signal_has_its_grace_period() {
    let mut scene = running();
    reports_progress(&mut scene, 1);
    reports_progress(&mut scene, 2);
    scene.gives(Event::Signal(TERM));
    assert_eq!(scene.after(100_000), []);
}

#[test]
fn steps_are_reported_periodically_and_checkpoints_at_once() {
    let mut scene = running();
    assert_eq!(reports_progress(&mut scene, 1), [sent(1, 0, None)]);
    scene.after(1);
    assert_eq!(reports_progress(&mut scene, 2), []);
    let saved = |checkpoint| Event::Progress {
        step: 2,
        checkpoint: Some(checkpoint),
        words: Text::default(),
    };
    assert_eq!(scene.gives(saved(2)), [sent(2, 1, Some((2, 1)))]);
    assert_eq!(scene.gives(saved(2)), []);
    scene.after(10);
    assert_eq!(
        scene.gives(saved(2)),
        [sent(2, 1, Some((2, 1)))],
        "the same again, after a while"
    );
    scene.gives(Event::AgentWent);
    assert_eq!(
        scene.gives(Event::AgentCame),
        [started(1), sent(2, 1, Some((2, 1)))],
        "a new agent knows nothing"
    );
}

#[test]
fn words_are_sent_with_the_next_step_and_are_no_step() {
    let mut scene = running();
    let words = |scene: &mut Scene, step, words: &str| {
        scene.gives(Event::Progress {
            step,
            checkpoint: None,
            words: Text::cut(words),
        })
    };
    words(&mut scene, 1, "loss=3");
    scene.after(590);
    let [Effect::SendProgress(sent)] = &words(&mut scene, 1, "loss=2")[..] else {
        panic!("words of a later report")
    };
    assert_eq!((sent.step, &*sent.words), (1, "loss=2"));
    assert_eq!(
        scene.after(10),
        hung(scene.second, 1, "no progress for 600 s after step 1")
    );
}
