//! Input of all stages, and the time of the next cycle.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_engine::Amounts;
use lockstep_model::{Budget, Quota, Resources, Snapshot, Weights};

use crate::settings::SchedulerSettings;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    pub cluster: &'a Snapshot,
    pub budgets: &'a [Arc<Budget>],
    pub quotas: &'a [Arc<Quota>],
    /// Queue weights of namespaces.
    pub weights: &'a Weights,
    pub settings: &'a SchedulerSettings,
    pub now: DateTime<Utc>,
    pub wake: &'a Wake,
}

/// Earliest time at which a cycle is needed without changes. All stages record such times.
#[derive(Debug, Default)]
pub(crate) struct Wake(Cell<Option<DateTime<Utc>>>);

impl Context<'_> {
    pub fn amounts(&self, requests: &Resources) -> Amounts {
        self.cluster.dims().amounts(requests)
    }

    pub fn ago(&self, time: Duration) -> DateTime<Utc> {
        let time = TimeDelta::from_std(time).unwrap_or(TimeDelta::MAX);
        let ago = self.now.checked_sub_signed(time);
        ago.unwrap_or(DateTime::<Utc>::MIN_UTC)
    }

    /// True if `wait` has passed since `since`. Otherwise records the end of the wait.
    pub fn due(&self, since: DateTime<Utc>, wait: Duration) -> bool {
        let at = since + TimeDelta::from_std(wait).unwrap_or(TimeDelta::MAX);
        if self.now >= at {
            return true;
        }
        self.wake.at(at);
        false
    }
}

impl Wake {
    pub fn at(&self, at: DateTime<Utc>) {
        let earliest = self.0.get().map_or(at, |earlier| earlier.min(at));
        self.0.set(Some(earliest));
    }

    pub fn after(&self, now: DateTime<Utc>) -> Option<Duration> {
        self.0
            .get()
            .map(|at| (at - now).to_std().unwrap_or_default())
    }
}
