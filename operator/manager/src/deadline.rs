use std::time::Duration;

use thiserror::Error;
use tokio::time::Instant;

/// No response before the deadline. The effect of the request is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("no answer within {0:?}")]
pub struct DeadlineExceeded(pub Duration);

pub async fn in_time<F: Future>(
    deadline: Duration,
    request: F,
) -> Result<F::Output, DeadlineExceeded> {
    tokio::time::timeout(deadline, request)
        .await
        .map_err(|_| DeadlineExceeded(deadline))
}

/// Never returns if `at` is `None`.
pub async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Pause after a no-op decision that took `took`: nine times as long, so decisions use a tenth of
/// the time. `at_most` bounds the delay of new events.
pub fn rest_after(took: Duration, at_most: Duration) -> Duration {
    took.saturating_mul(9).min(at_most)
}
