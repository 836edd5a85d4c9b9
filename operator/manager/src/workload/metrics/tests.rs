use super::*;
use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::{reasons, types, upsert};
use lockstep_api::workload::{Cause, FailureAction, Phases};

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_795_000_000 + seconds, 0).unwrap()
}

fn entry(kind: CauseKind, action: FailureAction, failed: i64, took: Option<i64>) -> HistoryEntry {
    HistoryEntry {
        domain: "workload".into(),
        attempt: 2,
        cause: Cause::new(kind, at(failed)),
        action,
        counted: true,
        recreated: 0,
        time: at(failed),
        recovered_at: took.map(|s| at(failed) + TimeDelta::seconds(s)),
        phases: Phases::default(),
        lost_accelerator_seconds: 640,
    }
}

fn scrape(statuses: &[TrainingWorkloadStatus]) -> String {
    let mut registry = Registry::default();
    let metrics = WorkloadMetrics::register(&mut registry);
    let mut old = None;
    for status in statuses {
        metrics.wrote("ml", old, status);
        old = Some(status);
    }
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

#[test]
fn a_preemption_of_the_attempt_that_a_restart_led_to_counts_beside_the_restart() {
    let restart = entry(
        CauseKind::ContainerExit,
        FailureAction::RestartGang,
        0,
        Some(7),
    );
    let preempted = entry(CauseKind::Preempted, FailureAction::RecreateGang, 100, None);
    let first = TrainingWorkloadStatus {
        history: vec![restart.clone()],
        ..TrainingWorkloadStatus::default()
    };
    let second = TrainingWorkloadStatus {
        history: vec![preempted, restart],
        preemptions: 1,
        ..TrainingWorkloadStatus::default()
    };
    let text = scrape(&[first, second.clone(), second]);
    for line in [
        "lockstep_incidents_total{namespace=\"ml\",action=\"RestartGang\",cause=\"ContainerExit\",counted=\"true\"} 1",
        "lockstep_incidents_total{namespace=\"ml\",action=\"RecreateGang\",cause=\"Preempted\",counted=\"true\"} 1",
        "lockstep_recovery_seconds_sum{action=\"RestartGang\"} 7",
        "lockstep_lost_accelerator_seconds_total{namespace=\"ml\",cause=\"Preempted\"} 640",
        "lockstep_preemptions_total 1",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let never = "lockstep_recovery_seconds_sum{action=\"RecreateGang\"}";
    assert!(
        !text.contains(never),
        "what did not recover took no time\n{text}"
    );
}

#[test]
fn a_condition_that_flips_counts_once_with_how_long_the_old_status_lasted() {
    let with = |status: bool, reason: &str, seconds: i64, old: &TrainingWorkloadStatus| {
        let mut new = old.clone();
        let when = at(seconds);
        upsert(
            &mut new.conditions,
            types::READY,
            status,
            reason,
            "",
            1,
            when,
        );
        new
    };
    let waits = with(
        false,
        reasons::MEMBERS_NOT_READY,
        0,
        &TrainingWorkloadStatus::default(),
    );
    let still = with(false, reasons::STARTING, 30, &waits);
    let ready = with(true, reasons::ALL_MEMBERS_READY, 90, &still);
    let text = scrape(&[waits, still, ready]);
    for line in [
        "lockstep_condition_transitions_total{condition=\"Ready\",status=\"False\",reason=\"MembersNotReady\"} 1",
        "lockstep_condition_transitions_total{condition=\"Ready\",status=\"True\",reason=\"AllMembersReady\"} 1",
        "lockstep_condition_seconds_sum{condition=\"Ready\",status=\"False\"} 90",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(!text.contains("reason=\"Starting\""), "{text}");
}
