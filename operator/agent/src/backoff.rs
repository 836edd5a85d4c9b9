//! Back-off of an agent after failed requests to the API server.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use http::Request;
use kube::Client;
use kube::client::Body;
use lockstep_common::api_server::ComeBack;
use tower::{BoxError, service_fn};

const FIRST: Duration = Duration::from_millis(100);
/// Longest wait for an unreachable server.
const LONGEST: Duration = Duration::from_secs(5);
/// Longest wait for an overloaded server. Retries of thousands of agents must not keep it
/// overloaded.
const LONGEST_FOR_BUSY: Duration = Duration::from_secs(30);
/// Longest accepted Retry-After. A proxy that requests an hour would silence a ready node.
const LONGEST_RETRY_AFTER: Duration = Duration::from_mins(1);

/// Wraps a client so that it fails with [`ComeBack`] if a response has a Retry-After header, which
/// kube drops.
pub(crate) fn with_retry_after(client: Client) -> Client {
    let namespace = client.default_namespace().to_owned();
    let send = service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            let response = client.send(request).await?;
            match ComeBack::read(&response) {
                Some(come_back) => Err(BoxError::from(come_back)),
                None => Ok(response),
            }
        }
    });
    Client::new(send, namespace)
}

/// Exponential back-off. Jitter per node spreads the retries of nodes that failed together.
pub(crate) struct Backoff {
    random: fastrand::Rng,
    wait: Duration,
}

impl Backoff {
    /// The node's name seeds the jitter.
    pub(crate) fn of(node: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        node.hash(&mut hasher);
        Self {
            random: fastrand::Rng::with_seed(hasher.finish()),
            wait: FIRST,
        }
    }

    pub(crate) fn reset(&mut self) {
        self.wait = FIRST;
    }

    /// The wait after one more failure: 50 % to 100 % of the current wait, plus `retry_after` from
    /// the server. The limit is lower unless the server is `busy`. If `retry_after` exceeds a
    /// minute, 30 s to 60 s replace it.
    pub(crate) fn next(&mut self, retry_after: Duration, busy: bool) -> Duration {
        let longest = if busy { LONGEST_FOR_BUSY } else { LONGEST };
        let whole = self.wait.min(longest);
        // The waits of an outage must not exceed their limit when the server returns and is busy.
        self.wait = (self.wait * 2).min(longest);
        let share = 0.5 + self.random.f64() / 2.0;
        let retry_after = if retry_after > LONGEST_RETRY_AFTER {
            LONGEST_RETRY_AFTER.mul_f64(share)
        } else {
            retry_after
        };
        retry_after + whole.mul_f64(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(node: &str, asked: Duration, busy: bool) -> Vec<Duration> {
        let mut backoff = Backoff::of(node);
        (0..12).map(|_| backoff.next(asked, busy)).collect()
    }

    #[test]
    fn waits_double_up_to_half_a_minute_and_differ_by_node() {
        for (busy, longest) in [(true, LONGEST_FOR_BUSY), (false, LONGEST)] {
            let all = waits("n1", Duration::ZERO, busy);
            for (i, wait) in all.iter().enumerate() {
                let whole = (FIRST * 2_u32.pow(i as u32)).min(longest);
                assert!(whole / 2 <= *wait && *wait <= whole, "{all:?}");
            }
            assert_eq!(all, waits("n1", Duration::ZERO, busy));
            assert_ne!(all, waits("n2", Duration::ZERO, busy));
        }
    }

    #[test]
    fn the_waits_of_an_outage_do_not_grow_the_first_wait_for_a_busy_server() {
        let mut backoff = Backoff::of("n1");
        for _ in 0..20 {
            backoff.next(Duration::ZERO, false);
        }
        assert!(backoff.next(Duration::ZERO, true) <= LONGEST);
        assert!(backoff.next(Duration::ZERO, true) <= LONGEST * 2);
    }

    #[test]
    fn retry_after_is_respected_up_to_a_minute_and_success_resets_the_back_off() {
        for (asks, at_least, at_most) in [(7, 7, 37), (3600, 30, 90)] {
            let waits = waits("n1", Duration::from_secs(asks), true);
            let range = Duration::from_secs(at_least)..=Duration::from_secs(at_most);
            assert!(waits.iter().all(|wait| range.contains(wait)), "{waits:?}");
        }
        let mut backoff = Backoff::of("n1");
        for _ in 0..9 {
            backoff.next(Duration::ZERO, true);
        }
        backoff.reset();
        assert!(backoff.next(Duration::ZERO, true) <= FIRST);
    }
}
