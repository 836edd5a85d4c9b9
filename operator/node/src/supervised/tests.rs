use lockstep_api::member::Member;
use lockstep_api::restart_order::RestartsSeen;

use super::*;

fn at(s: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(s, 0).unwrap()
}

/// A pod of attempt 1 with one running container and this state of its supervisor.
fn pod(restarts: i32, state: impl Into<Option<SupervisorState>>) -> NodePod {
    NodePod {
        uid: "p".into(),
        member: Some(Member::new("g", 0, 0)),
        attempt: 1,
        training: "t".into(),
        containers: vec![ObservedContainer {
            id: format!("c{restarts}"),
            restarts,
            created_at: at(i64::from(restarts)),
            exit: None,
        }],
        supervised: true,
        supervisor: state.into(),
        ..NodePod::default()
    }
}

/// The pod after a container has ended. The next one waits without an attempt.
fn after(restarts: i32, code: i32) -> NodePod {
    let mut next = pod(restarts + 1, held(0));
    let mut old = pod(restarts, None).containers.remove(0);
    old.exit = Some(Exit {
        code,
        reason: "Error".into(),
        at: at(5),
    });
    next.containers.push(old);
    next
}

fn held(attempt: i64) -> SupervisorState {
    SupervisorState {
        held: Some(attempt),
        ..SupervisorState::default()
    }
}

fn runs(attempt: i64) -> SupervisorState {
    SupervisorState {
        running: Some(attempt),
        ..SupervisorState::default()
    }
}

fn ended(attempt: i64, code: i32) -> SupervisorState {
    ended_at(attempt, code, at(9))
}

fn ended_at(attempt: i64, code: i32, at: DateTime<Utc>) -> SupervisorState {
    SupervisorState {
        exit: Some(ChildEnd {
            message: String::new(),
            attempt,
            at,
            code,
            reason: "Error".into(),
        }),
        ..SupervisorState::default()
    }
}

fn order(attempt: i64, released: i64) -> DomainOrder {
    DomainOrder {
        attempt,
        released_attempt: released,
        members: vec!["g/0/0".into()],
        world: 4,
        ..DomainOrder::default()
    }
}

/// Successive steps over one record, with their messages and reports.
#[derive(Default)]
struct Agent {
    record: Option<Record>,
    reports: Vec<Report>,
}

impl Agent {
    fn step(&mut self, pod: &NodePod, order: &DomainOrder) -> Option<SupervisorCommand> {
        let step = step(pod, self.record.as_ref(), Some(order), &self.reports, at(9));
        assert!(
            step.stop.is_empty(),
            "a supervised container is not stopped"
        );
        self.record = step.record;
        self.reports.extend(step.reports);
        step.command
    }

    fn arrived(&self) -> Option<i64> {
        let record = self.record.as_ref()?;
        record.arrived.then_some(record.attempt)
    }
}

#[test]
fn a_new_container_is_held_for_the_attempt_and_released_when_the_manager_says_so() {
    let mut agent = Agent::default();
    assert_eq!(agent.step(&pod(0, None), &order(1, 0)), None, "no link yet");
    let hold = Some(SupervisorCommand::Hold { attempt: 1 });
    assert_eq!(agent.step(&pod(0, held(0)), &order(1, 0)), hold);
    assert_eq!(agent.arrived(), None);
    assert_eq!(agent.step(&pod(0, held(1)), &order(1, 0)), None);
    assert_eq!(agent.arrived(), Some(1));
    let release = agent.step(&pod(0, held(1)), &order(1, 1));
    assert!(matches!(
        release,
        Some(SupervisorCommand::Release { attempt: 1, .. })
    ));
    assert_eq!(agent.step(&pod(0, runs(1)), &order(1, 1)), None);
    assert_eq!(agent.arrived(), Some(1), "it stays arrived");
}

#[test]
fn a_release_of_another_attempt_starts_nothing() {
    let mut agent = Agent::default();
    agent.step(&pod(0, held(1)), &order(1, 0));
    for released in [0, 2] {
        assert_eq!(agent.step(&pod(0, held(1)), &order(1, released)), None);
    }
}

