//! When is it whose turn, and who is before whom?

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use lockstep_api::PodGroup;
use lockstep_api::gangs::gangs;
use serde_json::{Map, Value, json};

use super::occupancy::{Occupation, UseState, UsedNode, occupation};
use super::view::{ClusterView, PageReads, name_of};
use crate::objects::owns;
use crate::queue::QueuedGang;

pub fn queue(
    view: &ClusterView,
    reads: &PageReads,
    namespace: Option<&str>,
    now: DateTime<Utc>,
) -> Value {
    let report = view.queue_report(reads);
    let used = occupation(view, now);
    let weights = view.weights();
    let mut shares = Map::new();
    let mut rows = Map::new();
    for gang in &report.gangs {
        let weight = weights.get(&gang.namespace).copied().unwrap_or(1000);
        let share = json!({"share": gang.share, "weight": weight as f64 / 1000.0});
        shares.insert(gang.namespace.clone(), share);
        if namespace.is_none_or(|only| only == gang.namespace) {
            let key = format!("{}/{}", gang.namespace, gang.pod_group);
            rows.insert(key, row(view, gang, &used));
        }
    }
    json!({
        "rows": rows,
        "onlyNamespace": report.only_namespace,
        "shares": shares,
        "reservations": reservations(view, &used),
    })
}

/// A gang of the report, with its needs and its start.
pub fn row(view: &ClusterView, gang: &QueuedGang, used: &Occupation) -> Value {
    let mut row = serde_json::to_value(gang).unwrap_or_default();
    let reservation = gang.reservation.as_ref();
    row["startsBy"] = json!(reservation.and_then(|r| r.starts_at));
    let before = gang.position.and_then(|p| i32::try_from(p - 1).ok());
    row["ahead"] = json!(before.or(gang.ahead));
    row["needs"] = json!(needs_of(view, gang, used).unwrap_or_default());
    row
}

/// Number of members and their accelerators, such as `32 x 8 nvidia.com/gpu`.
fn needs_of(view: &ClusterView, gang: &QueuedGang, used: &Occupation) -> Option<String> {
    let workload = view.workload(&gang.namespace, &gang.workload)?;
    let mut groups = view.groups().iter();
    let group = groups
        .find(|g| g.metadata.name.as_deref() == Some(&gang.pod_group) && owns(workload, *g))?;
    let shapes = gangs(&workload.spec);
    let shape = shapes
        .iter()
        .find(|s| s.key.as_str() == group.spec.gang_key)?;
    let mut members: BTreeMap<&str, usize> = BTreeMap::new();
    for member in shape.members() {
        *members.entry(member.group.as_str()).or_default() += 1;
    }
    let name = name_of(workload);
    let each = members.iter().map(|(group, count)| {
        let requests = view.requests(&name, group);
        let amount = requests.map_or(0, |r| used.counted.amount(r));
        format!("{count} x {amount}")
    });
    let each: Vec<String> = each.collect();
    Some(format!("{} {}", each.join(" + "), used.counted.resource))
}

fn reservations(view: &ClusterView, used: &Occupation) -> Map<String, Value> {
    let reserved = view.groups().iter().filter_map(|group| {
        let reservation = group.status.as_ref()?.reservation.as_ref()?;
        let nodes = reservation.nodes.iter().map(|on| {
            let node = used.nodes.as_ref().and_then(|all| all.get(&on.node));
            (on.node.clone(), node.map_or_else(unknown, holder))
        });
        let nodes: Map<String, Value> = nodes.collect();
        let value = json!({"startsAt": reservation.starts_at, "nodes": nodes});
        Some((key(group), value))
    });
    reserved.collect()
}

fn key(group: &PodGroup) -> String {
    let (namespace, name) = name_of(group);
    format!("{namespace}/{name}")
}

/// Without the right to list nodes.
fn unknown() -> Value {
    json!({"holder": null, "until": null, "kind": null})
}

/// Who holds a reserved node now.
fn holder(node: &UsedNode) -> Value {
    let mut parts = node.parts.iter().filter(|p| p.state != UseState::Reserved);
    let Some(part) = parts.next() else {
        return json!({"holder": null, "until": null, "kind": "free"});
    };
    let holder = part.workload.as_ref();
    let kind = if part.backfill { "backfill" } else { "runs" };
    json!({
        "holder": holder.map(|(namespace, name)| format!("{namespace}/{name}")),
        "until": node.until(),
        "kind": kind,
    })
}
