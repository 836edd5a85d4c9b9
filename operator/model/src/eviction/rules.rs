//! Rules for the choice, cost and protection of victims, and for reservations.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_engine::{Algorithm, PLACEMENT_STEPS, PreemptionOptions, VictimOrder};

use crate::eviction::cost::CostModel;
use crate::eviction::victims::VictimRules;

/// Configuration of preemption and reservations. Equal rules give equal decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    pub algorithm: Algorithm,
    pub order: VictimOrder,
    /// Step limit of a placement search for several shapes.
    pub placement_steps: u64,
    /// Depth of follow-on evictions in the cost of victims (KEP-5710's second principle).
    pub follow_on_depth: u8,
    /// Guaranteed run time before work may be evicted.
    pub min_runtime: Duration,
    /// How long after its grace period the end of a pod is still expected.
    pub overdue: Duration,
    /// Cost of lost work.
    pub costs: CostModel,
    pub victims: VictimRules,
    /// Number of waiting gangs per priority with a reservation, from the head of the queue.
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

    /// True if the end is soon enough for a gang to wait.
    pub fn in_time(&self, end: DateTime<Utc>, now: DateTime<Utc>) -> bool {
        // The API server's clock may be ahead.
        let longest = self
            .victims
            .longest_grace_period
            .saturating_add(self.overdue);
        after(now, longest).is_none_or(|latest| end <= latest)
    }

    /// Time until which the end of this pod is expected. `None`: overdue, or too far away.
    pub fn waited_for(&self, end: DateTime<Utc>, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let overdue = after(end, self.overdue).filter(|overdue| *overdue > now);
        overdue.filter(|_| self.in_time(end, now))
    }

    /// True if work has no guaranteed run time.
    pub fn evictable_at_once(&self) -> bool {
        self.min_runtime.is_zero()
    }
}

/// `None` if the sum is out of range.
pub(crate) fn after(moment: DateTime<Utc>, by: Duration) -> Option<DateTime<Utc>> {
    moment.checked_add_signed(TimeDelta::from_std(by).ok()?)
}
