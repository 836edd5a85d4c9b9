//! Single scenarios, and invariants of all histories.

mod hangs;
mod property;
mod reported;
mod requests;
mod stop;

use std::time::Duration;

use lockstep_supervisor_protocol::{
    ChildExit, ExitReason, FromAgent, FromSupervisor, ProgressLimits, Release, SavePolicy,
    SaveRequest, Text,
};

use super::{Effect, Ending, Event, Machine, Moment, OwnExit, Visible, Waits};

const TERM: u8 = 15;
const USR1: u8 = 10;
/// Start of the supervisor, in seconds since boot.
const START: u64 = 1000;

fn release(attempt: u64) -> FromAgent {
    release_with(attempt, None)
}

fn release_with(attempt: u64, progress: Option<ProgressLimits>) -> FromAgent {
    FromAgent::Release(Release {
        attempt,
        coordinator: None,
        world: 4,
        rank: None,
        peers: Text::default(),
        progress,
        checkpoint: None,
    })
}

/// Longest time of a held-back stop signal, in seconds.
const HELD: u32 = 60;

/// Released with requests for checkpoints by SIGUSR1.
fn release_held(attempt: u64) -> FromAgent {
    let FromAgent::Release(release) = release(attempt) else {
        return release(attempt);
    };
    FromAgent::Release(Release {
        checkpoint: Some(SavePolicy {
            signal: Some(USR1),
            timeout_seconds: 120,
            hold_stop_seconds: HELD,
        }),
        ..release
    })
}

/// A request for a checkpoint with its deadline.
fn call((attempt, id): (u64, &str), deadline: Moment, watch: bool) -> (SaveRequest, Moment) {
    let call = SaveRequest {
        attempt,
        id: Text::cut(id),
        reason: Text::cut("Preemption"),
        deadline: 0,
        watch,
    };
    (call, deadline)
}

struct Scene {
    machine: Machine,
    second: u64,
}

impl Scene {
    /// With a connected agent, and without earlier effects.
    fn with_agent() -> Self {
        Self::with(Waits::default())
    }

    fn with(waits: Waits) -> Self {
        let mut machine = Machine::new(waits, Duration::from_secs(START));
        machine.on(Event::AgentCame, Duration::from_secs(START));
        Self {
            machine,
            second: START,
        }
    }

    fn running(attempt: u64) -> Self {
        Self::running_with(Waits::default(), attempt)
    }

    fn running_with(waits: Waits, attempt: u64) -> Self {
        let mut scene = Self::with(waits);
        scene.order(FromAgent::Hold { attempt });
        scene.order(release(attempt));
        scene.gives(Event::Started);
        scene
    }

    /// The child of this attempt has ended without an order, and has no descendants left.
    fn ended(attempt: u64, code: u8) -> Self {
        let mut scene = Self::running(attempt);
        scene.ends(Ending::Code(code));
        scene.gives(Event::TreeEnded);
        scene
    }

    fn now(&self) -> Moment {
        Duration::from_secs(self.second)
    }

    /// Effects of an event, without prints.
    fn gives(&mut self, event: Event) -> Vec<Effect> {
        let mut actions = self.machine.on(event, self.now());
        actions.retain(|action| !matches!(action, Effect::Print(_)));
        actions
    }

    fn order(&mut self, order: FromAgent) -> Vec<Effect> {
        self.gives(Event::Order(order))
    }

    fn ends(&mut self, ending: Ending) -> Vec<Effect> {
        self.gives(Event::ChildEnded {
            ending,
            oom_kills: 0,
        })
    }

    fn after(&mut self, seconds: u64) -> Vec<Effect> {
        self.second += seconds;
        self.gives(Event::Time)
    }
}

fn arrived(attempt: u64) -> Effect {
    Effect::Send(FromSupervisor::Arrived { attempt })
}

fn started(attempt: u64) -> Effect {
    Effect::Send(FromSupervisor::Started { attempt })
}

/// Exit of a child in the second of the supervisor's start, in which all tests begin.
fn exited(attempt: u64, code: u8, signal: Option<u8>, reason: ExitReason) -> Effect {
    sent_exit(
        ChildExit {
            attempt,
            code,
            signal,
            oom_kills: 0,
            reason,
            message: Text::default(),
        },
        START,
    )
}

