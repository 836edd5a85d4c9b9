//! What the stage that carries intents out hands on.

use std::collections::BTreeMap;

use lockstep_api::scheduling::Preemption;

use crate::context::Wake;
use crate::pace::{Evictions, LimitReached};
use crate::plan::Step;

/// What the stage wants done.
#[derive(Default)]
pub(super) struct Pursued {
    pub steps: Vec<Step>,
    pub wake: Wake,
    /// That an intent waits for the limit of evictions: none overtakes it.
    pub paced: Option<LimitReached>,
    /// Evictions of the last minute, with those of this cycle. Memory takes note of them from the
    /// statuses that say so: what could not be written has not happened.
    pub evictions: Evictions,
    /// How many pods that victims are, and that are still there, each budget guards, by its position.
    pub spent: BTreeMap<usize, u32>,
}

impl Pursued {
    pub fn spend(&mut self, guarded: &BTreeMap<usize, u32>) {
        for (budget, pods) in guarded {
            *self.spent.entry(*budget).or_default() += pods;
        }
    }
}

/// Whether victims have been evicted. That one has gone, or goes, by itself says nothing about the
/// others.
pub(super) fn begun(intent: &Preemption) -> bool {
    let mut victims = intent.victims.iter();
    victims.any(|v| v.eviction_requested_at.is_some())
}
