//! Training processes that report progress and then stop.

use chrono::TimeDelta;
use lockstep_api::workload::{CauseKind, Phase, ProgressPolicy, TrainingProgress};
use lockstep_sim::solo::gang_with;
use lockstep_sim::{ReportedProgress, Solo, WatchedKind};
use serde_json::{Value, json};

/// A running, supervised gang of three with these rules. A start or a step may take a minute.
fn watched(rules: &Value) -> Solo {
    let mut w = unstarted(rules);
    w.settle();
    w
}

/// The same gang before its start.
fn unstarted(rules: &Value) -> Solo {
    let policy = json!({"failurePolicy": {
        "inPlace": {"withoutSupervisor": "Deny"},
        "progress": {"timeoutSeconds": 60, "startupSeconds": 60},
        "rules": rules,
    }});
    Solo::supervised(gang_with(3, &policy))
}

fn on_hang(action: &str) -> Value {
    json!([{"name": "hangs", "match": {"reasons": ["Hang"]}, "action": action}])
}

fn tells(w: &mut Solo, index: i32, step: u64, checkpoint: Option<u64>) {
    let pod = w.pod("g", index);
    w.progress(&pod, step, checkpoint);
    w.rounds(3);
}

/// A member hangs at its second step. Time passes in rounds, because a settled cluster has no
/// deadline within a minute.
fn hangs(w: &mut Solo, index: i32) {
    tells(w, index, 1, None);
    tells(w, index, 2, None);
    passes(w, 60);
}

/// Advances time and processes what is due.
fn passes(w: &mut Solo, seconds: i64) {
    w.later(seconds);
    w.rounds(10);
}

fn attempts(w: &mut Solo) -> Vec<u64> {
    w.children().into_values().collect()
}

#[test]
fn a_member_that_makes_no_progress_brings_all_back_inside_their_containers() {
    let mut w = watched(&json!([]));
    let before = w.uids();
    hangs(&mut w, 1);
    assert_eq!(attempts(&mut w), [2, 2, 2]);
    assert_eq!((w.uids(), w.restarts()), (before, vec![0, 0, 0]));
    let s = w.status();
    let cause = &s.history[0].cause;
    assert_eq!((cause.kind, cause.exit_code), (CauseKind::Hang, None));
    assert!(cause.pod.starts_with("w-g-1-0-"), "{}", cause.pod);
    assert_eq!(cause.message, "no progress for 60 s after step 2");
    assert_eq!((s.restarts.in_place, s.restarts.counted), (1, 1));
}

#[test]
fn a_member_that_makes_progress_runs_on() {
    let mut w = watched(&json!([]));
    for step in 1..20 {
        tells(&mut w, 0, step, None);
        passes(&mut w, 40);
    }
    assert_eq!(attempts(&mut w), [1, 1, 1], "those that tell nothing, too");
}

#[test]
fn a_member_that_hangs_as_it_starts_again_is_found_in_the_time_of_a_start() {
    let mut w = watched(&json!([]));
    hangs(&mut w, 0);
    passes(&mut w, 30);
    assert_eq!(attempts(&mut w), [2, 2, 2]);
    w.until("attempt 3", |w| attempts(w) == [3, 3, 3]);
    assert_eq!(
        w.status().history[0].cause.message,
        "no progress for 60 s after it started"
    );
}

#[test]
fn rules_can_fail_the_workload_for_a_hang() {
    let mut w = watched(&on_hang("FailWorkload"));
    hangs(&mut w, 2);
    let s = w.status();
    assert_eq!(s.phase, Some(Phase::Failed));
    assert_eq!(s.history[0].cause.rule, "hangs");
}

#[test]
fn rules_for_exit_codes_do_not_see_how_a_hung_process_was_ended() {
    let killed = json!([{
        "name": "killed",
        "match": {"exitCodes": {"operator": "In", "values": [137]}},
        "action": "FailWorkload",
    }]);
    let mut w = watched(&killed);
    hangs(&mut w, 0);
    assert_eq!(attempts(&mut w), [2, 2, 2]);
}

#[test]
fn a_hang_that_is_answered_for_the_member_alone_restarts_its_container() {
    let mut w = watched(&on_hang("RestartContainer"));
    hangs(&mut w, 1);
    assert_eq!(attempts(&mut w), [1, 1, 1]);
    assert_eq!(w.restarts(), [0, 1, 0]);
}

