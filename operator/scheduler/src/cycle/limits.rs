//! Limits of evictions: the configured number per minute, and disruption budgets.

use std::collections::BTreeMap;

use crate::pace::{Evictions, LimitReached};

#[derive(Default)]
pub(super) struct EvictionLimits {
    /// Evictions of the last minute and of this cycle. Memory learns the latter from written
    /// statuses, because a failed write evicts nothing.
    pub evictions: Evictions,
    /// First refusal of the cycle by the limit per minute. No other preemption may overtake the
    /// refused one.
    pub reached: Option<LimitReached>,
    /// Number of existing victim pods per budget, by position of the budget.
    pub spent: BTreeMap<usize, u32>,
}

impl EvictionLimits {
    pub fn spend(&mut self, guarded: &BTreeMap<usize, u32>) {
        for (budget, pods) in guarded {
            *self.spent.entry(*budget).or_default() += pods;
        }
    }
}
