//! Follow-on evictions: where victims restart, and which units they evict there.
//!
//! KEP-5710's second principle: if a victim preempts other units at once, that cost counts too.
//! After the gang, the victims are placed in queue order (priority, then earlier start). A victim
//! that fits into free capacity, or may not preempt, adds no cost. A victim that preempts adds the
//! work that its own victims lose. Those are placed next, to a bounded depth.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use super::{
    instance::{CandidateIx, PreemptionInstance},
    least_cost,
    plan::{Algorithm, FollowOn, PreemptionOptions, PreemptionPlan},
};
use crate::{
    cluster::{Cluster, take},
    infeasible::Infeasible,
    objective::Price,
    placement::{EXTENDED, PlacementInstance, Steps, place, slots_up_to, take_if_it_fits},
    problem::{
        Amounts, Demand, EvictionPolicy, GangPlacement, NodeIx, NodeSet, Shape, Unit, UnitIx, Units,
    },
};

/// Steps per follow-on eviction.
const WORK_BUDGET: u64 = 20_000;

/// Steps per unit for the setup of a follow-on eviction.
const UNIT_STEPS: u64 = 4;

/// Step limit for the victims of a plan. Later victims count as evicting no unit.
const MOST_STEPS: u64 = 1_200_000;

/// Most compared plans. Each uses the follow-on costs found so far.
const ROUNDS: usize = 4;

/// Least-cost plan including follow-on evictions. Adds the follow-on cost of each victim to its
/// own cost, and solves the instance again.
pub(super) fn preempt(
    mut instance: PreemptionInstance<'_>,
    options: &PreemptionOptions,
) -> Result<PreemptionPlan, Infeasible> {
    let mut best: Option<PreemptionPlan> = None;
    for round in 0..ROUNDS {
        instance.placement.steps.grant(options.work_budget);
        let mut plan = least_cost::preempt(&instance, options)?;
        let (caused, complete) = match options.follow_on_depth {
            0 => (Vec::new(), true),
            depth => {
                let (cluster, units) = (instance.placement.cluster, instance.units);
                let after = AfterEviction::new(cluster, units, &plan.victims);
                after.follow(&plan.victims, instance.demand, &plan.placement, depth)
            }
        };
        let promised = plan.cost;
        plan.cost = instance.units.eviction_cost(&plan.victims);
        plan.cost.add_follow_on(caused.iter().map(|f| f.lost).sum());
        // In later rounds, proof and bound include added costs, so they prove nothing.
        plan.proven &= round == 0 && caused.is_empty() && complete;
        plan.bound = best.as_ref().map_or(plan.bound, |b| b.bound);
        for cause in &caused {
            if let Ok(candidate) = instance.candidates.binary_search(&cause.victim) {
                instance.add_follow_on(candidate as CandidateIx, cause.lost as Price);
            }
        }
        let settled = caused.is_empty();
        plan.explanation.follow_on = caused;
        // No set without the known follow-on evictions is cheaper than this one.
        let settled = settled || best.as_ref().is_some_and(|b| b.cost <= promised);
        if best.as_ref().is_none_or(|b| plan.cost < b.cost) {
            best = Some(plan);
        }
        if settled {
            break;
        }
    }
    best.ok_or(Infeasible::GaveUp { steps: 0 })
}

/// Work that these victims would evict in turn after a best-fit placement of the gang.
pub(super) fn cost(
    cluster: &Cluster,
    units: &Units,
    demand: &Demand,
    victims: &[UnitIx],
    depth: u8,
) -> u128 {
    if depth == 0 {
        return 0;
    }
    let after = AfterEviction::new(cluster, units, victims);
    let Ok(placement) = place(&after.cluster_now(), demand) else {
        return 0;
    };
    let (caused, _) = after.follow(victims, demand, &placement, depth);
    caused.iter().map(|f| f.lost).sum()
}

struct AfterEviction<'a> {
    cluster: &'a Cluster,
    /// Free capacity now, node after node.
    free: Vec<i64>,
    /// Nodes that may have room for a pod, by its requests of extended resources. A node with room
    /// is never missing.
    room: HashMap<Amounts, NodeSet>,
    /// For each unit, whether it still runs in its place.
    running: Vec<bool>,
    units: &'a Units,
    steps: u64,
}

impl<'a> AfterEviction<'a> {
    fn new(cluster: &'a Cluster, units: &'a Units, victims: &[UnitIx]) -> Self {
        let mut after = Self {
            cluster,
            free: cluster.free_table().to_vec(),
            room: HashMap::new(),
            running: vec![true; units.units.len()],
            units,
            steps: 0,
        };
        for &victim in victims {
            after.evict(victim);
        }
        after
    }

