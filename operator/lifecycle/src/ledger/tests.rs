//! A ledger survives its conversion to a status and back, and damaged values affect only
//! themselves.

mod sizes;

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use lockstep_api::gangs::gangs;
use lockstep_api::workload::{
    AppliedSpec, Backoff, Cause, CauseKind, CheckpointOccasion, CheckpointOutcome,
    CheckpointRequest, FailureAction, GangMove, GroupStatus, HistoryEntry, IncidentStage,
    KueuePodSet, MoveOutcome, NodeToLeave, Phase, Phases, ProgressMetric, TrainingProgress,
    TrainingWorkloadStatus,
};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::summary::Summary;

/// Groups of different sizes, with one restart domain per replica.
fn sample() -> TrainingWorkloadSpec {
    let template = json!({"spec": {"containers": [{"name": "t", "image": "i"}]}});
    let spec = json!({
        "failurePolicy": {"restartScope": "Replica"},
        "groups": [
            {"name": "b", "replicas": 3, "size": 2, "template": template},
            {"name": "a", "replicas": 12, "template": template},
        ],
    });
    serde_json::from_value(spec).unwrap()
}

/// A summary that must not affect the ledger.
fn noise() -> Summary {
    Summary {
        observed_generation: 7,
        phase: Phase::Stalled,
        reason: "noise".into(),
        message: "noise".into(),
        ready: "1/2".into(),
        backend: None,
        conditions: Vec::new(),
        groups: BTreeMap::new(),
        arrivals: BTreeMap::new(),
        selector: Some("noise".into()),
        scheduled_time: Some(DateTime::UNIX_EPOCH),
        phases: Vec::new(),
    }
}

fn write(ledger: Ledger) -> TrainingWorkloadStatus {
    let spec = sample();
    ledger.into_status(&spec, &gangs(&spec), noise())
}

fn time() -> impl Strategy<Value = DateTime<Utc>> {
    (0..2_000_000_000_i64).prop_map(|s| DateTime::from_timestamp(s, 0).unwrap())
}

fn maybe_time() -> impl Strategy<Value = Option<DateTime<Utc>>> {
    prop::option::of(time())
}

fn spent() -> impl Strategy<Value = Spent> {
    let numbers = (0..99_i64, 0..99_i64, 0..99_i64, 0..99_i64);
    (numbers, maybe_time(), maybe_time()).prop_map(
        |((accelerators, held, lost, waited), until, waiting_since)| Spent {
            accelerators,
            held,
            until,
            loss: Loss {
                work: lost,
                restart: waited / 2,
            },
            waited,
            waiting_since,
        },
    )
}

fn progress() -> impl Strategy<Value = TrainingProgress> {
    let checkpoint = prop::option::of((0..99_i64, time()));
    (0..99_i64, time(), checkpoint).prop_map(|(step, step_time, checkpoint)| TrainingProgress {
        total: Some(100),
        checkpoint_intervals: vec![60],
        steps_per_hour: Some(60),
        seconds_left: Some((100 - step) * 60),
        summary: "1%".to_owned(),
        slowest: Vec::new(),
        metrics: vec![ProgressMetric {
            name: "loss".to_owned(),
            value: "2.5".to_owned(),
        }],
        step,
        step_time,
        checkpoint_step: checkpoint.map(|(step, _)| step),
        checkpoint_time: checkpoint.map(|(_, time)| time),
    })
}

fn member() -> impl Strategy<Value = Member> {
    prop_oneof![
        (0..5_i32, 0..2_i32).prop_map(|(r, i)| Member::new("b", r, i)),
        (0..20_i32).prop_map(|r| Member::new("a", r, 0)),
    ]
}

fn cause() -> impl Strategy<Value = Cause> {
    let kind = prop_oneof![
        Just(CauseKind::ContainerExit),
        Just(CauseKind::NodeLost),
        Just(CauseKind::Resize)
    ];
    (kind, time(), "[a-z]{0,4}", prop::option::of(0..256_i32)).prop_map(
        |(kind, time, pod, exit_code)| Cause {
            pod,
            exit_code,
            ..Cause::new(kind, time)
        },
    )
}

fn action() -> impl Strategy<Value = FailureAction> {
    prop_oneof![
        Just(FailureAction::RestartPod),
        Just(FailureAction::RestartGang),
        Just(FailureAction::RecreateGang)
    ]
}

