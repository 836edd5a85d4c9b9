//! Checkpoints on request: a gang is asked to save before it is stopped.

use chrono::TimeDelta;
use lockstep_api::names::annotations;
use lockstep_api::node_agent::capabilities;
use lockstep_api::restart_order::SaveRequestOrder;
use lockstep_api::scheduling::PreemptionRequest;
use lockstep_api::workload::{CheckpointOccasion, CheckpointOutcome, CheckpointRequest, Phase};
use lockstep_api::{NodeAgent, TrainingWorkload};
use lockstep_sim::solo::gang_with;
use lockstep_sim::{Key, ReportedProgress, Solo};
use serde_json::{Value, json};

use super::barrier::attempts;

/// A running gang of three whose processes react so to a request: see `HOLLOW_ON_CHECKPOINT`.
pub(super) fn asked(reaction: Option<&str>, more: &Value) -> Solo {
    let mut spec = json!({"checkpoint": {"onRequest": {"timeoutSeconds": 30}},
        "failurePolicy": {"limits": {"maxRestarts": 1}}});
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    let mut spec = gang_with(3, &spec);
    let template = &mut spec["groups"][0]["template"]["spec"];
    template["terminationGracePeriodSeconds"] = json!(40);
    if let Some(reaction) = reaction {
        template["containers"][0]["env"] = json!([
            {"name": "HOLLOW_ON_CHECKPOINT", "value": reaction},
            {"name": "HOLLOW_CHECKPOINT_MILLIS", "value": "5000"},
        ]);
    }
    let mut w = Solo::supervised(spec);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    w
}

pub(super) fn make_agents_old(w: &mut Solo) {
    let agents = w.list::<NodeAgent>();
    for node in agents.into_iter().filter_map(|a| a.metadata.name) {
        w.cluster.edit::<NodeAgent>(&Key::new("", &node), |agent| {
            let status = agent.status.get_or_insert_default();
            status
                .capabilities
                .retain(|c| c != capabilities::CHECKPOINT);
        });
    }
}

pub(super) fn request_by_user(w: &mut Solo) {
    let key = w.key().clone();
    w.cluster.edit::<TrainingWorkload>(&key, |workload| {
        let all = workload.metadata.annotations.get_or_insert_default();
        all.insert(annotations::REQUEST_CHECKPOINT.into(), "by-me".into());
    });
    until_called(w);
}

pub(super) fn call(w: &Solo) -> Option<SaveRequestOrder> {
    w.order()?.spec.domains.into_iter().find_map(|d| d.request)
}

pub(super) fn request(w: &Solo) -> Option<CheckpointRequest> {
    let mut domains = w.status().domains.into_iter();
    domains.find_map(|d| d.checkpoint_request)
}

pub(super) fn outcome(w: &Solo) -> Option<CheckpointOutcome> {
    request(w)?.outcome
}

pub(super) fn until_called(w: &mut Solo) {
    w.until("a request", |w| call(w).is_some());
}

pub(super) fn charged(w: &Solo) -> i64 {
    w.status().restarts.counted
}

#[test]
fn a_suspension_waits_for_the_first_saved_step() {
    let mut w = asked(Some("save"), &json!({}));
    w.edit(|spec| spec.suspend = true);
    until_called(&mut w);
    assert_eq!(call(&w).unwrap().reason, "Suspend");
    assert_eq!(w.condition("CheckpointRequested"), "AwaitingCheckpoint");
    w.rounds(4);
    assert_eq!(
        attempts(&mut w),
        [1, 1, 1],
        "they run until they have saved"
    );
    w.rounds(6);
    assert_eq!(w.pods().len(), 0);
    let last = request(&w).unwrap();
    assert_eq!(
        (last.outcome, last.saved_step),
        (Some(CheckpointOutcome::Saved), Some(0))
    );
    assert_eq!(w.condition("CheckpointRequested"), "!CheckpointAnswered");
    assert_eq!((charged(&w), w.status().history), (0, Vec::new()));
}

