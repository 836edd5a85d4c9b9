//! Control algorithm: takes units by lost work per GPU until the gang fits, then returns the most
//! expensive units that are not needed.

use std::cmp::Reverse;

use lockstep_engine::{Cluster, Demand, UnitIx, Units};

/// Free GPUs per node, and the demand of the gang.
struct FreeCapacity<'a> {
    free: Vec<i64>,
    demand: &'a Demand,
}

impl FreeCapacity<'_> {
    fn add(&mut self, units: &Units, unit: UnitIx, sign: i64) {
        for pods in &units.units[unit].pods {
            for &node in &pods.nodes {
                self.free[node] += sign * pods.request[0];
            }
        }
    }

    /// Exact for pod sizes that divide each other, larger ones first.
    fn fits(&self) -> bool {
        let mut taken: Vec<(i64, i64)> = Vec::new();
        for shape in &self.demand.shapes {
            let size = shape.request[0];
            let slots: i64 = self.free.iter().map(|f| f / size).sum();
            let used: i64 = taken
                .iter()
                .map(|&(larger, count)| count * (larger / size))
                .sum();
            if slots - used < i64::from(shape.count) {
                return false;
            }
            taken.push((size, i64::from(shape.count)));
        }
        true
    }
}

/// The victims, or `None` if the gang does not fit even without all candidates.
pub fn ratio_greedy(cluster: &Cluster, units: &Units, demand: &Demand) -> Option<Vec<UnitIx>> {
    let mut free = FreeCapacity {
        free: (0..cluster.node_count())
            .map(|n| cluster.free(n)[0])
            .collect(),
        demand,
    };
    let gpus = |u: UnitIx| -> u64 {
        units.units[u]
            .pods
            .iter()
            .map(|p| p.request[0].unsigned_abs() * p.nodes.len() as u64)
            .sum()
    };
    let mut order: Vec<(bool, u128, UnitIx)> = (0..units.units.len())
        .filter(|&u| units.units[u].priority < demand.priority)
        // Per GPU in fixed point, so that the order needs no floats.
        .map(|u| {
            (
                !units.units[u].pdbs.is_empty(),
                (u128::from(units.units[u].cost) << 32) / u128::from(gpus(u).max(1)),
                u,
            )
        })
        .collect();
    order.sort_unstable();
    let mut chosen = Vec::new();
    for (_, _, unit) in order {
        if free.fits() {
            break;
        }
        free.add(units, unit, 1);
        chosen.push(unit);
    }
    if !free.fits() {
        return None;
    }
    let mut back = chosen.clone();
    back.sort_by_key(|&u| {
        (
            units.units[u].pdbs.is_empty(),
            Reverse(units.units[u].cost),
            u,
        )
    });
    for unit in back {
        free.add(units, unit, -1);
        if free.fits() {
            chosen.retain(|&c| c != unit);
        } else {
            free.add(units, unit, 1);
        }
    }
    Some(chosen)
}
