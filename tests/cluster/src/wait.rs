//! Waiting for a condition, with a deadline and a reason when it is missed.

#![expect(
    clippy::disallowed_methods,
    reason = "the harness waits in the time of the machine"
)]

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::time::Instant;

/// Time between two looks.
const POLL: Duration = Duration::from_millis(50);

/// Calls `probe` until it succeeds. Its errors say what is still missing; the last one is part of
/// the error when the deadline is missed.
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
            // A slow look that is given up at the deadline: the one before it says more.
            Err(_) => {
                let missing = before.unwrap_or_else(|| anyhow::anyhow!("no answer"));
                return Err(missing).with_context(|| format!("waited {within:?} for {what}"));
            }
        }
    }
}