#[test]
fn a_stop_goes_on_at_the_deadline_or_when_no_member_can_be_asked() {
    for (reaction, waits, expected) in [
        (Some("ignore"), 25, CheckpointOutcome::TimedOut),
        (None, 0, CheckpointOutcome::Unsupported),
    ] {
        let mut w = asked(reaction, &json!({}));
        w.edit(|spec| spec.suspend = true);
        until_called(&mut w);
        w.rounds(waits);
        assert_eq!(w.pods().len(), 3);
        w.rounds(10);
        assert_eq!((w.pods().len(), outcome(&w)), (0, Some(expected)));
    }
}

type Change = fn(&mut Solo);

#[test]
fn without_the_field_the_occasion_or_support_no_stop_waits() {
    let only_resize = json!({"checkpoint": {"onRequest": {"occasions": ["Resize"]}}});
    let removed = |w: &mut Solo| w.edit(|spec| spec.checkpoint = None);
    let nothing = |_: &mut Solo| {};
    let cases: [(Value, Change); 3] = [
        (json!({}), make_agents_old),
        (json!({}), removed),
        (only_resize, nothing),
    ];
    for (more, change) in cases {
        let mut w = asked(Some("save"), &more);
        change(&mut w);
        w.edit(|spec| spec.suspend = true);
        w.rounds(3);
        assert_eq!((w.pods().len(), call(&w)), (0, None));
    }
}

#[test]
fn a_request_whose_occasion_vanishes_is_withdrawn_and_the_gang_keeps_running() {
    let mut w = asked(Some("ignore"), &json!({}));
    w.edit(|spec| spec.suspend = true);
    until_called(&mut w);
    w.edit(|spec| spec.suspend = false);
    w.settle();
    assert_eq!(
        (call(&w), outcome(&w)),
        (None, Some(CheckpointOutcome::Withdrawn))
    );
    assert_eq!(
        (w.status().phase, attempts(&mut w)),
        (Some(Phase::Running), vec![1, 1, 1])
    );
    // Another suspension is another request.
    w.edit(|spec| spec.suspend = true);
    until_called(&mut w);
}

#[test]
fn a_requested_restart_waits_and_happens_once() {
    let mut w = asked(Some("save"), &json!({}));
    let before = w.uids();
    w.edit(|spec| spec.restart_nonce = 1);
    until_called(&mut w);
    w.rounds(3);
    assert_eq!(attempts(&mut w), [1, 1, 1]);
    w.settle();
    assert_eq!(
        (attempts(&mut w), w.uids(), charged(&w)),
        (vec![2, 2, 2], before, 0)
    );
    assert_eq!(
        (w.status().phase, w.status().history.len()),
        (Some(Phase::Running), 1)
    );
}

#[test]
fn a_resize_waits_before_it_restarts_the_other_members() {
    let mut w = asked(Some("save"), &json!({}));
    for (replicas, before, after) in [
        (2, vec![1, 1, 1], vec![2, 2]),
        (3, vec![2, 2], vec![3, 3, 3]),
    ] {
        w.edit(|spec| spec.groups[0].replicas = Some(replicas));
        until_called(&mut w);
        assert_eq!(call(&w).unwrap().reason, "Resize");
        w.rounds(3);
        assert_eq!(attempts(&mut w), before);
        w.settle();
        assert_eq!((attempts(&mut w), charged(&w)), (after, 0));
    }
}

