//! Leader election on a `coordination.k8s.io/v1` Lease.
//!
//! The rules are those of client-go. A candidate measures the age of a lease by its own
//! observations, so clocks need not agree. Every write carries the resourceVersion that it was
//! decided from. [`decide`] is a pure function; [`task`] sends the requests.
//!
//! [`Leadership`] has an end, which [`Tenure::check`] checks before each write. It ends before
//! another candidate can take the lease: `renew deadline < lease duration`.
//!
//! At that end, a holder in client-go exits. This holder stops acting but continues to renew,
//! because a restart would list the whole cluster from an overloaded API server. If a renewal
//! succeeds at the version of the last one, no other process has led in between. The same holds if
//! a renewal was stored late and the lease is still of this term.

pub mod task;

use std::time::Duration;

use lockstep_api::ids::ResourceVersion;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock::Clock;

/// After this many lease durations without a renewal, the holder steps down: the process itself is
/// probably faulty.
const HOPELESS: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long other candidates wait after the last change.
    pub lease: Duration,
    /// How long the holder acts after it sent its last successful renewal.
    pub renew: Duration,
    pub retry: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Empty if the lease is free.
    pub holder: String,
    pub duration: Duration,
    pub transitions: i32,
    pub resource_version: ResourceVersion,
    /// First observation of this version, or of the deletion.
    pub since: Instant,
    /// A holder notices a deletion only at its next renewal.
    pub deleted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLease {
    /// The lease's transitions at the acquisition by this process.
    pub term: i32,
    pub renewed: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElectionStep {
    Acquire,
    Renew,
    Wait(Duration),
    StepDown,
}

/// Decides the next step of candidate `me`. `observed` is `None` without a Lease object.
pub fn decide(
    me: &str,
    observed: Option<&Observed>,
    held: Option<&HeldLease>,
    timing: &Timing,
    now: Instant,
) -> ElectionStep {
    match (held, observed) {
        (Some(held), _) if now >= held.renewed + timing.lease * HOPELESS => ElectionStep::StepDown,
        (Some(_), None) => ElectionStep::StepDown,
        (Some(_), Some(current)) if current.holder != me || current.deleted => {
            ElectionStep::StepDown
        }
        // Each acquisition increments transitions, so another process with this identity holds the
        // lease.
        (Some(held), Some(current)) if current.transitions != held.term => ElectionStep::StepDown,
        (Some(held), Some(_)) => match (held.renewed + timing.retry).checked_duration_since(now) {
            Some(wait) if !wait.is_zero() => ElectionStep::Wait(wait),
            _ => ElectionStep::Renew,
        },
        (None, None) => ElectionStep::Acquire,
        // An earlier process of this pod has ended.
        (None, Some(current)) if current.holder.is_empty() || current.holder == me => {
            ElectionStep::Acquire
        }
        (None, Some(current)) => {
            match (current.since + current.duration.max(timing.lease)).checked_duration_since(now) {
                Some(left) if !left.is_zero() => ElectionStep::Wait(left.min(timing.retry)),
                _ => ElectionStep::Acquire,
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    pub term: i32,
    pub valid_until: Instant,
}

impl Leadership {
    fn is_valid(&self, now: Instant) -> bool {
        now < self.valid_until
    }

    /// Leadership of a process without election.
    pub fn for_ever(now: Instant) -> Self {
        // Longer than any process, and within the range of the clock.
        let century = Duration::from_hours(100 * 365 * 24);
        Self {
            term: 0,
            valid_until: now + century,
        }
    }
}

/// This process does not hold the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not the leader")]
pub struct NotLeading;

#[derive(Clone, Debug)]
pub struct Tenure(watch::Receiver<Option<Leadership>>);

impl Tenure {
    pub fn new(receiver: watch::Receiver<Option<Leadership>>) -> Self {
        Self(receiver)
    }

    pub fn check(&self, now: Instant) -> Result<Leadership, NotLeading> {
        self.0
            .borrow()
            .filter(|held| held.is_valid(now))
            .ok_or(NotLeading)
    }

    /// Waits until this process leads. Never returns after the end of the lease task, because the
    /// process exits.
    pub async fn leading(&mut self, clock: &dyn Clock) {
        let valid = |held: &Option<Leadership>| held.is_some_and(|h| h.is_valid(clock.monotonic()));
        let over = self.0.wait_for(valid).await.is_err();
        if over {
            std::future::pending::<()>().await;
        }
    }

    pub async fn acquired(&mut self) -> Result<Leadership, NotLeading> {
        let held = self
            .0
            .wait_for(Option::is_some)
            .await
            .map_err(|_| NotLeading)?;
        held.ok_or(NotLeading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    const TIMING: Timing = Timing {
        lease: Duration::from_secs(15),
        renew: Duration::from_secs(10),
        retry: Duration::from_secs(2),
    };

    fn seen(holder: &str, since: Instant) -> Observed {
        Observed {
            holder: holder.into(),
            duration: Duration::from_secs(15),
            transitions: 3,
            resource_version: "7".parse().unwrap(),
            since,
            deleted: false,
        }
    }

    fn secs(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    #[test]
    fn a_lease_without_holder_is_acquired_at_once() {
        let now = SystemClock.monotonic();
        assert_eq!(decide("a", None, None, &TIMING, now), ElectionStep::Acquire);
        assert_eq!(
            decide("a", Some(&seen("", now)), None, &TIMING, now),
            ElectionStep::Acquire
        );
    }

    #[test]
    fn a_foreign_lease_is_taken_only_when_it_has_not_changed_for_its_whole_duration() {
        let start = SystemClock.monotonic();
        let lease = seen("b", start);
        assert_eq!(
            decide("a", Some(&lease), None, &TIMING, start),
            ElectionStep::Wait(secs(2))
        );
        assert_eq!(
            decide("a", Some(&lease), None, &TIMING, start + secs(14)),
            ElectionStep::Wait(secs(1))
        );
        assert_eq!(
            decide("a", Some(&lease), None, &TIMING, start + secs(15)),
            ElectionStep::Acquire
        );
        let patient = Observed {
            duration: secs(60),
            ..lease
        };
        assert_eq!(
            decide("a", Some(&patient), None, &TIMING, start + secs(15)),
            ElectionStep::Wait(secs(2))
        );
    }

    #[test]
    fn the_holder_renews_after_the_retry_period_and_retries_for_a_minute() {
        let start = SystemClock.monotonic();
        let (lease, held) = (
            seen("a", start),
            HeldLease {
                term: 3,
                renewed: start,
            },
        );
        let at = |s| decide("a", Some(&lease), Some(&held), &TIMING, start + secs(s));
        assert_eq!(at(0), ElectionStep::Wait(secs(2)));
        assert_eq!(at(2), ElectionStep::Renew);
        // It does not lead from second 10 on.
        for late in [9, 10, 15, 59] {
            assert_eq!(at(late), ElectionStep::Renew);
        }
        assert_eq!(at(60), ElectionStep::StepDown);
    }

    #[test]
    fn the_holder_steps_down_when_the_lease_is_deleted_or_taken() {
        let start = SystemClock.monotonic();
        let held = HeldLease {
            term: 3,
            renewed: start,
        };
        assert_eq!(
            decide("a", None, Some(&held), &TIMING, start),
            ElectionStep::StepDown
        );
        for holder in ["b", ""] {
            assert_eq!(
                decide("a", Some(&seen(holder, start)), Some(&held), &TIMING, start),
                ElectionStep::StepDown
            );
        }
    }

    #[test]
    fn the_holder_steps_down_when_a_process_of_its_name_has_begun_another_term() {
        let start = SystemClock.monotonic();
        let held = HeldLease {
            term: 2,
            renewed: start,
        };
        assert_eq!(
            decide("a", Some(&seen("a", start)), Some(&held), &TIMING, start),
            ElectionStep::StepDown
        );
    }

    #[test]
    fn a_deleted_lease_is_acquired_no_earlier_than_an_expired_lease() {
        let start = SystemClock.monotonic();
        let gone = Observed {
            deleted: true,
            ..seen("b", start)
        };
        assert_eq!(
            decide("a", Some(&gone), None, &TIMING, start),
            ElectionStep::Wait(secs(2))
        );
        assert_eq!(
            decide("a", Some(&gone), None, &TIMING, start + secs(15)),
            ElectionStep::Acquire
        );
        let held = HeldLease {
            term: 3,
            renewed: start,
        };
        let own = Observed {
            holder: "a".into(),
            ..gone
        };
        assert_eq!(
            decide("a", Some(&own), Some(&held), &TIMING, start),
            ElectionStep::StepDown
        );
    }

    #[test]
    fn leadership_ends_by_itself() {
        let now = SystemClock.monotonic();
        let (tx, rx) = watch::channel(Some(Leadership {
            term: 1,
            valid_until: now + secs(10),
        }));
        let tenure = Tenure::new(rx);
        assert!(tenure.check(now + secs(9)).is_ok());
        assert_eq!(tenure.check(now + secs(10)), Err(NotLeading));
        tx.send_replace(None);
        assert_eq!(tenure.check(now), Err(NotLeading));
    }
}
