//! The queue over clusters in memory.

use lockstep_api::PodGroup;
use lockstep_cli::args::Format;
use lockstep_cli::queue::{QueueReport, QueueState, queue};
use lockstep_cli::view::{RenderOptions, render};
use serde_json::{Value, json};

use crate::support::{full_cluster, gang, now, screen, snapshot};

/// A full cluster with waiting gangs, the older ones first.
pub fn answer(waiting: &[(&str, i32, Value)]) -> QueueReport {
    let mut objects = full_cluster();
    objects.weights = [("ml".to_owned(), 2000)].into();
    for (age, (name, priority, _)) in (1i64..).zip(waiting) {
        gang(&mut objects, name, 1, 8, *priority, &[], 1000 - age);
    }
    for (name, _, status) in waiting {
        let named = |g: &&mut PodGroup| g.spec.workload_ref.workload_name == *name;
        let group = objects.groups.iter_mut().find(named).unwrap();
        let mut told = serde_json::to_value(group.status.clone()).unwrap();
        told.as_object_mut()
            .unwrap()
            .extend(status.as_object().unwrap().clone());
        group.status = serde_json::from_value(told).unwrap();
    }
    for workload in &mut objects.workloads {
        workload.spec.suspend = workload.metadata.name.as_deref() == Some("suspended");
    }
    let groups = objects.groups.clone();
    queue(&snapshot(objects), &groups)
}

pub fn waits(reason: &str, message: &str) -> Value {
    json!({"conditions": [{"type": "PodGroupInitiallyScheduled", "status": "False", "reason": reason,
        "message": message, "lastTransitionTime": "2026-11-21T10:00:00Z"}]})
}

pub fn reserves(nodes: &[&str]) -> Value {
    let nodes: Vec<Value> = nodes
        .iter()
        .map(|node| json!({"node": node, "members": {"workers": 1}}))
        .collect();
    let mut status = waits(
        "Unschedulable",
        "insufficient nvidia.com/gpu: 1 pod needs 8 more",
    );
    status["reservation"] = json!({"since": "2026-11-21T10:00:00Z", "nodes": nodes});
    status
}

#[test]
fn gangs_are_shown_in_the_order_of_the_queue_and_those_that_are_held_after_it() {
    let unschedulable = || {
        waits(
            "Unschedulable",
            "insufficient nvidia.com/gpu: 1 pod needs 8 more",
        )
    };
    let answer = answer(&[
        ("last", 5, unschedulable()),
        ("second", 5, reserves(&["n1"])),
        (
            "held",
            50,
            waits("QuotaExceeded", "exceeded quota: compute"),
        ),
        ("first", 50, unschedulable()),
        ("suspended", 50, waits("Suspended", "")),
    ]);
    let rows: Vec<(Option<usize>, &str, QueueState)> = answer
        .gangs
        .iter()
        .map(|g| (g.position, g.workload.as_str(), g.state))
        .collect();
    let expected = [
        (Some(1), "first", QueueState::Waits),
        (Some(2), "second", QueueState::Reserves),
        (Some(3), "last", QueueState::Waits),
        (None, "held", QueueState::Held),
    ];
    assert_eq!(rows, expected, "who has reserved nodes keeps its place");
}

#[test]
fn a_gang_that_moves_is_shown_with_its_new_nodes_or_the_reason_why_it_waits() {
    let row = |target: Value| {
        let mut objects = full_cluster();
        gang(&mut objects, "runs", 1, 8, 5, &["n4"], 600);
        let status = &mut objects.groups.last_mut().unwrap().status;
        let target = serde_json::from_value(target).unwrap();
        status.as_mut().unwrap().move_target = Some(target);
        let groups = objects.groups.clone();
        let report = queue(&snapshot(objects), &groups);
        let [moves] = &report.gangs[..] else {
            panic!("{report:?}");
        };
        assert_eq!(moves.state, QueueState::Moves);
        let options = RenderOptions::plain(now());
        render(&report, Format::Table, &options).unwrap()
    };
    let nodes = json!([{"node": "n5", "members": ["workers/0/0"]}]);
    let moves = row(json!({"id": "m", "nodes": nodes}));
    assert!(moves.contains("n5"), "{moves}");
    assert!(moves.contains("moves workers/0/0 to n5"), "{moves}");
    let waits = row(json!({"id": "m", "reason": "MoveLimitReached", "message": "waits"}));
    assert!(waits.contains("MoveLimitReached"), "{waits}");
    let preempts = row(json!({"id": "m", "preempts": true}));
    assert!(preempts.contains("by a preemption"), "{preempts}");
}

