//! The one clock of a cluster; it moves when the simulation says so.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_manager::clock::{Clock, SystemClock};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Simulated time. Clones show the same.
#[derive(Clone, Debug)]
pub struct SimClock {
    now: Arc<Mutex<DateTime<Utc>>>,
    origin: DateTime<Utc>,
    /// What the monotonic clock showed at the origin. Only distances from it are ever looked at.
    base: Instant,
}

impl SimClock {
    /// A clock that shows `origin`.
    pub fn starting_at(origin: DateTime<Utc>) -> Self {
        Self {
            now: Arc::new(Mutex::new(origin)),
            origin,
            base: SystemClock.monotonic(),
        }
    }

    /// The time.
    pub fn now(&self) -> DateTime<Utc> {
        *self.now.lock()
    }

    /// Lets time pass.
    pub fn advance(&self, by: TimeDelta) {
        *self.now.lock() += by;
    }

    /// The time of day at a moment of the monotonic clock.
    pub fn wall_at(&self, at: Instant) -> DateTime<Utc> {
        let passed = at.saturating_duration_since(self.base);
        self.origin + TimeDelta::from_std(passed).unwrap_or(TimeDelta::MAX)
    }
}

impl Clock for SimClock {
    fn wall(&self) -> DateTime<Utc> {
        self.now()
    }

    fn monotonic(&self) -> Instant {
        self.base + (self.now() - self.origin).to_std().unwrap_or_default()
    }
}

/// A time as objects of the API carry it: whole seconds.
pub fn api_time(time: DateTime<Utc>) -> Time {
    Time(jiff::Timestamp::from_second(time.timestamp()).unwrap_or_default())
}