prop_compose! {
    fn replacement()(
        cause in cause(),
        counted in any::<bool>(),
        members in prop::collection::btree_set(member(), 0..6),
        old_pods in prop::collection::btree_set("[a-f0-9]{1,6}", 0..4),
        not_before in maybe_time(),
        detected_at in time(),
    ) -> OpenReplacement {
        OpenReplacement {
            cause,
            counted,
            members: members.into_iter().collect(),
            old_pods: old_pods.iter().map(|u| u.parse().unwrap()).collect(),
            not_before,
            detected_at,
        }
    }
}

prop_compose! {
    fn incident()(
        attempt in 1..9_i64,
        cause in cause(),
        action in action().prop_filter("of a domain", |a| a.raises_attempt()),
        counted in any::<bool>(),
        stage in prop_oneof![Just(IncidentStage::Decided), Just(IncidentStage::Ordered), Just(IncidentStage::Arrived)],
        replace in prop::collection::btree_set(member(), 0..6),
        old_pods in prop::collection::btree_set("[a-f0-9]{1,6}", 0..4),
        times in (maybe_time(), time(), time(), maybe_time(), maybe_time()),
    ) -> OpenIncident {
        OpenIncident {
            attempt,
            cause,
            action,
            counted,
            stage,
            replace: replace.into_iter().collect(),
            old_pods: old_pods.iter().map(|u| u.parse().unwrap()).collect(),
            not_before: times.0,
            detected_at: times.1,
            decided_at: times.2,
            ordered_at: times.3,
            arrived_at: times.4,
        }
    }
}

prop_compose! {
    fn avoidance()(
        reason in "[A-Z][a-z]{2}",
        until in time(),
        machine in "[a-z]{0,3}",
        boot in "[a-z]{0,3}",
        exit_code in prop::option::of(1..9_i32),
    ) -> Avoidance {
        Avoidance { reason, until, machine, boot, exit_code }
    }
}

prop_compose! {
    fn to_leave()(node in "n[0-9]{1,2}", signal in "[a-z]{3}", deadline in maybe_time()) -> NodeToLeave {
        NodeToLeave { node, signal, deadline }
    }
}

prop_compose! {
    fn moving()(
        id in "[0-9]{1,4}",
        (faulty, with_restart) in any::<(bool, bool)>(),
        nodes in prop::collection::vec(to_leave(), 0..3),
        settled in prop::collection::vec(to_leave(), 0..3),
        requested_at in time(),
        (begin_by, began_at, ended_at) in (maybe_time(), maybe_time(), maybe_time()),
    ) -> GangMove {
        let reason = if faulty { CauseKind::NodeFaulty } else { CauseKind::NodeLeaving };
        let outcome = ended_at.map(|_| MoveOutcome::Moved);
        GangMove { id, reason, nodes, settled, with_restart, requested_at, begin_by, began_at, outcome, ended_at }
    }
}

prop_compose! {
    fn gang()(
        started in any::<bool>(),
        released in prop::option::of("[a-z0-9]{1,6}"),
        backoff in prop::option::of(("[A-Z][a-z]{2}", "[a-z ]{0,9}", 0..9_i32, time())),
        placement_tries in 0..9_i32,
        start_tries in 0..3_i32,
        held_since in prop::option::of(time()),
        avoid in prop::collection::btree_map("n[0-9]{1,2}", avoidance(), 0..4),
        moving in prop::option::of(moving()),
    ) -> GangLedger {
        GangLedger {
            started,
            released,
            backoff: backoff.map(|(reason, message, tries, until)| Backoff { reason, message, tries, until }),
            placement_tries,
            start_tries,
            held_since,
            avoid: avoid
                .into_iter()
                .map(|(node, avoidance)| (node.parse().unwrap(), avoidance))
                .collect(),
            moving,
        }
    }
}

prop_compose! {
    fn domain()(
        attempt in 0..9_i64,
        incident in prop::option::of(incident()),
        replacement in prop::option::of(replacement()),
        (tries, uncounted_tries) in (0..9_i32, 0..9_i32),
        healthy_since in maybe_time(),
        restarts_seen in 0..9_i64,
        recreations in 0..9_i64,
        (lost_until, requested_at) in (maybe_time(), maybe_time()),
    ) -> DomainLedger {
        let request = requested_at.map(|requested_at| CheckpointRequest {
            id: format!("r{attempt}"),
            reason: CheckpointOccasion::Suspend,
            attempt,
            requested_at,
            deadline: (tries <= 2).then_some(requested_at),
            watch: tries > 4,
            outcome: (tries > 2).then_some(CheckpointOutcome::Saved),
            millis: (tries > 2).then_some(attempt),
            saved_step: (tries > 2).then_some(restarts_seen),
            steps_lost: None,
        });
        DomainLedger { attempt, incident, replacement, tries, uncounted_tries, healthy_since, restarts_seen, request, recreations, lost_until }
    }
}