#[test]
fn a_gang_whose_workload_has_ended_is_not_in_the_queue() {
    let mut objects = full_cluster();
    gang(&mut objects, "over", 1, 8, 5, &[], 600);
    let over = objects.workloads.last_mut().unwrap();
    let failed = json!({"conditions": [{"type": "Failed", "status": "True", "reason": "SchedulingTimeout",
        "message": "", "lastTransitionTime": "2026-11-21T10:00:00Z"}]});
    over.status = serde_json::from_value(failed).unwrap();
    let group = objects.groups.last_mut().unwrap();
    group.status = serde_json::from_value(waits("Unschedulable", "")).unwrap();
    let groups = objects.groups.clone();
    assert_eq!(queue(&snapshot(objects), &groups).gangs, []);
}

#[test]
fn a_narrow_terminal_shows_the_last_columns_below_each_row() {
    let answer = answer(&[("new", 5, reserves(&["n1", "n2"]))]);
    let on = |width| {
        let options = RenderOptions {
            width: Some(width),
            ..RenderOptions::plain(now())
        };
        render(&answer, Format::Table, &options).unwrap()
    };
    assert_eq!(
        on(70),
        "\
PLACE   NAMESPACE   WORKLOAD   PRIORITY   SHARE   STATE      QUEUED
1       ml          new        5          25.0%   reserves   16m
  reserved: n1,n2
  reason: Unschedulable
  message: insufficient nvidia.com/gpu: 1 pod needs 8 more
"
    );
    assert_eq!(
        on(100),
        "\
PLACE   NAMESPACE   WORKLOAD   PRIORITY   SHARE   STATE      QUEUED   RESERVED   REASON
1       ml          new        5          25.0%   reserves   16m      n1,n2      Unschedulable
  message: insufficient nvidia.com/gpu: 1 pod needs 8 more
"
    );
    let narrow = on(40);
    assert!(
        narrow.contains("  message: insufficient nvidia.com/gpu:\n    1 pod needs 8 more\n"),
        "{narrow}"
    );
}

#[test]
fn the_share_of_a_namespace_is_what_it_has_by_its_weight() {
    let answer = answer(&[("new", 5, waits("Unschedulable", ""))]);
    // Two gangs of eight on four nodes of eight, at weight 2.
    assert_eq!(answer.gangs[0].share, Some(0.25));
}

#[test]
fn the_table_has_a_row_per_gang_with_its_reservation_and_the_words_of_the_scheduler() {
    let text = screen(&answer(&[("new", 5, reserves(&["n1", "n2", "n3", "n4"]))]));
    let rows: Vec<&str> = text.lines().collect();
    let columns = "PLACE   NAMESPACE   WORKLOAD   PRIORITY   SHARE   STATE";
    assert!(rows[0].starts_with(columns), "{text}");
    for part in [
        "25.0%",
        " 16m ",
        "reserves",
        "n1 and 3 more",
        "insufficient nvidia.com/gpu: 1 pod needs 8 more",
    ] {
        assert!(rows[1].contains(part), "{part:?} is missing: {text}");
    }
    let mut none = answer(&[]);
    assert_eq!(
        screen(&none),
        "no gang is queued\n",
        "all accelerators are held"
    );
    let idle = none.idle.get_or_insert_default();
    (idle.reserved, idle.no_demand) = (8, 16);
    let said = "\nIdle accelerators: 8 reserved, 16 requested by no gang\n";
    assert!(screen(&none).ends_with(said));
}
