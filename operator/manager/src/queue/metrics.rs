//! Metrics of the queue.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::metrics::seconds;

/// The work queue.
#[derive(Clone, Debug)]
pub struct QueueMetrics {
    depth: Gauge,
    adds: Counter,
    retries: Counter,
    waited: Histogram,
    worked: Histogram,
}

impl Default for QueueMetrics {
    fn default() -> Self {
        Self {
            depth: Gauge::default(),
            adds: Counter::default(),
            retries: Counter::default(),
            waited: seconds(),
            worked: seconds(),
        }
    }
}

impl QueueMetrics {
    /// A key came in.
    pub fn added(&self, depth: usize) {
        self.adds.inc();
        self.depth.set(depth as i64);
    }

    /// A key went to a worker after this time.
    pub fn taken(&self, waited: Duration, depth: usize) {
        self.waited.observe(waited.as_secs_f64());
        self.depth.set(depth as i64);
    }

    /// A worker had a key for this time.
    pub fn worked(&self, time: Duration) {
        self.worked.observe(time.as_secs_f64());
    }

    /// A key waits for another attempt.
    pub fn retried(&self) {
        self.retries.inc();
    }

    /// Metrics that are shown in the registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register("workqueue_depth", "Keys waiting", metrics.depth.clone());
        registry.register("workqueue_adds", "Keys added", metrics.adds.clone());
        registry.register(
            "workqueue_retries",
            "Keys that wait for another attempt",
            metrics.retries.clone(),
        );
        registry.register(
            "workqueue_queue_duration_seconds",
            "Time that keys wait",
            metrics.waited.clone(),
        );
        registry.register(
            "workqueue_work_duration_seconds",
            "Time that workers have a key",
            metrics.worked.clone(),
        );
        metrics
    }
}
