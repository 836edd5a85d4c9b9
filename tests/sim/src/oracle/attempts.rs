//! No object of a new attempt is created while a training container of the old attempt runs (I1),
//! where pods are recreated because no barrier separates attempts. Sidecars do not count.

use std::collections::BTreeMap;

use lockstep_api::TrainingWorkload;
use lockstep_api::member_pod::DEFAULT_CONTAINER;
use lockstep_api::names::{annotations, labels};
use lockstep_api::workload::{SchedulingPolicy, WithoutSupervisor};
use serde_json::Value;

use super::ownership::owner;
use crate::api::{Object, Write};
use crate::{Key, SimCluster, WatchedKind};

pub(super) fn judge(
    write: &Write,
    workloads: &BTreeMap<String, TrainingWorkload>,
    cluster: &mut SimCluster,
) -> Vec<String> {
    let Some(workload) = owner(&write.object).and_then(|uid| workloads.get(uid)) else {
        return Vec::new();
    };
    let spec = &workload.spec;
    let promised = spec.scheduling.policy == SchedulingPolicy::Gang
        && spec.failure_policy.in_place.without_supervisor == WithoutSupervisor::Deny;
    // With a barrier, containers of both attempts may exist (`SimCluster::run` checks their
    // processes).
    let supervised = write.object["metadata"]["annotations"][annotations::TIER] == "supervised";
    let Some(new) = attempt(&write.object).filter(|_| promised && !supervised) else {
        return Vec::new();
    };
    let label = |name: &str| {
        let labels = &write.object["metadata"]["labels"];
        labels[name].as_str().map(str::to_owned)
    };
    let (uid, domain) = (label(labels::WORKLOAD_UID), label(labels::DOMAIN));
    let mut broken = Vec::new();
    for name in cluster.node_names() {
        let unheard = is_unheard(cluster, &name);
        let node = cluster.node(&name);
        if unheard || !node.alive() {
            continue;
        }
        let children = node.runtime.children();
        // Processes on the node, whatever the API server still has.
        for (pod, view) in node.runtime.table().all() {
            let same = *pod.namespace == *write.key.namespace
                && pod.labels.get(labels::WORKLOAD_UID) == uid.as_ref()
                && pod.labels.get(labels::DOMAIN) == domain.as_ref();
            let old = pod.annotations.get(annotations::ATTEMPT);
            let old = old
                .and_then(|a| a.parse::<i64>().ok())
                .is_some_and(|a| a < new);
            let supervised = pod.annotations.get(annotations::TIER);
            // A process that a supervisor holds at the new attempt is not of an older one.
            let runs = if supervised.is_some_and(|tier| tier == "supervised") {
                let mut children = children.iter();
                children.any(|(uid, at)| *uid == pod.uid && (*at as i64) < new)
            } else {
                let training = pod.annotations.get(DEFAULT_CONTAINER);
                let mut alive = view.containers.iter().filter(|c| c.alive());
                alive.any(|c| training.is_none_or(|name| c.name == *name))
            };
            if same && old && runs && !pod.name.starts_with("forged-") {
                broken.push(format!("attempt {new} while {} runs", pod.name));
            }
        }
    }
    broken
}

/// True if a node has returned and its events have not arrived: until then its pods are
/// unreachable.
fn is_unheard(cluster: &SimCluster, node: &str) -> bool {
    let (store, key) = (cluster.store(), Key::new("", node));
    let is_ready = |node: &Object| {
        let mut conditions = node["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten();
        conditions.any(|c| c["type"] == "Ready" && c["status"] == "True")
    };
    let told = store.watches.told(WatchedKind::Node, &key);
    store.raw(WatchedKind::Node, &key).is_some_and(is_ready) && !told.is_some_and(is_ready)
}

fn attempt(pod: &Value) -> Option<i64> {
    let attempt = pod["metadata"]["annotations"][annotations::ATTEMPT].as_str()?;
    attempt.parse().ok()
}
