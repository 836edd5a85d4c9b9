//! Why a workload waits, was preempted or preempts, from status and events.

mod render;

use chrono::{DateTime, Utc};
use lockstep_api::condition::{Condition, ConditionStatus, find, is_true, reasons, types};
use lockstep_api::scheduling::{NextBest, NodeDemand, PodGroupStatus, Preemption, QueueStatus};
use lockstep_api::workload::Phase;
use lockstep_api::{PodGroup, TrainingWorkload};
use serde::Serialize;

use crate::objects::has_ended;
use crate::status::page;

#[derive(Debug)]
pub struct Story {
    pub workload: TrainingWorkload,
    pub groups: Vec<PodGroup>,
    pub events: Vec<Happened>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadReport {
    pub namespace: String,
    pub workload: String,
    /// Phase; absent before the first reconcile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    pub preemptions: i64,
    /// Address of the page about the reason of the workload, if it waits, has failed, or needs a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<String>,
    /// Conditions of the workload about waiting, failure or preemption.
    pub conditions: Vec<Condition>,
    /// Gangs, sorted by the name of their pod group.
    pub gangs: Vec<GangStory>,
    pub events: Vec<Happened>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GangStory {
    pub gang: String,
    pub pod_group: String,
    pub priority: i32,
    pub state: GangReportState,
    /// Queue time. A running gang keeps it for the case of a preemption.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<DateTime<Utc>>,
    /// Place in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueStatus>,
    pub members: i32,
    pub nodes: usize,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preempted: Option<Condition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evicts: Option<Evicts>,
    /// Nodes that a node autoscaler is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demand: Option<NodeDemand>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub avoids: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Evicts {
    /// Id of the intent, also in the victims' status.
    pub intent: String,
    pub decided_at: DateTime<Utc>,
    /// Number of victims, which can belong to other tenants.
    pub victims: usize,
    /// Cost of the victims in accelerator-seconds: lost work and restarts.
    pub cost: i64,
    /// Work of the victims since their last checkpoints, in accelerator-seconds.
    pub lost_work: i64,
    pub explanation: String,
    /// True if no cheaper set of victims frees enough capacity.
    pub proven: bool,
    /// Lower bound for the cost of any set that frees enough capacity, in accelerator-seconds.
    pub at_least: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_best: Option<NextBest>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum GangReportState {
    Unseen,
    Waits,
    /// Not in the queue, or held because a volume, quota or similar object is missing.
    Held,
    Preempts,
    Placed,
    IsPreempted,
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Happened {
    pub time: Option<DateTime<Utc>>,
    pub kind: String,
    pub name: String,
    pub warning: bool,
    pub reason: String,
    pub message: String,
    pub count: i32,
}

pub fn explain(story: &Story) -> WorkloadReport {
    let Story {
        workload,
        groups,
        events,
    } = story;
    let status = workload.status.clone().unwrap_or_default();
    let mut events = events.clone();
    events.sort_by(|a, b| {
        (a.time, &a.name, &a.reason, &a.message).cmp(&(b.time, &b.name, &b.reason, &b.message))
    });
    let mut gangs: Vec<GangStory> = groups.iter().map(gang).collect();
    gangs.sort_by(|a, b| a.pod_group.cmp(&b.pod_group));
    let ended = has_ended(workload);
    for gang in &mut gangs {
        if ended {
            gang.state = GangReportState::Ended;
            (gang.members, gang.nodes) = (0, 0);
            gang.message.clear();
            (gang.queue, gang.demand) = (None, None);
        }
        let ledger = status.gangs.iter().find(|g| g.key == gang.gang);
        gang.avoids = ledger
            .into_iter()
            .flat_map(|l| &l.avoid)
            .map(|a| (a.node.clone(), a.reason.clone()))
            .collect();
    }
    WorkloadReport {
        namespace: workload.metadata.namespace.clone().unwrap_or_default(),
        workload: workload.metadata.name.clone().unwrap_or_default(),
        phase: status.phase,
        preemptions: status.preemptions,
        page: page(&status),
        conditions: status.conditions.into_iter().filter(telling).collect(),
        gangs,
        events,
    }
}

/// True for conditions that explain why the workload does not run.
fn telling(condition: &Condition) -> bool {
    let holds = condition.status == ConditionStatus::True;
    match condition.type_.as_str() {
        types::ADMITTED => !holds,
        types::STALLED
        | types::SUSPENDED
        | types::DISRUPTION_TARGET
        | types::FAILED
        | types::RESTARTING => holds,
        _ => false,
    }
}

fn gang(group: &PodGroup) -> GangStory {
    let status = group.status.clone().unwrap_or_default();
    let scheduled = find(&status.conditions, types::POD_GROUP_INITIALLY_SCHEDULED);
    let preempted = find(&status.conditions, types::DISRUPTION_TARGET);
    let is_relevant =
        |c: &&Condition| c.status == ConditionStatus::True || c.reason == reasons::PREEMPTED;
    GangStory {
        gang: group.spec.gang_key.clone(),
        pod_group: group.metadata.name.clone().unwrap_or_default(),
        priority: group.spec.gang.priority,
        state: state(&status),
        queued_at: status.queued_at,
        queue: status.queue.clone(),
        members: status.placement.as_ref().map_or(0, |p| p.members),
        nodes: status.placement.as_ref().map_or(0, |p| p.nodes.len()),
        message: scheduled.map(|c| c.message.clone()).unwrap_or_default(),
        preempted: preempted.filter(is_relevant).cloned(),
        evicts: status.preemption.as_ref().map(evicts),
        demand: status.demand.clone(),
        avoids: Vec::new(),
    }
}

fn state(status: &PodGroupStatus) -> GangReportState {
    if is_true(&status.conditions, types::DISRUPTION_TARGET) {
        GangReportState::IsPreempted
    } else if status.preemption.is_some() {
        GangReportState::Preempts
    } else if status.placement.is_some() {
        GangReportState::Placed
    } else {
        match status.scheduled_reason() {
            None => GangReportState::Unseen,
            Some(_) if status.waits_for_capacity() => GangReportState::Waits,
            Some(_) => GangReportState::Held,
        }
    }
}

fn evicts(intent: &Preemption) -> Evicts {
    Evicts {
        intent: intent.id.clone(),
        decided_at: intent.decided_at,
        victims: intent.victims.len(),
        cost: intent.cost,
        lost_work: intent.lost_work,
        explanation: intent.explanation.clone(),
        proven: intent.proven,
        at_least: intent.at_least,
        next_best: intent.next_best.clone(),
    }
}
