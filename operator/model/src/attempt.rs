//! One gang's attempt at a placement: in free capacity, after terminations, by preemption.

use std::collections::BTreeMap;

use lockstep_engine::queue::{ReservedCapacity, fits_empty};
use lockstep_engine::{
    Amounts, Cluster, Demand, EvictionPolicy, GangPlacement, Infeasible, NodeIx, PreemptionAnswer,
    Reasons, explain, place, preempt,
};

use crate::rules::Rules;
use crate::units::UnitTable;

/// What gangs that wait keep from those behind them. Work that they could evict again takes nothing
/// from them ([`lockstep_engine::queue`] argues why nobody starves).
#[derive(Clone, Debug, Default)]
pub struct EarlierReservations {
    /// For gangs that may not preempt.
    never: ReservedCapacity,
    /// For gangs that may, by their priority.
    preempting: BTreeMap<i32, ReservedCapacity>,
    waiting: usize,
}

impl EarlierReservations {
    /// Notes a gang that waits. One that would not fit an empty cluster keeps nothing: it would for
    /// ever.
    pub fn push(&mut self, cluster: &Cluster, demand: &Demand) {
        if !fits_empty(cluster, demand) {
            return;
        }
        self.waiting += 1;
        match demand.preemption {
            EvictionPolicy::Never => self.never.add(cluster, demand),
            EvictionPolicy::LowerPriority => {
                self.preempting
                    .entry(demand.priority)
                    .or_default()
                    .add(cluster, demand);
            }
        }
    }

    /// Whether no gang waits.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    fn limit(&self, free: &mut Cluster, attempt: &PlacementAttempt<'_>) {
        let mut kept = self.never.clone();
        let binding = if attempt.evictable {
            i32::MIN..=attempt.victim_priority
        } else {
            i32::MIN..=i32::MAX
        };
        for (_, others) in self.preempting.range(binding) {
            kept.join(others);
        }
        kept.limit(free);
    }
}

/// One gang's attempt at a placement.
#[derive(Clone, Copy, Debug)]
pub struct PlacementAttempt<'a> {
    /// What it asks for.
    pub demand: &'a Demand,
    /// Priority that it will have as a victim once it runs.
    pub victim_priority: i32,
    /// Whether it can be evicted as soon as it runs.
    pub evictable: bool,
    /// Gangs that wait before it.
    pub earlier: &'a EarlierReservations,
}

impl PlacementAttempt<'_> {
    /// In what is free.
    pub fn in_free_capacity(&self, free: &Cluster) -> Result<GangPlacement, Infeasible> {
        if self.earlier.is_empty() {
            place(free, self.demand)
        } else {
            place(&self.behind(free.clone()), self.demand)
        }
    }

    /// What is free once everything that is leaving has left, and the gang's placement there if it
    /// has one.
    pub fn after_terminations(
        &self,
        mut free: Cluster,
        leaving: &[(NodeIx, Amounts)],
    ) -> (Cluster, Option<GangPlacement>) {
        for (node, amounts) in leaving {
            free.remove_pod(*node, amounts);
        }
        let free = self.behind(free);
        let placement = place(&free, self.demand).ok();
        (free, placement)
    }

    /// At the expense of others. `free` is that of [`PlacementAttempt::after_terminations`].
    pub fn by_preemption(
        &self,
        free: &Cluster,
        table: UnitTable,
        rules: &Rules,
    ) -> Result<Eviction, Infeasible> {
        let options = rules.options();
        let answer = preempt(free, &table.units, self.demand, &options)?;
        let reasons = explain(free, &table.units, self.demand, &options, &answer);
        Ok(Eviction {
            table,
            answer,
            reasons,
        })
    }

    fn behind(&self, mut free: Cluster) -> Cluster {
        self.earlier.limit(&mut free, self);
        free
    }
}

/// What to evict, and why.
#[derive(Clone, Debug)]
pub struct Eviction {
    /// Everything that could have been evicted.
    pub table: UnitTable,
    /// The answer.
    pub answer: PreemptionAnswer,
    /// Why these and no others.
    pub reasons: Reasons,
}

/// Why a gang that may not preempt waits, from why it does not fit.
pub fn may_not_preempt(short: Infeasible) -> Infeasible {
    match short {
        Infeasible::InsufficientCapacity(shortfall) => Infeasible::MayNotPreempt(shortfall),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_engine::{ClusterNode, NodeIx, NodeSet};
    use proptest::prelude::*;

    const NODES: usize = 4;

    /// Whether a blocked gang can take back the capacity of work of this priority once it runs.
    fn can_take_back(blocked: &Demand, priority: i32, evictable: bool) -> bool {
        evictable
            && priority < blocked.priority
            && blocked.preemption == EvictionPolicy::LowerPriority
    }

    /// The capacity that gangs behind all of `blocked` may use: what none of those could ever use
    /// itself. `cluster` is the capacity as it is.
    fn capacity_behind(cluster: &Cluster, blocked: &[&Demand]) -> Cluster {
        let mut kept = ReservedCapacity::default();
        for demand in blocked {
            kept.add(cluster, demand);
        }
        let mut capacity = cluster.clone();
        kept.limit(&mut capacity);
        capacity
    }

    fn cluster(free: &[i64]) -> Cluster {
        let mut cluster = Cluster::new(2, 0);
        for (node, &free) in free.iter().enumerate() {
            cluster.upsert_node(
                node,
                &ClusterNode {
                    allocatable: [16, 8].as_slice().into(),
                    domains: vec![],
                    schedulable: true,
                },
            );
            cluster.add_pod(node, &[8 - free, 8 - free]);
        }
        cluster
    }

    fn gang() -> impl Strategy<Value = Demand> {
        (1..5i64, 1..9i64, 1..5u32, 0..3i32, any::<bool>(), 0..NODES).prop_map(
            |(cpu, gpus, count, priority, never, excluded)| Demand {
                preemption: if never {
                    EvictionPolicy::Never
                } else {
                    EvictionPolicy::LowerPriority
                },
                excluded: [excluded].into_iter().collect::<NodeSet>(),
                ..Demand::homogeneous([cpu, gpus].as_slice(), count, priority)
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_gathered_gang_by_gang_is_what_the_engine_keeps_for_all_of_them(
            free in prop::collection::vec(0..9i64, NODES),
            waiting in prop::collection::vec(gang(), 0..6),
            asking in gang(),
            standing in 0..4i32,
            evictable: bool,
        ) {
            let cluster_now = cluster(&free);
            let mut ahead = EarlierReservations::default();
            for demand in &waiting {
                ahead.push(&cluster_now, demand);
            }
            let binds = |d: &&Demand| fits_empty(&cluster_now, d) && !can_take_back(d, standing, evictable);
            let expected = capacity_behind(&cluster_now, &waiting.iter().filter(binds).collect::<Vec<_>>());
            let got = PlacementAttempt { demand: &asking, victim_priority: standing, evictable, earlier: &ahead }.behind(cluster_now);
            let free = |c: &Cluster| (0..NODES).map(|n: NodeIx| c.free(n).to_vec()).collect::<Vec<_>>();
            prop_assert_eq!(free(&got), free(&expected));
        }
    }
}
