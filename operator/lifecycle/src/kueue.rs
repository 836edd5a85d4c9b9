//! What Kueue says about the quota of a workload.
//!
//! A workload with a queue is held until its Kueue Workload is admitted, and fails closed: without a
//! read Kueue Workload it stays held. The ledger keeps the admission.

use std::collections::BTreeMap;

use lockstep_api::condition::find;
use lockstep_api::kueue::{
    KueueWorkload, MOST_POD_SETS, PodSetRequest, QUEUE_LABEL, kueue_conditions,
};
use lockstep_api::workload::{Group, KueuePodSet, KueueStatus};
use serde_json::Value;

use crate::facts::{Facts, Standing};
use crate::ledger::Ledger;
use crate::objects::hash::{names_other_spec, spec_hash};
use crate::objects::kueue::{class_of, name, pod_sets};
use crate::plan::Surplus;
use crate::view::{KueueAccess, Target};

/// Why a workload with a queue is not admitted.
pub(crate) enum Unadmitted {
    Held(String),
    /// What the admission sets and the template sets otherwise.
    Conflict(String),
}

impl From<String> for Unadmitted {
    fn from(why: String) -> Self {
        Self::Held(why)
    }
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

    /// What a held workload waits for.
    pub fn quota_wait(&self, queue: &str) -> String {
        match self.admission(queue) {
            Err(Unadmitted::Held(why) | Unadmitted::Conflict(why)) => why,
            Ok(_) => waits_for_quota(&name(self.view)),
        }
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
        let held = self.view.kueue().workload.as_ref();
        let Some(held) = held.filter(|held| held.uid == *quota.uid) else {
            return false;
        };
        let is_same = !names_other_spec(&quota.spec_hash, &spec_hash(self.spec()))
            && self.counts() == quota.pod_sets.iter().map(|s| (&*s.name, s.count)).collect();
        is_same && unadmitted(&quota.workload, &held.content).is_none()
    }

    /// Members of each group that has some.
    fn counts(&self) -> BTreeMap<&str, i32> {
        let spec = self.spec();
        let groups = spec.groups.iter().map(|g| (&*g.name, spec.members_of(g)));
        groups.filter(|(_, count)| *count > 0).collect()
    }

    /// The admitted Kueue Workload that requests what the workload needs, or why there is none.
    fn admitted(&self, queue: &str) -> Result<&KueueWorkload, String> {
        match self.view.kueue().access {
            KueueAccess::Unread => return Err("Kueue's objects are not read yet".to_owned()),
            KueueAccess::NotServed => {
                return Err("the API server does not serve Kueue's API".to_owned());
            }
            KueueAccess::Served(_) => {}
        }
        let groups = self.counts().len();
        if groups > MOST_POD_SETS {
            return Err(format!(
                "{groups} groups have members, and Kueue allows 8 pod sets"
            ));
        }
        class_of(self.view)
            .map_err(|class| format!("no WorkloadPriorityClass \"{class}\" exists"))?;
        let name = name(self.view);
        let Some(held) = &self.view.kueue().workload else {
            let target = Target::Object(Surplus::KueueWorkload.kind(), name.clone());
            return Err(match self.rejections(&target).first() {
                Some(rejected) => format!("cannot create Workload {name}: {}", rejected.message),
                None => format!("Workload {name} is being created"),
            });
        };
        match unadmitted(&name, &held.content) {
            Some(why) => Err(why),
            None if requests_same(&held.content, queue, &pod_sets(self.view)) => Ok(&held.content),
            None => Err(replaced(&name)),
        }
    }