#[test]
fn a_policy_that_is_changed_holds_from_the_next_start_and_replaces_no_pod() {
    let mut w = watched(&json!([]));
    let before = w.uids();
    w.edit(|spec| {
        spec.failure_policy.progress = Some(ProgressPolicy {
            timeout_seconds: 3600,
            startup_seconds: 3600,
        });
    });
    w.rounds(5);
    assert_eq!(attempts(&mut w), [1, 1, 1]);
    hangs(&mut w, 0);
    assert_eq!(attempts(&mut w), [2, 2, 2]);
    tells(&mut w, 0, 1, None);
    passes(&mut w, 3000);
    assert_eq!(attempts(&mut w), [2, 2, 2]);
    assert_eq!(w.uids(), before);
}

#[test]
fn the_last_step_and_checkpoint_show_in_the_status_and_bound_what_a_failure_loses() {
    let mut w = watched(&json!([]));
    passes(&mut w, 1000);
    let saved_at = w.now();
    tells(&mut w, 0, 100, Some(90));
    passes(&mut w, 20);
    tells(&mut w, 0, 110, Some(90));
    w.exit("g", 1, 1);
    w.rounds(20);
    let s = w.status();
    let progress = s.progress.expect("it was told");
    assert_eq!((progress.step, progress.checkpoint_step), (110, Some(90)));
    let error = progress.checkpoint_time.unwrap() - saved_at;
    assert!(error.num_seconds().abs() <= 5, "{error}");
    // Three members with eight accelerators each, half a minute, and the restart.
    let lost = s.history[0].lost_accelerator_seconds;
    assert!((24 * 30..24 * 60).contains(&lost), "{lost}");
}

/// Reports further words with a step.
fn tells_words(w: &mut Solo, index: i32, step: u64, words: &str) {
    let pod = w.pod("g", index);
    let report = ReportedProgress {
        step,
        checkpoint: None,
        words,
    };
    w.progress_with(&pod, report);
    w.rounds(3);
}

/// A step a second for 80 seconds, reported every 40.
fn trains(w: &mut Solo, index: i32, step: u64, words: &str) {
    for further in [0, 40, 80] {
        tells_words(w, index, step + further, words);
        passes(w, 40);
    }
}

fn shown(w: &Solo) -> TrainingProgress {
    w.status().progress.expect("it was reported")
}

#[test]
fn the_time_left_is_known_after_two_reports_and_again_after_two_of_a_restart() {
    let mut w = watched(&json!([]));
    tells_words(&mut w, 0, 1000, "total=10000");
    assert_eq!(shown(&w).summary, "10%", "one report has no rate");
    passes(&mut w, 40);
    trains(&mut w, 0, 1040, "total=10000");
    let p = shown(&w);
    assert!((2500..3500).contains(&p.steps_per_hour.unwrap()), "{p:?}");
    assert!((9_000..13_000).contains(&p.seconds_left.unwrap()), "{p:?}");
    assert!(p.summary.ends_with(" h left"), "{p:?}");
    w.exit("g", 1, 1);
    w.until("attempt 2", |w| attempts(w) == [2, 2, 2]);
    let p = shown(&w);
    assert_eq!((p.steps_per_hour, p.seconds_left), (None, None), "{p:?}");
    passes(&mut w, 40);
    // From its checkpoint.
    tells_words(&mut w, 0, 1000, "total=10000");
    passes(&mut w, 40);
    assert_eq!(shown(&w).step, 1000);
    assert_eq!(shown(&w).summary, "10%");
    trains(&mut w, 0, 1040, "total=10000");
    assert!(shown(&w).summary.contains(" left"), "{:?}", shown(&w));
}

#[test]
fn a_member_that_falls_behind_is_named_like_in_ranges_of_members() {
    let mut w = watched(&json!([]));
    for report in 0..4 {
        tells_words(&mut w, 0, 1000 + 40 * report, "total=10000");
        tells(&mut w, 1, report + 1, None);
        passes(&mut w, 40);
    }
    let slowest = shown(&w).slowest;
    let members: Vec<&str> = slowest.iter().map(|s| s.member.as_str()).collect();
    assert_eq!(members, ["g/1/0"]);
}

#[test]
fn a_suspended_workload_has_no_time_left() {
    let mut w = watched(&json!([]));
    trains(&mut w, 0, 1000, "total=10000");
    assert!(shown(&w).seconds_left.is_some());
    w.edit(|spec| spec.suspend = true);
    w.settle();
    assert_eq!((shown(&w).seconds_left, &*shown(&w).summary), (None, "10%"));
}

