//! Why each victim was taken and each other unit spared, and what the next best set would have cost.

use super::{
    Algorithm, Options, Preemption,
    field::{CandIx, Field},
    follow_on,
    goal::Goal,
    part::Parts,
    search::Search,
    state::State,
};
use crate::{
    cluster::Cluster,
    placement::Site,
    problem::{Demand, NodeIx, Scope, Toll, TopologyMode, UnitIx, Units},
};

/// Victims whose sparing is worked out: the dearest. Others are only listed.
const WEIGHED: usize = 32;

/// Why a victim was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The victim.
    pub unit: UnitIx,
    /// Nodes on which the gang takes its room.
    pub nodes: Vec<NodeIx>,
    /// What the cheapest set found without it would cost; `None` when no such set makes room, or it was not worked out.
    pub without_it: Option<Toll>,
}

/// Why a unit of lower priority was spared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spared {
    /// Its priority is above the lowest that suffices.
    AbovePriorityBound,
    /// Evicting it would take this many pods beyond their budgets.
    OverBudget {
        /// Pods beyond.
        pods: u64,
    },
    /// It holds no room that the gang could use.
    NoUse,
    /// The victims make the same room for less.
    Dearer,
}

/// The next best set of victims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerUp {
    /// Its units, ascending.
    pub victims: Vec<UnitIx>,
    /// What it would cost.
    pub toll: Toll,
}

/// Why these victims and no others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reasons {
    /// The victims, in order.
    pub taken: Vec<Taken>,
    /// The other units of lower priority, in order.
    pub spared: Vec<(UnitIx, Spared)>,
    /// The cheapest other set that was found, for comparison.
    pub runner_up: Option<RunnerUp>,
}

/// Says why an answer of [`preempt`](super::preempt) is what it is. Ask with what the answer was asked with. Under a
/// topology that binds the whole gang, sets are compared within the chosen domain. Sets are compared by what their own units
/// lose; to the cost of the next best one is added what its units would evict in turn, as far as the options follow that.
pub fn explain(cluster: &Cluster, units: &Units, demand: &Demand, options: &Options, answer: &Preemption) -> Reasons {
    let mut reasons = compare_in_domain(cluster, units, demand, options, answer);
    if options.algorithm == Algorithm::LeastCost
        && let Some(next) = &mut reasons.runner_up
    {
        next.toll.lost += follow_on::cost(cluster, units, demand, &next.victims, options.follow_on_depth);
    }
    reasons
}

fn compare_in_domain(
    cluster: &Cluster,
    units: &Units,
    demand: &Demand,
    options: &Options,
    answer: &Preemption,
) -> Reasons {
    let site = Site::new(cluster, demand);
    let field = Field::new(&site, units);
    let topology = demand.topology.filter(|t| t.mode == TopologyMode::Required && t.scope == Scope::Gang);
    let seat = answer.placement.seats.first();
    let Some((topology, domain)) = topology.and_then(|t| Some((t, cluster.domain(seat?.node, t.key)?))) else {
        return compare(&field, options, answer, |node| node);
    };
    let parts = Parts::new(&site, topology.key);
    let site = parts.site(&site, domain);
    compare(&parts.field(&field, &site, domain), options, answer, |node| parts.nodes(domain)[node])
}

/// `name` turns the question's node ordinals into those of the cluster.
fn compare(field: &Field<'_>, options: &Options, answer: &Preemption, name: impl Fn(NodeIx) -> NodeIx) -> Reasons {
    let bound = answer.explanation.priority_bound;
    let pool: Vec<bool> = (0..field.cands.len()).map(|c| bound.is_none_or(|b| field.unit(c).priority <= b)).collect();
    let goal = Goal::new(field.site);
    let mut search = Search::new(State::new(field, &goal), &pool, options.work_budget);
    let gone = |cand: CandIx| answer.victims.binary_search(&field.cands[cand]).is_ok();
    search.become_set(gone);
    let mut emptied = State::new(field, &goal);
    for cand in (0..pool.len()).filter(|&c| pool[c]) {
        emptied.evict(cand);
    }
    let mut reasons = Reasons::default();
    for cand in 0..field.cands.len() {
        if !gone(cand) {
            reasons.spared.push((field.cands[cand], spared(&search.state, &mut emptied, &pool, cand, answer)));
        }
    }
    let mut next_best: Option<(Toll, Vec<CandIx>)> = None;
    for cand in search.dearest_first() {
        let without = if reasons.taken.len() < WEIGHED { search.without(cand) } else { None };
        search.become_set(gone);
        let nodes = used_nodes(field, cand, answer, &name);
        reasons.taken.push(Taken { unit: field.cands[cand], nodes, without_it: without.as_ref().map(|w| w.0) });
        next_best = next_best.into_iter().chain(without).min_by_key(|(toll, _)| *toll);
    }
    reasons.runner_up = next_best.map(|(toll, set)| RunnerUp { victims: field.unit_ordinals(set), toll });
    reasons.taken.sort_by_key(|t| t.unit);
    reasons
}

/// `emptied` is the state with the whole pool gone: what a unit is worth there is the most it can be worth.
fn spared(state: &State<'_>, emptied: &mut State<'_>, pool: &[bool], cand: CandIx, answer: &Preemption) -> Spared {
    if !pool[cand] {
        return Spared::AbovePriorityBound;
    }
    let beyond = state.excess_beside(cand);
    if beyond > 0 && answer.toll.pdb_excess == 0 {
        return Spared::OverBudget { pods: beyond };
    }
    let seats = emptied.surplus();
    emptied.restore(cand);
    let useful = emptied.surplus() < seats;
    emptied.evict(cand);
    if useful { Spared::Dearer } else { Spared::NoUse }
}

fn used_nodes(field: &Field<'_>, cand: CandIx, answer: &Preemption, name: impl Fn(NodeIx) -> NodeIx) -> Vec<NodeIx> {
    let seated = |node: &NodeIx| answer.placement.seats.iter().any(|s| s.node == *node);
    let mut nodes: Vec<NodeIx> = field.uses(cand).map(|(node, _)| name(node)).filter(seated).collect();
    nodes.sort_unstable();
    nodes
}
