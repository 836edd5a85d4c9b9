//! Moves of running gangs away from nodes with signals: which may begin, and their nodes.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::Outlook;
use lockstep_api::gangs::Assignments;
use lockstep_api::scheduling::MoveTarget;
use lockstep_api::workload::{CauseKind, GangMove, MoveOutcome};
use lockstep_engine::NodeIx;

use super::seek::Sought;
use super::state::Cycle;
use crate::capacity::reservations::position;
use crate::context::Context;
use crate::gang::moves::MoveSearch;
use crate::gang::pending::{ManyFaults, Pending};
use crate::gang::state::{GangState, by_node};
use crate::messages;

/// Faults at so many nodes never close the guard.
const FEW_FAULTS: usize = 2;
/// One in this number of nodes with accelerators may be Faulty.
const ONE_IN: usize = 5;
/// How long a node that was left for a fault counts.
const COUNTED: TimeDelta = TimeDelta::hours(1);

impl Cycle<'_> {
    /// Set if more nodes than a fifth, and more than two, are Faulty at once or were left for
    /// faults in the last hour: a broken monitor, or an outage.
    pub(super) fn many_faults(&self) -> Option<ManyFaults> {
        let context = &self.context;
        let left = nodes_left(&self.gangs, context.now - COUNTED);
        if left.len() <= FEW_FAULTS && faulty_nodes(context).nth(FEW_FAULTS).is_none() {
            return None;
        }
        let costs = &context.settings.rules.costs;
        let accelerated = |ix: &NodeIx| {
            let node = context.cluster.node(*ix);
            node.is_some_and(|node| costs.accelerators(&node.allocatable) > 0)
        };
        let nodes = (0..context.cluster.node_count())
            .filter(accelerated)
            .count();
        let faulty = faulty_nodes(context).filter(accelerated).count();
        let limit = FEW_FAULTS.max(nodes / ONE_IN);
        if left.len() > limit {
            for ended in left.values() {
                context.wake.at(*ended + COUNTED);
            }
        }
        (faulty > limit || left.len() > limit).then_some(ManyFaults {
            nodes,
            faulty,
            left: left.len(),
            limit,
        })
    }

    /// Seeks nodes for the open move of a gang, in its turn.
    pub(super) fn serve_move(&mut self, at: usize, faults: Option<ManyFaults>) {
        let gang = &self.gangs[at];
        let for_fault = gang
            .open_move()
            .is_some_and(|m| is_for_faults(&self.context, m));
        let sought = if gang.kube_scheduler_places(&self.context) {
            let members = gang.unfinished().count();
            Sought::waits(Pending::KubeSchedulerPlaces { members })
        } else if let Some(faults) = faults.filter(|_| for_fault) {
            Sought::waits(Pending::ManyFaults(faults))
        } else {
            let sought = self.seek(at);
            self.note_evaluation(at);
            sought
        };
        self.take_target(at, sought);
    }

    fn take_target(&mut self, at: usize, sought: Sought) {
        let Sought { search, verdict } = sought;
        if let Some(verdict) = verdict {
            self.note_search(at, &verdict.class, verdict.victims, &verdict.pending);
        } else {
            match &search {
                MoveSearch::Waits(pending) => self.wake_for(pending),
                MoveSearch::Preempts => self.queue.searches += 1,
                MoveSearch::Found(_) => self.memory.undecided.settle(self.gangs[at].uid()),
            }
        }
        let target = match &search {
            MoveSearch::Found(nodes) => nodes.clone(),
            MoveSearch::Preempts | MoveSearch::Waits(_) => Assignments::new(),
        };
        let gang = &mut self.gangs[at];
        gang.move_search = Some(search);
        if gang.target != target {
            let released = !gang.target.is_empty();
            gang.target = target;
            self.capacity.reserve_target(&self.context, at, gang);
            // Less capacity changes no verdict on a gang that waits.
            if released {
                self.capacity_changed();
            }
        }
    }

    /// Permits moves with nodes, up to the limit of moves at once. A move that must begin now is
    /// always permitted. A part of another restart is not counted.
    pub(super) fn permit_moves(&mut self) {
        let now = self.context.now;
        let each = || self.gangs.iter().enumerate();
        let has_nodes = |gang: &GangState| !matches!(gang.move_search, Some(MoveSearch::Waits(_)));
        let limited = |g: &GangState| g.open_move().is_some_and(|m| !m.with_restart);
        let permitted = each().filter(|(_, g)| g.was_permitted() && has_nodes(g) && limited(g));
        let mut moving = permitted.count();
        let sought = |g: &GangState| g.move_search.is_some() && has_nodes(g) && limited(g);
        let new = each().filter(|(_, g)| sought(g) && !g.was_permitted());
        let mut new: Vec<usize> = new.map(|(at, _)| at).collect();
        new.sort_by_cached_key(|&at| {
            let gang = &self.gangs[at];
            let deadline = gang.open_move().and_then(deadline);
            (deadline.is_none(), deadline, position(gang))
        });
        for at in new {
            let gang = &mut self.gangs[at];
            let begin_by = gang.open_move().and_then(|m| m.begin_by);
            let is_due = begin_by.is_some_and(|by| by <= now);
            if is_due || moving < self.context.settings.concurrent_moves {
                moving += 1;
                continue;
            }
            if let Some(by) = begin_by {
                self.context.wake.at(by);
            }
            gang.move_search = Some(MoveSearch::Waits(Pending::MoveLimit { moving }));
            gang.target.clear();
        }
    }
}