#[test]
fn the_total_is_the_largest_and_the_metrics_are_those_of_the_first_rank() {
    let mut w = watched(&json!([]));
    let values = |w: &Solo| {
        let p = shown(w);
        let metrics = p.metrics.iter().map(|m| format!("{}={}", m.name, m.value));
        (p.total, metrics.collect::<Vec<_>>())
    };
    tells(&mut w, 2, 1, None);
    assert_eq!(values(&w), (None, vec![]), "no further words");
    passes(&mut w, 40);
    tells_words(&mut w, 1, 2, "total=70 loss=9 total=80");
    assert_eq!(values(&w), (Some(80), vec!["loss=9".to_owned()]));
    passes(&mut w, 40);
    tells_words(&mut w, 0, 3, "loss=2.5 total=60 lr=1e-4");
    let first = ["loss=2.5", "lr=1e-4"].map(str::to_owned);
    assert_eq!(values(&w), (Some(80), first.to_vec()));
}

#[test]
fn progress_of_many_members_is_recorded_at_most_twice_a_minute() {
    let mut w = watched(&json!([]));
    let log = w.store().log.len();
    for second in 0..300 {
        for index in 0..3 {
            let pod = w.pod("g", index);
            w.progress(&pod, second + 1, Some(second));
        }
        w.rounds(1);
    }
    let written = |kind| {
        let store = w.store();
        let ours = store.log[log..].iter().filter(|write| write.kind == kind);
        ours.count()
    };
    let records = written(WatchedKind::TrainingWorkload);
    assert!((5..=11).contains(&records), "{records} in five minutes");
}

#[test]
fn agents_write_of_progress_once_a_minute() {
    let mut w = watched(&json!([]));
    tells(&mut w, 0, 1, None);
    w.settle();
    let log = w.store().log.len();
    for step in 2..62 {
        tells(&mut w, 0, step, Some(step));
        w.rounds(7);
    }
    let written = w.store().log[log..]
        .iter()
        .filter(|write| write.kind == WatchedKind::NodeAgent)
        .count();
    assert!((9..=11).contains(&written), "{written} in ten minutes");
}

/// A running gang of three on nodes with these clock offsets: the first member's, and the others'.
fn with_clocks(first: TimeDelta, others: TimeDelta) -> Solo {
    let mut w = unstarted(&json!([]));
    let same = watched(&json!([]));
    let own = same.node_of("g", 0);
    assert_ne!(own, same.node_of("g", 2), "somebody is on another node");
    for node in w.node_names() {
        w.cluster.node(&node).clock_ahead = if node == own { first } else { others };
    }
    w.settle();
    assert_eq!(w.node_of("g", 0), own);
    w
}

const HOUR: TimeDelta = TimeDelta::hours(1);

#[test]
fn clocks_of_nodes_neither_make_hangs_nor_hide_them() {
    for ahead in [HOUR, -HOUR] {
        let mut w = with_clocks(ahead, TimeDelta::zero());
        for step in 1..10 {
            tells(&mut w, 0, step, None);
            passes(&mut w, 40);
        }
        assert_eq!(attempts(&mut w), [1, 1, 1], "clock ahead by {ahead}");
        passes(&mut w, 60);
        assert_eq!(attempts(&mut w), [2, 2, 2], "clock ahead by {ahead}");
        let s = w.status();
        assert_eq!(s.history[0].cause.kind, CauseKind::Hang);
        assert_eq!((s.restarts.in_place, s.restarts.counted), (1, 1));
    }
}

/// The first member hangs, and the third fails before or after the manager receives the hang.
fn hangs_and_a_peer_fails(w: &mut Solo, at_once: bool) {
    tells(w, 0, 1, None);
    let (own, other) = (w.node_of("g", 0), w.node_of("g", 2));
    w.later(60);
    w.agent(&own);
    if !at_once {
        w.pass();
    }
    w.exit("g", 2, 1);
    w.agent(&other);
    w.pass();
    w.rounds(15);
}

#[test]
fn a_peer_that_fails_because_of_a_hang_is_not_its_cause_whatever_the_clocks_say() {
    for (first, others) in [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)] {
        for at_once in [true, false] {
            let mut w = with_clocks(HOUR * first, HOUR * others);
            hangs_and_a_peer_fails(&mut w, at_once);
            let s = w.status();
            let cause = &s.history[0].cause;
            assert_eq!(
                (cause.kind, s.restarts.counted),
                (CauseKind::Hang, 1),
                "clocks ahead by {first} h and {others} h, at once: {at_once}\n{}",
                w.story(20)
            );
        }
    }
}