prop_compose! {
    fn history_entry()(
        domain in "[a-z]{1,4}",
        attempt in 0..9_i64,
        cause in cause(),
        action in action(),
        counted in any::<bool>(),
        recreated in 0..9_i32,
        recovered_at in maybe_time(),
        (lost_accelerator_seconds, restart_accelerator_seconds) in (0..99_i64, 0..99_i64),
    ) -> HistoryEntry {
        HistoryEntry {
            domain, attempt, time: cause.time, cause, action, counted, recreated, recovered_at,
            phases: Phases { detect_ms: attempt, ..Phases::default() },
            lost_accelerator_seconds,
            restart_accelerator_seconds,
            preemptor: None,
        }
    }
}

prop_compose! {
    fn budget()(
        counters in (0..9_i64, 0..9_i64, 0..9_i64, 0..9_i64),
        counted_at in prop::collection::vec(time(), 0..5),
    ) -> RestartBudget {
        let (total, in_place, recreated, counted) = counters;
        RestartBudget { total, in_place, recreated, counted, counted_at }
    }
}

prop_compose! {
    fn end()(
        complete in any::<bool>(),
        reason in "[A-Z][a-z]{3}",
        message in "[a-z ]{0,9}",
        observed_generation in 0..9_i64,
        at in time(),
        completed_at in maybe_time(),
    ) -> End {
        let outcome = if complete { Outcome::Complete } else { Outcome::Failed };
        End { outcome, reason, message, observed_generation, at, completed_at }
    }
}

/// Keys of gangs and domains in the spec, and keys that an edited spec no longer has.
fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("workload".to_owned()),
        (0..12_i32).prop_map(|r| format!("a.{r}")),
        (0..3_i32).prop_map(|r| format!("b.{r}")),
        Just("gone.0".to_owned()),
    ]
}

fn running() -> impl Strategy<Value = BTreeMap<String, BTreeSet<i32>>> {
    let name = prop_oneof![Just("a".to_owned()), Just("b".to_owned())];
    prop::collection::btree_map(name, prop::collection::btree_set(0..30_i32, 0..9), 0..3)
}

prop_compose! {
    fn ledger()(
        applied in prop::option::of(("[a-f0-9]{8}", 0..9_i64, prop::collection::vec(0..9_i32, 2))),
        gangs in prop::collection::btree_map(key(), gang(), 0..5),
        domains in prop::collection::btree_map(key(), domain(), 0..6),
        completed in prop::collection::btree_set(member(), 0..9),
        running in running(),
        highest in 0..20_i64,
        budget in budget(),
        counters in (0..9_i64, 0..99_i64),
        spent in spent(),
        history in prop::collection::vec(history_entry(), 0..4),
        progress in prop::option::of(progress()),
        started_at in maybe_time(),
        (user_request, ended, kueue) in (prop::option::of("[a-z]{1,4}"), prop::option::of(end()), prop::option::of(kueue())),
    ) -> Ledger {
        let (preemptions, active_seconds) = counters;
        let attempts = domains.values().map(|d: &DomainLedger| d.attempt);
        let applied = applied.map(|(spec_hash, restart_nonce, replicas)| AppliedSpec {
            spec_hash, restart_nonce, replicas,
        });
        Ledger {
            applied,
            highest_attempt: attempts.chain([highest]).max().unwrap(),
            gangs: gangs.into_iter().map(|(k, g)| (k.parse().unwrap(), g)).collect(),
            domains: domains.into_iter().map(|(k, d)| (k.parse().unwrap(), d)).collect(),
            completed,
            running,
            budget,
            preemptions,
            history,
            progress,
            spent,
            user_request,
            started_at,
            active_seconds,
            kueue,
            // Only the terminal condition carries the completion time.
            ended,
        }
    }
}

fn kueue() -> impl Strategy<Value = KueueStatus> {
    let set = |(name, count)| KueuePodSet {
        name,
        count,
        node_selector: [("pool".to_owned(), "a".to_owned())].into(),
        ..KueuePodSet::default()
    };
    let sets = prop::collection::vec(("[a-z]{1,4}", 0..9_i32).prop_map(set), 0..3);
    ("[a-z]{1,4}", any::<bool>(), sets).prop_map(|(queue, admitted, pod_sets)| KueueStatus {
        queue,
        admitted,
        workload: "w".into(),
        uid: "u".into(),
        spec_hash: "1-a".into(),
        pod_sets,
    })
}

