//! What Kueue says about the quota of a workload.
//!
//! A workload with a queue is held until its Kueue Workload is admitted, and fails closed: without a
//! read Kueue Workload it stays held. The ledger keeps the admission.

use std::collections::BTreeMap;

use lockstep_api::kueue::{
    AdmissionCheck, KueueWorkload, MOST_POD_SETS, PodSetRequest, PodSetUpdate, QUEUE_LABEL,
    kueue_conditions,
};
use lockstep_api::workload::{Group, KueuePodSet, KueueStatus};

use crate::facts::{Facts, Standing};
use crate::ledger::Ledger;
use crate::objects::hash::{names_other_spec, spec_hash};
use crate::objects::kueue::{class_of, name, pod_sets};
use crate::view::{Held, KueueAccess};
use serde_json::Value;

/// Why a workload with a queue is not admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unadmitted {
    /// Kueue's objects are not read yet.
    Unread,
    NotServed,
    /// More groups than Kueue has pod sets.
    TooManyGroups(usize),
    /// No WorkloadPriorityClass of this name exists.
    NoPriorityClass(String),
    /// No Kueue Workload exists yet.
    NoWorkload,
    /// The Kueue Workload is being deleted, or requests other pods or another queue.
    Outdated,
    /// The Kueue Workload has ended, and the workload has not.
    Finished(String),
    Deactivated(String),
    Evicted(String),
    /// Kueue's words, if it has said something.
    Waiting(Option<String>),
    /// The assigned ResourceFlavor does not exist.
    NoFlavor(String),
    /// What the admission sets and the template sets otherwise.
    Conflict(String),
}

impl Facts<'_> {
    /// The queue, if Kueue manages the workload. The queue of an admitted workload does not change.
    pub fn queue(&self, ledger: &Ledger) -> Option<String> {
        if !self.view.settings().kueue {
            return None;
        }
        let known = ledger.kueue.as_ref();
        let kept = known.filter(|k| k.admitted).map(|k| k.queue.as_str());
        let label = || self.view.label(QUEUE_LABEL).filter(|l| !l.is_empty());
        let is_read = matches!(self.view.kueue().access, KueueAccess::Served(_));
        let unread = || known.filter(|_| !is_read).map(|k| k.queue.as_str());
        let queue = kept.or_else(label).or_else(unread)?;
        Some(queue.to_owned())
    }

    /// The Kueue Workload of the workload.
    pub fn kueue_workload(&self) -> Option<&Held<KueueWorkload>> {
        self.view.kueue().workloads.get(&name(self.view))
    }

    /// True if a pod may still use capacity. A pod on a lost node does not count.
    pub fn uses_quota(&self) -> bool {
        self.pods().any(|pod| match self.standing(pod) {
            Standing::Open | Standing::Ending | Standing::Stuck => true,
            Standing::Lost | Standing::GivenUp | Standing::Ended => false,
        })
    }

    /// True if an admitted workload may keep its quota.
    pub fn keeps_quota(&self, quota: &KueueStatus) -> bool {
        let workloads = &self.view.kueue().workloads;
        let held = workloads.get(&quota.workload);
        let Some(held) = held.filter(|held| held.uid == *quota.uid) else {
            return false;
        };
        let is_same = !names_other_spec(&quota.spec_hash, &spec_hash(self.spec()))
            && self.counts() == quota.pod_sets.iter().map(|s| (&*s.name, s.count)).collect();
        is_same && unadmitted(&held.content).is_none()
    }

    /// Members of each group that has some.
    fn counts(&self) -> BTreeMap<&str, i32> {
        let spec = self.spec();
        let groups = spec.groups.iter().map(|g| (&*g.name, spec.members_of(g)));
        groups.filter(|(_, count)| *count > 0).collect()
    }

    /// The admission of a held workload, or why it has none.
    pub fn admission(&self, queue: &str) -> Result<KueueStatus, Unadmitted> {
        let kueue = self.view.kueue();
        match kueue.access {
            KueueAccess::Unread => return Err(Unadmitted::Unread),
            KueueAccess::NotServed => return Err(Unadmitted::NotServed),
            KueueAccess::Served(_) => {}
        }
        let groups = self.counts().len();
        if groups > MOST_POD_SETS {
            return Err(Unadmitted::TooManyGroups(groups));
        }
        class_of(self.view).map_err(Unadmitted::NoPriorityClass)?;
        let held = self.kueue_workload().ok_or(Unadmitted::NoWorkload)?;
        if let Some(why) = unadmitted(&held.content) {
            return Err(why);
        }
        if !requests_same(&held.content, queue, &pod_sets(self.view)) {
            return Err(Unadmitted::Outdated);
        }
        let status = &held.content.status;
        let assigned = status.admission.iter().flat_map(|a| &a.pod_set_assignments);
        let mut out = KueueStatus {
            queue: queue.to_owned(),
            admitted: true,
            workload: name(self.view),
            uid: held.uid.to_string(),
            spec_hash: spec_hash(self.spec()),
            pod_sets: Vec::new(),
        };
        for assignment in assigned {
            let Some(group) = self
                .spec()
                .groups
                .iter()
                .find(|g| g.name == assignment.name)
            else {
                continue;
            };
            let mut update = PodSetUpdate::default();
            for flavor in assignment.flavors.values() {
                let spec = kueue.classes.flavors.get(flavor);
                let spec = spec.ok_or_else(|| Unadmitted::NoFlavor(flavor.clone()))?;
                update.node_selector.extend(spec.node_labels.clone());
                update.tolerations.extend(spec.tolerations.clone());
            }
            let checks = status.admission_checks.iter().flat_map(updates);
            for own in checks.filter(|update| update.name == group.name) {
                conflict(&update.node_selector, &own.node_selector)?;
                update.labels.extend(own.labels.clone());
                update.annotations.extend(own.annotations.clone());
                update.node_selector.extend(own.node_selector.clone());
                update.tolerations.extend(own.tolerations.clone());
            }
            out.pod_sets
                .push(assigned_to(group, self.spec().members_of(group), update)?);
        }
        if out.pod_sets.len() < groups {
            return Err(Unadmitted::Waiting(None));
        }
        Ok(out)
    }
}

