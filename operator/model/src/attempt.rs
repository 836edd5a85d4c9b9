//! One gang's turn: free room, room that others are leaving, room that others have to leave.

use std::collections::BTreeMap;

use lockstep_engine::queue::{Kept, fits_empty};
use lockstep_engine::{
    Amounts, Cluster, Demand, Infeasible, NodeIx, Placement, Preemption, PreemptionPolicy, Reasons, explain, place,
    preempt,
};

use crate::rules::Rules;
use crate::units::UnitTable;

/// What gangs that wait keep from those behind them. Work that they could evict again takes nothing from them
/// ([`lockstep_engine::queue`] argues why nobody starves).
#[derive(Clone, Debug, Default)]
pub struct Ahead {
    /// For gangs that may not preempt.
    never: Kept,
    /// For gangs that may, by their priority.
    preempting: BTreeMap<i32, Kept>,
    waiting: usize,
}

impl Ahead {
    /// Notes a gang that waits. One that would not fit an empty cluster keeps nothing: it would for ever.
    pub fn push(&mut self, cluster: &Cluster, demand: &Demand) {
        if !fits_empty(cluster, demand) {
            return;
        }
        self.waiting += 1;
        match demand.preemption {
            PreemptionPolicy::Never => self.never.add(cluster, demand),
            PreemptionPolicy::LowerPriority => {
                self.preempting.entry(demand.priority).or_default().add(cluster, demand);
            }
        }
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    fn limit(&self, room: &mut Cluster, turn: &Turn<'_>) {
        let mut kept = self.never.clone();
        let binding = if turn.evictable { i32::MIN..=turn.standing } else { i32::MIN..=i32::MAX };
        for (_, others) in self.preempting.range(binding) {
            kept.join(others);
        }
        kept.limit(room);
    }
}

/// The turn of one gang.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// What it asks for.
    pub demand: &'a Demand,
    /// Priority that it will have as a victim once it runs.
    pub standing: i32,
    /// Whether it can be evicted as soon as it runs.
    pub evictable: bool,
    /// Those that wait before it.
    pub ahead: &'a Ahead,
}

impl Turn<'_> {
    /// Room that is free.
    pub fn now(&self, room: &Cluster) -> Result<Placement, Infeasible> {
        if self.ahead.is_empty() { place(room, self.demand) } else { place(&self.behind(room.clone()), self.demand) }
    }

    /// The room once those that are leaving have left, and the gang's place there if it has one.
    pub fn soon(&self, mut room: Cluster, leaving: &[(NodeIx, Amounts)]) -> (Cluster, Option<Placement>) {
        for (node, amounts) in leaving {
            room.remove_pod(*node, amounts);
        }
        let room = self.behind(room);
        let placement = place(&room, self.demand).ok();
        (room, placement)
    }

    /// Room at the expense of others. `room` is that of [`Turn::soon`].
    pub fn by_force(&self, room: &Cluster, table: UnitTable, rules: &Rules) -> Result<Eviction, Infeasible> {
        let options = rules.options();
        let answer = preempt(room, &table.units, self.demand, &options)?;
        let reasons = explain(room, &table.units, self.demand, &options, &answer);
        Ok(Eviction { table, answer, reasons })
    }

    fn behind(&self, mut room: Cluster) -> Cluster {
        self.ahead.limit(&mut room, self);
        room
    }
}

/// Whom to evict, and why.
#[derive(Clone, Debug)]
pub struct Eviction {
    /// Everybody who could have been.
    pub table: UnitTable,
    /// The answer.
    pub answer: Preemption,
    /// Why these and no others.
    pub reasons: Reasons,
}

/// Why a gang that may not preempt waits, from why it does not fit.
pub fn may_not_preempt(short: Infeasible) -> Infeasible {
    match short {
        Infeasible::NoRoom(shortfall) => Infeasible::MayNotPreempt(shortfall),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_engine::queue::{can_take_back, room_behind};
    use lockstep_engine::{Node, NodeIx, NodeSet};
    use proptest::prelude::*;

    const NODES: usize = 4;

    fn cluster(free: &[i64]) -> Cluster {
        let mut cluster = Cluster::new(2, 0);
        for (node, &free) in free.iter().enumerate() {
            cluster.upsert_node(
                node,
                &Node { allocatable: [16, 8].as_slice().into(), domains: vec![], schedulable: true },
            );
            cluster.add_pod(node, &[8 - free, 8 - free]);
        }
        cluster
    }

    fn gang() -> impl Strategy<Value = Demand> {
        (1..5i64, 1..9i64, 1..5u32, 0..3i32, any::<bool>(), 0..NODES).prop_map(
            |(cpu, gpus, count, priority, never, excluded)| Demand {
                preemption: if never { PreemptionPolicy::Never } else { PreemptionPolicy::LowerPriority },
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
            let room = cluster(&free);
            let mut ahead = Ahead::default();
            for demand in &waiting {
                ahead.push(&room, demand);
            }
            let binds = |d: &&Demand| fits_empty(&room, d) && !can_take_back(d, standing, evictable);
            let expected = room_behind(&room, &waiting.iter().filter(binds).collect::<Vec<_>>());
            let got = Turn { demand: &asking, standing, evictable, ahead: &ahead }.behind(room);
            let free = |c: &Cluster| (0..NODES).map(|n: NodeIx| c.free(n).to_vec()).collect::<Vec<_>>();
            prop_assert_eq!(free(&got), free(&expected));
        }
    }
}
