//! The queue of keys that need a pass (ADR 0015).
//!
//! A key is queued at most once, and at most one worker processes it. A key added during its pass
//! is queued again afterwards. Each consecutive failure lengthens the back-off of a key, with
//! jitter, and delays no other key.
//!
//! A key whose last pass did not finish its requests is deferred: other keys come first, as in the
//! priority queue of controller-runtime. An urgent change of its object ends that.

mod metrics;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock::{Clock, Random};
use crate::deadline::sleep_until;

pub use metrics::{InHand, QueueMetrics};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBackoff {
    pub first: Duration,
    pub max: Duration,
}

impl RetryBackoff {
    /// Doubles from `first`.
    pub fn wait(&self, failures: u32) -> Duration {
        self.first
            .saturating_mul(
                1_u32
                    .checked_shl(failures.saturating_sub(1))
                    .unwrap_or(u32::MAX),
            )
            .min(self.max)
    }
}

#[derive(Clone)]
pub struct Queue<K> {
    inner: Arc<Mutex<Inner<K>>>,
    wake: Arc<Notify>,
    backoff: RetryBackoff,
    random: Random,
    clock: Arc<dyn Clock>,
    metrics: QueueMetrics,
}

struct Inner<K> {
    ready: VecDeque<K>,
    /// Deferred keys that are due.
    later: VecDeque<K>,
    deferred: HashSet<K>,
    /// Keys added by an urgent change.
    urgent: HashSet<K>,
    added: HashMap<K, Instant>,
    /// Keys that are not due yet, ordered by due time.
    delayed: BTreeSet<(Instant, K)>,
    due: HashMap<K, Instant>,
    working: HashMap<K, Instant>,
    /// Keys added during their pass.
    again: HashSet<K>,
    /// Consecutive failures.
    failures: HashMap<K, u32>,
    /// Keys with a pause after a pass: not due before this time, even if added.
    resting: HashMap<K, Instant>,
}

impl<K: Clone + Ord + Hash> Queue<K> {
    pub fn new(
        backoff: RetryBackoff,
        random: Random,
        clock: Arc<dyn Clock>,
        metrics: QueueMetrics,
    ) -> Self {
        let inner = Inner {
            ready: VecDeque::new(),
            later: VecDeque::new(),
            deferred: HashSet::new(),
            urgent: HashSet::new(),
            added: HashMap::new(),
            delayed: BTreeSet::new(),
            due: HashMap::new(),
            working: HashMap::new(),
            again: HashSet::new(),
            failures: HashMap::new(),
            resting: HashMap::new(),
        };
        Self {
            inner: Arc::new(Mutex::new(inner)),
            wake: Arc::new(Notify::new()),
            backoff,
            random,
            clock,
            metrics,
        }
    }

    pub fn add(&self, key: K) {
        let now = self.clock.monotonic();
        self.inner.lock().push(key, now, &self.metrics);
        self.wake.notify_one();
    }

    /// Adds a key that is not deferred.
    pub fn add_urgent(&self, key: K) {
        let now = self.clock.monotonic();
        self.inner.lock().push_urgent(key, now, &self.metrics);
        self.wake.notify_one();
    }

    /// Defers a key during its pass: until its next pass begins, other keys come first.
    pub fn defer(&self, key: K) {
        self.inner.lock().deferred.insert(key);
    }

    /// True if a key that is not deferred waits for a pass.
    pub fn has_ready(&self) -> bool {
        !self.inner.lock().ready.is_empty()
    }

    /// Keeps an earlier due time.
    pub fn add_after(&self, key: K, wait: Duration) {
        let at = self.clock.monotonic() + wait;
        self.inner.lock().delay(key, at);
        self.wake.notify_one();
    }

    /// Waits for the next key. Its pass ends with [`Queue::done`].
    pub async fn next(&self) -> K {
        loop {
            if let Some(key) = self.try_next() {
                return key;
            }
            let next_due = self.next_due();
            tokio::select! {
                biased;
                () = self.wake.notified() => {}
                () = sleep_until(next_due) => {}
            }
        }
    }

    /// The next key, if one is due. Its pass ends with [`Queue::done`].
    pub fn try_next(&self) -> Option<K> {
        let mut inner = self.inner.lock();
        let now = self.clock.monotonic();
        inner.mature(now, &self.metrics);
        inner.pop(now, &self.metrics)
    }

    /// Next time at which a delayed key becomes due.
    pub fn next_due(&self) -> Option<Instant> {
        self.inner.lock().delayed.first().map(|(at, _)| *at)
    }

