//! Ledger of free capacity. Trials work on a clone.

pub(crate) mod namespace_usage;
pub(crate) mod occupancy;
pub(crate) mod reservations;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockstep_api::gangs::Assignments;
use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;
use lockstep_engine::{Amounts, Cluster, NodeIx};
use lockstep_model::QueueReservation;
use lockstep_model::eviction::occupancy::{Nomination, ignore_lesser, nominations};

use self::reservations::{Position, add_amounts};
use crate::context::Context;
use crate::gang::state::GangState;

/// Free capacity: the nodes' offers less pods and less assigned members without pods.
#[derive(Clone, Debug)]
pub(crate) struct Capacity {
    free: Cluster,
    /// Nodes with reservations for members without pods.
    pub reserved: BTreeSet<NodeIx>,
    /// Reserved amounts for moves of running gangs, by index of the gang.
    targets: BTreeMap<usize, BTreeMap<NodeIx, Amounts>>,
    /// UIDs of victims of preemptions in progress. Their capacity counts as terminating.
    pub evicting: BTreeSet<String>,
    /// Reservations of the last cycle for waiting gangs, with positions in the queue.
    pub standing: Vec<(Position, QueueReservation)>,
    /// Capacity that kube-scheduler keeps for pods. Read on first use.
    nominations: OnceCell<Arc<[Nomination]>>,
}

impl Capacity {
    /// Capacity without assigned members that have no pods yet.
    pub fn new(context: &Context<'_>) -> Self {
        Self {
            free: context.cluster.free_capacity().clone(),
            reserved: BTreeSet::new(),
            targets: BTreeMap::new(),
            evicting: BTreeSet::new(),
            standing: Vec::new(),
            nominations: OnceCell::new(),
        }
    }

    /// Free capacity at this priority, including nominations of lower priority.
    pub fn visible_to(&self, context: &Context<'_>, priority: i32) -> Cluster {
        let nominations = self
            .nominations
            .get_or_init(|| nominations(context.cluster).into());
        let mut free = self.free.clone();
        ignore_lesser(&mut free, nominations, priority);
        free
    }

    /// Free amounts of a node, less assigned members without pods.
    pub fn left(&self, node: NodeIx) -> &[i64] {
        self.free.free(node)
    }

    pub fn take(&mut self, node: NodeIx, amounts: &Amounts) {
        self.free.add_pod(node, amounts);
        self.reserved.insert(node);
    }

    /// Reserves capacity for an assigned member, unless its pod holds the capacity or the member
    /// has finished.
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

    /// Reserves the target of the gang's move, instead of an earlier one.
    pub fn reserve_target(&mut self, context: &Context<'_>, at: usize, gang: &GangState) {
        for (node, amounts) in self.targets.remove(&at).unwrap_or_default() {
            self.free.remove_pod(node, &amounts);
        }
        let amounts = target_amounts(context, gang);
        for (&node, amounts) in &amounts {
            self.take(node, amounts);
        }
        self.targets.insert(at, amounts);
    }

    /// Amounts that are reserved for the move of this gang.
    pub fn target(&self, at: usize) -> impl Iterator<Item = (NodeIx, &Amounts)> {
        let nodes = self.targets.get(&at).into_iter().flatten();
        nodes.map(|(&node, amounts)| (node, amounts))
    }

    pub fn assign(&mut self, context: &Context<'_>, gang: &mut GangState, nodes: Assignments) {
        let old = gang.assigned.take().unwrap_or_default();
        for (member, node) in nodes.iter().filter(|(m, n)| old.get(*m) != Some(n)) {
            self.reserve(context, gang, member, node);
        }
        gang.assigned = Some(Arc::new(nodes));
    }

    /// Unassigns members whose pods are not bound yet.
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

/// What members take on the nodes of the move's target, less what other members leave there.
fn target_amounts(context: &Context<'_>, gang: &GangState) -> BTreeMap<NodeIx, Amounts> {
    let mut out: BTreeMap<NodeIx, Amounts> = BTreeMap::new();
    let Some(assigned) = &gang.assigned else {
        return out;
    };
    let open = gang
        .target
        .iter()
        .filter(|(m, n)| assigned.get(*m) != Some(*n));
    let mut add = |member: &Member, node: &NodeName, sign: i64| {
        let requests = gang.input.requests(&member.group);
        let (Some(requests), Some(ix)) = (requests, context.cluster.ordinal(node.as_str())) else {
            return;
        };
        add_amounts(out.entry(ix).or_default(), &context.amounts(requests), sign);
    };
    for (member, node) in open {
        add(member, node, 1);
        if let Some(left) = assigned.get(member) {
            add(member, left, -1);
        }
    }
    for amount in out.values_mut().flatten() {
        *amount = (*amount).max(0);
    }
    out
}

/// `None` if the member's pod holds the capacity, or the member has finished.
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