#[test]
fn an_exit_of_a_child_is_reported_once_and_its_member_joins_the_next_attempt() {
    let mut agent = Agent::default();
    agent.step(&pod(0, runs(1)), &order(1, 1));
    for _ in 0..3 {
        assert_eq!(agent.step(&pod(0, ended(1, 7)), &order(1, 1)), None);
    }
    assert_eq!(agent.reports.len(), 1);
    let report = &agent.reports[0];
    assert_eq!(
        (report.attempt, report.exit_code, report.supervised),
        (1, 7, true)
    );
    let hold = Some(SupervisorCommand::Hold { attempt: 2 });
    assert_eq!(agent.step(&pod(0, ended(1, 7)), &order(2, 1)), hold);
    agent.step(&pod(0, held(2)), &order(2, 1));
    assert_eq!(agent.arrived(), Some(2));
}

#[test]
fn a_container_exit_after_a_reported_child_exit_is_not_reported_again() {
    let mut agent = Agent::default();
    agent.step(&pod(0, runs(1)), &order(1, 1));
    agent.step(&pod(0, ended(1, 7)), &order(1, 1));
    let mut gone = pod(0, None);
    gone.containers[0].exit = Some(Exit {
        code: 7,
        reason: "Error".into(),
        at: at(9),
    });
    agent.step(&gone, &order(1, 1));
    assert_eq!(agent.reports.len(), 1);
    gone.containers[0].exit = Some(Exit {
        code: 137,
        reason: "OOMKilled".into(),
        at: at(9),
    });
    let mut other = Agent::default();
    other.step(&pod(0, runs(1)), &order(1, 1));
    other.step(&gone, &order(1, 1));
    assert_eq!(
        other.reports[0].exit_code, 137,
        "the supervisor was killed, too"
    );
}

#[test]
fn where_an_attempt_has_ended_the_next_container_waits_for_another_one() {
    let mut agent = Agent::default();
    agent.step(&pod(0, runs(1)), &order(1, 1));
    let next = after(0, 137);
    assert_eq!(
        agent.step(&next, &order(1, 1)),
        None,
        "the others go on without it"
    );
    assert_eq!(
        agent.step(&next, &order(2, 1)),
        Some(SupervisorCommand::Hold { attempt: 2 })
    );
}

#[test]
fn a_member_that_restarts_alone_exits_and_starts_again_at_the_same_attempt() {
    let alone = |restarts| DomainOrder {
        alone: vec![RestartsSeen {
            restarts,
            members: vec!["g/0/0".into()],
        }],
        ..order(1, 1)
    };
    let mut agent = Agent::default();
    agent.step(&pod(0, runs(1)), &order(1, 1));
    agent.step(&pod(0, ended(1, 42)), &order(1, 1));
    let exit = Some(SupervisorCommand::Exit { attempt: 1 });
    assert_eq!(agent.step(&pod(0, ended(1, 42)), &alone(0)), exit);
    let mut next = after(0, 42);
    assert_eq!(
        agent.step(&next, &alone(0)),
        Some(SupervisorCommand::Hold { attempt: 1 })
    );
    next.supervisor = Some(held(1));
    let release = agent.step(&next, &alone(0));
    assert!(matches!(
        release,
        Some(SupervisorCommand::Release { attempt: 1, .. })
    ));
    next.supervisor = Some(ended(1, 1));
    assert_eq!(
        agent.step(&next, &alone(0)),
        None,
        "its next failure is another one, and may be for all"
    );
}

#[test]
fn an_older_order_for_a_single_member_starts_nothing_after_a_later_failure() {
    let older = DomainOrder {
        alone: vec![RestartsSeen {
            restarts: 0,
            members: vec!["g/0/0".into()],
        }],
        ..order(2, 2)
    };
    let mut agent = Agent::default();
    agent.step(&pod(1, runs(3)), &order(3, 3));
    agent.step(&pod(1, ended(3, 7)), &order(3, 3));
    let next = after(1, 7);
    for shown in [&older, &order(3, 3)] {
        assert_eq!(agent.step(&next, shown), None, "{}", shown.attempt);
    }
    assert_eq!(
        agent.step(&next, &order(4, 3)),
        Some(SupervisorCommand::Hold { attempt: 4 })
    );
}

#[test]
fn exit_0_waits_until_all_are_done() {
    let mut agent = Agent::default();
    agent.step(&pod(0, runs(3)), &order(3, 3));
    assert_eq!(agent.step(&pod(0, ended(3, 0)), &order(3, 3)), None);
    let done = DomainOrder {
        completed_attempt: 3,
        ..order(3, 3)
    };
    assert_eq!(
        agent.step(&pod(0, ended(3, 0)), &done),
        Some(SupervisorCommand::Complete { attempt: 3 })
    );
}

