//! How many requests of one pass are in flight: as many as the API server bears.
//!
//! Additive increase, multiplicative decrease, as in TCP: answers that come in time make room for more
//! requests, a slow one halves it down to a quarter, a refusal down to one. A server that has too much to do gets less from us
//! within one answer, and all of it again within seconds.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// An answer that takes longer is that of a server that has too much to do. The objective of
/// Kubernetes for writes is a second at the 99th percentile; most take a few milliseconds.
const SLOW: Duration = Duration::from_secs(1);

/// What slowness alone leaves of the bound. Answers may be slow for a reason that fewer requests do not
/// cure, such as an admission webhook that takes its time.
const SLOW_LEAVES: f64 = 0.25;

/// How an answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// After this time.
    After(Duration),
    /// It was refused for want of capacity (429, 503, 504), or did not come at all.
    Overloaded,
}

/// The controller, without lock and clock.
#[derive(Clone, Debug)]
struct Window {
    /// Requests that may be in flight, at least 1.
    size: f64,
    /// Answers to what was sent before this moment belong to the overload that was answered already.
    since: Option<Instant>,
}

impl Window {
    fn new() -> Self {
        Self {
            size: f64::INFINITY,
            since: None,
        }
    }

    /// Takes note of the answer to a request that was sent at that time. `most`: requests that are in
    /// flight at most where nothing is slow.
    fn note(&mut self, most: f64, sent: Instant, now: Instant, answer: Answer) {
        self.size = self.size.clamp(1.0, most.max(1.0));
        match answer {
            Answer::After(time) if time <= SLOW => {
                self.size = (self.size + self.size.recip()).min(most.max(1.0));
            }
            Answer::After(_) => self.halve(most * SLOW_LEAVES, sent, now),
            Answer::Overloaded => self.halve(1.0, sent, now),
        }
    }

    /// Halves the window, to no less than `least`.
    fn halve(&mut self, least: f64, sent: Instant, now: Instant) {
        if self.since.is_none_or(|since| sent >= since) {
            self.size = (self.size / 2.0).max(least.max(1.0)).min(self.size);
            self.since = Some(now);
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 1 and the bound, which is a usize"
    )]
    fn allows(&self, most: usize) -> usize {
        let size = self.size.min(most as f64).max(1.0);
        (size as usize).clamp(1, most.max(1))
    }
}

/// The pace of a process's writes. Clones share it.
#[derive(Clone, Debug)]
pub struct Pace {
    window: Arc<Mutex<Window>>,
    most: usize,
}

impl Pace {
    /// At first, so many requests may be in flight; never more.
    pub fn new(most: usize) -> Self {
        Self {
            window: Arc::new(Mutex::new(Window::new())),
            most,
        }
    }

    /// Requests that may be in flight now, of those that somebody wants to have at most: at least
    /// one.
    pub(crate) fn allows(&self, most: usize) -> usize {
        self.window.lock().allows(most.min(self.most))
    }

    /// Takes note of an answer.
    pub(crate) fn note(&self, sent: Instant, now: Instant, answer: Answer) {
        self.window.lock().note(self.most as f64, sent, now, answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};
    use proptest::prelude::*;

    const MOST: usize = 32;
    const QUICK: Answer = Answer::After(Duration::from_millis(5));

    /// Answers one after the other, each sent after the one before was there.
    fn after(answers: impl IntoIterator<Item = Answer>) -> Vec<usize> {
        let pace = Pace::new(MOST);
        let mut now = SystemClock.monotonic();
        let note = |answer| {
            pace.note(now, now, answer);
            now += Duration::from_millis(1);
            pace.allows(MOST)
        };
        answers.into_iter().map(note).collect()
    }

    fn answer() -> impl Strategy<Value = Answer> {
        prop_oneof![
            (0_u64..5000).prop_map(|ms| Answer::After(Duration::from_millis(ms))),
            Just(Answer::Overloaded),
        ]
    }

    proptest! {
        #[test]
        fn it_stays_between_one_and_the_bound(answers in prop::collection::vec(answer(), 0..200)) {
            prop_assert!(after(answers).iter().all(|n| (1..=MOST).contains(n)));
        }

        #[test]
        fn an_answer_in_time_never_takes_away_and_overload_never_gives(
            answers in prop::collection::vec(answer(), 1..200),
        ) {
            let sizes = after(answers.clone());
            for (at, pair) in sizes.windows(2).enumerate() {
                match answers[at + 1] {
                    Answer::After(time) if time <= SLOW => prop_assert!(pair[1] >= pair[0]),
                    _ => prop_assert!(pair[1] <= pair[0]),
                }
            }
        }

        #[test]
        fn whatever_was_before_enough_answers_in_time_give_all_of_it_back(
            answers in prop::collection::vec(answer(), 0..200),
        ) {
            let quick = std::iter::repeat_n(QUICK, MOST * MOST);
            prop_assert_eq!(after(answers.into_iter().chain(quick)).pop(), Some(MOST));
        }

        #[test]
        fn overload_without_end_leaves_one_request_at_a_time(before in 0_usize..2000) {
            let quick = std::iter::repeat_n(QUICK, before);
            let sizes = after(quick.chain(std::iter::repeat_n(Answer::Overloaded, 6)));
            prop_assert_eq!(sizes.last(), Some(&1));
        }
    }

    #[test]
    fn an_admission_webhook_that_takes_its_time_leaves_a_quarter() {
        let slow = std::iter::repeat_n(Answer::After(Duration::from_millis(1200)), 200);
        assert_eq!(after(slow.clone()).last(), Some(&(MOST / 4)));
        let refused = std::iter::repeat_n(Answer::Overloaded, 3);
        assert_eq!(after(refused.chain(slow)).last(), Some(&(MOST / 8)));
    }

    #[test]
    fn a_burst_that_was_sent_together_counts_as_one_overload() {
        let pace = Pace::new(MOST);
        let sent = SystemClock.monotonic();
        let mut now = sent;
        for _ in 0..MOST {
            now += Duration::from_millis(1);
            pace.note(sent, now, Answer::Overloaded);
        }
        assert_eq!(pace.allows(MOST), MOST / 2);
        pace.note(now, now, Answer::Overloaded);
        assert_eq!(pace.allows(MOST), MOST / 4);
    }

    #[test]
    fn who_wants_less_gets_no_more() {
        assert_eq!(Pace::new(MOST).allows(4), 4);
        assert_eq!(Pace::new(4).allows(MOST), 4);
        assert_eq!(Pace::new(MOST).allows(0), 1);
    }
}
