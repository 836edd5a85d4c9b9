//! Deadlines of requests, and waits.

use std::time::Duration;

use thiserror::Error;
use tokio::time::Instant;

/// A request got no answer in time. Whether it had an effect is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no answer within {0:?}")]
pub struct DeadlineExceeded(pub Duration);

/// The answer, if it comes within the deadline.
pub async fn in_time<F: Future>(
    deadline: Duration,
    request: F,
) -> Result<F::Output, DeadlineExceeded> {
    tokio::time::timeout(deadline, request)
        .await
        .map_err(|_| DeadlineExceeded(deadline))
}

/// Waits until a moment, if there is one, and for ever otherwise.
pub async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// For how long what took so long to decide, and came to nothing, need not be decided again: it takes a
/// tenth of the time then, unless news would have to wait for longer than they may.
pub fn rest_after(took: Duration, at_most: Duration) -> Duration {
    took.saturating_mul(9).min(at_most)
}