#[test]
fn an_agent_without_memory_takes_the_supervisors_word() {
    let mut agent = Agent::default();
    assert_eq!(
        agent.step(&pod(0, runs(1)), &order(2, 1)),
        Some(SupervisorCommand::Hold { attempt: 2 })
    );
    assert_eq!(agent.arrived(), Some(1));
}

#[test]
fn a_pod_whose_member_got_a_new_pod_is_held_once_the_attempt_is_released() {
    let without = |released| DomainOrder {
        members: vec!["g/1/0".into()],
        ..order(2, released)
    };
    let mut agent = Agent::default();
    let evicted = agent.step(&pod(0, runs(1)), &without(1));
    assert_eq!(evicted, None, "its grace period runs");
    let hold = Some(SupervisorCommand::Hold { attempt: 2 });
    assert_eq!(agent.step(&pod(0, runs(1)), &without(2)), hold);
    for state in [held(0), held(2), ended(1, 7), SupervisorState::default()] {
        assert_eq!(agent.step(&pod(0, state), &without(2)), None);
    }
}

#[test]
fn an_order_of_an_attempt_before_the_pod_was_made_starts_nothing() {
    let newer = NodePod {
        attempt: 2,
        ..pod(0, held(0))
    };
    let mut agent = Agent::default();
    assert_eq!(agent.step(&newer, &order(1, 1)), None);
    assert_eq!(
        agent.step(&newer, &order(2, 1)),
        Some(SupervisorCommand::Hold { attempt: 2 })
    );
}

#[test]
fn a_container_removed_after_the_exit_of_its_child_is_not_reported_again() {
    let mut agent = Agent::default();
    agent.step(&pod(0, runs(1)), &order(1, 1));
    agent.step(&pod(0, ended(1, 42)), &order(1, 1));
    let mut removed = pod(0, None);
    removed.containers.clear();
    agent.step(&removed, &order(1, 1));
    assert_eq!(agent.reports.len(), 1, "{:?}", agent.reports);
}

#[test]
fn a_reported_exit_is_not_reported_again_after_eviction_of_its_report() {
    let mut agent = Agent::default();
    agent.step(&pod(0, ended(1, 0)), &order(1, 1));
    agent.reports.clear();
    agent.step(&pod(0, ended(1, 0)), &order(1, 1));
    assert!(agent.reports.is_empty());
}

#[test]
fn an_end_that_was_heard_late_is_dated_by_its_supervisor() {
    // Now is second 9, and the container was created in second 2.
    for (reported, dated) in [(4, 4), (9, 9), (10, 9), (3600, 9), (1, 2), (-1, 2)] {
        let mut pod = pod(0, ended_at(1, 42, at(reported)));
        pod.containers[0].created_at = at(2);
        let mut agent = Agent::default();
        agent.step(&pod, &order(1, 1));
        let times: Vec<_> = agent.reports.iter().map(|r| r.time).collect();
        assert_eq!(times, [at(dated)], "reported as of second {reported}");
    }
}

#[test]
fn a_pod_that_another_has_replaced_is_neither_released_nor_awaited() {
    let replaced = DomainOrder {
        replaced_pods: vec!["p".into()],
        ..order(1, 1)
    };
    let mut agent = Agent::default();
    for state in [held(0), held(1), held(2)] {
        assert_eq!(agent.step(&pod(0, state), &replaced), None);
    }
    assert!(!is_for(&replaced, &pod(0, None)));
}

#[test]
fn the_running_process_of_a_replaced_pod_is_held_above_its_own_attempt() {
    for (attempt, held) in [(1, 2), (2, 2), (4, 4)] {
        let replaced = DomainOrder {
            replaced_pods: vec!["p".into()],
            ..order(attempt, attempt)
        };
        let command = Agent::default().step(&pod(0, runs(1)), &replaced);
        assert_eq!(command, Some(SupervisorCommand::Hold { attempt: held }));
    }
}

#[test]
fn an_order_that_is_older_than_what_runs_says_nothing_to_a_supervisor() {
    for state in [held(3), runs(3), ended(3, 7), ended(3, 0)] {
        let mut agent = Agent::default();
        agent.step(&pod(0, state.clone()), &order(3, 2));
        let reported = (agent.record.clone(), agent.reports.len());
        for stale in [order(1, 1), order(2, 1), order(2, 2)] {
            let stale = DomainOrder {
                completed_attempt: stale.released_attempt,
                ..stale
            };
            assert_eq!(agent.step(&pod(0, state.clone()), &stale), None);
            assert_eq!((agent.record.clone(), agent.reports.len()), reported);
        }
    }
}
