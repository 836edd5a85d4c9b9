//! Why victims were chosen, as data.

use crate::{
    objective::EvictionCost,
    problem::{NodeIx, UnitIx},
};

/// Why a victim was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The victim.
    pub unit: UnitIx,
    /// Nodes where it frees capacity that the gang uses.
    pub nodes: Vec<NodeIx>,
    /// What the cheapest set found without it would cost; `None` when the gang fits with no such
    /// set, or when it was not worked out.
    pub without_it: Option<EvictionCost>,
}

/// Why a unit of lower priority was spared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spared {
    /// Its priority is above the lowest that suffices.
    AbovePriorityBound,
    /// Evicting it would take this many pods beyond their budgets.
    OverBudget {
        /// How many.
        pods: u64,
    },
    /// It holds no capacity that the gang could use.
    NoUse,
    /// The victims free the same capacity for less.
    Dearer,
}

/// The next best set of victims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerUp {
    /// Its units, ascending.
    pub victims: Vec<UnitIx>,
    /// What it would cost.
    pub cost: EvictionCost,
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
