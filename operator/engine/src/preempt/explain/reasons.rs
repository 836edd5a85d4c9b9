//! Reasons for the choice of victims, as data.

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
    /// Cost of the cheapest set found without it. `None` if there is none, or none was computed.
    pub without_it: Option<EvictionCost>,
}

/// Why a unit of lower priority was spared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spared {
    /// Its priority is above the lowest that suffices.
    AbovePriorityBound,
    /// Its eviction would exceed disruption budgets.
    OverBudget {
        /// Number of pods beyond the budgets.
        pods: u64,
    },
    /// It holds no capacity that the gang could use.
    NoUse,
    /// The victims free the same capacity at a lower cost.
    Dearer,
}

/// The next best set of victims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerUp {
    /// Its units, ascending.
    pub victims: Vec<UnitIx>,
    /// Its cost.
    pub cost: EvictionCost,
}

/// Reasons for the choice of victims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reasons {
    /// The victims, ascending.
    pub taken: Vec<Taken>,
    /// Other units of lower priority, ascending.
    pub spared: Vec<(UnitIx, Spared)>,
    /// The cheapest other set that was found, for comparison.
    pub runner_up: Option<RunnerUp>,
}
