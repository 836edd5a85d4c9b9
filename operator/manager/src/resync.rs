//! Periodic resync of all workloads and the scheduler, as a repair.
//!
//! Changes wake whatever they affect. If a bug in the index misses a change, the resync finds its
//! effect. Decisions are level-triggered and writes are differences, so a pass without differences
//! writes nothing.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Random;
use crate::index::Index;

/// Wakes every workload and the scheduler once per period, spread over its last quarter. A period
/// of zero disables the resync.
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
