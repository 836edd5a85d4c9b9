//! Where victims go next, and what they would evict there.
//!
//! KEP-5710's second principle: a victim that will at once preempt others brings that cost with it.
//! After the gang is placed, the victims are placed in the order of the queue (priority, then
//! earlier start). One that fits into free capacity is placed there; one that may not preempt waits
//! and costs no more than itself; one that preempts brings the work that its own victims lose, and
//! those are placed next, to a bounded depth.

use std::cmp::Reverse;

use super::{
    answer::{Algorithm, FollowOn, PreemptionAnswer, PreemptionOptions},
    instance::{CandidateIx, PreemptionInstance},
    least_cost,
};
use crate::{
    cluster::Cluster,
    infeasible::Infeasible,
    objective::Price,
    placement::{PlacementInstance, Steps, place},
    problem::{Demand, EvictionPolicy, GangPlacement, NodeSet, Shape, Unit, UnitIx, Units},
};

/// Steps for each eviction that is followed.
const WORK_BUDGET: u64 = 20_000;

/// Answers that are compared, each with the follow-on costs known from the ones before.
const ROUNDS: usize = 4;

/// The least-cost answer with the cost of what victims do next: where a victim would evict in turn,
/// that cost is added to its own and the question is solved again; the best of the answers in full
/// is taken.
pub(super) fn preempt(
    mut instance: PreemptionInstance<'_>,
    options: &PreemptionOptions,
) -> Result<PreemptionAnswer, Infeasible> {
    let mut best: Option<PreemptionAnswer> = None;
    for round in 0..ROUNDS {
        instance.placement.steps.grant(options.work_budget);
        let mut answer = least_cost::preempt(&instance, options)?;
        let caused = follow(
            instance.placement.cluster,
            instance.units,
            instance.demand,
            &answer.victims,
            &answer.placement,
            options.follow_on_depth,
        );
        answer.cost = instance.units.eviction_cost(&answer.victims);
        answer
            .cost
            .add_follow_on(caused.iter().map(|f| f.lost).sum());
        // A later round's proof and bound are about the costs with what was added.
        answer.proven &= round == 0 && caused.is_empty();
        answer.bound = best.as_ref().map_or(answer.bound, |b| b.bound);
        for cause in &caused {
            if let Ok(candidate) = instance.candidates.binary_search(&cause.victim) {
                instance.add_follow_on(candidate as CandidateIx, cause.lost as Price);
            }
        }
        let settled = caused.is_empty();
        answer.explanation.follow_on = caused;
        if best.as_ref().is_none_or(|b| answer.cost < b.cost) {
            best = Some(answer);
        }
        if settled {
            break;
        }
    }
    best.ok_or(Infeasible::GaveUp { steps: 0 })
}

/// What the victims of a gang evict once it is placed; victims that evict nothing are left out.
pub(super) fn follow(
    cluster: &Cluster,
    units: &Units,
    demand: &Demand,
    victims: &[UnitIx],
    placement: &GangPlacement,
    depth: u8,
) -> Vec<FollowOn> {
    if depth == 0 {
        return Vec::new();
    }
    let mut after = AfterEviction::new(cluster, units, victims);
    after.capacity.reserve(&demand.shapes, placement);
    let mut order = victims.to_vec();
    order.sort_by_key(|&u| (Reverse(units.units[u].priority), units.units[u].start, u));
    let mut caused = Vec::new();
    for victim in order {
        let mut evicts = after.place_again(victim, depth);
        if !evicts.is_empty() {
            evicts.sort_unstable();
            let lost = units.eviction_cost(&evicts).lost;
            caused.push(FollowOn {
                victim,
                evicts,
                lost,
            });
        }
    }
    caused
}

/// Work that these victims would destroy in turn, once the gang is placed where it fits
/// best.
pub(super) fn cost(
    cluster: &Cluster,
    units: &Units,
    demand: &Demand,
    victims: &[UnitIx],
    depth: u8,
) -> u128 {
    let after = AfterEviction::new(cluster, units, victims);
    let Ok(placement) = place(&after.capacity, demand) else {
        return 0;
    };
    follow(cluster, units, demand, victims, &placement, depth)
        .iter()
        .map(|f| f.lost)
        .sum()
}

/// The cluster while victims are placed again.
struct AfterEviction<'a> {
    capacity: Cluster,
    /// Per unit, whether it still runs where it did.
    running: Vec<bool>,
    units: &'a Units,
}

impl<'a> AfterEviction<'a> {
    fn new(cluster: &Cluster, units: &'a Units, victims: &[UnitIx]) -> Self {
        let mut after = Self {
            capacity: cluster.clone(),
            running: vec![true; units.units.len()],
            units,
        };
        for &victim in victims {
            after.evict(victim);
        }
        after
    }

    fn evict(&mut self, unit: UnitIx) {
        self.running[unit] = false;
        for pods in &self.units.units[unit].pods {
            for &node in &pods.nodes {
                self.capacity.remove_pod(node, &pods.request);
            }
        }
    }

    /// Places a victim again; returns the units that this evicts, with what those evict in turn.
    fn place_again(&mut self, unit: UnitIx, depth: u8) -> Vec<UnitIx> {
        let spec = &self.units.units[unit];
        let demand = as_demand(spec);
        if let Ok(placement) = place(&self.capacity, &demand) {
            self.capacity.reserve(&demand.shapes, &placement);
            return Vec::new();
        }
        if depth == 0 || !spec.preempts {
            return Vec::new();
        }
        // A unit that was placed again is no longer where `units` says, so only those still running
        // where they did are candidates.
        let lower: Vec<UnitIx> = (0..self.running.len())
            .filter(|&u| self.running[u] && self.units.units[u].priority < spec.priority)
            .collect();
        let still_running = Units {
            units: lower.iter().map(|&u| self.units.units[u].clone()).collect(),
            pdb_allowed: self.units.pdb_allowed.clone(),
            cascade_loss: self.units.cascade_loss.clone(),
        };
        let options = PreemptionOptions {
            algorithm: Algorithm::LeastCost,
            work_budget: WORK_BUDGET,
            ..PreemptionOptions::default()
        };
        let mut placement = PlacementInstance::new(&self.capacity, &demand);
        placement.steps = Steps::new(WORK_BUDGET);
        let instance = PreemptionInstance::new(&placement, &still_running);
        let Ok(answer) = least_cost::preempt(&instance, &options) else {
            return Vec::new();
        };
        let taken: Vec<UnitIx> = answer.victims.iter().map(|&v| lower[v]).collect();
        for &next in &taken {
            self.evict(next);
        }
        self.capacity.reserve(&demand.shapes, &answer.placement);
        let caused: Vec<UnitIx> = taken
            .iter()
            .flat_map(|&next| self.place_again(next, depth - 1))
            .collect();
        taken.into_iter().chain(caused).collect()
    }
}

/// What a unit asks for when it is placed again.
fn as_demand(unit: &Unit) -> Demand {
    let shapes: Vec<Shape> = unit
        .pods
        .iter()
        .map(|pods| Shape {
            eligible: unit.eligible.clone(),
            ..Shape::new(pods.request.clone(), pods.nodes.len() as u32)
        })
        .collect();
    Demand {
        min_count: shapes.iter().map(|s| s.count).sum(),
        shapes,
        priority: unit.priority,
        preemption: EvictionPolicy::LowerPriority,
        topology: None,
        excluded: NodeSet::new(),
    }
}