fn sent_exit(exit: ChildExit, second: u64) -> Effect {
    let at = Duration::from_secs(second);
    Effect::SendExit(OwnExit { exit, at })
}

#[test]
fn the_first_start_goes_through_the_barrier() {
    let mut scene = Scene::with_agent();
    assert_eq!(scene.machine.visible(), Visible::Starting);
    assert_eq!(
        scene.order(release(1)),
        [],
        "nothing is held for attempt 1 yet"
    );
    assert_eq!(scene.order(FromAgent::Hold { attempt: 1 }), [arrived(1)]);
    assert_eq!(scene.order(release(2)), [], "held for attempt 1, not 2");
    assert!(matches!(
        scene.order(release(1))[..],
        [Effect::Start(Release { attempt: 1, .. })]
    ));
    assert_eq!(scene.gives(Event::Started), [started(1)]);
    assert_eq!(scene.machine.visible(), Visible::Running(scene.now()));
}

#[test]
fn a_running_child_is_stopped_whole_before_the_supervisor_arrives() {
    let mut scene = Scene::running(3);
    assert_eq!(
        scene.order(FromAgent::Hold { attempt: 4 }),
        [Effect::KillTree]
    );
    assert_eq!(scene.order(release(4)), [], "it has not arrived");
    assert_eq!(
        scene.ends(Ending::Signal(9)),
        [],
        "its end was ordered and is no failure"
    );
    assert_eq!(
        scene.gives(Event::TreeEnded),
        [Effect::CleanSharedMemory, arrived(4)]
    );
    assert!(matches!(scene.order(release(4))[..], [Effect::Start(_)]));
}

#[test]
fn a_failure_is_reported_at_once_and_waits_for_the_decision() {
    let mut scene = Scene::running(1);
    let reported = [exited(1, 7, None, ExitReason::Error), Effect::KillTree];
    assert_eq!(scene.ends(Ending::Code(7)), reported);
    assert_eq!(scene.gives(Event::TreeEnded), []);
    assert_eq!(scene.order(release(1)), [], "an attempt starts once");
    assert_eq!(
        scene.order(FromAgent::Hold { attempt: 2 }),
        [Effect::CleanSharedMemory, arrived(2)]
    );
}

#[test]
fn a_policy_that_ends_the_container_shows_the_childs_code() {
    let mut scene = Scene::ended(1, 42);
    assert_eq!(
        scene.order(FromAgent::Exit { attempt: 2 }),
        [],
        "not the attempt that has ended"
    );
    assert_eq!(
        scene.order(FromAgent::Exit { attempt: 1 }),
        [Effect::Exit(42)]
    );
    assert_eq!(
        scene.order(FromAgent::Hold { attempt: 2 }),
        [],
        "nothing comes after the exit"
    );
}

#[test]
fn a_policy_can_end_the_container_of_a_failed_child_that_was_held_already() {
    let mut scene = Scene::ended(1, 42);
    scene.order(FromAgent::Hold { attempt: 2 });
    assert_eq!(
        scene.order(FromAgent::Exit { attempt: 1 }),
        [Effect::Exit(42)]
    );
}

#[test]
fn an_order_that_comes_before_the_tree_is_gone_arrives_when_it_is() {
    let mut scene = Scene::running(1);
    scene.ends(Ending::Code(1));
    assert_eq!(scene.order(FromAgent::Hold { attempt: 2 }), []);
    assert_eq!(
        scene.order(FromAgent::Hold { attempt: 3 }),
        [],
        "a later order replaces it"
    );
    assert_eq!(
        scene.gives(Event::TreeEnded),
        [Effect::CleanSharedMemory, arrived(3)]
    );
}

#[test]
fn a_child_that_fails_while_it_is_being_stopped_is_reported() {
    let mut scene = Scene::running(1);
    scene.order(FromAgent::Hold { attempt: 2 });
    assert_eq!(
        scene.ends(Ending::Code(3)),
        [exited(1, 3, None, ExitReason::Error)]
    );
    assert_eq!(
        scene.gives(Event::TreeEnded),
        [Effect::CleanSharedMemory, arrived(2)]
    );
}

