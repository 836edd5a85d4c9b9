//! The slow periodic pass over everything, as a repair.
//!
//! Changes wake what they concern; should such a wake-up ever be lost, by a mistake in what the
//! index takes for a change, its effect is found here. Decisions are level-triggered and writes are
//! differences, so that a pass over what is as it should be writes nothing.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Random;
use crate::index::Index;

/// Wakes every workload and the scheduler once in each period, spread over its last quarter. Zero:
/// never.
pub async fn resync(index: Arc<Index>, random: Random, period: Duration) {
    if period.is_zero() {
        return std::future::pending().await;
    }
    loop {
        index.resync_workloads(&random, period);
        tokio::time::sleep(random.jittered(period)).await;
        index.wake_scheduler();
    }
}