#[test]
fn an_evicted_member_is_asked_with_all_others_and_the_incident_follows_once() {
    let mut w = asked(Some("save"), &json!({}));
    let other = w.uids().remove("g-0-0");
    w.delete_pod("g", 1);
    until_called(&mut w);
    let open = call(&w).unwrap();
    assert_eq!(open.reason, "Eviction");
    let left = (open.deadline - w.now()).num_seconds();
    assert!((20..=30).contains(&left), "40 s of grace less 10 s: {left}");
    w.rounds(3);
    assert_eq!(
        (attempts(&mut w), w.status().attempt),
        (vec![1, 1, 1], 1),
        "the signal is held back"
    );
    w.settle();
    let s = w.status();
    assert_eq!(
        (s.phase, s.attempt, s.history.len()),
        (Some(Phase::Running), 2, 1)
    );
    assert_eq!(
        (charged(&w), outcome(&w)),
        (0, Some(CheckpointOutcome::Saved))
    );
    assert_eq!(
        w.uids().remove("g-0-0"),
        other,
        "the others keep their pods"
    );
}

#[test]
fn a_deadline_ends_the_workload_when_it_has_saved() {
    let mut w = asked(Some("save"), &json!({}));
    let ran = w.now() - w.status().start_time.unwrap();
    w.edit(|spec| spec.active_deadline_seconds = Some(ran.num_seconds() + 40));
    w.rounds(8);
    assert_eq!(call(&w), None);
    w.rounds(4);
    assert_eq!(call(&w).unwrap().reason, "Deadline");
    assert_eq!(w.status().phase, Some(Phase::Running));
    w.rounds(12);
    assert_eq!(
        (w.condition("Failed"), w.pods().len()),
        ("DeadlineExceeded".to_owned(), 0)
    );
    assert_eq!(outcome(&w), Some(CheckpointOutcome::Saved));
}

#[test]
fn a_request_by_a_user_stops_nothing_and_is_made_once() {
    let mut w = asked(Some("save"), &json!({}));
    request_by_user(&mut w);
    assert_eq!(call(&w).unwrap().id, "by-me");
    w.settle();
    assert_eq!(
        (call(&w), outcome(&w)),
        (None, Some(CheckpointOutcome::Saved))
    );
    assert_eq!(w.status().user_checkpoint_request.as_deref(), Some("by-me"));
    assert_eq!(attempts(&mut w), [1, 1, 1]);
    w.exit("g", 0, 1);
    w.settle();
    assert_eq!((attempts(&mut w), call(&w)), (vec![2, 2, 2], None));
}

#[test]
fn processes_that_end_for_a_user_restart_in_place_without_a_charge() {
    let on_request = json!({"signal": "SIGTERM", "timeoutSeconds": 30});
    let mut w = asked(
        Some("143"),
        &json!({"checkpoint": {"onRequest": on_request}}),
    );
    let before = w.uids();
    request_by_user(&mut w);
    w.settle();
    assert_eq!(
        (attempts(&mut w), w.uids(), charged(&w)),
        (vec![2, 2, 2], before, 0)
    );
    assert_eq!(outcome(&w), Some(CheckpointOutcome::Ended));
}

#[test]
fn a_request_of_the_scheduler_is_withdrawn_with_its_preemption() {
    let mut w = asked(Some("ignore"), &json!({}));
    let deadline = w.now() + TimeDelta::seconds(20);
    let ask = |w: &mut Solo, id: Option<&str>| {
        let wanted = id.map(|id| PreemptionRequest {
            id: id.to_owned(),
            deadline,
            preemptor: "ns/boss".to_owned(),
            watch: false,
        });
        w.edit_group("workload", |g| {
            g.status.get_or_insert_default().checkpoint_request = wanted;
        });
        w.pass();
        w.pass();
    };
    ask(&mut w, Some("p1"));
    let open = call(&w).unwrap();
    let expected = ("p1", "Preemption", deadline);
    assert_eq!(
        (open.id.as_str(), open.reason.as_str(), open.deadline),
        expected
    );
    ask(&mut w, None);
    assert_eq!(
        (call(&w), outcome(&w)),
        (None, Some(CheckpointOutcome::Withdrawn))
    );
}