#[test]
fn an_ordered_kill_is_no_failure_although_a_worker_ran_out_of_memory_before() {
    let mut scene = Scene::running(1);
    scene.order(FromAgent::Hold { attempt: 2 });
    assert_eq!(
        scene.gives(Event::ChildEnded {
            ending: Ending::Signal(9),
            oom_kills: 1
        }),
        []
    );
}

#[test]
fn orders_of_older_attempts_change_nothing() {
    let mut scene = Scene::running(5);
    assert_eq!(scene.order(FromAgent::Hold { attempt: 4 }), []);
    assert_eq!(
        scene.order(FromAgent::Hold { attempt: 5 }),
        [started(5)],
        "the agent has missed the start"
    );
    assert_eq!(scene.order(release(4)), []);
    assert_eq!(scene.order(release(5)), [started(5)]);
    scene.order(FromAgent::Hold { attempt: 7 });
    scene.gives(Event::TreeEnded);
    assert_eq!(scene.order(FromAgent::Hold { attempt: 6 }), []);
    assert_eq!(scene.order(release(6)), []);
}

#[test]
fn an_agent_that_comes_back_hears_all_that_matters() {
    let mut scene = Scene::with_agent();
    assert_eq!(scene.gives(Event::AgentCame), [arrived(0)]);
    let mut scene = Scene::running(2);
    assert_eq!(scene.gives(Event::AgentCame), [started(2)]);
    scene.order(FromAgent::Hold { attempt: 3 });
    assert_eq!(
        scene.gives(Event::AgentCame),
        [],
        "on the way to the barrier"
    );
    let mut scene = Scene::ended(2, 9);
    let report = exited(2, 9, None, ExitReason::Error);
    assert_eq!(scene.gives(Event::AgentCame), std::slice::from_ref(&report));
    scene.order(FromAgent::Hold { attempt: 3 });
    assert_eq!(scene.gives(Event::AgentCame), [report, arrived(3)]);
}

#[test]
fn exit_0_waits_until_all_are_done() {
    let mut scene = Scene::ended(1, 0);
    assert_eq!(scene.after(299), []);
    assert_eq!(
        scene.order(FromAgent::Complete { attempt: 2 }),
        [],
        "not the attempt that has ended"
    );
    assert_eq!(
        scene.order(FromAgent::Complete { attempt: 1 }),
        [Effect::Exit(0)]
    );

    let mut crash_of_a_peer = Scene::ended(1, 0);
    assert_eq!(
        crash_of_a_peer.order(FromAgent::Hold { attempt: 2 }),
        [Effect::CleanSharedMemory, arrived(2)]
    );
    assert_eq!(
        crash_of_a_peer.after(10_000),
        [],
        "the barrier has no deadline of its own"
    );

    let mut no_end = Scene::ended(1, 0);
    assert_eq!(no_end.gives(Event::AgentWent), []);
    assert_eq!(no_end.after(299), []);
    assert_eq!(no_end.after(1), [Effect::Exit(0)]);
}

#[test]
fn a_failed_child_is_not_completed() {
    let mut scene = Scene::ended(1, 1);
    assert_eq!(scene.order(FromAgent::Complete { attempt: 1 }), []);
}

#[test]
fn after_a_failure_an_agent_is_waited_for_a_minute() {
    let mut scene = Scene::ended(1, 7);
    scene.second += 20;
    scene.gives(Event::AgentWent);
    assert_eq!(scene.after(59), []);
    assert_eq!(scene.after(1), [Effect::Exit(7)]);

    let mut back_in_time = Scene::ended(1, 7);
    back_in_time.gives(Event::AgentWent);
    back_in_time.second += 59;
    back_in_time.gives(Event::AgentCame);
    assert_eq!(back_in_time.after(30), []);
}

#[test]
fn a_minute_without_agent_begins_no_earlier_than_the_failure() {
    let mut scene = Scene::running(1);
    scene.gives(Event::AgentWent);
    assert_eq!(scene.after(100_000), [], "training goes on");
    scene.ends(Ending::Code(7));
    scene.gives(Event::TreeEnded);
    assert_eq!(scene.after(59), []);
    assert_eq!(scene.after(1), [Effect::Exit(7)]);
}

