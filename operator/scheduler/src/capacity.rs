//! What is free: a ledger that stages take from and give back to. A trial works on a clone.

use std::collections::BTreeSet;
use std::sync::Arc;

use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;
use lockstep_engine::{Amounts, Cluster, NodeIx};
use lockstep_model::Assignments;
use lockstep_model::occupancy::{Nomination, ignore_lesser, nominations};

use crate::context::Context;
use crate::standing::StandingReservations;
use crate::state::GangState;

/// What is free: pods count where they hold capacity, assigned members where their pods do not
/// exist yet.
#[derive(Clone, Debug)]
pub(crate) struct Capacity {
    free: Cluster,
    /// Nodes where something was taken for members without pods.
    pub reserved: BTreeSet<NodeIx>,
    /// Pods and pod groups (by UID) that an intent in force names as victims: what they hold counts
    /// as leaving.
    pub evicting: BTreeSet<String>,
    /// What the last cycle reserved for gangs that wait.
    pub standing: StandingReservations,
    /// Capacity that kube-scheduler keeps for pods; looked up when it first matters.
    nominations: Option<Arc<[Nomination]>>,
}

impl Capacity {
    /// What the pods leave.
    pub fn new(context: &Context<'_>) -> Self {
        Self {
            free: context.cluster.free_capacity().clone(),
            reserved: BTreeSet::new(),
            evicting: BTreeSet::new(),
            standing: StandingReservations::default(),
            nominations: None,
        }
    }

    /// The cluster as a gang of this priority sees it: what is nominated for pods of lower priority
    /// does not bind it.
    pub fn visible_to(&mut self, context: &Context<'_>, priority: i32) -> Cluster {
        let nominations = self
            .nominations
            .get_or_insert_with(|| nominations(context.cluster).into());
        let mut free = self.free.clone();
        ignore_lesser(&mut free, nominations, priority);
        free
    }

    /// Takes an amount on a node.
    pub fn take(&mut self, node: NodeIx, amounts: &Amounts) {
        self.free.add_pod(node, amounts);
        self.reserved.insert(node);
    }

    /// Reserves what an assigned member holds, unless a pod of it does so or it has finished.
    pub fn reserve(
        &mut self,
        context: &Context<'_>,
        gang: &GangState,
        member: &Member,
        node: &NodeName,
    ) {
        if let Some((at, amounts)) = reservation(context, gang, member, node) {
            self.take(at, &amounts);
        }
    }

    /// Assigns these nodes to a gang, and reserves those that are new.
    pub fn assign(&mut self, context: &Context<'_>, gang: &mut GangState, nodes: Assignments) {
        let old = gang.assigned.take().unwrap_or_default();
        for (member, node) in nodes.iter().filter(|(m, n)| old.get(*m) != Some(n)) {
            self.reserve(context, gang, member, node);
        }
        gang.assigned = Some(Arc::new(nodes));
    }

    /// Takes away the nodes of members whose pods are not bound yet.
    pub fn vacate(&mut self, context: &Context<'_>, gang: &mut GangState) {
        for (member, node) in gang.unbound() {
            if let Some((at, amounts)) = reservation(context, gang, &member, &node) {
                self.free.remove_pod(at, &amounts);
            }
            if let Some(assigned) = &mut gang.assigned {
                Arc::make_mut(assigned).remove(&member);
            }
        }
        gang.assigned = gang.assigned.take().filter(|a| !a.is_empty());
    }
}

/// What is reserved for an assigned member; `None` where its pod holds it, or nothing is needed.
fn reservation(
    context: &Context<'_>,
    gang: &GangState,
    member: &Member,
    node: &NodeName,
) -> Option<(NodeIx, Amounts)> {
    if gang.finished().contains(member) || gang.pod_at(member, node.as_str()).is_some() {
        return None;
    }
    let requests = gang.input.requests(&member.group)?;
    Some((
        context.cluster.ordinal(node.as_str())?,
        context.amounts(requests),
    ))
}
