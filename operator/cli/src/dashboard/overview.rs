//! Is the cluster well used, and does anything need a person?

use std::cmp::Reverse;
use std::collections::BTreeMap;

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use lockstep_scheduler::IdleAccelerators;
use serde_json::{Value, json};

use super::incidents::since;
use super::needs::needs;
use super::occupancy::{Occupation, UseState, UsedNode, occupation};
use super::view::{ClusterView, PageReads, path_of};

/// Shown gangs of the queue, and marks of the last day.
const FIRST: usize = 8;
const MARKS: usize = 200;

pub fn overview(view: &ClusterView, reads: &PageReads, now: DateTime<Utc>) -> Value {
    let used = occupation(view, now);
    let report = view.queue_report(reads);
    let rows = view.use_of_accelerators();
    let held: i64 = rows.iter().map(|row| row.held).sum();
    let requested: i64 = rows.iter().map(|row| row.wanted).sum();
    let tenant = used.nodes.is_none();
    let nodes = used.nodes.iter().flat_map(BTreeMap::values);
    json!({
        "resource": used.counted.resource,
        "total": used.nodes.is_some().then(|| nodes.map(|n| n.size).sum::<i64>()),
        "bar": bar(&used),
        "idle": report.idle.as_ref().map(idle),
        "needs": needs(view, now),
        "waits": {
            "gangs": report.gangs.len(),
            "accelerators": requested,
            "first": &report.gangs[..report.gangs.len().min(FIRST)],
        },
        "day": day(view, now),
        "tenant": tenant.then(|| json!({"held": held, "requested": requested})),
    })
}

/// Accelerators that no pod holds, by reason.
fn idle(idle: &IdleAccelerators) -> Vec<Value> {
    let texts = [
        "reserved for gangs",
        "too scattered for the waiting gangs",
        "requested by no gang",
        "on unusable nodes",
    ];
    let all = idle.by_reason().into_iter().zip(texts);
    all.filter(|((_, amount), _)| *amount > 0)
        .map(|((reason, amount), text)| json!({"reason": reason, "amount": amount, "text": text}))
        .collect()
}

/// Amounts by state, which add up to the total.
fn bar(used: &Occupation) -> Vec<Value> {
    let Some(nodes) = &used.nodes else {
        return Vec::new();
    };
    let of = |state: UseState| {
        let parts = nodes.values().flat_map(|n| &n.parts);
        let amounts = parts.filter(|p| p.state == state).map(|p| p.amount);
        (state.name(), amounts.sum::<i64>())
    };
    let idle = |usable: bool| {
        let nodes = nodes.values().filter(|n| n.usable == usable);
        nodes.map(UsedNode::idle).sum::<i64>()
    };
    let reserved = of(UseState::Reserved);
    let amounts = [
        of(UseState::Running),
        of(UseState::Starting),
        of(UseState::Restarting),
        of(UseState::Leaving),
        reserved,
        of(UseState::Other),
        ("free", idle(true) - reserved.1),
        ("unusable", idle(false)),
    ];
    let amounts = amounts.into_iter();
    let segments = amounts.map(|(state, amount)| json!({"state": state, "amount": amount}));
    segments.collect()
}

/// What failures have cost in the last 24 hours, at least: histories are short.
fn day(view: &ClusterView, now: DateTime<Utc>) -> Value {
    let start = now - TimeDelta::hours(24);
    let mut by_cause: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut lost, mut restart) = (0, 0);
    let mut marks = Vec::new();
    for (workload, entry) in since(view, start) {
        let cause = entry.cause.kind.as_str();
        *by_cause.entry(cause).or_default() += 1;
        lost += entry.lost_accelerator_seconds;
        restart += entry.restart_accelerator_seconds;
        marks.push((entry.time, path_of(workload), cause));
    }
    marks.sort_by_key(|mark| Reverse(mark.0));
    let marks = marks.iter().take(MARKS);
    let marks =
        marks.map(|(at, workload, cause)| json!({"at": at, "workload": workload, "cause": cause}));
    json!({
        // Whole minutes, so that a document without news stays the same.
        "since": start.duration_trunc(TimeDelta::minutes(1)).unwrap_or(start),
        "incidents": by_cause.values().sum::<usize>(),
        "lostAcceleratorSeconds": lost,
        "restartAcceleratorSeconds": restart,
        "byCause": by_cause,
        "marks": marks.collect::<Vec<_>>(),
        "atLeast": true,
    })
}
