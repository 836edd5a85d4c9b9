//! Reservations of waiting gangs: nodes by name, in the status of their pod groups.
//!
//! A reservation stays while the gang needs it and the scheduler could choose it now. Otherwise the
//! scheduler chooses again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::DateTime;
use lockstep_api::ids::NodeName;
use lockstep_api::scheduling::{Reservation, ReservedNode};
use lockstep_engine::{
    Assignment, Blocker, Cluster, GangPlacement, NodeIx, NodeSet, amounts_by_node, is_possible,
    reserve, starts_at,
};
use lockstep_model::{BlockedGang, PlacementRequest, VictimFilter, blockers};

use super::demand::open_since;
use super::place::capacity_for;
use super::state::Cycle;
use super::turn::Turn;
use crate::capacity::reservations::{amounts, may_preempt, requested_resources};
use crate::context::Context;
use crate::gang::state::GangState;
use crate::refusal::may_never_run;
use crate::size::fits;

impl Turn<'_> {
    /// Nodes to reserve for the waiting gang, if it is among the first of its priority.
    pub(super) fn reservation(&self) -> Option<Reservation> {
        let (context, queue) = (self.context, &self.cycle.queue);
        if !self.may_reserve() {
            return None;
        }
        let free = self.unreserved();
        let previous = queue
            .previous
            .get(&self.at)
            .and_then(|r| Some((placement(context, &self.request, r)?, r.since)));
        let kept = previous.and_then(|(kept, since)| {
            // Only blockers on the reserved nodes matter.
            let own: NodeSet = kept.assignments.iter().map(|a| a.node).collect();
            let blockers = self.blockers(Some(&own));
            self.is_still_possible(&free, &blockers, &kept)
                .then_some((kept, since, blockers))
        });
        let choose = || {
            let blockers = self.blockers(None);
            let chosen = self.choose(&free, &blockers)?;
            Some((chosen, context.now, blockers))
        };
        let kept = match kept {
            Some(kept) if self.lacks_new_nodes(&free, &kept.0) => {
                let newer = choose()
                    .filter(|c| self.count_new(&free, &c.0) > self.count_new(&free, &kept.0));
                newer.or(Some(kept))
            }
            kept => kept,
        };
        let (chosen, since, blockers) = kept.or_else(choose)?;
        let starts_at = starts_at(&free, &blockers, &self.demand().shapes, &chosen)
            .and_then(DateTime::from_timestamp_millis)
            .filter(|start| *start > context.now);
        let nodes = by_name(context, &self.request, &chosen);
        // Otherwise each cycle would choose again, and the reservation might move.
        fits(&nodes).then_some(Reservation {
            since,
            starts_at,
            nodes,
        })
    }

    /// Nodes to keep for a gang that fits only with more of the nodes that it demands: those that were
    /// created since then, or are already reserved for it, as far as they have free capacity.
    pub(super) fn new_nodes(&self) -> Option<Reservation> {
        let (context, demand) = (self.context, self.demand());
        open_since(context, self.gang)?;
        if !self.may_reserve() {
            return None;
        }
        let mut free = self.unreserved();
        let previous = self.cycle.queue.previous.get(&self.at);
        let kept = previous.into_iter().flat_map(|r| &r.nodes);
        let kept: Vec<NodeIx> = kept
            .filter_map(|on| context.cluster.ordinal(&on.node))
            .collect();
        let new = (0..free.node_count()).filter(|ix| self.is_new(*ix) && !kept.contains(ix));
        let nodes: Vec<NodeIx> = kept.iter().copied().chain(new).collect();
        let mut left: Vec<u32> = demand.shapes.iter().map(|shape| shape.count).collect();
        let mut assignments = Vec::new();
        for node in nodes {
            for (shape, left) in left.iter_mut().enumerate() {
                let of = &demand.shapes[shape];
                let count = free.slots(node, &of.request).min(*left);
                if count == 0 || !free.schedulable(node) || !demand.admits(of, node) {
                    continue;
                }
                *left -= count;
                for _ in 0..count {
                    free.add_pod(node, &of.request);
                }
                let replica = 0;
                assignments.push(Assignment {
                    shape,
                    replica,
                    node,
                    count,
                });
            }
        }
        let nodes = by_name(context, &self.request, &GangPlacement { assignments });
        let same = previous.filter(|previous| previous.nodes == nodes);
        (!nodes.is_empty() && fits(&nodes)).then(|| Reservation {
            since: same.map_or(context.now, |previous| previous.since),
            starts_at: None,
            nodes,
        })
    }

    /// True if a new node outside the reservation has free capacity for a member.
    fn lacks_new_nodes(&self, free: &Cluster, kept: &GangPlacement) -> bool {
        let reserved: BTreeSet<NodeIx> = kept.assignments.iter().map(|a| a.node).collect();
        let demand = self.demand();
        let takes_a_pod = |ix: NodeIx| {
            let mut shapes = demand.shapes.iter();
            shapes.any(|of| demand.admits(of, ix) && free.slots(ix, &of.request) > 0)
        };
        let mut nodes = 0..self.context.cluster.node_count();
        open_since(self.context, self.gang).is_some()
            && nodes.any(|ix| !reserved.contains(&ix) && self.is_new(ix) && takes_a_pod(ix))
    }

    /// Number of new nodes of a reservation on which its capacity is free.
    fn count_new(&self, free: &Cluster, placement: &GangPlacement) -> usize {
        let requested = amounts_by_node(&self.demand().shapes, placement);
        let is_free = |node: NodeIx, request: &[i64]| free.slots(node, request) > 0;
        let nodes = requested.iter();
        let new = nodes.filter(|(node, request)| self.is_new(**node) && is_free(**node, request));
        new.count()
    }

    /// True if the node was created since the gang demands nodes.
    fn is_new(&self, node: NodeIx) -> bool {
        let created = self.context.cluster.node(node).and_then(|n| n.created);
        let since = open_since(self.context, self.gang);
        // Kubernetes' times have no fractions of seconds.
        created
            .zip(since)
            .is_some_and(|(created, since)| created.timestamp() >= since.timestamp())
    }

    /// True if the gang is among the first of its priority.
    fn may_reserve(&self) -> bool {
        let (gang, queue) = (self.gang, &self.cycle.queue);
        // Such a gang may only use free capacity.
        if may_never_run(gang) {
            return false;
        }
        let ahead = queue.ahead.iter();
        let equals: Vec<&GangState> = ahead
            .filter(|r| r.priority == gang.priority())
            .map(|r| &self.cycle.gangs[r.gang])
            .collect();
        let namespace = &gang.input.key.namespace;
        let most = self.context.settings.rules.reservations_per_priority;
        // Otherwise one namespace could hold all of them.
        let first = !equals.iter().any(|g| g.input.key.namespace == *namespace);
        most > 0 && (equals.len() < most || first)
    }

    /// Free capacity for the gang, less the reservations ahead of it.
    fn unreserved(&self) -> Cluster {
        let mut free = capacity_for(self.context, &self.cycle.capacity, self.gang);
        for ahead in &self.cycle.queue.ahead {
            ahead.take(&mut free);
        }
        free
    }

    /// As [`is_possible`], with reserved nodes that may take pods again as if they did now.
    fn is_still_possible(
        &self,
        free: &Cluster,
        blockers: &[Blocker],
        kept: &GangPlacement,
    ) -> bool {
        let names = self.gang.unusable.reserved.iter();
        let unusable: NodeSet = names
            .filter_map(|name| self.context.cluster.ordinal(name))
            .collect();
        if unusable.is_clear() {
            return is_possible(free, blockers, self.demand(), kept);
        }
        let (mut free, mut demand) = (free.clone(), self.demand().clone());
        for shape in &mut demand.shapes {
            if let Some(eligible) = &mut shape.eligible {
                Arc::make_mut(eligible).union_with(&unusable);
            }
        }
        let mut blockers = blockers.to_vec();
        for (node, request) in amounts_by_node(&demand.shapes, kept) {
            if unusable.contains(node) {
                free.permit(node);
                let ends = None;
                blockers.push(Blocker {
                    node,
                    request,
                    ends,
                });
            }
        }
        is_possible(&free, &blockers, &demand, kept)
    }

    /// Work that blocks the gang temporarily, on these nodes or on all.
    fn blockers(&self, on: Option<&NodeSet>) -> Vec<Blocker> {
        let (context, gang) = (self.context, self.gang);
        let requested = requested_resources(gang);
        let nobody = BTreeSet::new();
        // Otherwise capacity would stay idle behind a budget that never permits an eviction.
        let victims = may_preempt(context, gang).then_some(VictimFilter {
            rules: &context.settings.rules.victims,
            requested: &requested,
            beyond_budgets: context.settings.delete_after.is_some(),
            refused: &nobody,
        });
        let blocked = BlockedGang {
            number: self.at,
            priority: self.demand().priority,
            victims,
        };
        blockers(self.cycle.passing_work(), blocked, on, |other| {
            let backfill = self.cycle.gangs.get(other)?.backfill.as_ref()?;
            let promised = backfill.reserved_for.iter().any(|uid| uid == gang.uid());
            promised.then_some(backfill.ends_by)
        })
    }

    /// Chooses nodes, preferably none that gangs further back have reserved.
    fn choose(&self, free: &Cluster, blockers: &[Blocker]) -> Option<GangPlacement> {
        let Cycle { queue, gangs, .. } = self.cycle;
        let served: BTreeSet<usize> = queue.ahead.iter().map(|r| r.gang).collect();
        let mut elsewhere = free.clone();
        for (&other, reservation) in &queue.previous {
            if other != self.at && !served.contains(&other) {
                for (node, amounts) in amounts(self.context, &gangs[other], reservation) {
                    elsewhere.add_pod(node, &amounts);
                }
            }
        }
        let demand = self.demand();
        reserve(&elsewhere, blockers, demand).or_else(|| reserve(free, blockers, demand))
    }
}