    fn in_hand(&self) -> Vec<Duration> {
        let now = self.clock.monotonic();
        let inner = self.inner.lock();
        inner.working.values().map(|since| now - *since).collect()
    }

    /// With jitter.
    pub fn backoff(&self, failures: u32) -> Duration {
        self.random.jittered(self.backoff.wait(failures))
    }

    /// Ends a pass. `Err` retries it after its back-off, or after the given time if longer
    /// (Retry-After). The key is not due before `rest` is over, even if added.
    pub fn done(&self, key: &K, outcome: Result<(), Duration>, rest: Duration) {
        let now = self.clock.monotonic();
        let wait = {
            let mut inner = self.inner.lock();
            if let Some(started) = inner.working.remove(key) {
                self.metrics.worked(now - started);
            }
            inner.resting.retain(|_, until| *until > now);
            if !rest.is_zero() {
                inner.resting.insert(key.clone(), now + rest);
            }
            if inner.again.remove(key) {
                inner.push(key.clone(), now, &self.metrics);
            }
            match outcome {
                Ok(()) => {
                    inner.failures.remove(key);
                    None
                }
                Err(least) => {
                    let failures = inner.failures.entry(key.clone()).or_default();
                    *failures = failures.saturating_add(1);
                    Some(self.backoff(*failures).max(least))
                }
            }
        };
        self.wake.notify_one();
        if let Some(wait) = wait {
            self.metrics.retried();
            self.add_after(key.clone(), wait);
        }
    }
}

impl<K: Clone + Ord + Hash> Inner<K> {
    fn push(&mut self, key: K, now: Instant, metrics: &QueueMetrics) {
        if self.working.contains_key(&key) {
            self.again.insert(key);
            return;
        }
        if self.added.contains_key(&key) {
            return;
        }
        if let Some(&until) = self.resting.get(&key).filter(|until| **until > now) {
            self.delay(key, until);
            return;
        }
        self.undelay(&key);
        self.added.insert(key.clone(), now);
        if self.deferred.contains(&key) && !self.urgent.contains(&key) {
            self.later.push_back(key);
        } else {
            self.ready.push_back(key);
        }
        metrics.added(self.depth());
    }

    fn push_urgent(&mut self, key: K, now: Instant, metrics: &QueueMetrics) {
        self.urgent.insert(key.clone());
        if let Some(at) = self.later.iter().position(|k| *k == key) {
            self.later.remove(at);
            self.ready.push_back(key);
        } else {
            self.push(key, now, metrics);
        }
    }

    fn depth(&self) -> usize {
        self.ready.len() + self.later.len()
    }

    fn pop(&mut self, now: Instant, metrics: &QueueMetrics) -> Option<K> {
        let key = self.ready.pop_front().or_else(|| self.later.pop_front())?;
        self.deferred.remove(&key);
        self.urgent.remove(&key);
        if let Some(added) = self.added.remove(&key) {
            metrics.taken(now - added, self.depth());
        }
        self.working.insert(key.clone(), now);
        Some(key)
    }

    /// Keeps an earlier due time.
    fn delay(&mut self, key: K, at: Instant) {
        if self.due.get(&key).is_some_and(|due| *due <= at) {
            return;
        }
        self.undelay(&key);
        self.due.insert(key.clone(), at);
        self.delayed.insert((at, key));
    }

    fn undelay(&mut self, key: &K) {
        if let Some(at) = self.due.remove(key) {
            self.delayed.remove(&(at, key.clone()));
        }
    }

