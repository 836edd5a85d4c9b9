//! Limits of evictions: the configured number per minute, and disruption budgets.

use std::collections::BTreeMap;

use crate::pace::{Evictions, LimitReached};

/// Number of victim pods per budget, by position of the budget.
pub(super) type GuardedPods = BTreeMap<usize, u32>;

#[derive(Default)]
pub(super) struct EvictionLimits {
    /// Evictions of the last minute and of this cycle. Memory learns the latter from written
    /// statuses, because a failed write evicts no pod.
    pub evictions: Evictions,
    /// First refusal of the cycle by the limit per minute. No other preemption may overtake it.
    pub reached: Option<LimitReached>,
    /// Use of the budgets by preemptions of this cycle.
    pub spent: GuardedPods,
}

impl EvictionLimits {
    pub fn spend(&mut self, guarded: &GuardedPods) {
        for (budget, pods) in guarded {
            *self.spent.entry(*budget).or_default() += pods;
        }
    }
}
