//! The configurable limit of evictions per minute.
//!
//! Victims of one preemption are evicted together, because some of them alone can free no usable
//! capacity. If they alone exceed the limit, they are evicted after one minute without evictions.
//! No preemption overtakes another that waits for the limit, so small preemptions cannot block a
//! large one forever.

use std::collections::HashMap;
use std::num::NonZeroU32;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::scheduling::Preemption;

const PERIOD: TimeDelta = TimeDelta::minutes(1);

/// Evictions of the last minute. Evictions of preemptions in progress are also in the preemptor's
/// status, for the next leader.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evictions(HashMap<String, Evicted>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Evicted {
    at: DateTime<Utc>,
    pods: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitReached {
    pub limit: NonZeroU32,
    pub pods: u32,
    /// Earliest time of their eviction.
    pub next_try: DateTime<Utc>,
}

impl Evictions {
    /// Records an eviction by UID of the victim. Repeated requests count once.
    pub fn note(&mut self, uid: &str, pods: i32, at: DateTime<Utc>) {
        let pods = u32::try_from(pods).unwrap_or(0);
        self.0.entry(uid.to_owned()).or_insert(Evicted { at, pods });
    }

    /// Records the evictions of these intents, and drops evictions older than a minute.
    pub fn read<'i>(&mut self, intents: impl Iterator<Item = &'i Preemption>, now: DateTime<Utc>) {
        for victim in intents.flat_map(|intent| &intent.victims) {
            if let Some(at) = victim.eviction_requested_at {
                self.note(&victim.uid, victim.pods, at);
            }
        }
        // A time in the future comes from another clock: the eviction has happened.
        self.0.retain(|_, evicted| {
            evicted.at = evicted.at.min(now);
            now < evicted.at + PERIOD
        });
    }

    /// A copy that also counts pending evictions of decided victims, as if done now.
    pub fn with_decided<'i>(
        &self,
        intents: impl Iterator<Item = &'i Preemption>,
        now: DateTime<Utc>,
    ) -> Self {
        let mut all = self.clone();
        for victim in intents.flat_map(|intent| &intent.victims) {
            let at = victim.eviction_requested_at.unwrap_or(now).min(now);
            all.note(&victim.uid, victim.pods, at);
        }
        all.0.retain(|_, evicted| now < evicted.at + PERIOD);
        all
    }

    /// Whether this number of further pods can be evicted now.
    pub fn allow(
        &self,
        pods: u32,
        limit: Option<NonZeroU32>,
        now: DateTime<Utc>,
    ) -> Result<(), LimitReached> {
        let Some(limit) = limit else { return Ok(()) };
        let mut counted: Vec<Evicted> = self.0.values().copied().collect();
        counted.sort_unstable_by_key(|evicted| evicted.at);
        let mut left: u64 = counted.iter().map(|e| u64::from(e.pods)).sum();
        let mut next_try = now;
        for evicted in counted {
            if left == 0 || left + u64::from(pods) <= u64::from(limit.get()) {
                break;
            }
            left -= u64::from(evicted.pods);
            next_try = evicted.at + PERIOD;
        }
        if next_try <= now {
            return Ok(());
        }
        Err(LimitReached {
            limit,
            pods,
            next_try,
        })
    }
}

pub(crate) fn pods_of(intent: &Preemption) -> u32 {
    let pods = intent.victims.iter().map(|v| u32::try_from(v.pods));
    pods.map(|pods| pods.unwrap_or(0))
        .fold(0, u32::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_000_000 + second, 0).unwrap()
    }

    /// Second at which `pods` more can be evicted, after these (pods, second). `None`: at once.
    fn next(evicted: &[(i32, i64)], pods: u32, limit: u32, now: i64) -> Option<i64> {
        let mut evictions = Evictions::default();
        for (uid, (pods, second)) in evicted.iter().enumerate() {
            evictions.note(&uid.to_string(), *pods, at(*second));
        }
        let allowed = evictions.allow(pods, NonZeroU32::new(limit), at(now));
        let reached = allowed.err()?;
        assert_eq!((reached.limit.get(), reached.pods), (limit, pods));
        Some((reached.next_try - at(0)).num_seconds())
    }

    #[test]
    fn no_more_pods_are_evicted_than_the_limit_within_any_minute() {
        let evicted = [(2, 0), (3, 10), (1, 20)];
        assert_eq!(next(&evicted, 1, 7, 30), None);
        assert_eq!(next(&evicted, 1, 6, 30), Some(60));
        assert_eq!(next(&evicted, 3, 6, 30), Some(70));
        assert_eq!(next(&evicted, 6, 6, 30), Some(80));
        assert_eq!(next(&evicted, 6, 0, 30), None, "there is no limit");
    }

    #[test]
    fn a_preemption_larger_than_the_limit_comes_alone() {
        assert_eq!(next(&[], 100, 6, 30), None);
        assert_eq!(next(&[(1, 0), (1, 25)], 100, 6, 30), Some(85));
    }

    #[test]
    fn an_eviction_that_is_requested_again_counts_once_and_after_a_minute_no_more() {
        let mut evictions = Evictions::default();
        evictions.note("a", 5, at(0));
        evictions.note("a", 5, at(30));
        let limit = NonZeroU32::new(5);
        let next_try = |e: &Evictions| e.allow(1, limit, at(40)).err().map(|r| r.next_try);
        assert_eq!(next_try(&evictions), Some(at(60)));
        evictions.read(std::iter::empty(), at(60));
        assert_eq!(next_try(&evictions), None);
    }

    #[test]
    fn an_eviction_that_another_clock_says_is_to_come_counts() {
        let victim = |uid: &str, second| lockstep_api::scheduling::Victim {
            uid: uid.into(),
            pods: 5,
            eviction_requested_at: Some(at(second)),
            ..lockstep_api::scheduling::Victim::default()
        };
        let intent = Preemption {
            victims: vec![victim("a", 30)],
            ..Preemption::default()
        };
        let mut evictions = Evictions::default();
        evictions.read([&intent].into_iter(), at(20));
        let reached = evictions.allow(1, NonZeroU32::new(5), at(20)).unwrap_err();
        assert_eq!(reached.next_try, at(80));
    }
}
