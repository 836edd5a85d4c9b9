//! Requests for checkpoints that evictions, edits and other requests disturb.

use super::barrier::attempts;
use super::checkpoints::*;
use chrono::TimeDelta;
use lockstep_api::scheduling::PreemptionRequest;
use lockstep_api::workload::{CauseKind, CheckpointOutcome, Phase};
use lockstep_sim::Solo;
use serde_json::json;

fn split() -> serde_json::Value {
    json!({"network": {"world": "Replica"}, "failurePolicy": {"restartScope": "Replica"}})
}

#[test]
fn a_deadline_that_was_moved_ends_no_workload_of_which_a_domain_has_answered() {
    let mut w = asked(Some("ignore"), &split());
    let ran = w.now() - w.status().start_time.unwrap();
    w.edit(|spec| spec.active_deadline_seconds = Some(ran.num_seconds() + 25));
    until_called(&mut w);
    w.rounds(1);
    w.exit("g", 0, 143);
    w.rounds(3);
    w.edit(|spec| spec.active_deadline_seconds = Some(ran.num_seconds() + 36_000));
    w.rounds(5);
    assert_eq!(
        (w.condition("Failed"), w.pods().len()),
        ("absent".to_owned(), 3)
    );
}

#[test]
fn an_end_for_a_request_is_no_success_after_the_field_was_removed() {
    for removed in [true, false] {
        for code in ["0", "143"] {
            let on_request = json!({"signal": "SIGTERM", "timeoutSeconds": 30});
            let mut w = asked(
                Some(code),
                &json!({"checkpoint": {"onRequest": on_request}}),
            );
            w.edit(|spec| spec.suspend = true);
            until_called(&mut w);
            w.rounds(2);
            w.edit(|spec| {
                spec.suspend = false;
                if removed {
                    spec.checkpoint = None;
                } else {
                    spec.checkpoint.as_mut().unwrap().on_request.signal =
                        Some(lockstep_api::workload::CheckpointSignal::Usr1);
                }
            });
            w.rounds(20);
            assert_eq!(
                (w.status().phase, charged(&w)),
                (Some(Phase::Running), 0),
                "{removed} {code}"
            );
        }
    }
}

#[test]
fn an_eviction_without_request_does_not_withdraw_that_of_a_suspension() {
    let mut w = asked(
        Some("save"),
        &json!({"checkpoint": {"onRequest": {"timeoutSeconds": 30, "occasions": ["Suspend"]}}}),
    );
    w.edit(|spec| spec.suspend = true);
    until_called(&mut w);
    w.rounds(1);
    w.delete_pod("g", 1);
    w.rounds(12);
    assert_eq!(outcome(&w), Some(CheckpointOutcome::Saved));
}

#[test]
fn an_eviction_shortens_the_request_of_a_user() {
    let mut w = asked(
        Some("ignore"),
        &json!({"checkpoint": {"onRequest": {"timeoutSeconds": 3600}}}),
    );
    request_by_user(&mut w);
    w.rounds(2);
    w.delete_pod("g", 1);
    w.rounds(90);
    let s = w.status();
    assert_eq!((s.phase, s.attempt), (Some(Phase::Running), 2));
}

#[test]
fn a_pod_that_is_deleted_while_a_regular_checkpoint_is_awaited_restarts_the_gang() {
    let mut w = asked(Some("ignore"), &json!({"checkpoint": null}));
    let deadline = w.now() + TimeDelta::seconds(600);
    w.edit_group("workload", |g| {
        g.status.get_or_insert_default().checkpoint_request = Some(PreemptionRequest {
            id: "p".into(),
            deadline,
            preemptor: "ns/boss".into(),
            watch: true,
        });
    });
    w.pass();
    w.pass();
    assert!(call(&w).unwrap().watch);
    w.delete_pod("g", 1);
    w.pass();
    w.pass();
    assert_eq!(outcome(&w), Some(CheckpointOutcome::Ended));
    assert_eq!(w.status().attempt, 2);
}