    /// The admission of a held workload, or why it has none.
    pub fn admission(&self, queue: &str) -> Result<KueueStatus, Unadmitted> {
        let held = self.admitted(queue)?;
        let status = &held.status;
        let assigned = status.admission.iter().flat_map(|a| &a.pod_set_assignments);
        let mut out = KueueStatus {
            queue: queue.to_owned(),
            admitted: true,
            workload: name(self.view),
            uid: held.metadata.uid.clone().unwrap_or_default(),
            spec_hash: spec_hash(self.spec()),
            pod_sets: Vec::new(),
        };
        for assignment in assigned {
            let mut groups = self.spec().groups.iter();
            let Some(group) = groups.find(|g| g.name == assignment.name) else {
                continue;
            };
            let mut set = KueuePodSet {
                name: group.name.clone(),
                count: self.spec().members_of(group),
                ..KueuePodSet::default()
            };
            for flavor in assignment.flavors.values() {
                let spec = self.view.kueue().classes.flavors.get(flavor);
                let spec = spec.ok_or_else(|| format!("no ResourceFlavor \"{flavor}\" exists"))?;
                set.node_selector.extend(spec.node_labels.clone());
                set.tolerations.extend(spec.tolerations.clone());
            }
            let checks = status.admission_checks.iter();
            let updates = checks.flat_map(|check| &check.pod_set_updates);
            for update in updates.filter(|update| update.name == group.name) {
                conflict(&set.node_selector, &update.node_selector)?;
                set.labels.extend(update.labels.clone());
                set.annotations.extend(update.annotations.clone());
                set.node_selector.extend(update.node_selector.clone());
                set.tolerations.extend(update.tolerations.clone());
            }
            suits(group, &set)?;
            out.pod_sets.push(set);
        }
        if out.pod_sets.len() < self.counts().len() {
            return Err(waits_for_quota(&out.workload).into());
        }
        Ok(out)
    }
}

/// Kueue refuses an admission that contradicts the template of the group, too.
fn suits(group: &Group, added: &KueuePodSet) -> Result<(), Unadmitted> {
    let none = BTreeMap::new();
    let (spec, metadata) = (
        group.template.0.spec.as_ref(),
        group.template.0.metadata.as_ref(),
    );
    let selector = spec.and_then(|s| s.node_selector.as_ref());
    conflict(selector.unwrap_or(&none), &added.node_selector)?;
    let labels = metadata.and_then(|m| m.labels.as_ref());
    conflict(labels.unwrap_or(&none), &added.labels)?;
    let annotations = metadata.and_then(|m| m.annotations.as_ref());
    conflict(annotations.unwrap_or(&none), &added.annotations)
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
        (Value::Null, Value::Array(wanted)) => wanted.is_empty(),
        _ => stored == wanted,
    }
}

/// Why Kueue does not let the pods of a Kueue Workload run. `None`: it is admitted.
fn unadmitted(name: &str, workload: &KueueWorkload) -> Option<String> {
    let status = &workload.status;
    let message = |type_: &str| {
        let condition = find(&status.conditions, type_)?;
        Some(format!("{}: {}", condition.reason, condition.message))
    };
    let evicted = message(kueue_conditions::EVICTED).unwrap_or_default();
    let reserved = status.is(kueue_conditions::QUOTA_RESERVED);
    Some(if workload.metadata.deletion_timestamp.is_some() {
        replaced(name)
    } else if status.is(kueue_conditions::FINISHED) {
        let why = message(kueue_conditions::FINISHED).unwrap_or_default();
        format!("Workload {name} has ended ({why}); suspend and resume to request quota again")
    } else if workload.spec.active == Some(false) {
        let separator = if evicted.is_empty() { "" } else { ": " };
        format!("Workload {name} is deactivated{separator}{evicted}")
    } else if status.is(kueue_conditions::EVICTED) && reserved {
        format!("evicted: {evicted}")
    } else if !status.is(kueue_conditions::ADMITTED) {
        let mut checks = status.admission_checks.iter();
        let check = checks.find(|c| reserved && c.state != "Ready");
        let check = check.map(|c| format!("check {}: {}: {}", c.name, c.state, c.message));
        check
            .or_else(|| message(kueue_conditions::QUOTA_RESERVED))
            .unwrap_or_else(|| waits_for_quota(name))
    } else {
        return None;
    })
}

fn replaced(name: &str) -> String {
    format!("Workload {name} is being replaced")
}

fn waits_for_quota(name: &str) -> String {
    format!("Workload {name} waits for quota")
}
