//! Waits for a condition, with a deadline and with a reason in the error.

#![expect(
    clippy::disallowed_methods,
    reason = "the harness waits in the time of the machine"
)]

use std::time::Duration;

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use tokio::time::Instant;

/// Time between two probes.
const POLL: Duration = Duration::from_millis(50);

/// Current time, as users write it into timestamps of objects.
pub fn time_of_day() -> DateTime<Utc> {
    Utc::now()
}

/// Calls `probe` until it succeeds. Its errors describe what is missing. After the deadline, the
/// last error is part of the result.
pub async fn eventually<T>(
    what: &str,
    within: Duration,
    mut probe: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let deadline = Instant::now() + within;
    let mut before = None;
    loop {
        match tokio::time::timeout_at(deadline.max(Instant::now() + POLL), probe()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(missing)) if Instant::now() >= deadline => {
                return Err(missing).with_context(|| format!("waited {within:?} for {what}"));
            }
            Ok(Err(missing)) => {
                before = Some(missing);
                tokio::time::sleep(POLL).await;
            }
            // A slow probe that was cancelled at the deadline: the previous error is more useful.
            Err(_) => {
                let missing = before.unwrap_or_else(|| anyhow::anyhow!("no answer"));
                return Err(missing).with_context(|| format!("waited {within:?} for {what}"));
            }
        }
    }
}