#[test]
fn a_pod_deleted_by_force_during_a_request_by_a_user_restarts_the_gang() {
    let mut w = asked(
        Some("ignore"),
        &json!({"checkpoint": {"onRequest": {"timeoutSeconds": 3600}}}),
    );
    request_by_user(&mut w);
    w.rounds(2);
    let key = lockstep_sim::Key::of(&w.pod("g", 1));
    w.cluster.remove(lockstep_sim::WatchedKind::Pod, &key);
    w.rounds(90);
    let s = w.status();
    assert_eq!((s.phase, s.attempt), (Some(Phase::Running), 2));
}

#[test]
fn an_evicted_pod_that_is_gone_before_the_others_have_saved_restarts_the_gang() {
    for of_user in [false, true] {
        let mut w = asked(Some("save"), &json!({}));
        let key = lockstep_sim::Key::of(&w.pod("g", 1));
        let evicted = w.pod("g", 1);
        if of_user {
            request_by_user(&mut w);
        }
        w.cluster.evict(&evicted).unwrap();
        if !of_user {
            until_called(&mut w);
        }
        w.cluster.remove(lockstep_sim::WatchedKind::Pod, &key);
        w.settle();
        let s = w.status();
        let seen = (s.phase, s.attempt, s.history.len(), charged(&w));
        assert_eq!(
            seen,
            (Some(Phase::Running), 2, 1, 0),
            "of a user: {of_user}"
        );
        assert_eq!(outcome(&w), Some(CheckpointOutcome::Saved));
    }
}

#[test]
fn a_member_that_an_edit_adds_is_not_missed_while_another_gang_is_asked() {
    let mut spec = json!({"scheduling": {"gang": {"scope": "Group"}}, "groups": [],
        "checkpoint": {"onRequest": {"timeoutSeconds": 30, "occasions": ["User"]}}});
    for name in ["a", "b"] {
        let mut group = lockstep_sim::solo::gang(2)["groups"][0].clone();
        group["name"] = json!(name);
        group["template"]["spec"]["containers"][0]["env"] =
            json!([{"name": "HOLLOW_ON_CHECKPOINT", "value": "ignore"}]);
        spec["groups"].as_array_mut().unwrap().push(group);
    }
    let mut w = Solo::supervised(spec);
    w.settle();
    request_by_user(&mut w);
    w.edit(|spec| spec.groups[0].replicas = Some(3));
    w.rounds(10);
    assert_eq!(w.status().history, []);
    w.rounds(60);
    let causes: Vec<_> = w
        .status()
        .history
        .iter()
        .map(|h| h.cause.reason.clone())
        .collect();
    assert_eq!((causes, w.pods().len()), (vec!["Resize".to_owned()], 5));
}

#[test]
fn a_stop_that_is_no_occasion_hides_no_other() {
    let only_resize = json!({"checkpoint": {"onRequest": {"occasions": ["Resize"]}}});
    let mut w = asked(Some("save"), &only_resize);
    w.edit(|spec| {
        spec.restart_nonce = 1;
        spec.groups[0].replicas = Some(2);
    });
    until_called(&mut w);
    assert_eq!(call(&w).unwrap().reason, "Resize");
}

/// A gang that has saved by SIGUSR1 and goes on, and whose processes end after this many rounds with
/// this code.
fn saved_and_ended(code: i32, rounds: usize) -> Solo {
    let on_request = json!({"signal": "SIGUSR1", "timeoutSeconds": 30});
    let spec = json!({"checkpoint": {"onRequest": on_request}});
    let mut w = asked(Some("save"), &spec);
    request_by_user(&mut w);
    w.until("a save", |w| outcome(w) == Some(CheckpointOutcome::Saved));
    w.rounds(rounds);
    for index in 0..3 {
        w.exit("g", index, code);
        w.rounds(1);
    }
    w.settle();
    w
}

#[test]
fn ends_that_follow_a_save_are_neither_success_nor_failure() {
    for code in [0, 143, 138] {
        let mut w = saved_and_ended(code, 2);
        let s = w.status();
        assert_eq!((s.phase, charged(&w)), (Some(Phase::Running), 0), "{code}");
        assert_eq!(attempts(&mut w), [2, 2, 2], "{code}");
    }
}

