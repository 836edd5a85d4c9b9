//! Tests that the largest ledgers fit into one object of etcd.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use lockstep_api::gangs::{Gang, gangs};
use lockstep_api::member::Member;
use lockstep_api::workload::{
    Backoff, BarrierArrivals, Cause, CauseKind, CheckpointOccasion, CheckpointOutcome,
    CheckpointRequest, FailureAction, GangMove, IncidentStage, MoveOutcome, NodeToLeave, Phase,
    TrainingWorkloadSpec, TrainingWorkloadStatus,
};
use serde_json::{Map, Value, json};

use crate::ledger::{Avoidance, DomainLedger, GangLedger, Ledger, OpenIncident};
use crate::summary::Summary;
use crate::summary::arrivals::INCIDENTS;

/// etcd's default request limit of 1.5 MiB, less a reserve for spec, metadata and the request
/// itself.
const LIMIT: usize = 1_572_864 - 262_144;

fn at() -> DateTime<Utc> {
    DateTime::from_timestamp(1_795_000_000, 123_456_789).unwrap()
}

fn spec(policy: &Value, replicas: i32) -> TrainingWorkloadSpec {
    let mut spec = json!({"groups": [{"name": "w".repeat(30), "replicas": replicas,
        "template": {"spec": {"containers": [{"name": "trainer", "image": "train:1"}]}}}]});
    for (key, value) in policy.as_object().unwrap() {
        spec[key] = value.clone();
    }
    serde_json::from_value(spec).unwrap()
}

fn summary() -> Summary {
    Summary {
        observed_generation: 7,
        phase: Phase::Restarting,
        reason: "RestartGang".into(),
        message: "m".repeat(1024),
        ready: "1/2".into(),
        backend: None,
        conditions: Vec::new(),
        groups: BTreeMap::new(),
        arrivals: BTreeMap::new(),
        selector: Some("s".repeat(512)),
        scheduled_time: Some(at()),
        phases: Vec::new(),
    }
}

fn incident(members: &[Member], action: FailureAction) -> OpenIncident {
    let cause = Cause {
        pod: "p".repeat(63),
        node: "n".repeat(63),
        container: "c".repeat(20),
        exit_code: Some(137),
        reason: "ContainerStatusUnknown".into(),
        message: "m".repeat(4096),
        rule: "r".repeat(20),
        ..Cause::new(CauseKind::ContainerExit, at())
    };
    // Pods that are all replaced are identified by their attempt.
    let listed = if action.replaces_pods() {
        0
    } else {
        members.len()
    };
    let pods = (0..listed).map(|i| format!("12345678-1234-1234-1234-{i:012}"));
    OpenIncident {
        attempt: 100,
        cause,
        action,
        counted: true,
        stage: IncidentStage::Arrived,
        replace: members.iter().cloned().collect(),
        old_pods: pods.map(|uid| uid.parse().unwrap()).collect(),
        not_before: Some(at()),
        detected_at: at(),
        decided_at: at(),
        ordered_at: Some(at()),
        arrived_at: Some(at()),
    }
}

fn moving() -> GangMove {
    let nodes: Vec<NodeToLeave> = (0..64)
        .map(|number| NodeToLeave {
            node: format!("{}-{number:06}", "n".repeat(56)),
            signal: "s".repeat(63),
            deadline: Some(at()),
        })
        .collect();
    GangMove {
        id: "1795000000123".into(),
        reason: CauseKind::NodeLeaving,
        settled: nodes.clone(),
        with_restart: true,
        nodes,
        requested_at: at(),
        begin_by: Some(at()),
        began_at: Some(at()),
        outcome: Some(MoveOutcome::Moved),
        ended_at: Some(at()),
    }
}

