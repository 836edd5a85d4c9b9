//! The only clock of a cluster. The simulation advances it.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_manager::clock::{Clock, SystemClock};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Simulated time, shared by clones.
#[derive(Clone, Debug)]
pub struct SimClock {
    now: Arc<Mutex<DateTime<Utc>>>,
    origin: DateTime<Utc>,
    /// Monotonic time at the origin. Only differences matter.
    base: Instant,
    /// How far the time of day is ahead where this clock is.
    ahead: TimeDelta,
}

impl SimClock {
    pub fn starting_at(origin: DateTime<Utc>) -> Self {
        Self {
            now: Arc::new(Mutex::new(origin)),
            origin,
            base: SystemClock.monotonic(),
            ahead: TimeDelta::zero(),
        }
    }

    /// The clock of a machine whose time of day is ahead by this much.
    #[must_use]
    pub fn ahead_by(&self, ahead: TimeDelta) -> Self {
        Self {
            ahead,
            ..self.clone()
        }
    }

    pub fn now(&self) -> DateTime<Utc> {
        *self.now.lock()
    }

    pub fn advance(&self, by: TimeDelta) {
        *self.now.lock() += by;
    }

    /// Time of day at a monotonic time.
    pub fn wall_at(&self, at: Instant) -> DateTime<Utc> {
        let passed = at.saturating_duration_since(self.base);
        self.origin + TimeDelta::from_std(passed).unwrap_or(TimeDelta::MAX)
    }
}

impl Clock for SimClock {
    fn wall(&self) -> DateTime<Utc> {
        self.now() + self.ahead
    }

    fn monotonic(&self) -> Instant {
        self.base + (self.now() - self.origin).to_std().unwrap_or_default()
    }
}

/// A time as in API objects: whole seconds.
pub fn api_time(time: DateTime<Utc>) -> Time {
    Time(jiff::Timestamp::from_second(time.timestamp()).unwrap_or_default())
}
