//! Wall time that follows tokio's clock, so that paused time in a test affects both.

#![expect(clippy::disallowed_methods, reason = "the clock that others read")]

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::Instant;

/// The clock of one process of hollow nodes.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: DateTime<Utc>,
    started: Instant,
}

impl Clock {
    /// A clock that shows `origin` now.
    pub fn starting_at(origin: DateTime<Utc>) -> Self {
        Self {
            origin,
            started: Instant::now(),
        }
    }

    /// Time of day.
    pub fn now(&self) -> DateTime<Utc> {
        self.origin + TimeDelta::from_std(self.started.elapsed()).unwrap_or_default()
    }

    /// The tokio instant of a time of day. Past times give the current instant.
    pub fn instant(&self, at: DateTime<Utc>) -> Instant {
        Instant::now() + (at - self.now()).to_std().unwrap_or_default()
    }
}
