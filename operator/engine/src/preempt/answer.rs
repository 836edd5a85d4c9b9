//! How a preemption is asked for, and what the answer says.

use crate::{
    objective::{Bound, EvictionCost},
    problem::{GangPlacement, UnitIx},
};

/// How victims are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// The least cost, within the rules of KEP-5710.
    #[default]
    LeastCost,
    /// KEP-5710 as released: one placement on the cluster without the candidates, then reprieve by
    /// importance.
    Kep,
}

/// What comes first when priorities and lost work disagree. Read by [`Algorithm::LeastCost`] only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VictimOrder {
    /// Only units up to the lowest priority bound under which the gang can fit at all.
    #[default]
    StrictPriority,
    /// Any unit of lower priority than the gang's.
    LeastWork,
}

/// How a preemption is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreemptionOptions {
    /// How victims are chosen.
    pub algorithm: Algorithm,
    /// What comes first when priorities and lost work disagree.
    pub order: VictimOrder,
    /// Steps the search may spend. Counted, not timed, so that equal questions have equal answers.
    pub work_budget: u64,
    /// How many evictions that victims cause in turn are followed; 0 ignores where victims go.
    pub follow_on_depth: u8,
}

impl Default for PreemptionOptions {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::LeastCost,
            order: VictimOrder::StrictPriority,
            // Keeps a decision over 1,000 nodes below ten milliseconds on one core.
            work_budget: 300_000,
            follow_on_depth: 0,
        }
    }
}

/// The units to evict, and where the gang is placed then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreemptionAnswer {
    /// Units to evict, ascending. Empty when the gang fits as it is. Without any one of them the
    /// gang does not fit.
    pub victims: Vec<UnitIx>,
    /// Where the gang is placed.
    pub placement: GangPlacement,
    /// What the victims cost.
    pub cost: EvictionCost,
    /// A lower bound of what any answer costs.
    pub bound: Bound,
    /// Whether no answer with less PDB excess, or equal excess and less work lost, exists.
    pub proven: bool,
    /// The circumstances under which these victims were chosen.
    pub explanation: Explanation,
}

impl PreemptionAnswer {
    /// The answer for a gang that fits into free capacity.
    pub(super) fn without_victims(placement: GangPlacement) -> Self {
        Self {
            victims: Vec::new(),
            placement,
            cost: EvictionCost::default(),
            bound: Bound::default(),
            proven: true,
            explanation: Explanation::default(),
        }
    }
}

/// The circumstances under which victims were chosen, for events, status and the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// Highest priority of a unit that was a candidate; `None` when there was no need for victims,
    /// or all units of lower priority than the gang's were candidates.
    pub priority_bound: Option<i32>,
    /// Victims that would evict in turn, and what that costs; empty when that was not looked at.
    pub follow_on: Vec<FollowOn>,
}

/// Work that is destroyed when a victim is placed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowOn {
    /// The victim of the gang.
    pub victim: UnitIx,
    /// Units that it would evict in turn, and those that these would, ascending.
    pub evicts: Vec<UnitIx>,
    /// What those lose, in accelerator-seconds.
    pub lost: u128,
}
