//! Adapts the number of requests in flight to what the API server sustains.
//!
//! This is a scalable congestion control, like DCTCP and TCP Prague (RFC 9332, section 2.1). A
//! response in time adds `1 / size` to the window. An overload response removes half a request,
//! down to a window of one. A slow response does the same, down to a quarter of the bound.
//!
//! So a refused window halves. A server that refuses one request in ten still gets windows of about
//! 18 requests; halving at each refusal would leave three or four.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

/// Slower responses indicate overload. Kubernetes' objective for writes is 1 s at the 99th
/// percentile; most take a few milliseconds.
const SLOW: Duration = Duration::from_secs(1);

/// Fraction of the bound that slow responses leave. Fewer requests do not cure causes such as a
/// slow webhook.
const SLOW_LEAVES: f64 = 0.25;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    After(Duration),
    /// Refused for lack of capacity (429, 503, 504), or no response.
    Overloaded,
}

/// Requests removed by each slow or refused response.
const TAKEN: f64 = 0.5;

#[derive(Clone, Debug)]
struct Window {
    size: f64,
}

impl Window {
    /// `most`: upper bound of the window.
    fn note(&mut self, most: f64, outcome: Outcome) {
        match outcome {
            Outcome::After(time) if time <= SLOW => {
                self.size = (self.size + self.size.recip()).min(most);
            }
            Outcome::After(_) => self.shrink(most * SLOW_LEAVES),
            Outcome::Overloaded => self.shrink(1.0),
        }
    }

    fn shrink(&mut self, least: f64) {
        self.size = (self.size - TAKEN).max(least.max(1.0)).min(self.size);
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

#[derive(Clone, Debug)]
pub struct Pace {
    window: Arc<Mutex<Window>>,
    most: usize,
}

impl Pace {
    /// Starts with a window of `most`, which is also its upper bound.
    pub fn new(most: usize) -> Self {
        Self {
            window: Arc::new(Mutex::new(Window {
                size: most.max(1) as f64,
            })),
            most,
        }
    }

    /// How many of `most` requests may be in flight now, at least one.
    pub(crate) fn allows(&self, most: usize) -> usize {
        self.window.lock().allows(most.min(self.most))
    }

    pub(crate) fn note(&self, outcome: Outcome) {
        self.window.lock().note(self.most.max(1) as f64, outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOST: usize = 32;
    const QUICK: Outcome = Outcome::After(Duration::from_millis(5));

    /// Allowed requests after each answer.
    fn after(answers: impl IntoIterator<Item = Outcome>) -> Vec<usize> {
        let pace = Pace::new(MOST);
        let note = |outcome| {
            pace.note(outcome);
            pace.allows(MOST)
        };
        answers.into_iter().map(note).collect()
    }

    fn outcome() -> impl Strategy<Value = Outcome> {
        prop_oneof![
            (0_u64..5000).prop_map(|ms| Outcome::After(Duration::from_millis(ms))),
            Just(Outcome::Overloaded),
        ]
    }

    proptest! {
        #[test]
        fn it_stays_between_one_and_the_bound(answers in prop::collection::vec(outcome(), 0..200)) {
            prop_assert!(after(answers).iter().all(|n| (1..=MOST).contains(n)));
        }

        #[test]
        fn an_answer_in_time_never_takes_away_and_overload_never_gives(
            answers in prop::collection::vec(outcome(), 1..200),
        ) {
            let sizes = after(answers.clone());
            for (at, pair) in sizes.windows(2).enumerate() {
                match answers[at + 1] {
                    Outcome::After(time) if time <= SLOW => prop_assert!(pair[1] >= pair[0]),
                    _ => prop_assert!(pair[1] <= pair[0]),
                }
            }
        }

        #[test]
        fn enough_timely_answers_restore_full_concurrency_after_any_history(
            answers in prop::collection::vec(outcome(), 0..200),
        ) {
            let quick = std::iter::repeat_n(QUICK, MOST * MOST);
            prop_assert_eq!(after(answers.into_iter().chain(quick)).pop(), Some(MOST));
        }

        #[test]
        fn overload_without_end_leaves_one_request_at_a_time(before in 0_usize..2000) {
            let quick = std::iter::repeat_n(QUICK, before);
            let sizes = after(quick.chain(std::iter::repeat_n(Outcome::Overloaded, 2 * MOST)));
            prop_assert_eq!(sizes.last(), Some(&1));
        }
    }

    #[test]
    fn an_admission_webhook_that_takes_its_time_leaves_a_quarter() {
        let slow = std::iter::repeat_n(Outcome::After(Duration::from_millis(1200)), 200);
        assert_eq!(after(slow.clone()).last(), Some(&(MOST / 4)));
        let refused = std::iter::repeat_n(Outcome::Overloaded, 2 * MOST);
        assert_eq!(after(refused.chain(slow)).last(), Some(&1));
    }

    #[test]
    fn a_window_that_is_refused_as_a_whole_is_halved() {
        let refused = after(std::iter::repeat_n(Outcome::Overloaded, MOST + MOST / 2));
        assert_eq!(refused[MOST - 1], MOST / 2);
        assert_eq!(refused.last(), Some(&(MOST / 4)));
    }

    #[test]
    fn a_server_that_refuses_one_in_ten_requests_still_gets_concurrent_requests() {
        let one_in_ten = (1..=5000).map(|n| match n % 10 {
            0 => Outcome::Overloaded,
            _ => QUICK,
        });
        let settled = after(one_in_ten).split_off(4000);
        assert!(settled.iter().all(|n| (16..=18).contains(n)), "{settled:?}");
    }

    #[test]
    fn concurrency_never_exceeds_the_number_of_requests() {
        assert_eq!(Pace::new(MOST).allows(4), 4);
        assert_eq!(Pace::new(4).allows(MOST), 4);
        assert_eq!(Pace::new(MOST).allows(0), 1);
    }
}
