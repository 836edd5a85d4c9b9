mod render;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use lockstep_api::condition::{ConditionStatus, find, reasons, types};
use lockstep_api::scheduling::{MoveTarget, NodePlacement, Reservation};
use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_model::SnapshotFile;
use lockstep_model::demand::share::fraction;
use lockstep_scheduler::GangPhase;
use lockstep_scheduler::hold::Hold;
use lockstep_scheduler::snapshot::scheduling_input;
use lockstep_scheduler::{
    GangState, IdleAccelerators, Memory, Pending, SchedulerSettings, namespace_shares, schedule,
};
use serde::Serialize;

use crate::objects::{has_ended, owner};

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueueReport {
    /// The only namespace read; absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_namespace: Option<String>,
    /// Gangs in queue order, then gangs outside the queue.
    pub gangs: Vec<QueuedGang>,
    /// Accelerators that no pod holds. Absent for one namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleAccelerators>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueuedGang {
    /// Position in the queue, from 1. Absent for a gang outside the queue; in one namespace, also if
    /// it is not among the first 100 of its priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// Number of waiting gangs before this one, from the status of its pod group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead: Option<i32>,
    pub namespace: String,
    pub workload: String,
    pub pod_group: String,
    pub priority: i32,
    /// Share of the namespace in the cluster, relative to its weight; 1 is the whole cluster.
    /// Absent for a namespace without weight, which is served last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    pub state: QueueState,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Reservation>,
    /// New nodes of the members that move away from nodes with signals.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub moves_to: Vec<NodePlacement>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
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
    /// Queued for capacity.
    Waits,
    /// Queued, with reserved nodes.
    Reserves,
    /// Runs or starts, and lacks members.
    Replaces,
    /// Has all required members, and is queued for optional members.
    Grows,
    /// Has nodes, and its victims are terminating.
    Preempts,
    /// Moves away from nodes with signals, or waits for the begin of its move.
    Moves,
    /// Outside the queue: an object is missing that no node provides, or the gang waits for a later
    /// time.
    Held,
}

/// Builds the queue of the scheduler's next cycle, from a snapshot and its pod groups.
pub fn queue(file: &SnapshotFile, groups: &[PodGroup]) -> QueueReport {
    let input = scheduling_input(file, Vec::new());
    // Victims are not needed, so no search runs.
    let settings = SchedulerSettings {
        searches_per_cycle: 0,
        ..SchedulerSettings::default()
    };
    let shares = namespace_shares(&input, file.taken_at);
    let cycle = schedule(&input, &mut Memory::default(), &settings, file.taken_at);
    let mut places: BTreeMap<&str, (Option<usize>, bool)> = BTreeMap::new();
    for (place, position) in cycle.queue.iter().zip(1..) {
        let Some(gang) = cycle.gangs.get(place.gang) else {
            continue;
        };
        let misfit = matches!(gang.pending, Some(Pending::Held(Hold::Misfit(_))));
        if place.grows || !misfit {
            let position = (!misfit).then_some(position);
            places.insert(gang.uid(), (position, place.grows));
        }
    }
    let unfinished: BTreeSet<&str> = cycle
        .gangs
        .iter()
        .filter(|g| g.input.workload.phase != GangPhase::Finished)
        .map(GangState::uid)
        .collect();
    let gangs = groups.iter().filter_map(|group| {
        let uid = group.metadata.uid.as_deref()?;
        let place = places.get(uid);
        let share = shares.get(group.metadata.namespace.as_deref()?);
        let gang = queued(group, place.map(|(_, grows)| *grows))?;
        unfinished.contains(uid).then(|| QueuedGang {
            position: place.and_then(|(position, _)| *position),
            share: share.copied().and_then(fraction),
            ..gang
        })
    });
    let all = file.namespace.is_none();
    QueueReport {
        idle: all.then_some(cycle.plan.idle),
        ..sorted(file.namespace.clone(), gangs)
    }
}

/// Builds the queue of one namespace from the statuses of its pod groups alone, which can be a minute
/// old.
pub fn queue_without_places(
    namespace: &str,
    groups: &[PodGroup],
    workloads: &[TrainingWorkload],
) -> QueueReport {
    let ended = |group: &PodGroup| owner(workloads, group).is_some_and(has_ended);
    let waits = |group: &PodGroup| {
        let status = group.status.as_ref()?;
        status.waits_for_capacity().then_some(false)
    };
    let gangs = groups
        .iter()
        .filter(|group| !ended(group))
        .filter_map(|group| queued(group, waits(group)))
        .map(|gang| QueuedGang {
            position: gang
                .ahead
                .and_then(|n| usize::try_from(n).ok()?.checked_add(1)),
            ..gang
        });
    sorted(Some(namespace.to_owned()), gangs)
}

fn sorted(only_namespace: Option<String>, gangs: impl Iterator<Item = QueuedGang>) -> QueueReport {
    let mut gangs: Vec<QueuedGang> = gangs.collect();
    gangs.sort_by(|a, b| a.order().cmp(&b.order()));
    QueueReport {
        only_namespace,
        gangs,
        idle: None,
    }
}

/// A waiting gang without its position; `None` if it does not wait. `grows`: `None` outside the
/// queue.
fn queued(group: &PodGroup, grows: Option<bool>) -> Option<QueuedGang> {
    let status = group.status.clone().unwrap_or_default();
    let scheduled = find(&status.conditions, types::POD_GROUP_INITIALLY_SCHEDULED);
    let waits = scheduled.filter(|c| c.status == ConditionStatus::False);
    let state = match grows {
        Some(true) if status.move_target.is_none() => QueueState::Grows,
        _ if status.preemption.is_some() => QueueState::Preempts,
        Some(true) => QueueState::Moves,
        Some(_) if status.placement.is_some() => QueueState::Replaces,
        Some(_) if status.reservation.is_some() => QueueState::Reserves,
        Some(_) => QueueState::Waits,
        None if status.move_target.is_some() => QueueState::Moves,
        None if status.placement.is_some() => return None,
        // A suspended workload requests no capacity.
        None if waits?.reason == reasons::SUSPENDED => return None,
        None => QueueState::Held,
    };
    let target = status.move_target.filter(|_| state == QueueState::Moves);
    let of_move = target
        .as_ref()
        .map(|target| (target.reason.clone(), move_message(target)));
    let waits = || scheduled.map(|c| (c.reason.clone(), c.message.clone()));
    let (reason, message) = of_move.or_else(waits).unwrap_or_default();
    let (metadata, spec) = (&group.metadata, &group.spec);
    Some(QueuedGang {
        position: None,
        ahead: status.queue.map(|queue| queue.ahead),
        namespace: metadata.namespace.clone().unwrap_or_default(),
        workload: spec.workload_ref.workload_name.clone(),
        pod_group: metadata.name.clone().unwrap_or_default(),
        priority: spec.gang.priority,
        share: None,
        state,
        queued_at: status.queued_at,
        reason,
        message,
        reservation: status.reservation,
        moves_to: target.map(|t| t.nodes).unwrap_or_default(),
    })
}

/// What moves where, or why the move waits.
fn move_message(target: &MoveTarget) -> String {
    if !target.message.is_empty() {
        return target.message.clone();
    }
    if target.preempts {
        return "moves once the gang is stopped, by a preemption".to_owned();
    }
    let nodes = target.nodes.iter();
    let each = nodes.map(|at| format!("{} to {}", at.members.join(","), at.node));
    format!("moves {}", each.collect::<Vec<_>>().join("; "))
}
