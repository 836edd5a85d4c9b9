//! The search for nodes of one move, in the turn of its gang. It only reads.

use std::collections::BTreeMap;

use lockstep_api::gangs::Assignments;
use lockstep_api::workload::TopologyMode;
use lockstep_engine::{Amounts, Cluster, Infeasible, NodeIx};

use super::outcome::{NoCapacity, Outcome, VictimSearch};
use super::place::capacity_for;
use super::state::Cycle;
use super::turn::{Turn, kept_waiting_by};
use crate::capacity::occupancy::holds;
use crate::capacity::reservations::add_amounts;
use crate::gang::moves::MoveSearch;
use crate::gang::pending::Pending;
use crate::gang::state::{by_node, new_placement};
use crate::input::hold::Hold;
use crate::memory::equivalence_class::{EquivalenceClass, Request};
use crate::size;

/// Result of a search. `verdict`: the search for victims behind it, for the memory.
pub(super) struct Sought {
    pub search: MoveSearch,
    pub verdict: Option<Verdict>,
}

pub(super) struct Verdict {
    pub class: EquivalenceClass,
    pub victims: VictimSearch,
    pub pending: Pending,
}

impl Sought {
    pub fn waits(pending: Pending) -> Self {
        MoveSearch::Waits(pending).into()
    }
}

impl From<MoveSearch> for Sought {
    fn from(search: MoveSearch) -> Self {
        Self {
            search,
            verdict: None,
        }
    }
}

impl Cycle<'_> {
    /// Seeks nodes for the members to move, next for the whole gang if a level binds it to its
    /// domain, and at last by preemption. A move with a restart for another reason takes only free
    /// nodes for its members. Keeps the target of the last cycle if its nodes are usable.
    pub(super) fn seek(&self, at: usize) -> Sought {
        let members = match Turn::new(self, at, Request::Move { whole: false }) {
            Ok(turn) => turn,
            Err(pending) => return Sought::waits(pending),
        };
        if let Some(volume) = members.gang.missing_volume() {
            return Sought::waits(Pending::Held(Hold::Volume(volume.clone())));
        }
        let mut free = capacity_for(&self.context, &self.capacity, members.gang);
        members.return_target(&mut free);
        let left = members.attempt().left_over(&free);
        let short = match members.target(&free, &left) {
            Ok(found) => return found,
            Err(short) => short,
        };
        if members.gang.open_move().is_some_and(|m| m.with_restart) {
            return Sought::waits(Pending::Capacity(short.into()));
        }
        let mut levels = members.request.topology.iter();
        let bound = levels.any(|level| level.mode == TopologyMode::Required)
            && !members.request.fixed.is_empty();
        if bound && let Ok(whole) = Turn::new(self, at, Request::Move { whole: true }) {
            let mut free = self
                .capacity
                .visible_to(&self.context, whole.gang.priority());
            whole.return_target(&mut free);
            for held in holds(&self.context, whole.gang) {
                free.remove_pod(held.node, &self.context.amounts(&held.requests));
            }
            let left = whole.attempt().left_over(&free);
            if let Ok(found) = whole.target(&free, &left) {
                return found;
            }
        }
        members.by_preemption(short, &free, &left)
    }
}

impl Turn<'_> {
    /// Adds what the gang has reserved for its move to the free capacity.
    fn return_target(&self, free: &mut Cluster) {
        for (node, amounts) in self.cycle.capacity.target(self.at) {
            free.remove_pod(node, amounts);
        }
    }

    /// New nodes in free capacity. `left`: `free` without the reservations that bind the gang.
    fn target(&self, free: &Cluster, left: &Cluster) -> Result<Sought, Infeasible> {
        if self.may_keep_target(free) {
            return Ok(MoveSearch::Found(self.gang.target.clone()).into());
        }
        let placement = self.attempt().in_left_over(left)?;
        Ok(self.found(self.request.assign(self.context.cluster, &placement)))
    }

    /// True if the target of the last cycle is complete, and its nodes still take the members.
    fn may_keep_target(&self, free: &Cluster) -> bool {
        let (target, cluster, demand) = (&self.gang.target, self.context.cluster, self.demand());
        let Some(assigned) = self.gang.assigned.as_ref().filter(|_| !target.is_empty()) else {
            return false;
        };
        let mut requested: BTreeMap<NodeIx, Amounts> = BTreeMap::new();
        let mut used = 0;
        for (shape, template) in demand.shapes.iter().zip(&self.request.templates) {
            let members = template.members.iter();
            for member in members.filter(|m| !self.request.fixed.contains_key(*m)) {
                let new = target.get(member);
                used += usize::from(new.is_some());
                let node = new.or_else(|| assigned.get(member));
                let node = node.and_then(|node| cluster.ordinal(node.as_str()));
                let admits = |ix: &NodeIx| free.schedulable(*ix) && demand.admits(shape, *ix);
                let Some(node) = node.filter(admits) else {
                    return false;
                };
                add_amounts(requested.entry(node).or_default(), &shape.request, 1);
            }
        }
        used == target.len()
            && requested.iter().all(|(&node, requested)| {
                let mut each = requested.iter().zip(free.free(node));
                each.all(|(requested, free)| *requested == 0 || requested <= free)
            })
    }

    /// The members that change their nodes, if the status has room for them.
    fn found(&self, nodes: Assignments) -> Sought {
        let (gang, now) = (self.gang, self.context.now);
        let Some(assigned) = &gang.assigned else {
            return MoveSearch::Found(nodes).into();
        };
        let mut target = nodes;
        target.retain(|member, node| assigned.get(member) != Some(node));
        let both = || {
            let mut placement = new_placement(gang.uid(), assigned, now);
            placement.nodes.extend(by_node(&target));
            placement
        };
        match size::check(assigned.len() + target.len(), both, &[], now) {
            Ok(()) => MoveSearch::Found(target).into(),
            Err(too_large) => Sought::waits(Pending::TooLarge(too_large)),
        }
    }

    /// Whether work may be evicted for the members to move. `short`: why they do not fit into
    /// `left`, the free capacity that they may use.
    fn by_preemption(&self, short: Infeasible, free: &Cluster, left: &Cluster) -> Sought {
        let no_capacity = match self.make_capacity(short.clone(), left.clone()) {
            Ok(Outcome::Placed { nodes, .. }) => return self.found(nodes),
            Ok(Outcome::Preempts(_)) => return MoveSearch::Preempts.into(),
            Ok(Outcome::TooLarge(too_large)) => return Sought::waits(Pending::TooLarge(too_large)),
            Ok(_) => return Sought::waits(Pending::Capacity(short.into())),
            Err(no_capacity) => *no_capacity,
        };
        let NoCapacity {
            mut pending,
            mut search,
            ..
        } = no_capacity;
        self.count_nodes(&mut pending, left);
        let before = self.gang.status.move_target.as_ref();
        let preempts = self.gang.was_permitted() && before.is_some_and(|t| t.preempts);
        let result = if preempts && search == VictimSearch::OverBudget {
            search = VictimSearch::Cached;
            MoveSearch::Preempts
        } else {
            let reserved = kept_waiting_by(&self.attempt(), free);
            MoveSearch::Waits(reserved.unwrap_or_else(|| pending.clone()))
        };
        let verdict = Verdict {
            class: self.class.clone(),
            victims: search,
            pending,
        };
        Sought {
            search: result,
            verdict: Some(verdict),
        }
    }
}
