use std::time::Duration;

use lockstep_api::key::Key;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::Queue;
use crate::encode::gauge;
use crate::metrics::{CONTROLLER, decisions};

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
            waited: decisions(),
            worked: decisions(),
        }
    }
}

impl QueueMetrics {
    pub fn added(&self, depth: usize) {
        self.adds.inc();
        self.depth.set(depth as i64);
    }

    pub fn taken(&self, waited: Duration, depth: usize) {
        self.waited.observe(waited.as_secs_f64());
        self.depth.set(depth as i64);
    }

    pub fn worked(&self, time: Duration) {
        self.worked.observe(time.as_secs_f64());
    }

    pub fn retried(&self) {
        self.retries.inc();
    }

    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_label(("name".into(), CONTROLLER.into()));
        registry.register(
            "workqueue_depth",
            "Workloads that wait for a pass",
            metrics.depth.clone(),
        );
        registry.register(
            "workqueue_adds",
            "Workloads added to the queue",
            metrics.adds.clone(),
        );
        registry.register(
            "workqueue_retries",
            "Workloads that come again after a failed pass",
            metrics.retries.clone(),
        );
        registry.register(
            "workqueue_queue_duration_seconds",
            "How long workloads wait for a pass",
            metrics.waited.clone(),
        );
        registry.register(
            "workqueue_work_duration_seconds",
            "How long passes take",
            metrics.worked.clone(),
        );
        metrics
    }
}

/// Computed at each scrape.
pub struct InHand {
    pub queue: Queue<Key>,
    pub workers: usize,
}

impl std::fmt::Debug for InHand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InHand")
    }
}

impl Collector for InHand {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let held = self.queue.in_hand();
        let (name, controller) = ([("name", CONTROLLER)], [("controller", CONTROLLER)]);
        gauge(
            &mut encoder,
            "workqueue_unfinished_work_seconds",
            "How long all running passes together have been running",
            [(name, held.iter().sum::<Duration>().as_secs_f64())],
        )?;
        gauge(
            &mut encoder,
            "workqueue_longest_running_processor_seconds",
            "How long the oldest pass has been running",
            [(
                name,
                held.iter().max().copied().unwrap_or_default().as_secs_f64(),
            )],
        )?;
        gauge(
            &mut encoder,
            "controller_runtime_active_workers",
            "Passes that are running",
            [(controller, held.len() as i64)],
        )?;
        gauge(
            &mut encoder,
            "controller_runtime_max_concurrent_reconciles",
            "Most passes that run at a time",
            [(controller, self.workers as i64)],
        )
    }
}
