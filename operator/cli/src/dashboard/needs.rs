//! What needs a change by a person.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use kube::ResourceExt;
use lockstep_api::condition::{find, reasons, types};
use lockstep_api::workload::{Phase, TrainingWorkloadStatus};
use lockstep_api::{PodGroup, TrainingWorkload};
use serde_json::{Value, json};

use super::view::{ClusterView, path_of};
use crate::objects::{has_ended, owner};
use crate::status::next_steps;

/// Begin of a next step for a workload that needs nothing.
const NOTHING: &str = "no action needed";
/// How long a workload may have no status, exceed a quota, or be listed as failed.
const PATIENCE: TimeDelta = TimeDelta::hours(1);
const RECENT: TimeDelta = TimeDelta::hours(24);

pub fn needs(view: &ClusterView, now: DateTime<Utc>) -> Vec<Value> {
    let workloads = view.workloads().iter();
    let mut out: Vec<Value> = workloads.filter_map(|w| of_workload(w, now)).collect();
    out.extend(without_agent(view).into_iter().map(|node| {
        json!({"workload": null, "node": node, "reason": "NoAgent", "since": null,
            "next": "the node has no agent: members there get new pods instead of a restart in place",
            "command": "kubectl lockstep agents"})
    }));
    out
}

fn of_workload(workload: &TrainingWorkload, now: DateTime<Utc>) -> Option<Value> {
    let none = TrainingWorkloadStatus::default();
    let status = workload.status.as_ref().unwrap_or(&none);
    let (next, budget) = next_steps(workload, now);
    let next = next.into_iter().find(|line| !line.starts_with(NOTHING));
    let since = since(workload, status);
    let young = since.is_some_and(|at| now - at < PATIENCE);
    let (name, namespace) = (workload.name_any(), workload.namespace()?);
    let failed_log = format!("kubectl lockstep logs {name} --failed -n {namespace}");
    let (reason, command) = match status.phase {
        Some(Phase::Succeeded | Phase::Suspended) => return None,
        Some(Phase::Failed) if since.is_none_or(|at| now - at > RECENT) => return None,
        Some(Phase::Failed) => (status.reason.as_str(), failed_log),
        // A new workload, or a quota that other work may free soon.
        None if young => return None,
        Some(Phase::Pending) if young && status.reason == reasons::QUOTA_EXCEEDED => return None,
        _ if budget.of > 1 && budget.left <= 1 => ("RestartsLeft", failed_log),
        Some(Phase::Running | Phase::Starting | Phase::Restarting) if next.is_some() => {
            ("RepeatedFailure", failed_log)
        }
        _ if next.is_some() => {
            let command = format!("kubectl lockstep status {name} -n {namespace}");
            (status.reason.as_str(), command)
        }
        _ => return None,
    };
    let reason = if reason.is_empty() {
        "NoStatus"
    } else {
        reason
    };
    let left = || format!("{} of {} restarts are left", budget.left, budget.of);
    Some(json!({
        "workload": path_of(workload),
        "node": null,
        "reason": reason,
        "since": since,
        "next": next.unwrap_or_else(left),
        "command": command,
    }))
}

/// Time of the last change that explains the phase.
pub fn since(
    workload: &TrainingWorkload,
    status: &TrainingWorkloadStatus,
) -> Option<DateTime<Utc>> {
    let kinds = [types::STALLED, types::FAILED, types::ADMITTED, types::READY];
    let changed = kinds
        .iter()
        .filter_map(|kind| find(&status.conditions, kind));
    let created = workload.metadata.creation_timestamp.as_ref();
    let created = created.and_then(lockstep_api::time::utc);
    changed.map(|c| c.last_transition_time).max().or(created)
}

/// Nodes with members and without an agent, in a cluster with agents.
pub fn without_agent(view: &ClusterView) -> BTreeSet<String> {
    let agents = view.agents.iter().flatten();
    let agents: BTreeSet<String> = agents.map(ResourceExt::name_any).collect();
    if agents.is_empty() {
        return BTreeSet::new();
    }
    // An ended workload keeps the placement in its status, without its nodes.
    let ended = |group: &PodGroup| owner(view.workloads(), group).is_some_and(has_ended);
    let groups = view.groups().iter().filter(|g| !ended(g));
    let statuses = groups.filter_map(|g| g.status.as_ref());
    let placements = statuses.filter_map(|s| s.placement.as_ref());
    let nodes = placements.flat_map(|p| &p.nodes).map(|n| n.node.clone());
    nodes.filter(|node| !agents.contains(node)).collect()
}
