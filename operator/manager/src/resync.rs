//! Periodic resync of all workloads and the scheduler, which repairs missed changes. A pass without
//! differences writes nothing.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Random;
use crate::index::Index;

/// Spread over the last quarter of each period. A period of zero disables the resync.
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
