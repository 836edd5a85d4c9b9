//! The decision of a pass as a list of requests.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use lockstep_api::condition::{Condition, find, reasons, types, upsert};
use lockstep_api::scheduling::PodGroupStatus;
use lockstep_model::gang::Standing;

use super::Settings;
use super::case::Case;
use super::memory::Memory;
use super::messages;
use super::pass::Pass;
use super::scene::Scene;
use crate::index::Key;

/// What a pass wants done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Requests, in the order in which they are sent. They are independent of each other: one that fails is decided anew
    /// in the next pass.
    pub steps: Vec<Step>,
    /// When to look again although nothing changed.
    pub wake_after: Option<Duration>,
    /// Gangs that asked for room.
    pub asking: usize,
    /// Searches for victims.
    pub searches: usize,
}

/// One request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Write the status of a pod group.
    Status(Box<StatusWrite>),
    /// Add the condition DisruptionTarget to a pod that is about to be evicted. Best effort.
    MarkPod {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
        /// UID, a precondition.
        uid: String,
        /// Message of the condition.
        message: String,
    },
    /// Evict a pod.
    Evict {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
        /// UID, a precondition.
        uid: String,
        /// Delete it when its budgets refuse the eviction: they have done so for long enough.
        by_force: bool,
    },
    /// Have kube-scheduler keep a node's room for a pod.
    Nominate {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
        /// UID, a precondition.
        uid: String,
        /// The node.
        node: String,
    },
}

/// A write of a pod group's status.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusWrite {
    /// Namespace and name.
    pub key: Key,
    /// UID, a precondition.
    pub uid: String,
    /// Version that the decision was made from, a precondition.
    pub resource_version: String,
    /// The status as read.
    pub read: PodGroupStatus,
    /// The status as it is to be.
    pub status: PodGroupStatus,
    /// Set when the gang's room is promised to others next: the pods of the gang (by UID) that were seen to hold none.
    /// The write is sent only if the API server itself knows of no other, since the watch of pods may lag behind that of
    /// workloads.
    pub vacated: Option<Vacated>,
}

/// A gang that is believed to be gone.
#[derive(Clone, Debug, PartialEq)]
pub struct Vacated {
    /// UID of the workload.
    pub workload_uid: String,
    /// Its pods that were seen, by UID.
    pub seen: BTreeSet<String>,
}

/// Decides a pass.
pub fn decide(scene: &Scene, memory: &mut Memory, settings: &Settings, now: DateTime<Utc>) -> Plan {
    let mut pass = Pass::new(scene, memory, settings, now);
    pass.keep_up();
    pass.reserve();
    pass.drop_void_intents();
    pass.pursue_intents();
    pass.admit();
    pass.finish()
}

impl Pass<'_> {
    fn finish(mut self) -> Plan {
        let mut steps = Vec::new();
        for ix in 0..self.cases.len() {
            self.compose(ix);
            if let Some(write) = self.write(ix) {
                steps.push(Step::Status(Box::new(write)));
            }
        }
        steps.append(&mut self.steps);
        let groups: HashSet<String> = self.cases.iter().map(|c| c.uid.clone()).collect();
        let keys: HashSet<&Key> = self.cases.iter().map(|c| &c.key).collect();
        self.memory.written.retain(|key, _| keys.contains(key));
        self.memory.retain(&groups, &self.refused, &self.targeted, self.now);
        Plan { steps, wake_after: self.wake_after(), asking: self.asking, searches: self.searches }
    }

    /// Brings the status in line with what was decided.
    fn compose(&mut self, ix: usize) {
        let (now, mark) = (self.now, self.marks.get(&self.cases[ix].uid).cloned());
        let targeted = self.targeted.contains(&self.cases[ix].uid);
        let case = &mut self.cases[ix];
        if case.standing == Standing::Over {
            return;
        }
        case.seats = case.seats.take().filter(|s| !s.is_empty());
        case.status.placement = case.to_placement(now);
        let generation = case.generation();
        let released = case.released();
        if let Some(text) = mark {
            let conditions = &mut case.status.conditions;
            upsert(conditions, types::DISRUPTION_TARGET, true, reasons::PREEMPTION_BY_SCHEDULER, text, generation, now);
        } else if case.disrupted() && !targeted && !released && case.seats.is_some() {
            let text = "the preemption was withdrawn";
            let conditions = &mut case.status.conditions;
            upsert(conditions, types::DISRUPTION_TARGET, false, reasons::SCHEDULED, text, generation, now);
        }
        if let Some((status, reason, text)) = scheduled(case) {
            let type_ = types::POD_GROUP_INITIALLY_SCHEDULED;
            upsert(&mut case.status.conditions, type_, status, reason, text, generation, now);
        }
    }

    /// The write that brings the object to the status, if they differ in more than the words of a moment ago.
    fn write(&mut self, ix: usize) -> Option<StatusWrite> {
        let case = &self.cases[ix];
        let read = case.group.status.clone().unwrap_or_default();
        if case.status == read {
            return None;
        }
        let uid = case.uid.clone();
        if same_but_words(&case.status, &read)
            && let Some(told) = self.memory.told.get(&uid).copied()
            && !self.due(told, self.settings.message_interval)
        {
            return None;
        }
        self.memory.told.insert(uid.clone(), self.now);
        let case = &self.cases[ix];
        let vacated = (read.placement.is_some() && case.status.placement.is_none()).then(|| Vacated {
            workload_uid: case.workload.metadata.uid.clone().unwrap_or_default(),
            seen: case.all_pods().map(|p| p.uid.clone()).collect(),
        });
        Some(StatusWrite {
            key: case.key.clone(),
            uid,
            resource_version: case.group.metadata.resource_version.clone().unwrap_or_default(),
            status: case.status.clone(),
            read,
            vacated,
        })
    }
}

/// The condition `PodGroupInitiallyScheduled` as it is to be; `None` leaves it as it is.
fn scheduled(case: &Case) -> Option<(bool, &'static str, String)> {
    if let Some(intent) = &case.status.preemption {
        return Some((false, reasons::PREEMPTING, messages::preempting(intent)));
    }
    let note = case.note.as_deref();
    match (&case.seats, case.standing) {
        (Some(_), _) if case.released() => None,
        (Some(seats), _) => {
            let nodes = seats.values().collect::<BTreeSet<_>>().len();
            let text = messages::placed(seats.len(), nodes);
            let text = note.map_or(text.clone(), |n| format!("{text}; more members wait: {n}"));
            Some((true, reasons::SCHEDULED, text))
        }
        (None, Standing::Active) => {
            Some((false, reasons::UNSCHEDULABLE, note.unwrap_or("waiting for room").to_owned()))
        }
        // Before the first attempt there is nothing to say.
        (None, Standing::Held(reason)) => {
            find(&case.status.conditions, types::POD_GROUP_INITIALLY_SCHEDULED)?;
            Some((false, reason, "the workload does not ask for room now".to_owned()))
        }
        (None, Standing::Over) => None,
    }
}

/// Whether two statuses say the same, in other words.
fn same_but_words(a: &PodGroupStatus, b: &PodGroupStatus) -> bool {
    let mute = |s: &PodGroupStatus| PodGroupStatus {
        conditions: s.conditions.iter().map(|c| Condition { message: String::new(), ..c.clone() }).collect(),
        ..s.clone()
    };
    mute(a) == mute(b)
}