/// The engine's placement of a reservation. `None` if a node or group is missing, duplicated, or
/// has more members than the request.
fn placement(
    context: &Context<'_>,
    request: &PlacementRequest,
    reservation: &Reservation,
) -> Option<GangPlacement> {
    let mut left: Vec<u32> = request
        .templates
        .iter()
        .map(|t| t.members.len() as u32)
        .collect();
    let mut nodes = BTreeSet::new();
    let mut assignments = Vec::new();
    for reserved in &reservation.nodes {
        let node = context.cluster.ordinal(&reserved.node)?;
        if !nodes.insert(node) {
            return None;
        }
        for (group, &count) in &reserved.members {
            let mut missing = u32::try_from(count).ok().filter(|&c| c > 0)?;
            for (shape, name) in group_names(request).enumerate() {
                let count = missing.min(left[shape]);
                if name == group && count > 0 {
                    left[shape] -= count;
                    missing -= count;
                    assignments.push(Assignment {
                        shape,
                        replica: 0,
                        node,
                        count,
                    });
                }
            }
            if missing > 0 {
                return None;
            }
        }
    }
    assignments.sort_unstable();
    Some(GangPlacement { assignments })
}

fn by_name(
    context: &Context<'_>,
    request: &PlacementRequest,
    placement: &GangPlacement,
) -> Vec<ReservedNode> {
    let groups: Vec<&str> = group_names(request).collect();
    let mut by_node: BTreeMap<&NodeName, BTreeMap<String, i32>> = BTreeMap::new();
    for assigned in &placement.assignments {
        let Some(node) = context.cluster.node_name(assigned.node) else {
            continue;
        };
        let on_node = by_node.entry(node).or_default();
        *on_node
            .entry(groups[assigned.shape].to_owned())
            .or_default() += assigned.count as i32;
    }
    let nodes = by_node.into_iter();
    nodes
        .map(|(node, members)| ReservedNode {
            node: node.to_string(),
            members,
        })
        .collect()
}

fn group_names(request: &PlacementRequest) -> impl Iterator<Item = &str> {
    let templates = request.templates.iter();
    templates.map(|t| t.members.first().map_or("", |m| m.group.as_str()))
}
