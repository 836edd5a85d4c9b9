//! Invariants once faults have stopped and the cluster is at rest (I3, I5, I7, I8).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use lockstep_api::condition::{find, types};
use lockstep_api::key::Key;
use lockstep_api::workload::{FailureAction, GroupStatus, Phase, SchedulingPolicy};
use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_manager::stepped::WatchedKind;

use super::capacity::bound;
use super::ownership::owner;
use crate::SimCluster;
use crate::gangs::assigned;
use crate::pods::{leaving, node_of, over};

/// Violations at rest. `partial`: UIDs of workloads that may run without some members.
pub fn at_rest(cluster: &mut SimCluster, partial: &BTreeSet<String>) -> Vec<String> {
    let workloads = cluster.list::<TrainingWorkload>();
    let mut broken: Vec<String> = workloads.iter().filter_map(says_why).collect();
    let keys: Vec<Key> = workloads.iter().map(Key::of).collect();
    let restless = keys.iter().filter(|key| !cluster.is_idle(key));
    broken.extend(restless.map(|key| format!("I5: there is something to do about {key}")));
    let requests = cluster.schedule().requests;
    if requests > 0 {
        broken.push(format!("I5: the scheduler has {requests} requests to make"));
    }
    broken.extend(partly_there(cluster, &workloads, partial));
    broken.extend(promised_elsewhere(cluster));
    broken
}

/// Members that run on another node than assigned.
fn promised_elsewhere(cluster: &SimCluster) -> Vec<String> {
    let bound = bound(cluster);
    let groups = cluster.list::<PodGroup>();
    let promised = groups.iter().filter_map(|group| {
        let uid = controller(group)?.to_owned();
        Some((uid, assigned(group.status.as_ref()?)))
    });
    let each = promised.flat_map(|(uid, nodes)| {
        nodes
            .into_iter()
            .map(move |(member, node)| ((uid.clone(), member), node))
    });
    let broken = each.filter_map(|(of, node)| {
        let at = bound.get(&of).filter(|at| **at != node)?;
        Some(format!("I3: {} runs on {at} and is promised {node}", of.1))
    });
    broken.collect()
}

/// Reports a workload that neither runs nor has ended, without a reason.
fn says_why(w: &TrainingWorkload) -> Option<String> {
    let name = w.metadata.name.as_deref().unwrap_or_default();
    let status = w.status.clone().unwrap_or_default();
    match status.phase {
        Some(Phase::Running | Phase::Succeeded | Phase::Suspended) => None,
        Some(Phase::Failed) => {
            let failed = find(&status.conditions, types::FAILED);
            let told = failed.is_some_and(|c| !c.message.is_empty());
            (!told).then(|| format!("I8: {name} has failed and does not say why"))
        }
        _ => {
            let told = status
                .conditions
                .iter()
                .any(|c| !c.message.is_empty() && c.reason != "AsExpected");
            (!told).then(|| format!("I8: {name} waits and does not say for what: {status:?}"))
        }
    }
}

/// Reports a gang with some running and some missing members.
fn partly_there(
    cluster: &SimCluster,
    workloads: &[TrainingWorkload],
    partial: &BTreeSet<String>,
) -> Vec<String> {
    let mut there: BTreeMap<String, usize> = BTreeMap::new();
    for pod in cluster.list::<Pod>() {
        let Some(uid) = controller(&pod) else {
            continue;
        };
        if node_of(&pod).is_some() && !over(&pod) && !leaving(&pod) {
            *there.entry(uid.to_owned()).or_default() += 1;
        }
    }
    let whole = workloads.iter().filter(|w| {
        let scheduling = &w.spec.scheduling;
        let one_gang = scheduling.policy == SchedulingPolicy::Gang
            && scheduling.gang.min_count.is_none()
            && scheduling.gang.scope == lockstep_api::workload::GangScope::Workload;
        let uid = w.metadata.uid.as_ref();
        let is_partial = uid.is_some_and(|uid| partial.contains(uid));
        !is_partial && one_gang && w.spec.groups.iter().all(|g| g.min_count.is_none())
    });
    let broken = whole.filter_map(|w| {
        let status = w.status.clone().unwrap_or_default();
        let is_over = matches!(status.phase, Some(Phase::Succeeded | Phase::Failed));
        let wanted = w.spec.members();
        // A failure that a rule ignores ends its member for good.
        let rules = &w.spec.failure_policy.rules;
        let ignores = rules.iter().any(|r| r.action == FailureAction::Ignore);
        let ended = |g: &GroupStatus| g.succeeded + if ignores { g.failed } else { 0 };
        let done: i32 = status.groups.iter().map(ended).sum();
        let there = there.get(w.metadata.uid.as_deref()?).copied().unwrap_or(0);
        let missing = (wanted - done) as usize > there;
        let name = w.metadata.name.as_deref()?;
        (!is_over && there > 0 && missing)
            .then(|| format!("I3: {name} has {there} of {wanted} members, {done} are done"))
    });
    broken.collect()
}

pub(super) fn controller<K: Resource>(object: &K) -> Option<&str> {
    let mut owners = object.meta().owner_references.iter().flatten();
    let controller = owners.find(|o| o.controller == Some(true))?;
    (controller.kind == "TrainingWorkload").then_some(controller.uid.as_str())
}

/// Remains of deleted workloads.
pub fn left(cluster: &SimCluster) -> Vec<String> {
    let store = cluster.store();
    let kinds = [
        WatchedKind::Pod,
        WatchedKind::PodGroup,
        WatchedKind::Workload,
        WatchedKind::Service,
        WatchedKind::RestartOrder,
    ];
    let mut left = Vec::new();
    for kind in kinds {
        let ours = store
            .all(kind)
            .filter(|(_, object)| owner(object).is_some());
        left.extend(ours.map(|(key, _)| format!("I7: {} {key} is left", kind.as_str())));
    }
    left
}
