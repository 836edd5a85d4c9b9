//! Dependents of a broken group start nothing and are not charged (I16). The manager has written the
//! restart of the group, or the release of its nodes, before.
//!
//! Judged are dependents of groups without `minCount`: other groups tolerate lost members.

use std::collections::BTreeMap;

use lockstep_api::names::labels;
use lockstep_api::workload::{
    DependencyCondition, Incident, SchedulingPolicy, TrainingWorkloadStatus,
};
use lockstep_api::{PodGroup, RestartOrder, TrainingWorkload};
use serde_json::Value;

use super::controls;

/// Attempts released by orders.
#[derive(Default)]
pub(super) struct Dependents {
    /// By UID of the order and key of the domain.
    released: BTreeMap<(String, String), i64>,
}

impl Dependents {
    /// The manager creates a pod.
    pub fn creates(
        pod: &Value,
        workload: &TrainingWorkload,
        groups: &BTreeMap<String, PodGroup>,
    ) -> Vec<String> {
        let group = pod["metadata"]["labels"][labels::GROUP].as_str();
        let broken = group.and_then(|group| broken(workload, group, groups));
        let broken = broken.map(|name| format!("a pod starts while group {name} is broken"));
        broken.into_iter().collect()
    }

    /// The manager writes an order.
    pub fn orders(
        &mut self,
        order: &RestartOrder,
        workload: &TrainingWorkload,
        groups: &BTreeMap<String, PodGroup>,
    ) -> Vec<String> {
        let uid = order.metadata.uid.clone().unwrap_or_default();
        let mut wrong = Vec::new();
        for domain in &order.spec.domains {
            let key = (uid.clone(), domain.key.clone());
            let before = self.released.insert(key, domain.released_attempt);
            // Without peers, no barrier was open.
            let starts = domain.released_attempt > before.unwrap_or(0) && !domain.peers.is_empty();
            if let Some(name) = broken(workload, group_of(&domain.key), groups).filter(|_| starts) {
                let (attempt, key) = (domain.attempt, &domain.key);
                wrong.push(format!(
                    "attempt {attempt} of {key} starts while group {name} is broken"
                ));
            }
        }
        wrong
    }

    /// The manager writes a status.
    pub fn charges(old: &TrainingWorkload, new: &TrainingWorkload) -> Vec<String> {
        let (Some(before), Some(after)) = (&old.status, &new.status) else {
            return Vec::new();
        };
        let charged = |s: &TrainingWorkloadStatus, key: &str| {
            let incident = incident(s, key).filter(|i| i.counted);
            incident.map(|i| i.attempt)
        };
        let mut wrong = Vec::new();
        for domain in &after.domains {
            let key = &domain.key;
            let is_new =
                charged(after, key).is_some() && charged(after, key) != charged(before, key);
            let mut dependencies = dependencies(new, group_of(key)).into_iter();
            let broken = dependencies.find(|d| restarts(before, d) && restarts(after, d));
            if let Some(name) = broken.filter(|_| is_new) {
                wrong.push(format!("{key} is charged while group {name} restarts"));
            }
        }
        wrong
    }
}

fn group_of(domain: &str) -> &str {
    domain.split('.').next().unwrap_or(domain)
}

fn incident<'s>(status: &'s TrainingWorkloadStatus, key: &str) -> Option<&'s Incident> {
    let mut domains = status.domains.iter().filter(|d| d.key == key);
    domains.find_map(|d| d.incident.as_ref())
}

/// Groups that must be ready before this one.
fn dependencies(workload: &TrainingWorkload, group: &str) -> Vec<String> {
    let spec = &workload.spec;
    if spec.scheduling.policy == SchedulingPolicy::Basic {
        return Vec::new();
    }
    let named = |name: &str| spec.groups.iter().find(|g| g.name == name);
    let all = named(group).into_iter().flat_map(|g| &g.depends_on);
    let ready = all.filter(|d| d.condition == DependencyCondition::Ready);
    let whole = ready.filter(|d| named(&d.group).is_some_and(|g| g.min_count.is_none()));
    whole.map(|d| d.group.clone()).collect()
}

fn restarts(status: &TrainingWorkloadStatus, group: &str) -> bool {
    let mut domains = status.domains.iter().filter(|d| group_of(&d.key) == group);
    domains.any(|d| {
        d.incident
            .as_ref()
            .is_some_and(|i| i.action.raises_attempt())
    })
}

/// A group on which this one depends, and which restarts or has released its nodes.
fn broken(
    workload: &TrainingWorkload,
    group: &str,
    groups: &BTreeMap<String, PodGroup>,
) -> Option<String> {
    let status = workload.status.as_ref()?;
    let uid = workload.metadata.uid.as_deref()?;
    let has_succeeded = |name: &str| {
        let mut counts = status.groups.iter().filter(|g| g.name == name);
        counts.any(|g| g.succeeded >= g.desired)
    };
    let released = |name: &str| {
        let ours = groups.values().filter(|g| controls(uid, &g.metadata));
        let mut ours = ours.filter(|g| group_of(&g.spec.gang_key) == name);
        ours.any(|g| {
            let placement = g.status.as_ref().and_then(|s| s.placement.as_ref());
            let mut ledger = status.gangs.iter();
            let entry = ledger.find(|e| e.key == g.spec.gang_key);
            placement.is_some_and(|p| entry.is_some_and(|e| e.released.as_ref() == Some(&p.id)))
        })
    };
    let all = dependencies(workload, group).into_iter();
    let mut unfinished = all.filter(|name| !has_succeeded(name));
    unfinished.find(|name| restarts(status, name) || released(name))
}
