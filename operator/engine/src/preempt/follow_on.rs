//! Where victims go next, and whom they would evict there.
//!
//! KEP-5710's second principle: a victim that will at once preempt somebody else brings that cost with it. After the gang
//! has its room, the victims ask for theirs in their turn (priority, then earlier start). One that finds free room goes
//! there; one that can wait waits and costs no more than itself; one that evicts brings the work that its own victims
//! lose, and those ask next, to a bounded depth.

use std::cmp::Reverse;

use super::{Algorithm, Options, least_cost};
use crate::{
    cluster::Cluster,
    placement::{Site, place},
    preempt::field::Field,
    problem::{Demand, NodeSet, Placement, PreemptionPolicy, Shape, Unit, UnitIx, Units},
};

/// Steps for each eviction that is followed.
const WORK_BUDGET: u64 = 20_000;

/// Work that a victim's next move destroys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowOn {
    /// The victim of the gang.
    pub victim: UnitIx,
    /// Units that it would evict in turn, and those that these would, ascending.
    pub evicts: Vec<UnitIx>,
    /// What those lose, in accelerator-seconds.
    pub lost: u128,
}

/// What the victims of a gang cause once it runs; victims that cause nothing are left out.
pub(super) fn follow(
    cluster: &Cluster,
    units: &Units,
    demand: &Demand,
    victims: &[UnitIx],
    placement: &Placement,
    depth: u8,
) -> Vec<FollowOn> {
    if depth == 0 {
        return Vec::new();
    }
    let mut scene = Scene { room: cluster.clone(), running: vec![true; units.units.len()], units };
    for &victim in victims {
        scene.evict(victim);
    }
    scene.room.reserve(&demand.shapes, placement);
    let mut order = victims.to_vec();
    order.sort_by_key(|&u| (Reverse(units.units[u].priority), units.units[u].start, u));
    let mut caused = Vec::new();
    for victim in order {
        let mut evicts = scene.settle(victim, depth);
        if !evicts.is_empty() {
            evicts.sort_unstable();
            let lost = units.toll(&evicts).lost;
            caused.push(FollowOn { victim, evicts, lost });
        }
    }
    caused
}

/// Work that these victims would destroy in turn, once the gang has taken its room where it fits best.
pub(super) fn cost(cluster: &Cluster, units: &Units, demand: &Demand, victims: &[UnitIx], depth: u8) -> u128 {
    let mut scene = Scene { room: cluster.clone(), running: vec![true; units.units.len()], units };
    for &victim in victims {
        scene.evict(victim);
    }
    let Ok(placement) = place(&scene.room, demand) else { return 0 };
    follow(cluster, units, demand, victims, &placement, depth).iter().map(|f| f.lost).sum()
}

/// The cluster while victims look for room.
struct Scene<'a> {
    room: Cluster,
    running: Vec<bool>,
    units: &'a Units,
}

impl Scene<'_> {
    fn evict(&mut self, unit: UnitIx) {
        self.running[unit] = false;
        for pods in &self.units.units[unit].pods {
            for &node in &pods.nodes {
                self.room.remove_pod(node, &pods.request);
            }
        }
    }

    /// Lets a unit look for room; returns whom that evicts, with what those evict in turn.
    fn settle(&mut self, unit: UnitIx, depth: u8) -> Vec<UnitIx> {
        let spec = &self.units.units[unit];
        let demand = as_demand(spec);
        if let Ok(placement) = place(&self.room, &demand) {
            self.room.reserve(&demand.shapes, &placement);
            return Vec::new();
        }
        if depth == 0 || !spec.preempts {
            return Vec::new();
        }
        // Whoever moved has no place of its own in the tables any more, so only those still where they were can be taken.
        let lower: Vec<UnitIx> = (0..self.running.len())
            .filter(|&u| self.running[u] && self.units.units[u].priority < spec.priority)
            .collect();
        let standing = Units {
            units: lower.iter().map(|&u| self.units.units[u].clone()).collect(),
            pdb_allowed: self.units.pdb_allowed.clone(),
            cascade_loss: self.units.cascade_loss.clone(),
        };
        let options = Options { algorithm: Algorithm::LeastCost, work_budget: WORK_BUDGET, ..Options::default() };
        let site = Site::new(&self.room, &demand);
        let Ok(answer) = least_cost::preempt(&Field::new(&site, &standing), &options) else {
            return Vec::new();
        };
        let taken: Vec<UnitIx> = answer.victims.iter().map(|&v| lower[v]).collect();
        for &next in &taken {
            self.evict(next);
        }
        self.room.reserve(&demand.shapes, &answer.placement);
        let caused: Vec<UnitIx> = taken.iter().flat_map(|&next| self.settle(next, depth - 1)).collect();
        taken.into_iter().chain(caused).collect()
    }
}

/// The gang that a unit is when it asks for room again.
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
        preemption: PreemptionPolicy::LowerPriority,
        topology: None,
        excluded: NodeSet::new(),
        previous: Vec::new(),
    }
}