fn updates(check: &AdmissionCheck) -> &[PodSetUpdate] {
    &check.pod_set_updates
}

/// What an update adds to the pods of a group. Kueue refuses an admission that contradicts the
/// template, too.
fn assigned_to(group: &Group, count: i32, update: PodSetUpdate) -> Result<KueuePodSet, Unadmitted> {
    let template = &group.template.0;
    let selector = template
        .spec
        .as_ref()
        .and_then(|s| s.node_selector.as_ref());
    let metadata = template.metadata.as_ref();
    let none = BTreeMap::new();
    conflict(selector.unwrap_or(&none), &update.node_selector)?;
    let labels = metadata.and_then(|m| m.labels.as_ref());
    conflict(labels.unwrap_or(&none), &update.labels)?;
    let annotations = metadata.and_then(|m| m.annotations.as_ref());
    conflict(annotations.unwrap_or(&none), &update.annotations)?;
    Ok(KueuePodSet {
        name: group.name.clone(),
        count,
        node_selector: update.node_selector,
        tolerations: update.tolerations,
        labels: update.labels,
        annotations: update.annotations,
    })
}

fn conflict(
    own: &BTreeMap<String, String>,
    added: &BTreeMap<String, String>,
) -> Result<(), Unadmitted> {
    let mut both = added.iter().filter_map(|(k, v)| Some((k, v, own.get(k)?)));
    match both.find(|(_, added, own)| added != own) {
        Some((key, added, own)) => Err(Unadmitted::Conflict(format!(
            "{key} is {own} in the template and {added} in the admission"
        ))),
        None => Ok(()),
    }
}

/// True if the Kueue Workload requests these pods of this queue.
pub(crate) fn requests_same(
    workload: &KueueWorkload,
    queue: &str,
    desired: &[PodSetRequest],
) -> bool {
    let present = &workload.spec.pod_sets;
    let pairs = || present.iter().zip(desired);
    workload.spec.queue_name == queue
        && present.len() == desired.len()
        && pairs().all(|(a, b)| (&a.name, a.count) == (&b.name, b.count))
        && pairs().all(|(a, b)| contains(&a.template, &b.template))
}

/// True if a stored value has all that is wanted. The API server adds defaults. Images do not matter
/// for quota.
fn contains(stored: &Value, wanted: &Value) -> bool {
    match (stored, wanted) {
        (Value::Object(stored), Value::Object(wanted)) => wanted.iter().all(|(key, value)| {
            let found = stored.get(key).unwrap_or(&Value::Null);
            key == "image" || contains(found, value)
        }),
        (Value::Array(stored), Value::Array(wanted)) => {
            let mut pairs = stored.iter().zip(wanted);
            stored.len() == wanted.len() && pairs.all(|(s, w)| contains(s, w))
        }
        _ => stored == wanted,
    }
}

/// Why Kueue does not let the pods of a Kueue Workload run. `None`: it is admitted.
fn unadmitted(workload: &KueueWorkload) -> Option<Unadmitted> {
    let status = &workload.status;
    let message = |type_: &str| {
        let condition = status.conditions.iter().find(|c| c.type_ == type_);
        condition.map(|c| format!("{}: {}", c.reason, c.message))
    };
    let says = |type_| message(type_).unwrap_or_default();
    if workload.metadata.deletion_timestamp.is_some() {
        Some(Unadmitted::Outdated)
    } else if status.is(kueue_conditions::FINISHED) {
        Some(Unadmitted::Finished(says(kueue_conditions::FINISHED)))
    } else if workload.spec.active == Some(false) {
        Some(Unadmitted::Deactivated(says(kueue_conditions::EVICTED)))
    } else if status.is(kueue_conditions::EVICTED) && status.is(kueue_conditions::QUOTA_RESERVED) {
        Some(Unadmitted::Evicted(says(kueue_conditions::EVICTED)))
    } else if !status.is(kueue_conditions::ADMITTED) {
        let mut pending = status
            .admission_checks
            .iter()
            .filter(|c| c.state != "Ready");
        let reserved = status.is(kueue_conditions::QUOTA_RESERVED);
        let check = pending.find(|_| reserved);
        let check = check.map(|c| format!("check {}: {}: {}", c.name, c.state, c.message));
        let waits = || message(kueue_conditions::QUOTA_RESERVED);
        Some(Unadmitted::Waiting(check.or_else(waits)))
    } else {
        None
    }
}