proptest! {
    #[test]
    fn every_ledger_is_read_back_as_it_was_written(ledger in ledger()) {
        let status = write(ledger.clone());
        prop_assert_eq!(Ledger::read(&status, &sample()), ledger);
    }

    #[test]
    fn a_status_that_was_written_from_a_ledger_is_written_the_same_again(ledger in ledger()) {
        let status = write(ledger);
        prop_assert_eq!(write(Ledger::read(&status, &sample())), status);
    }
}

#[test]
fn entries_are_written_in_the_order_of_the_spec() {
    let mut ledger = Ledger::default();
    for key in ["gone.0", "a.10", "a.2", "b.1"] {
        ledger
            .domains
            .insert(key.parse().unwrap(), DomainLedger::default());
    }
    let keys: Vec<String> = write(ledger).domains.into_iter().map(|d| d.key).collect();
    assert_eq!(keys, ["b.1", "a.2", "a.10", "gone.0"]);
}

#[test]
fn what_does_not_parse_is_absent_and_the_rest_is_read() {
    let mut domain = DomainLedger {
        attempt: 3,
        ..DomainLedger::default()
    };
    domain.incident = Some(OpenIncident {
        attempt: 3,
        cause: Cause::new(CauseKind::NodeLost, DateTime::UNIX_EPOCH),
        action: FailureAction::RestartGang,
        counted: true,
        stage: IncidentStage::Ordered,
        replace: [Member::new("b", 0, 0)].into_iter().collect(),
        old_pods: ["u1".parse().unwrap()].into(),
        not_before: None,
        detected_at: DateTime::UNIX_EPOCH,
        decided_at: DateTime::UNIX_EPOCH,
        ordered_at: None,
        arrived_at: None,
    });
    let ledger = Ledger {
        domains: BTreeMap::from([("b.0".parse().unwrap(), domain)]),
        ..Ledger::default()
    };
    let mut status = write(ledger);
    let incident = status.domains[0].incident.as_mut().unwrap();
    incident.replace = vec!["no range".into()];
    incident.old_pods.push(String::new());
    status
        .domains
        .push(lockstep_api::workload::DomainStatus::default());
    status.groups[0] = GroupStatus {
        name: "b".into(),
        completed_indexes: "zzz".into(),
        world_indexes: Some("3-1".into()),
        ..GroupStatus::default()
    };
    let read = Ledger::read(&status, &sample());
    assert_eq!((read.domains.len(), read.completed.len()), (1, 0));
    assert!(read.running.is_empty(), "all members belong together");
    let incident = read.domains["b.0"].incident.as_ref().unwrap();
    assert_eq!((incident.replace.len(), incident.old_pods.len()), (0, 1));
    assert!(incident.counted);
}

#[test]
fn a_replacement_that_an_earlier_version_wrote_as_an_incident_is_read() {
    let written = json!({
        "attempt": 2, "action": "RestartPod", "counted": true, "stage": "Ordered",
        "cause": {"kind": "ContainerExit", "pod": "p", "exitCode": 3, "time": "2026-01-01T00:00:00Z"},
        "replace": ["b/0/0"], "oldPods": ["u1"], "notBefore": "2026-01-01T00:00:09Z",
        "detectedAt": "2026-01-01T00:00:01Z", "decidedAt": "2026-01-01T00:00:01Z",
        "orderedAt": "2026-01-01T00:00:10Z",
    });
    let mut status = write(Ledger::default());
    status.domains =
        serde_json::from_value(json!([{"key": "b.0", "attempt": 2, "incident": written}])).unwrap();
    let read = Ledger::read(&status, &sample());
    let domain = &read.domains["b.0"];
    assert_eq!((domain.attempt, &domain.incident), (2, &None));
    let replacement = domain.replacement.as_ref().unwrap();
    let cause = &status.domains[0].incident.as_ref().unwrap().cause;
    assert_eq!((&replacement.cause, replacement.counted), (cause, true));
    assert!(replacement.members.contains(&Member::new("b", 0, 0)));
    assert!(replacement.old_pods.contains("u1"));
    assert!(
        replacement
            .not_before
            .is_some_and(|at| at > replacement.detected_at)
    );
    assert_eq!(Ledger::read(&write(read.clone()), &sample()), read);
}