#[test]
fn of_failures_that_are_heard_of_after_an_outage_the_earliest_is_the_cause() {
    let rules = json!([{"name": "free", "counted": false, "action": "RestartGang",
        "match": {"exitCodes": {"operator": "In", "values": [42]}}}]);
    for at_once in [true, false] {
        let mut w = watched(&rules);
        let (own, other) = (w.node_of("g", 0), w.node_of("g", 2));
        w.exit("g", 0, 42);
        w.agent(&own);
        w.later(30);
        w.exit("g", 2, 1);
        // The manager is unavailable in this time.
        w.later(80);
        if !at_once {
            w.pass();
        }
        w.agent(&other);
        w.pass();
        w.rounds(15);
        let s = w.status();
        let cause = &s.history[0].cause;
        assert_eq!(
            (cause.exit_code, s.restarts.counted),
            (Some(42), 0),
            "at once: {at_once}\n{}",
            w.story(20)
        );
    }
}

#[test]
fn a_hang_during_an_agent_outage_costs_one_restart_and_is_reported_within_a_minute() {
    for (away, kind) in [(30, CauseKind::Hang), (90, CauseKind::ContainerExit)] {
        let mut w = watched(&json!([]));
        tells(&mut w, 0, 1, None);
        let node = w.node_of("g", 0);
        w.fault(&node, |f| f.silent_agent = true);
        w.rounds(60 + away);
        w.fault(&node, |f| f.silent_agent = false);
        w.rounds(60);
        let s = w.status();
        assert_eq!(s.history.len(), 1, "away for {away} s\n{}", w.story(20));
        assert_eq!((s.history[0].cause.kind, s.attempt), (kind, 2));
        assert_eq!(s.restarts.counted, 1);
    }
}

#[test]
fn a_checkpoint_is_no_step() {
    let mut w = watched(&json!([]));
    for saved in 1..8 {
        tells(&mut w, 0, 5, Some(saved));
        passes(&mut w, 5);
    }
    assert_eq!(attempts(&mut w), [2, 2, 2]);
    assert_eq!(
        w.status().history[0].cause.message,
        "no progress for 60 s after step 5"
    );
}

#[test]
fn what_ends_unheard_long_after_a_hang_is_not_that_hang_again() {
    let mut w = watched(&json!([]));
    hangs(&mut w, 1);
    assert_eq!(attempts(&mut w), [2, 2, 2]);
    let node = w.node_of("g", 1);
    w.node(&node).faults.silent_agent = true;
    // It hangs again, its supervisor gives up, and its kubelet reports the exit.
    hangs(&mut w, 1);
    for _ in 0..60 {
        passes(&mut w, 10);
    }
    let s = w.status();
    let open = s.domains[0].incident.iter().map(|i| i.cause.clone());
    let causes: Vec<_> = open.chain(s.history.into_iter().map(|h| h.cause)).collect();
    assert!(causes.len() > 1, "{causes:?}");
    let hung = causes.iter().filter(|c| c.kind == CauseKind::Hang);
    assert_eq!(hung.count(), 1, "{causes:?}");
}

#[test]
fn an_unreported_pod_restart_after_a_handled_hang_starts_a_new_attempt() {
    let mut spec = gang_with(
        3,
        &json!({"failurePolicy": {
            "inPlace": {"withoutSupervisor": "Deny"},
            "progress": {"timeoutSeconds": 60, "startupSeconds": 60},
        }}),
    );
    spec["groups"][0]["template"]["spec"]["initContainers"] = json!([
        {"name": "watcher", "image": "i", "restartPolicy": "Always", "restartPolicyRules": [
            {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}}]},
    ]);
    let mut w = Solo::supervised(spec);
    for node in w.node_names() {
        w.set_restart_all(&node, true);
    }
    w.settle();
    hangs(&mut w, 1);
    assert_eq!(attempts(&mut w), [2, 2, 2]);
    let (node, pod) = (w.node_of("g", 1), w.pod("g", 1));
    w.fault(&node, |f| f.silent_agent = true);
    assert!(w.exit_container(&pod, "watcher", 88));
    for _ in 0..60 {
        passes(&mut w, 10);
    }
    assert!(w.status().attempt > 2, "{}", w.story(40));
}
