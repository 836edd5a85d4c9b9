//! Time, randomness and ids as parameters, so that simulations control them.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use tokio::time::Instant;

pub trait Clock: Send + Sync + 'static {
    fn wall(&self) -> DateTime<Utc>;

    /// Monotonic time, for leases, deadlines and back-off. Follows tokio's clock, which tests
    /// pause.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where the process reads its monotonic clock"
    )]
    fn monotonic(&self) -> Instant {
        Instant::now()
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place where the process reads its wall clock"
    )]
    fn wall(&self) -> DateTime<Utc> {
        Utc::now()
    }
}

#[derive(Clone, Debug)]
pub struct Random(Arc<Mutex<fastrand::Rng>>);

impl Random {
    /// The same seed gives the same sequence.
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))))
    }

    /// A new id: 16 hexadecimal digits.
    pub fn id(&self) -> String {
        format!("{:016x}", self.0.lock().u64(..))
    }

    /// Shortens a wait by up to a quarter, so that equal waits do not end together.
    pub fn jittered(&self, wait: Duration) -> Duration {
        wait.mul_f64(1.0 - 0.25 * self.0.lock().f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_shortens_by_at_most_a_quarter() {
        let random = Random::seeded(7);
        for _ in 0..1000 {
            let wait = random.jittered(Duration::from_secs(8));
            assert!(
                wait > Duration::from_secs(5) && wait <= Duration::from_secs(8),
                "{wait:?}"
            );
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_ids() {
        let ids = |seed| {
            let r = Random::seeded(seed);
            (r.id(), r.id())
        };
        assert_eq!(ids(1), ids(1));
        assert_ne!(ids(1), ids(2));
        assert_ne!(ids(1).0, ids(1).1);
    }
}
