//! Gangs as inputs of decisions: their placements, and their waits in the scheduling queue.
//!
//! Decisions read a [`GangView`] instead of the status of a `PodGroup`, so another scheduler can
//! place gangs.

use chrono::{DateTime, Utc};
use lockstep_api::PodGroup;
use lockstep_api::condition::{find, types};
use lockstep_api::gangs::Assignments;
use lockstep_api::scheduling::{
    MoveTarget, Placement, PodGroupStatus, PreemptionRequest, Preemptor,
};
use lockstep_api::words::other_members_pending;

/// Placement of a gang, or the reason why it is not placed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GangView {
    /// Priority that orders the queue and decides preemption.
    pub priority: i32,
    pub placement: Option<PlacementView>,
    pub queued_at: Option<DateTime<Utc>>,
    /// Why the scheduler has not placed the gang.
    pub waiting: Option<WaitReason>,
    /// Why the scheduler has no node for some members of a placed gang.
    pub other_members_pending: Option<String>,
    /// Message of condition DisruptionTarget while the gang is preempted.
    pub preempted_by: Option<String>,
    /// The gang for which the gang is preempted.
    pub preemptor: Option<Preemptor>,
    /// Request for a checkpoint before the gang is preempted.
    pub checkpoint_request: Option<PreemptionRequest>,
    /// Time of the last refusal of placed pods by kube-scheduler for a reason other than capacity.
    pub refused_at: Option<DateTime<Utc>>,
    /// True if the gang avoids nodes on which kube-scheduler refused its pods.
    pub avoids_nodes: bool,
    /// Nodes for a move of the gang away from nodes with signals.
    pub move_target: Option<MoveTarget>,
    /// The request that provided the nodes on which the gang is to be placed.
    pub provisioned: Option<ProvisionedRequest>,
}

/// A `ProvisioningRequest` whose capacity the next pods of a gang use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvisionedRequest {
    pub name: String,
    pub class: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PlacementView {
    /// Id of the decision. A change of nodes gets a new id.
    pub id: String,
    pub decided_at: DateTime<Utc>,
    pub nodes: Assignments,
    /// Set from the decision to preempt until all members are bound or the preemption is aborted.
    pub preempting: Option<PreemptionView>,
}

/// A preemption that frees the nodes of a placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreemptionView {
    pub explanation: String,
    /// Number of victims that save checkpoints, and the end of the wait for them.
    pub saving: Option<(usize, DateTime<Utc>)>,
    /// Set once no victim holds a node of an unbound member.
    pub binding: Option<BindingView>,
}

/// Number of bound members, and the time of its last increase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindingView {
    pub bound: usize,
    pub since: DateTime<Utc>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitReason {
    pub reason: String,
    pub message: String,
}

impl GangView {
    pub fn read(group: &PodGroup) -> Self {
        let priority = group.spec.gang.priority;
        let Some(status) = &group.status else {
            return Self {
                priority,
                ..Self::default()
            };
        };
        let conditions = &status.conditions;
        let scheduled = find(conditions, types::POD_GROUP_INITIALLY_SCHEDULED);
        let disrupted = find(conditions, types::DISRUPTION_TARGET);
        let waiting = scheduled.filter(|c| c.status != true.into());
        let preempted = disrupted.filter(|c| c.status == true.into());
        Self {
            priority,
            placement: status.placement.as_ref().map(|p| placement(p, status)),
            queued_at: status.queued_at,
            waiting: waiting.map(|c| WaitReason {
                reason: c.reason.clone(),
                message: c.message.clone(),
            }),
            other_members_pending: scheduled
                .and_then(|c| other_members_pending(&c.message))
                .map(str::to_owned),
            preempted_by: preempted.map(|c| c.message.clone()),
            preemptor: status.preemptor.clone(),
            checkpoint_request: status.checkpoint_request.clone(),
            refused_at: status.refusal.as_ref().map(|r| r.at),
            avoids_nodes: !status.excluded_nodes.is_empty(),
            move_target: status.move_target.clone(),
            provisioned: None,
        }
    }
}

fn placement(placement: &Placement, status: &PodGroupStatus) -> PlacementView {
    let intent = status.preemption.as_ref();
    let intent = intent.filter(|intent| intent.placement == placement.id);
    PlacementView {
        id: placement.id.clone(),
        decided_at: placement.decided_at,
        nodes: placement.assignments(),
        preempting: intent.map(|intent| PreemptionView {
            explanation: intent.explanation.clone(),
            saving: intent.checkpoint_wait(),
            binding: intent.binding.map(|b| BindingView {
                bound: b.bound.max(0) as usize,
                since: b.since,
            }),
        }),
    }
}
