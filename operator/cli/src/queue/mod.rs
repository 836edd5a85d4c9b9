//! Which gangs wait, in the order in which the scheduler serves them, and why.

mod render;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use lockstep_api::PodGroup;
use lockstep_api::condition::{ConditionStatus, find, reasons, types};
use lockstep_api::scheduling::{PodGroupStatus, Reservation};
use lockstep_model::SnapshotFile;
use lockstep_model::share::fraction;
use lockstep_scheduler::snapshot::scheduling_input;
use lockstep_scheduler::{GangState, Memory, SchedulerSettings, namespace_shares, schedule};
use serde::Serialize;

/// The gangs that wait.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueAnswer {
    /// The one namespace that was read; absent: all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_namespace: Option<String>,
    /// In the order of the queue; after them those that are not in it now.
    pub gangs: Vec<QueuedGang>,
}

/// One gang that waits.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueuedGang {
    /// Its place in the queue, from 1; absent while it is not in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// Namespace.
    pub namespace: String,
    /// Name of the workload.
    pub workload: String,
    /// Name of the pod group.
    pub pod_group: String,
    /// Priority.
    pub priority: i32,
    /// What its namespace has of the cluster in proportion to its weight, 1 for all of it; absent for
    /// one without weight, which comes last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// How it is, in a word.
    pub state: QueueState,
    /// Since when it asks for capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<DateTime<Utc>>,
    /// Nodes that are reserved for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Reservation>,
    /// Reason of its condition.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What the scheduler says.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl QueuedGang {
    /// What it is listed by: those that are in the queue in its order, then the others by priority and age.
    fn order(&self) -> impl Ord {
        (
            self.position.is_none(),
            self.position,
            Reverse(self.priority),
            self.queued_at,
            &self.pod_group,
        )
    }
}

/// How a gang that waits is, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum QueueState {
    /// It waits for capacity.
    Waits,
    /// It waits, and nodes are reserved for it.
    Reserves,
    /// It runs, or starts, and waits for members that it lacks.
    Replaces,
    /// It has all members that it needs, and waits for more.
    Grows,
    /// It has nodes, and waits for its victims to leave.
    Preempts,
    /// Something is missing that no node can offer, or it waits for another time: it is not in the
    /// queue.
    Held,
}

/// The queue as the scheduler's next cycle would serve it, over a snapshot and the pod groups that it
/// was made of.
pub fn queue(file: &SnapshotFile, groups: &[PodGroup]) -> QueueAnswer {
    let input = scheduling_input(file, Vec::new());
    // Whom it would evict is not asked.
    let settings = SchedulerSettings {
        searches_per_cycle: 0,
        ..SchedulerSettings::default()
    };
    let shares = namespace_shares(&input, file.taken_at);
    let cycle = schedule(&input, &mut Memory::default(), &settings, file.taken_at);
    let by_uid = groups.iter();
    let by_uid = by_uid.filter_map(|g| Some((g.metadata.uid.as_deref()?, g.status.as_ref()?)));
    let asks = Asks {
        shares,
        statuses: by_uid.collect(),
    };
    let mut places: BTreeMap<&str, (usize, bool)> = BTreeMap::new();
    for (place, position) in cycle.queue.iter().zip(1..) {
        if let Some(gang) = cycle.gangs.get(place.gang) {
            places.insert(gang.uid(), (position, place.grows));
        }
    }
    let gangs = cycle.gangs.iter();
    let mut gangs: Vec<QueuedGang> = gangs
        .filter_map(|gang| asks.queued(gang, places.get(gang.uid()).copied()))
        .collect();
    gangs.sort_by(|a, b| a.order().cmp(&b.order()));
    QueueAnswer {
        only_namespace: file.namespace.clone(),
        gangs,
    }
}

/// What is known besides of the gangs of a cycle.
struct Asks<'a> {
    shares: BTreeMap<String, u64>,
    /// Statuses of the pod groups as they are, by UID.
    statuses: BTreeMap<&'a str, &'a PodGroupStatus>,
}

impl Asks<'_> {
    /// A gang that waits; `None` for one that does not.
    fn queued(&self, gang: &GangState, place: Option<(usize, bool)>) -> Option<QueuedGang> {
        let nothing = PodGroupStatus::default();
        let status = self.statuses.get(gang.uid()).copied().unwrap_or(&nothing);
        let scheduled = find(&status.conditions, types::POD_GROUP_INITIALLY_SCHEDULED);
        let waits = scheduled.filter(|c| c.status == ConditionStatus::False);
        let state = match place {
            Some((_, true)) => QueueState::Grows,
            _ if status.preemption.is_some() => QueueState::Preempts,
            Some(_) if status.placement.is_some() => QueueState::Replaces,
            Some(_) if status.reservation.is_some() => QueueState::Reserves,
            Some(_) => QueueState::Waits,
            None if status.placement.is_some() => return None,
            // A workload that is suspended does not ask.
            None => {
                let reason = &waits?.reason;
                if *reason == *reasons::SUSPENDED {
                    return None;
                }
                QueueState::Held
            }
        };
        let (key, group) = (&gang.input.key, &gang.input.group);
        let share = self.shares.get(&*key.namespace).copied();
        Some(QueuedGang {
            position: place.map(|(position, _)| position),
            namespace: key.namespace.to_string(),
            workload: gang.input.workload.name.clone(),
            pod_group: key.name.to_string(),
            priority: group.priority,
            share: share.and_then(fraction),
            state,
            queued_at: status.queued_at,
            reservation: status.reservation.clone(),
            reason: scheduled.map(|c| c.reason.clone()).unwrap_or_default(),
            message: scheduled.map(|c| c.message.clone()).unwrap_or_default(),
        })
    }
}