fn faulty_nodes(context: &Context<'_>) -> impl Iterator<Item = NodeIx> {
    let cluster = context.cluster;
    let faulty = |ix: &NodeIx| {
        let node = cluster.node(*ix);
        node.is_some_and(|node| node.state.outlook == Outlook::Faulty)
    };
    (0..cluster.node_count()).filter(faulty)
}

/// True if no node of the move is announced to leave.
fn is_for_faults(context: &Context<'_>, open: &GangMove) -> bool {
    let cluster = context.cluster;
    let leaves = |node: &str| {
        let node = cluster.ordinal(node).and_then(|ix| cluster.node(ix));
        node.is_some_and(|n| matches!(n.state.outlook, Outlook::Leaving { .. }))
    };
    let mut left = open.nodes.iter();
    open.reason == CauseKind::NodeFaulty && !left.any(|n| n.deadline.is_some() || leaves(&n.node))
}

/// Nodes that gangs have left for faults since then, with the last time.
fn nodes_left(gangs: &[GangState], since: DateTime<Utc>) -> BTreeMap<&str, DateTime<Utc>> {
    let mut left: BTreeMap<&str, DateTime<Utc>> = BTreeMap::new();
    // A restart for another reason also leaves nodes that are only suspect.
    let for_fault = |m: &&GangMove| m.reason == CauseKind::NodeFaulty && !m.with_restart;
    let all = gangs.iter();
    let all = all.filter_map(|g| g.input.workload.moving.as_ref());
    let all = all.filter(|m| for_fault(m) && m.outcome == Some(MoveOutcome::Moved));
    for (nodes, ended) in all.filter_map(|m| Some((&m.nodes, m.ended_at?))) {
        if ended > since {
            for node in nodes {
                let last = left.entry(&node.node).or_insert(ended);
                *last = ended.max(*last);
            }
        }
    }
    left
}

/// Latest start of the move, or else the earliest deadline of its nodes.
fn deadline(open: &GangMove) -> Option<DateTime<Utc>> {
    let deadlines = open.nodes.iter().filter_map(|node| node.deadline);
    open.begin_by.or(deadlines.min())
}

/// Writes the result of the search to the status, if nodes were sought.
pub(super) fn write_target(context: &Context<'_>, gang: &mut GangState) {
    let (Some(open), Some(search)) = (gang.open_move(), &gang.move_search) else {
        return;
    };
    let mut target = MoveTarget {
        id: open.id.clone(),
        decided_at: context.now,
        ..MoveTarget::default()
    };
    match search {
        MoveSearch::Found(found) => target.nodes = by_node(found),
        MoveSearch::Preempts => target.preempts = true,
        MoveSearch::Waits(why) => {
            why.reason().clone_into(&mut target.reason);
            target.message = messages::pending(why, context.cluster.dims());
        }
    }
    let before = gang.status.move_target.as_ref();
    if let Some(before) = before {
        let parts = |t: &MoveTarget| (t.id.clone(), t.nodes.clone(), t.preempts, t.reason.clone());
        if parts(before) == parts(&target) {
            target.decided_at = before.decided_at;
        }
    }
    if before != Some(&target) {
        gang.status_mut().move_target = Some(target);
    }
}
