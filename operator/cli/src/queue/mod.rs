//! Waiting gangs in the order in which the scheduler serves them, with reasons.

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

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueAnswer {
    /// The only namespace read; absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_namespace: Option<String>,
    /// Gangs in queue order, then gangs that are not in the queue.
    pub gangs: Vec<QueuedGang>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueuedGang {
    /// Position in the queue, from 1; absent if the gang is not in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    pub namespace: String,
    pub workload: String,
    pub pod_group: String,
    pub priority: i32,
    /// Share of the namespace in the cluster, relative to its weight; 1 is the whole cluster.
    /// Absent for a namespace without weight, which is served last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    pub state: QueueState,
    /// Start of the request for capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<DateTime<Utc>>,
    /// Nodes reserved for the gang.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Reservation>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Message of the scheduler.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl QueuedGang {
    /// Sort key: gangs in the queue by position, then the rest by priority and age.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum QueueState {
    /// It is queued for capacity.
    Waits,
    /// It is queued, and nodes are reserved for it.
    Reserves,
    /// It runs or starts, and lacks members.
    Replaces,
    /// It has all required members, and is queued for more.
    Grows,
    /// It has nodes, and its victims are terminating.
    Preempts,
    /// It is not in the queue: it lacks something that no node provides, or waits for a later time.
    Held,
}

/// Builds the queue as the scheduler's next cycle would serve it, from a snapshot and its pod
/// groups.
pub fn queue(file: &SnapshotFile, groups: &[PodGroup]) -> QueueAnswer {
    let input = scheduling_input(file, Vec::new());
    // Victims are not needed, so no search runs.
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

/// Further data about the gangs of a cycle.
struct Asks<'a> {
    shares: BTreeMap<String, u64>,
    /// Current statuses of the pod groups, by UID.
    statuses: BTreeMap<&'a str, &'a PodGroupStatus>,
}

impl Asks<'_> {
    /// Returns a waiting gang; `None` if it does not wait.
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
            // A suspended workload does not request capacity.
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