fn full(spec: &TrainingWorkloadSpec, action: FailureAction) -> TrainingWorkloadStatus {
    let gangs = gangs(spec);
    let mut ledger = Ledger::default();
    let avoidance = Avoidance::new("StartDeadlineExceeded", at());
    for (number, gang) in gangs.iter().enumerate() {
        let entry = GangLedger {
            started: true,
            released: Some("x".repeat(20)),
            backoff: None,
            placement_tries: 100,
            start_tries: 2,
            held_since: Some(at()),
            avoid: BTreeMap::new(),
            // The limit of a workload: two gangs of 64 nodes.
            moving: (number < 2).then(moving),
        };
        ledger.gangs.insert(gang.key.clone(), entry);
        for domain in &gang.domains {
            let entry = DomainLedger {
                attempt: 100,
                incident: Some(incident(&domain.members, action)),
                replacement: None,
                tries: 5,
                uncounted_tries: 5,
                // Not during an incident.
                healthy_since: None,
                restarts_seen: 1000,
                request: Some(CheckpointRequest {
                    id: "i".repeat(36),
                    reason: CheckpointOccasion::Preemption,
                    attempt: 100,
                    requested_at: at(),
                    deadline: None,
                    watch: true,
                    outcome: Some(CheckpointOutcome::Saved),
                    millis: Some(1_000_000),
                    saved_step: Some(1_000_000),
                    steps_lost: Some(1_000_000),
                }),
                recreations: 1000,
                lost_until: Some(DateTime::UNIX_EPOCH),
            };
            ledger.domains.insert(domain.key.clone(), entry);
        }
    }
    let of_signal = Avoidance {
        machine: "m".repeat(100),
        boot: "b".repeat(36),
        ..Avoidance::new("NodeLeaving", at())
    };
    let many = (0..64).map(|_| &of_signal);
    let many = many.chain((64..10_000).map(|_| &avoidance));
    for (number, avoidance) in many.enumerate() {
        let node = format!("{}-{number:06}", "n".repeat(56)).parse().unwrap();
        let gang = &gangs[number % gangs.len()];
        ledger.avoid_node(&gang.key, node, avoidance.clone());
    }
    let all = gangs.iter().flat_map(Gang::members);
    ledger.completed = all.step_by(2).cloned().collect();
    let domains = gangs.iter().flat_map(|gang| &gang.domains);
    let arrivals = domains.take(INCIDENTS).map(|domain| {
        let numbers = BarrierArrivals {
            arrived: 9_999,
            expected: 20_000,
            late: vec![format!("{}/499/19999", "w".repeat(30)); 8],
            arrivals_time: at(),
        };
        (domain.key.clone(), numbers)
    });
    let summary = Summary {
        arrivals: arrivals.collect(),
        ..summary()
    };
    ledger.into_status(spec, &gangs, summary)
}

/// `managedFields` of a value, as large as the API server's.
fn managed(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            // An atomic map has one entry.
            let of = |k: &str, v| match k {
                "checkpointRequest" | "moving" => json!({}),
                _ => managed(v),
            };
            let entries = fields.iter().map(|(k, v)| (format!("f:{k}"), of(k, v)));
            entries.collect::<Map<String, Value>>().into()
        }
        Value::Array(items) => {
            let mut out = Map::new();
            for item in items {
                for key in ["key", "node", "type", "name"] {
                    if let Some(name) = item.get(key) {
                        let mut fields = managed(item);
                        fields["."] = json!({});
                        out.insert(format!("k:{{\"{key}\":{name}}}"), fields);
                        break;
                    }
                }
            }
            out.into()
        }
        _ => json!({}),
    }
}

fn size(status: &TrainingWorkloadStatus) -> usize {
    let status = json!(status);
    status.to_string().len() + managed(&status).to_string().len()
}

#[test]
fn a_workload_of_the_most_replicas_that_are_domains_fits_with_an_incident_in_each() {
    for policy in [
        json!({"scheduling": {"gang": {"scope": "Replica"}}}),
        json!({"failurePolicy": {"restartScope": "Replica"}}),
    ] {
        let size = size(&full(&spec(&policy, 500), FailureAction::RestartGang));
        assert!(size <= LIMIT, "{size} bytes of {LIMIT}: {policy}");
    }
}

#[test]
fn a_gang_of_the_most_members_fits_with_all_of_them_being_replaced() {
    let size = size(&full(
        &spec(&json!({}), 20_000),
        FailureAction::RecreateGang,
    ));
    assert!(size <= LIMIT, "{size} bytes of {LIMIT}");
}

#[test]
fn the_message_of_a_waiting_gang_has_bounded_length() {
    let spec = spec(&json!({}), 1);
    let gangs = gangs(&spec);
    let mut ledger = Ledger::default();
    let backoff = Backoff {
        reason: "Forbidden".into(),
        message: "ä".repeat(4096),
        tries: 1,
        until: at(),
    };
    let entry = GangLedger {
        backoff: Some(backoff),
        ..GangLedger::default()
    };
    ledger.gangs.insert("workload".parse().unwrap(), entry);
    let status = ledger.into_status(&spec, &gangs, summary());
    let message = &status.gangs[0].backoff.as_ref().unwrap().message;
    assert!(message.len() <= 512 && message.ends_with('…'));
}
