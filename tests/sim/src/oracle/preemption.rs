//! Victims, preemptors, and number of preemptions (I10, I12).

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::{is_true, types};
use lockstep_api::workload::{DisruptionMode, SchedulingPolicy};
use lockstep_api::{PodGroup, TrainingWorkload};

use serde_json::Value;

use super::controls;
use super::ownership::owner;
use crate::api::{Object, Write, ended};
use crate::pods::has_foreign_gate;

/// Most preemptions of a gang without its claim: one, and one more if a node was lost before
/// kube-scheduler ran.
const MOST_IN_VAIN: usize = 2;
/// Least time between a failed preemption and the next one for the same gang.
const LEAST_BACKOFF: TimeDelta = TimeDelta::minutes(10);

/// Kueue's group of a pod, which has no controller.
fn kueue_group(pod: &Value) -> Option<&str> {
    let labels = &pod["metadata"]["labels"];
    let managed = labels["kueue.x-k8s.io/managed"] == "true";
    let mut owners = pod["metadata"]["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten();
    let alone = !owners.any(|owner| owner["controller"] == true);
    let group = labels["kueue.x-k8s.io/pod-group-name"].as_str();
    group.filter(|_| managed && alone)
}

/// Priority of a pod that is preempted alone. A pod of a workload has the priority of its pod
/// group: its own priority can be of a class of the same name that was created later, and "will be
/// ignored" (KEP-5710, Pod Group priorities).
fn victim_priority(
    pod: &Value,
    groups: &BTreeMap<String, PodGroup>,
    workloads: &BTreeMap<String, TrainingWorkload>,
) -> i64 {
    let workload = owner(pod).filter(|uid| workloads.contains_key(*uid));
    let of_workload = groups
        .values()
        .filter(|group| workload.is_some_and(|uid| controls(uid, &group.metadata)));
    let highest = of_workload
        .map(|group| i64::from(group.spec.gang.priority))
        .max();
    let own = || pod["spec"]["priority"].as_i64().unwrap_or(0);
    highest.unwrap_or_else(own)
}

#[derive(Default)]
pub(super) struct Preemptions {
    /// Intents with an evicted victim, by UID of the preemptor.
    carried_out: BTreeMap<String, BTreeSet<String>>,
}

impl Preemptions {
    /// The preemptor with a stored intent for this victim.
    fn preemptor<'g>(
        &mut self,
        uid: &str,
        groups: &'g BTreeMap<String, PodGroup>,
    ) -> Option<&'g PodGroup> {
        for (preemptor, group) in groups {
            let intent = group.status.as_ref().and_then(|s| s.preemption.as_ref());
            if let Some(intent) = intent.filter(|i| i.victims.iter().any(|v| v.uid == uid)) {
                let done = self.carried_out.entry(preemptor.clone()).or_default();
                done.insert(intent.id.clone());
                return Some(group);
            }
        }
        None
    }

    /// The scheduler evicts or deletes a pod. `pods`: all pods before that.
    pub fn evicts<'p>(
        &mut self,
        write: &Write,
        groups: &BTreeMap<String, PodGroup>,
        workloads: &BTreeMap<String, TrainingWorkload>,
        pods: impl Iterator<Item = &'p Object>,
    ) -> Vec<String> {
        let Some(preemptor) = self.preemptor(&write.uid, groups) else {
            return vec!["no stored intent names it".into()];
        };
        let mut broken = Vec::new();
        let pods: Vec<&Object> = pods.collect();
        let workload = preemptor.metadata.owner_references.iter().flatten();
        let workload = workload.map(|owner| owner.uid.as_str()).next();
        let held = |pod: &&&Object| owner(pod) == workload && has_foreign_gate(pod);
        if let Some(held) = pods.iter().find(held) {
            let name = &held["metadata"]["name"];
            broken.push(format!(
                "another controller holds pod {name} of the preemptor"
            ));
        }
        let priority = victim_priority(&write.object, groups, workloads);
        if priority >= i64::from(preemptor.spec.gang.priority) {
            broken.push(format!(
                "its priority is {priority}, that of the preemptor {}",
                preemptor.spec.gang.priority
            ));
        }
        let gang = owner(&write.object).and_then(|uid| workloads.get(uid));
        let whole = gang.is_some_and(|w| {
            let scheduling = &w.spec.scheduling;
            scheduling.policy == SchedulingPolicy::Gang
                && scheduling.disruption_mode != Some(DisruptionMode::Single)
        });
        if whole {
            broken.push("it is one pod of a gang that goes whole".into());
        }
        if let Some(group) = kueue_group(&write.object) {
            let namespace = &write.object["metadata"]["namespace"];
            let of_group = pods.into_iter().filter(|pod| {
                pod["metadata"]["namespace"] == *namespace && kueue_group(pod) == Some(group)
            });
            let runs = |pod: &&Object| {
                !pod["spec"]["nodeName"].is_null()
                    && pod["metadata"]["deletionTimestamp"].is_null()
                    && !ended(pod)
            };
            let intent = preemptor
                .status
                .as_ref()
                .and_then(|s| s.preemption.as_ref());
            let named = |pod: &Object| {
                let mut victims = intent.iter().flat_map(|i| &i.victims);
                victims.any(|v| pod["metadata"]["uid"] == v.uid)
            };
            // A pod that was created after the decision was unknown at that time.
            let since = intent.map(|i| i.decided_at);
            let earlier = |pod: &&Object| {
                let created = pod["metadata"]["creationTimestamp"].as_str();
                let created = created.and_then(|t| t.parse::<DateTime<Utc>>().ok());
                created < since
            };
            let mut left = of_group.filter(runs).filter(earlier);
            if let Some(left) = left.find(|pod| !named(pod)) {
                let name = &left["metadata"]["name"];
                broken.push(format!("{name} of its group, which goes whole, stays"));
            }
        }
        broken
    }

    /// The scheduler marks a gang as preempted.
    pub fn marks(
        &mut self,
        write: &Write,
        old: Option<&PodGroup>,
        groups: &BTreeMap<String, PodGroup>,
    ) -> Vec<String> {
        let disrupted = |g: &PodGroup| {
            let status = g.status.as_ref();
            status.is_some_and(|s| is_true(&s.conditions, types::DISRUPTION_TARGET))
        };
        let victim = &groups[&write.uid];
        if !disrupted(victim) || old.is_some_and(disrupted) {
            return Vec::new();
        }
        let Some(preemptor) = self.preemptor(&write.uid, groups) else {
            return vec!["no stored intent names it".into()];
        };
        let (theirs, its) = (preemptor.spec.gang.priority, victim.spec.gang.priority);
        let lower = its < theirs;
        let why = || format!("its priority is {its}, that of the preemptor {theirs}");
        (!lower).then(why).into_iter().collect()
    }

    /// Reports an intent for a gang that was refused for another reason than capacity, or whose
    /// last preemption has just failed. Also reports repeated intents for a gang with a missing
    /// claim.
    pub fn intends(&self, old: Option<&PodGroup>, new: &PodGroup, claimless: bool) -> Vec<String> {
        let intent = |g: &PodGroup| g.status.as_ref()?.preemption.as_ref().map(|p| p.id.clone());
        let decided = intent(new).is_some() && old.and_then(intent) != intent(new);
        if !decided {
            return Vec::new();
        }
        let status = new.status.as_ref();
        let refused = status.is_some_and(|s| s.refusal.is_some());
        let failed = status.and_then(|s| s.last_preemption.as_ref()?.failed_at);
        let decided_at = status
            .and_then(|s| s.preemption.as_ref())
            .map(|p| p.decided_at);
        let soon = failed.is_some_and(|at| decided_at < Some(at + LEAST_BACKOFF));
        let done = new
            .metadata
            .uid
            .as_ref()
            .and_then(|uid| self.carried_out.get(uid));
        let again = claimless && done.is_some_and(|done| done.len() > MOST_IN_VAIN);
        let mut broken = Vec::new();
        if refused {
            broken
                .push("it preempts although it is refused for another reason than capacity".into());
        }
        if soon {
            broken.push("it preempts although its last preemption has just failed".into());
        }
        if again {
            broken.push("it preempts again and again, and its claim does not exist".into());
        }
        broken
    }
}
