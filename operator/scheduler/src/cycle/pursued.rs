//! Output of the stage that executes intents.

use std::collections::BTreeMap;

use lockstep_api::scheduling::Preemption;

use crate::context::Wake;
use crate::pace::{Evictions, LimitReached};
use crate::plan::Step;

#[derive(Default)]
pub(super) struct Pursued {
    pub steps: Vec<Step>,
    pub wake: Wake,
    /// Set if an intent waits for the eviction limit. No other preemption may overtake it.
    pub paced: Option<LimitReached>,
    /// Evictions of the last minute and of this cycle. Memory learns the latter from written
    /// statuses, because a failed write evicts nothing.
    pub evictions: Evictions,
    /// Number of existing victim pods per budget, by position of the budget.
    pub spent: BTreeMap<usize, u32>,
}

impl Pursued {
    pub fn spend(&mut self, guarded: &BTreeMap<usize, u32>) {
        for (budget, pods) in guarded {
            *self.spent.entry(*budget).or_default() += pods;
        }
    }
}

/// True if a victim has been evicted. Other terminations do not count.
pub(super) fn begun(intent: &Preemption) -> bool {
    let mut victims = intent.victims.iter();
    victims.any(|v| v.eviction_requested_at.is_some())
}
