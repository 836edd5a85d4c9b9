//! Leader election on a `coordination.k8s.io/v1` Lease.
//!
//! The rules are those of client-go's leader election: a lease is judged by when *we* saw it
//! change, never by the times that another candidate wrote into it, so clocks need not agree. Every
//! write carries the resourceVersion that it was decided from. The decision is a pure function
//! ([`decide`]); [`task`] does the calls.
//!
//! Leadership is a value with an end ([`Leadership`]), looked at whenever a write is sent
//! ([`Tenure::check`]). It ends before the lease can be taken by another: `renew deadline < lease
//! duration`. Where client-go's holder ends its process then, ours only acts no more, and tries on: a
//! renewal that succeeds with the version of its last one proves that nobody else has led since. So does a
//! lease that is still of our term: one of our own renewals has come late. To end would be to read the whole
//! cluster again from an API server that has too much to do.

pub mod task;

use std::time::Duration;

use lockstep_api::ids::ResourceVersion;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::clock::Clock;

/// How many lease durations without a renewal a holder tries on: by then it is more likely that
/// something is wrong with the process.
const HOPELESS: u32 = 4;

/// The three durations of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long others wait after the last change before they take the lease.
    pub lease: Duration,
    /// How long the holder acts after the renewal that it last sent with success.
    pub renew: Duration,
    /// Time between attempts.
    pub retry: Duration,
}

/// What a Lease object says, and since when we have seen it say so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Identity of the holder; empty: nobody.
    pub holder: String,
    /// How long the holder asked others to wait.
    pub duration: Duration,
    /// How often the lease has changed hands.
    pub transitions: i32,
    /// Version of the object.
    pub resource_version: ResourceVersion,
    /// When we first saw this version, or that it is gone.
    pub since: Instant,
    /// Whether the object was deleted since. Its holder learns of that only when it renews.
    pub deleted: bool,
}

/// Our own hold on the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLease {
    /// Number of this term of office: the lease's transitions at its beginning.
    pub term: i32,
    /// When we sent the last renewal that succeeded.
    pub renewed: Instant,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElectionStep {
    /// Write ourselves into the lease (create it where there is none).
    Acquire,
    /// Write a renewal.
    Renew,
    /// Look again after this time.
    Wait(Duration),
    /// Our hold has ended: stop acting.
    StepDown,
}

/// Decides the next step of the candidate `me`. `observed` is None where no Lease object exists.
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
        (Some(_), Some(seen)) if seen.holder != me || seen.deleted => ElectionStep::StepDown,
        // Another process of our name has taken it: who takes it counts on.
        (Some(held), Some(seen)) if seen.transitions != held.term => ElectionStep::StepDown,
        (Some(held), Some(_)) => match (held.renewed + timing.retry).checked_duration_since(now) {
            Some(wait) if !wait.is_zero() => ElectionStep::Wait(wait),
            _ => ElectionStep::Renew,
        },
        (None, None) => ElectionStep::Acquire,
        // Our own name without our own hold: an earlier process of this pod, which has ended.
        (None, Some(seen)) if seen.holder.is_empty() || seen.holder == me => ElectionStep::Acquire,
        (None, Some(seen)) => {
            match (seen.since + seen.duration.max(timing.lease)).checked_duration_since(now) {
                Some(left) if !left.is_zero() => ElectionStep::Wait(left.min(timing.retry)),
                _ => ElectionStep::Acquire,
            }
        }
    }
}

/// The right to act, until a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// Number of the term of office.
    pub term: i32,
    /// Writes are sent before this moment only.
    pub valid_until: Instant,
}

impl Leadership {
    fn is_valid(&self, now: Instant) -> bool {
        now < self.valid_until
    }

    /// That of a process without a lease.
    pub fn for_ever(now: Instant) -> Self {
        // A century: longer than any process, and far from the end of the clock.
        let century = Duration::from_hours(100 * 365 * 24);
        Self {
            term: 0,
            valid_until: now + century,
        }
    }
}

/// The process does not hold the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not the leader")]
pub struct NotLeading;

/// A view of the process's present leadership.
#[derive(Clone, Debug)]
pub struct Tenure(watch::Receiver<Option<Leadership>>);

impl Tenure {
    /// A view of what the sender publishes.
    pub fn new(receiver: watch::Receiver<Option<Leadership>>) -> Self {
        Self(receiver)
    }

    /// The leadership that is valid at this moment.
    pub fn check(&self, now: Instant) -> Result<Leadership, NotLeading> {
        self.0
            .borrow()
            .filter(|held| held.is_valid(now))
            .ok_or(NotLeading)
    }

    /// Waits until the process leads at this moment, through a pause of its leadership. Does not end
    /// once the lease task has ended: the process ends with that.
    pub async fn leading(&mut self, clock: &dyn Clock) {
        let valid = |held: &Option<Leadership>| held.is_some_and(|h| h.is_valid(clock.monotonic()));
        let over = self.0.wait_for(valid).await.is_err();
        if over {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the process leads. Ends with an error when the lease task has ended.
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
    fn a_lease_that_nobody_holds_is_taken_at_once() {
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
    fn the_holder_renews_after_the_retry_period_and_tries_on_past_its_deadline_for_a_while() {
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
        // It does not lead from 10 on.
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
    fn a_lease_that_was_deleted_under_its_holder_is_taken_no_earlier_than_one_that_was_not_renewed()
    {
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