#[test]
fn ends_of_all_processes_answer_and_are_neither_success_nor_failure() {
    for code in [0, 143] {
        let mut w = asked(Some("ignore"), &json!({}));
        w.edit(|spec| spec.suspend = true);
        until_called(&mut w);
        for index in 0..3 {
            assert_eq!(w.pods().len(), 3, "a rank that still saves is not stopped");
            w.exit("g", index, code);
            w.rounds(2);
        }
        w.rounds(3);
        assert_eq!(
            (w.pods().len(), outcome(&w)),
            (0, Some(CheckpointOutcome::Ended))
        );
        assert_eq!((charged(&w), w.status().phase), (0, Some(Phase::Suspended)));
        w.edit(|spec| spec.suspend = false);
        w.settle();
        assert_eq!(w.status().phase, Some(Phase::Running), "it continues");
        assert_eq!(attempts(&mut w).len(), 3);
    }
}

#[test]
fn the_steps_lost_count_from_the_last_checkpoint_that_a_process_has_reported() {
    let mut w = asked(Some("ignore"), &json!({}));
    for (step, saved) in [(50, 40), (60, 58)] {
        let pod = w.pod("g", 0);
        w.progress_with(&pod, ReportedProgress::of(step, Some(saved)));
        w.rounds(1);
    }
    w.edit(|spec| spec.suspend = true);
    until_called(&mut w);
    for index in 0..3 {
        w.exit("g", index, 143);
    }
    w.rounds(3);
    let last = request(&w).unwrap();
    assert_eq!(
        (last.outcome, last.steps_lost),
        (Some(CheckpointOutcome::Ended), Some(2))
    );
}

#[test]
fn ends_with_the_last_step_of_the_training_are_a_success() {
    let mut w = asked(Some("ignore"), &json!({}));
    let reports = |w: &mut Solo, step| {
        for index in 0..3 {
            let pod = w.pod("g", index);
            let report = ReportedProgress {
                words: "total=100",
                ..ReportedProgress::of(step, None)
            };
            w.progress_with(&pod, report);
        }
    };
    reports(&mut w, 90);
    w.rounds(70);
    w.edit(|spec| spec.suspend = true);
    until_called(&mut w);
    reports(&mut w, 100);
    w.rounds(2);
    for index in 0..3 {
        w.exit("g", index, 0);
    }
    w.rounds(1);
    w.edit(|spec| spec.suspend = false);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Succeeded));
}

#[test]
fn a_crash_during_a_request_is_charged_and_ends_it() {
    let mut w = asked(Some("ignore"), &json!({}));
    w.edit(|spec| spec.suspend = true);
    until_called(&mut w);
    w.exit("g", 1, 7);
    w.rounds(5);
    assert_eq!(
        (w.pods().len(), outcome(&w)),
        (0, Some(CheckpointOutcome::Ended))
    );
    let s = w.status();
    assert_eq!((charged(&w), s.history[0].cause.exit_code), (1, Some(7)));
    let mut incidents = w
        .written()
        .into_iter()
        .flat_map(|s| s.domains)
        .filter_map(|d| d.incident);
    assert!(
        incidents.all(|i| i.ordered_at.is_none()),
        "no restart in place has begun"
    );
}

#[test]
fn a_stop_during_an_incident_waits_for_nothing() {
    let mut w = asked(Some("save"), &json!({}));
    w.exit("g", 0, 1);
    w.until("an incident", |w| w.status().domains[0].incident.is_some());
    w.edit(|spec| spec.suspend = true);
    w.rounds(4);
    assert_eq!(
        (w.pods().len(), outcome(&w)),
        (0, Some(CheckpointOutcome::Unsupported))
    );
}

/// An occasion: how it comes about, and when the stop has happened.
type Occasion = (Change, fn(&mut Solo) -> bool);