    fn mature(&mut self, now: Instant, metrics: &QueueMetrics) {
        while let Some((at, key)) = self.delayed.first().cloned() {
            if at > now {
                break;
            }
            self.undelay(&key);
            self.push(key, now, metrics);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    fn queue() -> Queue<&'static str> {
        let backoff = RetryBackoff {
            first: Duration::from_secs(1),
            max: Duration::from_mins(1),
        };
        Queue::new(
            backoff,
            Random::seeded(1),
            Arc::new(SystemClock),
            QueueMetrics::default(),
        )
    }

    async fn nothing_within(queue: &Queue<&'static str>, secs: u64) -> bool {
        tokio::time::timeout(Duration::from_secs(secs), queue.next())
            .await
            .is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_added_twice_comes_once() {
        let q = queue();
        q.add("a");
        q.add("b");
        q.add("a");
        assert_eq!((q.next().await, q.next().await), ("a", "b"));
        q.done(&"a", Ok(()), Duration::ZERO);
        q.done(&"b", Ok(()), Duration::ZERO);
        assert!(nothing_within(&q, 100).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_added_while_worked_on_comes_again_only_afterwards() {
        let q = queue();
        q.add("a");
        assert_eq!(q.next().await, "a");
        q.add("a");
        assert!(nothing_within(&q, 100).await);
        q.done(&"a", Ok(()), Duration::ZERO);
        assert_eq!(q.next().await, "a");
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_rests_comes_once_when_it_has_rested_whatever_makes_it_due() {
        let q = queue();
        let rest = Duration::from_secs(10);
        let start = SystemClock.monotonic();
        q.add("a");
        assert_eq!(q.next().await, "a");
        q.add("a");
        q.done(&"a", Ok(()), rest);
        q.add("a");
        q.add_after("a", Duration::from_secs(3));
        q.add("b");
        assert_eq!(q.next().await, "b", "others do not wait for it");
        assert_eq!(q.next().await, "a");
        assert_eq!(SystemClock.monotonic() - start, rest);
        q.done(&"a", Ok(()), rest);
        q.add_after("a", Duration::from_secs(30));
        assert!(nothing_within(&q, 29).await);
        assert_eq!(
            q.next().await,
            "a",
            "what comes after the rest is not moved"
        );
        q.done(&"a", Ok(()), Duration::ZERO);
        q.add("a");
        assert_eq!(q.next().await, "a", "no rest is asked for");
    }

    #[tokio::test(start_paused = true)]
    async fn a_deferred_key_comes_after_all_other_keys() {
        let q = queue();
        q.add("a");
        assert_eq!(q.next().await, "a");
        q.add("a");
        q.defer("a");
        q.done(&"a", Ok(()), Duration::ZERO);
        q.add("b");
        q.add("a");
        assert!(q.has_ready());
        assert_eq!((q.next().await, q.has_ready()), ("b", false));
        assert_eq!(q.next().await, "a");
        q.done(&"a", Ok(()), Duration::ZERO);
        q.add("a");
        q.add("c");
        assert_eq!(q.next().await, "a", "it is deferred once");
    }

    #[tokio::test(start_paused = true)]
    async fn an_urgent_change_ends_the_deferral_of_a_key() {
        for during in [true, false] {
            let q = queue();
            q.add("a");
            assert_eq!(q.next().await, "a");
            q.add("a");
            if during {
                q.add_urgent("a");
            }
            q.defer("a");
            q.done(&"a", Ok(()), Duration::ZERO);
            if !during {
                q.add_urgent("a");
            }
            q.add("b");
            assert_eq!((q.next().await, q.next().await), ("a", "b"));
            assert!(nothing_within(&q, 100).await);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_earlier_of_two_delays_holds_and_an_add_overtakes_both() {
        let q = queue();
        q.add_after("a", Duration::from_secs(50));
        q.add_after("a", Duration::from_secs(10));
        q.add_after("a", Duration::from_secs(30));
        let start = SystemClock.monotonic();
        assert_eq!(q.next().await, "a");
        assert_eq!((SystemClock.monotonic() - start).as_secs(), 10);
        q.done(&"a", Ok(()), Duration::ZERO);
        q.add_after("a", Duration::from_secs(50));
        q.add("a");
        assert_eq!(q.next().await, "a");
        q.done(&"a", Ok(()), Duration::ZERO);
        assert!(nothing_within(&q, 100).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_key_waits_longer_each_time_and_a_success_forgets_it() {
        let q = queue();
        let mut waits = Vec::new();
        q.add("a");
        for _ in 0..8 {
            let start = SystemClock.monotonic();
            assert_eq!(q.next().await, "a");
            waits.push((SystemClock.monotonic() - start).as_secs_f64());
            q.done(&"a", Err(Duration::ZERO), Duration::ZERO);
        }
        assert!(waits[1] >= 0.75 && waits[1] <= 1.01, "{waits:?}");
        assert!(waits[5] >= 12.0 && waits[5] <= 16.01, "{waits:?}");
        assert!(waits[7] >= 45.0 && waits[7] <= 60.01, "{waits:?}");
        assert_eq!(q.next().await, "a");
        q.done(&"a", Ok(()), Duration::ZERO);
        q.add("a");
        q.next().await;
        q.done(&"a", Err(Duration::ZERO), Duration::ZERO);
        let start = SystemClock.monotonic();
        q.next().await;
        assert!((SystemClock.monotonic() - start) <= Duration::from_millis(1001));
        q.done(&"a", Err(Duration::from_secs(30)), Duration::ZERO);
        let start = SystemClock.monotonic();
        q.next().await;
        assert_eq!(
            (SystemClock.monotonic() - start).as_secs(),
            30,
            "the server asked for more than the back-off"
        );
    }
}
