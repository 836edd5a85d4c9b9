//! What every stage of a cycle reads, and when to look again.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_engine::Amounts;
use lockstep_model::{Budget, Quota, Resources, Snapshot, Weights};

use crate::settings::SchedulerSettings;

/// What every stage of a cycle reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    /// Nodes and pods.
    pub cluster: &'a Snapshot,
    /// Disruption budgets.
    pub budgets: &'a [Arc<Budget>],
    /// Resource quotas.
    pub quotas: &'a [Arc<Quota>],
    /// Weights of namespaces in the queue.
    pub weights: &'a Weights,
    /// Constants.
    pub settings: &'a SchedulerSettings,
    /// The moment.
    pub now: DateTime<Utc>,
}

/// When to look again although nothing changed; the earliest of all that were noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub(crate) struct Wake(Option<DateTime<Utc>>);

impl Context<'_> {
    /// One amount per dimension.
    pub fn amounts(&self, requests: &Resources) -> Amounts {
        self.cluster.dims().amounts(requests)
    }

    /// The moment that long ago.
    pub fn ago(&self, time: Duration) -> DateTime<Utc> {
        let time = TimeDelta::from_std(time).unwrap_or(TimeDelta::MAX);
        let ago = self.now.checked_sub_signed(time);
        ago.unwrap_or(DateTime::<Utc>::MIN_UTC)
    }

    /// Whether a moment has come; if not, it is noted.
    pub fn due(&self, since: DateTime<Utc>, wait: Duration, wake: &mut Wake) -> bool {
        let at = since + TimeDelta::from_std(wait).unwrap_or(TimeDelta::MAX);
        if self.now >= at {
            return true;
        }
        wake.at(at);
        false
    }
}

impl Wake {
    /// Look again at that time at the latest.
    pub fn at(&mut self, at: DateTime<Utc>) {
        self.0 = Some(self.0.map_or(at, |earlier| earlier.min(at)));
    }

    /// Look again when the other says, too.
    pub fn join(&mut self, other: Self) {
        if let Some(at) = other.0 {
            self.at(at);
        }
    }

    /// Time from now until then.
    pub fn after(self, now: DateTime<Utc>) -> Option<Duration> {
        self.0.map(|at| (at - now).to_std().unwrap_or_default())
    }
}