#[test]
fn a_member_that_was_stopped_on_order_waits_for_ever() {
    let mut scene = Scene::running(1);
    scene.order(FromAgent::Hold { attempt: 2 });
    scene.ends(Ending::Signal(9));
    scene.gives(Event::TreeEnded);
    scene.gives(Event::AgentWent);
    assert_eq!(scene.after(100_000), []);
    assert_eq!(scene.machine.next_deadline(), None);
}

#[test]
fn without_a_decision_a_failure_ends_the_container() {
    let mut scene = Scene::ended(1, 7);
    assert_eq!(scene.after(119), []);
    assert_eq!(scene.after(1), [Effect::Exit(7)]);

    let mut decided = Scene::ended(1, 7);
    decided.order(FromAgent::Hold { attempt: 2 });
    assert_eq!(decided.after(100_000), [], "at the barrier, with an agent");
}

#[test]
fn survivors_are_reported_and_arrive_late() {
    let mut scene = Scene::running(1);
    scene.order(FromAgent::Hold { attempt: 2 });
    assert_eq!(scene.after(9), []);
    assert_eq!(scene.after(1), [Effect::ReportSurvivors { attempt: 1 }]);
    assert_eq!(scene.after(1000), [], "once");
    assert_eq!(
        scene.gives(Event::AgentCame),
        [Effect::ReportSurvivors { attempt: 1 }],
        "to each agent"
    );
    assert_eq!(
        scene.gives(Event::TreeEnded),
        [Effect::CleanSharedMemory, arrived(2)]
    );
}

#[test]
fn survivors_do_not_keep_the_supervisor() {
    let mut scene = Scene::running(1);
    scene.gives(Event::Signal(TERM));
    scene.ends(Ending::Code(0));
    assert_eq!(
        scene.after(10),
        [Effect::ReportSurvivors { attempt: 1 }, Effect::Exit(143)]
    );

    let mut reported_before = Scene::running(1);
    reported_before.order(FromAgent::Hold { attempt: 2 });
    reported_before.after(10);
    assert_eq!(
        reported_before.gives(Event::Signal(TERM)),
        [Effect::Exit(143)]
    );
}

#[test]
fn a_kill_for_memory_is_named() {
    let mut scene = Scene::running(1);
    let actions = scene.gives(Event::ChildEnded {
        ending: Ending::Code(7),
        oom_kills: 1,
    });
    let expected = ChildExit {
        attempt: 1,
        code: 7,
        signal: None,
        oom_kills: 1,
        reason: ExitReason::OomKilled,
        message: Text::default(),
    };
    assert_eq!(actions[0], sent_exit(expected, START));
}

#[test]
fn a_child_that_cannot_start_has_failed() {
    let mut scene = Scene::with_agent();
    scene.order(FromAgent::Hold { attempt: 1 });
    scene.order(release(1));
    let actions = scene.gives(Event::NotStarted {
        code: 127,
        message: "no such file".to_owned(),
    });
    let expected = ChildExit {
        attempt: 1,
        code: 127,
        signal: None,
        oom_kills: 0,
        reason: ExitReason::StartError,
        message: Text::cut("no such file"),
    };
    assert_eq!(actions, [sent_exit(expected, START)]);
    assert_eq!(
        scene.order(FromAgent::Exit { attempt: 1 }),
        [Effect::Exit(127)],
        "nothing is left to kill"
    );
}

#[test]
fn probes_see_since_when_no_child_runs() {
    let mut scene = Scene::running(1);
    scene.second += 5;
    scene.order(FromAgent::Hold { attempt: 2 });
    let since = scene.now();
    scene.second += 5;
    scene.gives(Event::TreeEnded);
    assert_eq!(scene.machine.visible(), Visible::Held(since));
}

#[test]
fn an_order_that_is_ignored_again_and_again_is_printed_once() {
    let mut scene = Scene::with_agent();
    let mut said = |attempt| {
        scene
            .machine
            .on(Event::Order(release(attempt)), Duration::from_secs(START))
    };
    let print = |attempt: u64| {
        let text = format!("ignored: a release for attempt {attempt}, which is not held here");
        vec![Effect::Print(text)]
    };
    assert_eq!(said(3), print(3));
    assert_eq!(said(3), []);
    assert_eq!(said(4), print(4));
}