/// A manager that is lost after any write between the occasion and the stop repeats no request, and
/// stops the gang once.
#[test]
fn a_manager_that_crashes_at_any_write_asks_once_and_stops_once() {
    let occasions: [Occasion; 3] = [
        (
            |w| w.edit(|spec| spec.suspend = true),
            |w| w.pods().is_empty(),
        ),
        (
            |w| w.edit(|spec| spec.restart_nonce = 1),
            |w| attempts(w) == [2, 2, 2] && w.status().phase == Some(Phase::Running),
        ),
        (
            |w| w.delete_pod("g", 1),
            |w| attempts(w) == [2, 2, 2] && w.status().phase == Some(Phase::Running),
        ),
    ];
    for (begin, is_over) in occasions {
        for writes in 0..20 {
            let mut w = asked(Some("save"), &json!({}));
            begin(&mut w);
            w.crash_after(writes);
            w.until("the stop", is_over);
            let status = w.written();
            let requests = status.iter().flat_map(|s| &s.domains);
            let requests = requests.filter_map(|d| d.checkpoint_request.as_ref());
            let mut ids: Vec<_> = requests.map(|r| (&r.id, r.requested_at)).collect();
            ids.dedup();
            assert_eq!(ids.len(), 1, "after {writes} writes: {ids:?}");
            assert_eq!(outcome(&w), Some(CheckpointOutcome::Saved));
            assert_eq!((charged(&w), w.status().history.len() <= 1), (0, true));
        }
    }
}

/// A gang that fills the cluster is preempted by another one. Returns the seconds until the other one
/// runs.
fn preempted(reaction: Option<&str>, asks: bool) -> (Solo, i64) {
    let mut spec = gang_with(8, &json!({"priorityClassName": "low"}));
    let template = &mut spec["groups"][0]["template"]["spec"];
    template["containers"][0]["env"] = reaction.map_or(json!([]), |reaction| {
        json!([
            {"name": "HOLLOW_ON_CHECKPOINT", "value": reaction},
            {"name": "HOLLOW_CHECKPOINT_MILLIS", "value": "5000"},
        ])
    });
    if asks {
        spec["checkpoint"] = json!({"onRequest": {"timeoutSeconds": 30}});
    }
    let mut w = Solo::supervised(spec);
    w.create_class("low", 10, "PreemptLowerPriority");
    w.create_class("high", 100, "PreemptLowerPriority");
    w.settle();
    w.later(600);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    let begun = w.now();
    w.add_workload("boss", gang_with(8, &json!({"priorityClassName": "high"})));
    let boss = Key::new("ns", "boss");
    w.until("the other gang", |w| {
        let boss = w.cluster.get::<TrainingWorkload>(&boss);
        boss.and_then(|b| b.status?.phase) == Some(Phase::Running)
    });
    let took = (w.now() - begun).num_seconds();
    (w, took)
}

#[test]
fn a_preempted_gang_saves_before_its_nodes_are_taken() {
    let (plain, without) = preempted(None, false);
    assert_eq!((plain.status().preemptions, request(&plain)), (1, None));
    let (w, with) = preempted(Some("save"), true);
    let last = request(&w).unwrap();
    assert_eq!(last.reason, CheckpointOccasion::Preemption);
    assert_eq!(
        (last.outcome, last.saved_step),
        (Some(CheckpointOutcome::Saved), Some(0))
    );
    assert_eq!((w.status().preemptions, charged(&w)), (1, 0));
    assert!(
        (5..=12).contains(&(with - without)),
        "{with} s instead of {without} s"
    );
    // Its processes do not answer: the wait ends at the deadline of the request.
    let (w, with) = preempted(Some("ignore"), true);
    assert_eq!(outcome(&w), Some(CheckpointOutcome::TimedOut));
    assert!(
        (30..=40).contains(&(with - without)),
        "{with} s instead of {without} s"
    );
    // No process can be asked: the wait is short.
    let (w, with) = preempted(None, true);
    assert_eq!(outcome(&w), Some(CheckpointOutcome::Unsupported));
    assert!(with - without <= 6, "{with} s instead of {without} s");
}
