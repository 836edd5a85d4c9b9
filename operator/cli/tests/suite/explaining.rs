//! Explanations of existing workloads.

use lockstep_api::PodGroup;
use lockstep_cli::explain::{GangReportState, Happened, Story, explain};
use serde_json::{Value, json};

use crate::support::{manifest, now, screen, workload};

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-11-18T10:06:40Z"})
}

fn story(status: &Value, group_status: &Value) -> Story {
    let mut value = manifest("llama", 4, 8, &json!({}));
    value["status"] = status.clone();
    let group: PodGroup = serde_json::from_value(json!({
        "apiVersion": "scheduling.lockstep.dev/v1alpha1", "kind": "PodGroup",
        "metadata": {"name": "llama-workload-1", "namespace": "ml", "uid": "g"},
        "spec": {"workloadRef": {"workloadName": "llama", "templateName": "workload"}, "gangKey": "workload",
            "schedulingPolicy": {"gang": {"minCount": 4}}, "priority": 100},
        "status": group_status,
    }))
    .unwrap();
    Story {
        workload: workload(value),
        groups: vec![group],
        events: Vec::new(),
    }
}

#[test]
fn a_waiting_workload_is_explained_by_what_is_short() {
    let short =
        "insufficient nvidia.com/gpu in rack r3: 1 pod needs 8 more; preemption cannot free enough";
    let mut told = story(
        &json!({"phase": "Pending", "conditions": [
            condition("Admitted", "False", "Unschedulable", short),
            condition("Ready", "False", "Starting", "0/4")],
            "gangs": [{"key": "workload", "started": true,
                "avoid": [{"node": "n7", "reason": "NodeLost", "until": "2026-11-21T11:00:00Z"}]}]}),
        &json!({"queuedAt": "2026-11-18T09:06:40Z", "conditions": [
            condition("PodGroupInitiallyScheduled", "False", "Unschedulable", short)]}),
    );
    told.events = vec![Happened {
        time: Some(now()),
        kind: "trainingworkload".into(),
        name: "llama".into(),
        warning: true,
        reason: "Unschedulable".into(),
        message: "waits".into(),
        count: 3,
    }];
    assert_eq!(
        screen(&explain(&told)),
        "\
ml/llama: Pending, never preempted

CONDITION   STATUS   REASON          SINCE   MESSAGE
Admitted    False    Unschedulable   60m     insufficient nvidia.com/gpu in rack r3: 1 pod needs 8 more; preemption cannot free enough

GANG       STATE   PRIORITY   QUEUED   MEMBERS   NODES
workload   waits   100        120m     0         0

workload: insufficient nvidia.com/gpu in rack r3: 1 pod needs 8 more; preemption cannot free enough
workload: avoids node n7: NodeLost

AGE   TYPE      REASON          OBJECT                   COUNT   EVENT
0s    Warning   Unschedulable   trainingworkload/llama   3       waits
"
    );
}

#[test]
fn a_gang_that_demands_nodes_is_explained_by_its_try() {
    let text = "insufficient cpu: 1 pod needs 1 more; nodes are requested since 2026-11-18T11:01:40Z (try 2): \
        r-2 is accepted";
    let told = story(
        &json!({"phase": "Pending"}),
        &json!({"queuedAt": "2026-11-18T09:06:40Z", "conditions": [
            condition("PodGroupInitiallyScheduled", "False", "Unschedulable", text)],
            "demand": {"number": 2, "since": "2026-11-18T11:01:40Z", "requestedAt": "2026-11-18T10:06:40Z",
                "message": "r-2 is accepted", "observed": {"generation": 1, "workloadGeneration": 1}}}),
    );
    let screen = screen(&explain(&told));
    assert!(
        screen.contains(&format!(
            "\nworkload: {text}\nworkload: nodes were first requested 60m ago; try 2 began 5m ago\n"
        )),
        "{screen}"
    );
}

#[test]
fn a_gang_that_waits_for_a_volume_or_quota_is_held_and_does_not_wait_for_capacity() {
    for reason in ["VolumeMissing", "QuotaExceeded"] {
        let told = story(
            &json!({"phase": "Pending"}),
            &json!({"queuedAt": "2026-11-18T09:06:40Z", "conditions": [
                condition("PodGroupInitiallyScheduled", "False", reason, "not there")]}),
        );
        let states: Vec<GangReportState> = explain(&told).gangs.iter().map(|g| g.state).collect();
        assert_eq!(states, [GangReportState::Held], "{reason}");
    }
}

#[test]
fn a_gang_of_an_ended_workload_does_not_wait() {
    let told = story(
        &json!({"phase": "Failed"}),
        &json!({"conditions": [
            condition("PodGroupInitiallyScheduled", "False", "Unschedulable", "insufficient cpu")]}),
    );
    let text = screen(&explain(&told));
    assert!(text.contains("workload   ended   100"), "{text}");
    assert!(!text.contains("insufficient cpu"), "{text}");
    let told = story(
        &json!({"phase": "Failed"}),
        &json!({"placement": {"id": "p", "members": 2, "nodes": [{"node": "n1", "members": ["workers/0/0-1"]}]}}),
    );
    let gang = &explain(&told).gangs[0];
    assert_eq!((gang.state, gang.nodes), (GangReportState::Ended, 0));
}

#[test]
fn a_preemptor_is_explained_by_its_intent() {
    let told = story(
        &json!({"phase": "Preempting"}),
        &json!({
            "placement": {"id": "p", "members": 4, "nodes": [{"node": "n1", "members": ["workers/0/0-3"]}]},
            "preemption": {"id": "1a2b3c4d", "preemptorUID": "g", "decidedAt": "2026-11-18T10:06:40Z", "placement": "p",
                "explanation": "the cheapest", "cost": 960, "victims": [{"kind": "PodGroup", "namespace": "ml",
                    "name": "old-workload-9", "uid": "o", "priority": 10, "pods": 4, "cost": 960, "lostWork": 480}]},
        }),
    );
    assert_eq!(
        screen(&explain(&told)),
        "\
ml/llama: Preempting, never preempted

GANG       STATE      PRIORITY   QUEUED   MEMBERS   NODES
workload   preempts   100        -        4         1

workload: preempts since 60m (intent 1a2b3c4d): the cheapest

no events
"
    );
}

#[test]
fn a_victim_is_explained_by_its_preemptor() {
    let by = "Preempted by podgroup ml/big-workload-2 of priority 500, which needs the room";
    let told = story(
        &json!({"phase": "Preempting", "preemptions": 1}),
        &json!({"placement": {"id": "p", "members": 4, "nodes": []},
            "conditions": [condition("DisruptionTarget", "True", "PreemptionByScheduler", by)]}),
    );
    let text = screen(&explain(&told));
    assert!(
        text.starts_with("ml/llama: Preempting, preempted once\n"),
        "{text}"
    );
    assert!(text.contains("workload   is preempted   100"), "{text}");
    assert!(
        text.contains(&format!("workload: PreemptionByScheduler 60m ago: {by}\n")),
        "{text}"
    );
}

#[test]
fn a_workload_without_status_is_explained_as_not_yet_reconciled() {
    let mut told = story(&json!({}), &json!({}));
    told.groups.clear();
    assert_eq!(
        screen(&explain(&told)),
        "ml/llama: not reconciled yet, never preempted\n\nno events\n"
    );
}
