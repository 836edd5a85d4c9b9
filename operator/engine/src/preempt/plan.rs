//! Options and plans of a preemption.

use crate::{
    method::Method,
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

/// First criterion if priorities and lost work disagree. Only used by [`Algorithm::LeastCost`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VictimOrder {
    /// Only units up to the lowest priority bound under which the gang fits.
    #[default]
    StrictPriority,
    /// Any unit of lower priority than the gang's.
    LeastWork,
}

/// Options of a preemption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreemptionOptions {
    /// How victims are chosen.
    pub algorithm: Algorithm,
    /// First criterion if priorities and lost work disagree.
    pub order: VictimOrder,
    /// Step limit of the search, so that equal input gives equal plans.
    pub work_budget: u64,
    /// Depth of follow-on evictions; 0 ignores them.
    pub follow_on_depth: u8,
    /// A method to leave out, to measure what it contributes.
    pub without: Option<Method>,
}

impl Default for PreemptionOptions {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::LeastCost,
            order: VictimOrder::StrictPriority,
            // Keeps a decision over 1,000 nodes below ten milliseconds on one core.
            work_budget: 300_000,
            follow_on_depth: 0,
            without: None,
        }
    }
}

/// Units to evict, and the resulting placement of the gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreemptionPlan {
    /// Units to evict, ascending. Empty if the gang fits without eviction. The gang needs each of
    /// them.
    pub victims: Vec<UnitIx>,
    /// Placement of the gang.
    pub placement: GangPlacement,
    /// Cost of the victims.
    pub cost: EvictionCost,
    /// Lower bound of the cost of any plan.
    pub bound: Bound,
    /// True if no plan has less PDB excess, or equal excess and less lost work.
    pub proven: bool,
    /// Context of the choice.
    pub explanation: Explanation,
}

impl PreemptionPlan {
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

    /// The same plan, if unknown sets may be better.
    pub(super) fn without_proof(self) -> Self {
        Self {
            bound: Bound::default(),
            proven: self.victims.is_empty(),
            ..self
        }
    }
}

/// Context of the choice, for events, status and the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// Highest priority of a candidate. `None` if no victims were needed, or all units of lower
    /// priority were candidates.
    pub priority_bound: Option<i32>,
    /// Victims that would evict in turn, with the cost. Empty if not computed.
    pub follow_on: Vec<FollowOn>,
}

/// Work lost because a victim evicts in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowOn {
    /// The victim of the gang.
    pub victim: UnitIx,
    /// Units that it would evict in turn, directly or indirectly, ascending.
    pub evicts: Vec<UnitIx>,
    /// Accelerator-seconds that these units lose.
    pub lost: u128,
}
