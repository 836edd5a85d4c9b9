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
        self.never.limit(room);
        let lowest = if turn.evictable { i32::MIN..=turn.standing } else { i32::MIN..=i32::MAX };
        for (_, kept) in self.preempting.range(lowest) {
            kept.limit(room);
        }
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
