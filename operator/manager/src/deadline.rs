//! Deadlines of requests.

use std::time::Duration;

use thiserror::Error;

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