    /// Units that the victims of a gang evict after it is placed, and whether all victims were
    /// placed. Omits victims that evict no unit.
    fn follow(
        mut self,
        victims: &[UnitIx],
        demand: &Demand,
        placement: &GangPlacement,
        depth: u8,
    ) -> (Vec<FollowOn>, bool) {
        self.reserve(&demand.shapes, placement);
        let units = self.units;
        let mut order = victims.to_vec();
        order.sort_by_key(|&u| (Reverse(units.units[u].priority), units.units[u].start, u));
        let mut caused = Vec::new();
        for victim in order {
            if self.steps >= MOST_STEPS {
                return (caused, false);
            }
            let mut evicts = self.place_again(victim, depth);
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
        (caused, true)
    }

    fn cluster_now(&self) -> Cluster {
        self.cluster.with_free_table(self.free.clone())
    }

    fn evict(&mut self, unit: UnitIx) {
        self.running[unit] = false;
        for pods in &self.units.units[unit].pods {
            let node_count = self.cluster.node_count();
            for &node in pods.nodes.iter().filter(|&&node| node < node_count) {
                self.hold(node, &pods.request, -1);
                for nodes in self.room.values_mut() {
                    nodes.insert(node);
                }
            }
        }
    }

    fn reserve(&mut self, shapes: &[Shape], placement: &GangPlacement) {
        for assignment in &placement.assignments {
            let request = &shapes[assignment.shape].request;
            self.hold(assignment.node, request, i64::from(assignment.count));
        }
    }

    fn hold(&mut self, node: NodeIx, request: &[i64], pods: i64) {
        let dims = self.cluster.dims();
        take(
            &mut self.free[node * dims..(node + 1) * dims],
            request,
            pods,
        );
    }

    /// Places a victim again. Returns the units evicted for it, directly or indirectly.
    fn place_again(&mut self, unit: UnitIx, depth: u8) -> Vec<UnitIx> {
        let spec = &self.units.units[unit];
        let demand = as_demand(spec);
        self.steps += self.cluster.node_count() as u64;
        if self.takes_free_capacity(&demand) || depth == 0 || !spec.preempts {
            return Vec::new();
        }
        self.steps += WORK_BUDGET + UNIT_STEPS * self.running.len() as u64;
        let options = PreemptionOptions {
            algorithm: Algorithm::LeastCost,
            work_budget: WORK_BUDGET,
            ..PreemptionOptions::default()
        };
        let cluster = self.cluster_now();
        let mut placement = PlacementInstance::new(&cluster, &demand);
        placement.steps = Steps::new(WORK_BUDGET);
        // Units that were placed again have other nodes than in `units`, so they are no candidates.
        let instance = PreemptionInstance::among(&placement, self.units, |u| self.running[u]);
        let Ok(plan) = least_cost::preempt(&instance, &options) else {
            return Vec::new();
        };
        let taken = plan.victims;
        for &next in &taken {
            self.evict(next);
        }
        self.reserve(&demand.shapes, &plan.placement);
        let caused: Vec<UnitIx> = taken
            .iter()
            .flat_map(|&next| self.place_again(next, depth - 1))
            .collect();
        taken.into_iter().chain(caused).collect()
    }

    /// Places a unit in free capacity. Searches for pods of one shape only where such pods had room
    /// before.
    fn takes_free_capacity(&mut self, demand: &Demand) -> bool {
        let [shape] = &*demand.shapes else {
            return take_if_it_fits(self.cluster, demand, &mut self.free);
        };
        // Few pods are alike in CPU and memory.
        let mut request = shape.request.clone();
        request
            .iter_mut()
            .take(EXTENDED)
            .for_each(|amount| *amount = 0);
        let (nodes, dims, free) = (self.cluster.node_count(), self.cluster.dims(), &self.free);
        let room = self.room.entry(request).or_insert_with_key(|request| {
            let free_on = |node: NodeIx| &free[node * dims..(node + 1) * dims];
            let has_room = |&node: &NodeIx| slots_up_to(free_on(node), request, 1) > 0;
            let mut room = NodeSet::with_capacity(nodes);
            room.extend((0..nodes).filter(has_room));
            room
        });
        let mut eligible = room.clone();
        if let Some(admits) = &shape.eligible {
            eligible.intersect_with(admits);
        }
        let mut demand = demand.clone();
        demand.shapes[0].eligible = Some(Arc::new(eligible));
        take_if_it_fits(self.cluster, &demand, &mut self.free)
    }
}

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
        topology: Vec::new(),
        excluded: NodeSet::new(),
    }
}