#[test]
fn ends_long_after_a_save_count_as_always() {
    let phase = |code| saved_and_ended(code, 60).status().phase;
    assert_eq!(phase(0), Some(Phase::Succeeded));
    assert_eq!(charged(&saved_and_ended(143, 60)), 1);
}

#[test]
fn members_that_end_before_a_resize_restart_in_place_for_it_once() {
    for signal in ["SIGTERM", "SIGUSR1"] {
        let on_request = json!({"signal": signal, "timeoutSeconds": 30});
        let spec = json!({"checkpoint": {"onRequest": on_request}});
        let mut w = asked(Some("143"), &spec);
        w.edit(|spec| spec.groups[0].replicas = Some(4));
        w.settle();
        let s = w.status();
        let causes: Vec<_> = s.history.iter().map(|h| h.cause.kind).collect();
        assert_eq!(causes, [CauseKind::Resize], "{signal}");
        assert_eq!((s.phase, charged(&w)), (Some(Phase::Running), 0));
        assert_eq!(w.pods().len(), 4);
    }
}

#[test]
fn a_gang_without_room_to_grow_continues_after_its_save() {
    let on_request = json!({"signal": "SIGTERM", "timeoutSeconds": 30});
    let spec = json!({"checkpoint": {"onRequest": on_request}});
    let mut w = asked(Some("143"), &spec);
    let more = |replicas| {
        move |spec: &mut lockstep_api::workload::TrainingWorkloadSpec| {
            spec.groups[0].replicas = Some(replicas);
        }
    };
    w.edit(more(500));
    w.rounds(60);
    w.settle();
    assert_eq!(attempts(&mut w).len(), 3);
    let running = w
        .pods()
        .iter()
        .filter(|p| {
            p.status
                .as_ref()
                .is_some_and(|s| s.phase.as_deref() == Some("Running"))
        })
        .count();
    assert_eq!((running, charged(&w)), (3, 0));
}

#[test]
fn an_elastic_gang_that_has_finished_after_a_save_is_complete() {
    let mut spec = json!({"scheduling": {"gang": {"minCount": 3}}});
    spec["checkpoint"] = json!({"onRequest": {"signal": "SIGUSR1", "timeoutSeconds": 60}});
    let mut w = asked(Some("save"), &spec);
    w.edit(|spec| spec.groups[0].replicas = Some(500));
    w.rounds(60);
    let members = i32::try_from(w.pods().len()).unwrap();
    let reports = |w: &mut Solo, step| {
        for index in 0..members {
            let pod = w.pod("g", index);
            let report = lockstep_sim::ReportedProgress {
                words: "total=100",
                ..lockstep_sim::ReportedProgress::of(step, None)
            };
            w.progress_with(&pod, report);
        }
    };
    reports(&mut w, 90);
    w.rounds(70);
    request_by_user(&mut w);
    w.until("a save", |w| outcome(w) == Some(CheckpointOutcome::Saved));
    reports(&mut w, 100);
    w.rounds(5);
    for index in 0..members {
        w.exit("g", index, 0);
    }
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Succeeded));
}

#[test]
fn an_exit_long_before_a_request_restarts_nothing() {
    let on_request = json!({"signal": "SIGUSR1", "timeoutSeconds": 30});
    let ignore = json!([{"name": "left", "action": "Ignore", "match": {"exitCodes": {"operator": "In", "values": [143]}}}]);
    let spec = json!({
        "checkpoint": {"onRequest": on_request},
        "failurePolicy": {"rules": ignore},
    });
    let mut w = asked(Some("save"), &spec);
    w.exit("g", 2, 143);
    w.rounds(200);
    request_by_user(&mut w);
    w.until("a save", |w| outcome(w) == Some(CheckpointOutcome::Saved));
    w.rounds(90);
    assert_eq!(w.status().attempt, 1);
}
