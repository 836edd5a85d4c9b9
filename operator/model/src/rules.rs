//! How victims are chosen, weighed and protected, and for how many capacity is reserved.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_engine::{Algorithm, PLACEMENT_STEPS, PreemptionOptions, VictimOrder};

use crate::cost::CostModel;
use crate::victims::VictimRules;

/// What the manager's configuration says about preemption and reservations. A question to the engine that is asked
/// under the same rules has the same answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How victims are chosen.
    pub algorithm: Algorithm,
    /// Whether priority or lost work comes first.
    pub order: VictimOrder,
    /// Steps that the search for a placement of several shapes may take.
    pub placement_steps: u64,
    /// How many evictions that victims would cause in turn are followed (KEP-5710's second
    /// principle).
    pub follow_on_depth: u8,
    /// How long work runs before it may be evicted.
    pub min_runtime: Duration,
    /// How long a pod may outlive its grace period before nobody waits for it any more.
    pub overdue: Duration,
    /// How work is weighed.
    pub costs: CostModel,
    /// Which work may be evicted at all.
    pub victims: VictimRules,
    /// For how many waiting gangs of each priority capacity is reserved, the first in the queue.
    pub reservations_per_priority: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::LeastCost,
            order: VictimOrder::StrictPriority,
            placement_steps: PLACEMENT_STEPS,
            follow_on_depth: 1,
            min_runtime: Duration::ZERO,
            overdue: Duration::from_secs(30),
            costs: CostModel::default(),
            victims: VictimRules::default(),
            reservations_per_priority: 8,
        }
    }
}

impl Rules {
    /// For the engine.
    pub fn options(&self) -> PreemptionOptions {
        let Self {
            algorithm,
            order,
            follow_on_depth,
            ..
        } = *self;
        PreemptionOptions {
            algorithm,
            order,
            follow_on_depth,
            ..PreemptionOptions::default()
        }
    }

    /// Whether a pod that will have ended then is waited for so long at all.
    pub fn in_time(&self, end: DateTime<Utc>, now: DateTime<Utc>) -> bool {
        // The clock of the API server may be ahead of ours.
        let longest = self
            .victims
            .longest_grace_period
            .saturating_add(self.overdue);
        after(now, longest).is_none_or(|latest| end <= latest)
    }

    /// Until when a pod is waited for that will have ended then; `None`: nobody knows when it ends,
    /// since it should have, or will not within the time that anybody waits.
    pub fn waited_for(&self, end: DateTime<Utc>, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let overdue = after(end, self.overdue).filter(|overdue| *overdue > now);
        overdue.filter(|_| self.in_time(end, now))
    }

    /// Whether work can be evicted as soon as it has started, so that a waiting gang can take its
    /// capacity back at once.
    pub fn evictable_at_once(&self) -> bool {
        self.min_runtime.is_zero()
    }
}

/// A moment later by so much; `None` if the sum is out of range.
pub(crate) fn after(moment: DateTime<Utc>, by: Duration) -> Option<DateTime<Utc>> {
    moment.checked_add_signed(TimeDelta::from_std(by).ok()?)
}
