//! Stops by orders with a grace, and by signals to the container.

use std::time::Duration;

use lockstep_supervisor_protocol::{ExitReason, FromAgent};

use super::{Scene, TERM, USR1, arrived, exited};
use crate::machine::{Effect, Ending, Event, Visible, Waits};

fn graceful() -> Waits {
    Waits {
        stop_signal: USR1,
        stop_grace: Duration::from_secs(20),
        ..Waits::default()
    }
}

#[test]
fn a_survivor_gets_the_stop_signal_before_its_grace_and_sigkill_after() {
    let mut scene = Scene::running_with(graceful(), 1);
    let hold = || FromAgent::Hold { attempt: 2 };
    assert_eq!(scene.order(hold()), [Effect::Forward(USR1)]);
    assert!(matches!(scene.machine.visible(), Visible::Held(_)));
    assert_eq!(scene.after(19), []);
    assert_eq!(scene.order(hold()), [], "the order is repeated");
    assert_eq!(scene.after(1), [Effect::KillTree]);
    assert_eq!(scene.ends(Ending::Signal(9)), []);
    let gone = scene.gives(Event::TreeEnded);
    assert_eq!(gone, [Effect::CleanSharedMemory, arrived(2)]);
}

#[test]
fn an_exit_after_the_stop_signal_of_an_order_is_no_failure() {
    for ending in [Ending::Code(0), Ending::Code(1), Ending::Signal(USR1)] {
        let mut scene = Scene::running_with(graceful(), 1);
        scene.order(FromAgent::Hold { attempt: 2 });
        assert_eq!(scene.ends(ending), [Effect::KillTree], "its descendants");
        let gone = scene.gives(Event::TreeEnded);
        assert_eq!(gone, [Effect::CleanSharedMemory, arrived(2)]);
    }
}

#[test]
fn a_container_that_ends_in_the_grace_of_an_order_keeps_that_grace() {
    let mut scene = Scene::running_with(graceful(), 1);
    scene.order(FromAgent::Hold { attempt: 2 });
    assert_eq!(scene.gives(Event::Signal(TERM)), []);
    assert_eq!(scene.ends(Ending::Code(0)), [Effect::KillTree]);
    assert_eq!(scene.gives(Event::TreeEnded), [Effect::Exit(143)]);
}

#[test]
fn exit_0_after_the_stop_signal_of_the_container_is_no_success() {
    let mut scene = Scene::running_with(graceful(), 1);
    assert_eq!(scene.gives(Event::Signal(USR1)), [Effect::Forward(USR1)]);
    let stopped = exited(1, 128 + USR1, None, ExitReason::Terminated);
    assert_eq!(scene.ends(Ending::Code(0)), [stopped, Effect::KillTree]);
    assert_eq!(scene.gives(Event::TreeEnded), [Effect::Exit(128 + USR1)]);
}

#[test]
fn a_signal_to_stop_is_passed_on_and_exit_0_after_it_is_no_success() {
    let mut scene = Scene::running(1);
    assert_eq!(scene.gives(Event::Signal(TERM)), [Effect::Forward(TERM)]);
    let reported = [
        exited(1, 143, None, ExitReason::Terminated),
        Effect::KillTree,
    ];
    assert_eq!(scene.ends(Ending::Code(0)), reported);
    assert_eq!(
        scene.gives(Event::TreeEnded),
        [Effect::Exit(143)],
        "the kubelet waits: no decision is"
    );
}

#[test]
fn a_child_that_fails_after_a_signal_to_stop_keeps_its_code() {
    let mut scene = Scene::running(1);
    scene.gives(Event::Signal(TERM));
    scene.ends(Ending::Code(5));
    assert_eq!(scene.gives(Event::TreeEnded), [Effect::Exit(5)]);
}

#[test]
fn other_signals_are_passed_on_and_mean_nothing() {
    let mut scene = Scene::running(1);
    assert_eq!(scene.gives(Event::Signal(USR1)), [Effect::Forward(USR1)]);
    assert_eq!(
        scene.ends(Ending::Code(0))[0],
        exited(1, 0, None, ExitReason::Completed)
    );
    assert_eq!(scene.gives(Event::Signal(USR1)), [], "nothing runs");
}

#[test]
fn a_signal_to_stop_ends_a_supervisor_without_child() {
    let mut held = Scene::with_agent();
    assert_eq!(held.gives(Event::Signal(TERM)), [Effect::Exit(143)]);
    assert_eq!(
        Scene::ended(1, 7).gives(Event::Signal(TERM)),
        [Effect::Exit(7)]
    );
    assert_eq!(
        Scene::ended(1, 0).gives(Event::Signal(TERM)),
        [Effect::Exit(0)],
        "it was done before"
    );
    let mut failed = Scene::ended(1, 7);
    failed.order(FromAgent::Hold { attempt: 2 });
    assert_eq!(
        failed.gives(Event::Signal(TERM)),
        [Effect::Exit(7)],
        "the next attempt has not started"
    );
    let mut stopping = Scene::running(1);
    stopping.order(FromAgent::Hold { attempt: 2 });
    assert_eq!(stopping.gives(Event::Signal(TERM)), []);
    assert_eq!(stopping.gives(Event::TreeEnded), [Effect::Exit(143)]);
}

#[test]
fn an_order_to_hold_after_a_signal_to_stop_ends_the_container() {
    let mut scene = Scene::running(1);
    scene.gives(Event::Signal(TERM));
    assert_eq!(
        scene.order(FromAgent::Hold { attempt: 2 }),
        [Effect::KillTree]
    );
    scene.ends(Ending::Signal(9));
    assert_eq!(scene.gives(Event::TreeEnded), [Effect::Exit(143)]);
}
