//! Metrics of the workload controller.

use std::time::Duration;

use lockstep_api::TrainingWorkloadStatus;
use lockstep_api::workload::HistoryEntry;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::api::error::ErrorClass;
use crate::metrics::seconds;

/// Metrics of the workload controller.
#[derive(Clone, Debug, Default)]
pub struct WorkloadMetrics {
    /// Passes over workloads.
    pub passes: PassMetrics,
    /// What has become of incidents.
    pub incidents: IncidentMetrics,
}

impl WorkloadMetrics {
    /// Metrics that are shown in the registry.
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            passes: PassMetrics::register(registry),
            incidents: IncidentMetrics::register(registry),
        }
    }
}

/// Result of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassResult {
    /// Something was written.
    Changed,
    /// Nothing to do.
    Unchanged,
    /// It failed.
    Error,
}

/// Passes over workloads.
#[derive(Clone, Debug)]
pub struct PassMetrics {
    total: Family<PassLabels, Counter>,
    errors: Family<ErrorLabels, Counter>,
    panics: Counter,
    time: Histogram,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PassLabels {
    controller: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ErrorLabels {
    class: &'static str,
}

impl Default for PassMetrics {
    fn default() -> Self {
        Self {
            total: Family::default(),
            errors: Family::default(),
            panics: Counter::default(),
            time: seconds(),
        }
    }
}

impl PassMetrics {
    /// A pass has ended.
    pub fn ended(&self, outcome: PassResult, time: Duration) {
        let result = match outcome {
            PassResult::Changed => "requeue",
            PassResult::Unchanged => "success",
            PassResult::Error => "error",
        };
        self.total
            .get_or_create(&PassLabels {
                controller: "trainingworkload",
                result,
            })
            .inc();
        self.time.observe(time.as_secs_f64());
    }

    /// A request of a pass has failed.
    pub fn failed(&self, class: ErrorClass) {
        self.errors
            .get_or_create(&ErrorLabels {
                class: class.as_str(),
            })
            .inc();
    }

    /// A pass has panicked.
    pub fn panicked(&self) {
        self.panics.inc();
    }

    /// Metrics that are shown in the registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "controller_runtime_reconcile",
            "Passes by result",
            metrics.total.clone(),
        );
        registry.register(
            "controller_runtime_reconcile_panics",
            "Passes that panicked",
            metrics.panics.clone(),
        );
        registry.register(
            "controller_runtime_reconcile_time_seconds",
            "Length of passes",
            metrics.time.clone(),
        );
        registry.register(
            "lockstep_write_errors",
            "Failed writes of passes by class",
            metrics.errors.clone(),
        );
        metrics
    }
}

/// What has become of incidents.
#[derive(Clone, Debug)]
pub struct IncidentMetrics {
    restarts: Family<IncidentLabels, Counter>,
    phases: Family<PhaseLabel, Histogram>,
    preemptions: Counter,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct IncidentLabels {
    action: String,
    cause: String,
    counted: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

impl Default for IncidentMetrics {
    fn default() -> Self {
        Self {
            restarts: Family::default(),
            phases: Family::new_with_constructor(seconds),
            preemptions: Counter::default(),
        }
    }
}

impl IncidentMetrics {
    /// Counts what a written status has that the one before had not.
    pub fn count(&self, old: Option<&TrainingWorkloadStatus>, new: &TrainingWorkloadStatus) {
        let known = |e: &HistoryEntry| {
            old.is_some_and(|old| {
                old.history
                    .iter()
                    .any(|o| o.domain == e.domain && o.attempt == e.attempt)
            })
        };
        for entry in new.history.iter().filter(|e| !known(e)) {
            let labels = IncidentLabels {
                action: entry.action.as_str().into(),
                cause: entry.cause.kind.as_str().into(),
                counted: entry.counted.to_string(),
            };
            self.restarts.get_or_create(&labels).inc();
            let p = &entry.phases;
            for (phase, ms) in [
                ("detect", p.detect_ms),
                ("decide", p.decide_ms),
                ("stop", p.stop_ms),
                ("barrier", p.barrier_ms),
                ("start", p.start_ms),
            ] {
                self.phases
                    .get_or_create(&PhaseLabel { phase })
                    .observe(ms as f64 / 1000.0);
            }
        }
        let preemptions = new.preemptions - old.map_or(0, |o| o.preemptions);
        self.preemptions
            .inc_by(u64::try_from(preemptions).unwrap_or_default());
    }

    /// Metrics that are shown in the registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "lockstep_incidents",
            "Finished incidents",
            metrics.restarts.clone(),
        );
        registry.register(
            "lockstep_incident_phase_seconds",
            "Length of the phases of incidents",
            metrics.phases.clone(),
        );
        registry.register(
            "lockstep_preemptions",
            "Workloads preempted",
            metrics.preemptions.clone(),
        );
        metrics
    }
}
