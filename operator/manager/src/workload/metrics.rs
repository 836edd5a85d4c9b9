//! Metrics of the workload controller.

use std::time::Duration;

use lockstep_api::TrainingWorkloadStatus;
use lockstep_api::condition::{Condition, find};
use lockstep_api::workload::{CauseKind, HistoryEntry};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::api::error::ErrorClass;
use crate::metrics::{CONTROLLER, decisions, restarts, waits};

/// Metrics of the workload controller.
#[derive(Clone, Debug, Default)]
pub struct WorkloadMetrics {
    /// Passes over workloads.
    pub passes: PassMetrics,
    incidents: IncidentMetrics,
    conditions: ConditionMetrics,
}

impl WorkloadMetrics {
    /// Metrics that are shown in the registry.
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            passes: PassMetrics::register(registry),
            incidents: IncidentMetrics::register(registry),
            conditions: ConditionMetrics::register(registry),
        }
    }

    /// Counts what a written status of a workload in this namespace has that the one before had
    /// not.
    pub fn wrote(
        &self,
        namespace: &str,
        old: Option<&TrainingWorkloadStatus>,
        new: &TrainingWorkloadStatus,
    ) {
        self.incidents.wrote(namespace, old, new);
        self.conditions
            .wrote(old.map_or(&[], |o| &o.conditions), &new.conditions);
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

impl PassResult {
    const ALL: [Self; 3] = [Self::Changed, Self::Unchanged, Self::Error];

    /// The word of controller-runtime.
    fn as_str(self) -> &'static str {
        match self {
            Self::Changed => "requeue",
            Self::Unchanged => "success",
            Self::Error => "error",
        }
    }
}

/// Passes over workloads.
#[derive(Clone, Debug)]
pub struct PassMetrics {
    total: Family<PassLabels, Counter>,
    failed: Counter,
    errors: Family<ErrorLabels, Counter>,
    panics: Counter,
    time: Histogram,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PassLabels {
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
            failed: Counter::default(),
            errors: Family::default(),
            panics: Counter::default(),
            time: decisions(),
        }
    }
}

impl PassMetrics {
    /// A pass has ended.
    pub fn ended(&self, outcome: PassResult, time: Duration) {
        let result = outcome.as_str();
        self.total.get_or_create(&PassLabels { result }).inc();
        if outcome == PassResult::Error {
            self.failed.inc();
        }
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

    /// Metrics that are shown in the registry, known values from the start.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        for result in PassResult::ALL.map(PassResult::as_str) {
            drop(metrics.total.get_or_create(&PassLabels { result }));
        }
        for class in ErrorClass::ALL.map(ErrorClass::as_str) {
            drop(metrics.errors.get_or_create(&ErrorLabels { class }));
        }
        registry.register(
            "lockstep_write_errors",
            "Failed writes of passes by class",
            metrics.errors.clone(),
        );
        let registry = registry.sub_registry_with_label(("controller".into(), CONTROLLER.into()));
        registry.register(
            "controller_runtime_reconcile",
            "Passes by result",
            metrics.total.clone(),
        );
        registry.register(
            "controller_runtime_reconcile_errors",
            "Passes that failed",
            metrics.failed.clone(),
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
        metrics
    }
}

/// What has become of incidents.
#[derive(Clone, Debug)]
struct IncidentMetrics {
    finished: Family<IncidentLabels, Counter>,
    phases: Family<PhaseLabel, Histogram>,
    recovery: Family<ActionLabel, Histogram>,
    lost: Family<LostLabels, Counter>,
    preemptions: Counter,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct IncidentLabels {
    namespace: String,
    action: &'static str,
    cause: &'static str,
    counted: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ActionLabel {
    action: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LostLabels {
    namespace: String,
    cause: &'static str,
}

impl Default for IncidentMetrics {
    fn default() -> Self {
        Self {
            finished: Family::default(),
            phases: Family::new_with_constructor(restarts),
            recovery: Family::new_with_constructor(restarts),
            lost: Family::default(),
            preemptions: Counter::default(),
        }
    }
}

/// The phases of an incident, in seconds.
fn phases_of(entry: &HistoryEntry) -> [(&'static str, f64); 5] {
    let p = &entry.phases;
    [
        ("detect", p.detect_ms),
        ("decide", p.decide_ms),
        ("stop", p.stop_ms),
        ("barrier", p.barrier_ms),
        ("start", p.start_ms),
    ]
    .map(|(phase, ms)| (phase, ms as f64 / 1000.0))
}

/// Whether two entries tell of the same incident: an attempt may end in several ways one after the
/// other, in a preemption that interrupts the restart that led to it, say.
fn same(one: &HistoryEntry, other: &HistoryEntry) -> bool {
    (&one.domain, one.attempt, one.cause.kind, one.time)
        == (&other.domain, other.attempt, other.cause.kind, other.time)
}

impl IncidentMetrics {
    fn wrote(
        &self,
        namespace: &str,
        old: Option<&TrainingWorkloadStatus>,
        new: &TrainingWorkloadStatus,
    ) {
        // There from the start, so that the first loss is an increase.
        for cause in CauseKind::ALL {
            drop(self.lost_to(namespace, cause));
        }
        let known = old.map_or(&[][..], |o| &o.history);
        let entries = new.history.iter();
        for entry in entries.filter(|e| !known.iter().any(|o| same(o, e))) {
            self.finished(namespace, entry);
        }
        let preemptions = new.preemptions - old.map_or(0, |o| o.preemptions);
        self.preemptions
            .inc_by(u64::try_from(preemptions).unwrap_or_default());
    }

    fn finished(&self, namespace: &str, entry: &HistoryEntry) {
        let (action, cause) = (entry.action.as_str(), entry.cause.kind.as_str());
        self.finished
            .get_or_create(&IncidentLabels {
                namespace: namespace.to_owned(),
                action,
                cause,
                counted: if entry.counted { "true" } else { "false" },
            })
            .inc();
        for (phase, seconds) in phases_of(entry) {
            self.phases
                .get_or_create(&PhaseLabel { phase })
                .observe(seconds);
        }
        if let Some(recovered) = entry.recovered_at {
            let time = (recovered - entry.time).to_std().unwrap_or_default();
            self.recovery
                .get_or_create(&ActionLabel { action })
                .observe(time.as_secs_f64());
        }
        self.lost_to(namespace, entry.cause.kind)
            .inc_by(u64::try_from(entry.lost_accelerator_seconds).unwrap_or_default());
    }

    fn lost_to(&self, namespace: &str, cause: CauseKind) -> Counter {
        self.lost.get_or_create_owned(&LostLabels {
            namespace: namespace.to_owned(),
            cause: cause.as_str(),
        })
    }

    fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "lockstep_incidents",
            "Finished incidents",
            metrics.finished.clone(),
        );
        registry.register(
            "lockstep_incident_phase_seconds",
            "Length of the phases of incidents",
            metrics.phases.clone(),
        );
        registry.register(
            "lockstep_recovery_seconds",
            "From the failure until all members ran again",
            metrics.recovery.clone(),
        );
        registry.register(
            "lockstep_lost_accelerator_seconds",
            "Work since the last checkpoint and the time of the restart, over all members",
            metrics.lost.clone(),
        );
        registry.register(
            "lockstep_preemptions",
            "Workloads preempted",
            metrics.preemptions.clone(),
        );
        metrics
    }
}

/// How conditions change.
#[derive(Clone, Debug)]
struct ConditionMetrics {
    transitions: Family<TransitionLabels, Counter>,
    lasted: Family<StateLabels, Histogram>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TransitionLabels {
    condition: String,
    status: &'static str,
    reason: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabels {
    condition: String,
    status: &'static str,
}

impl Default for ConditionMetrics {
    fn default() -> Self {
        Self {
            transitions: Family::default(),
            lasted: Family::new_with_constructor(waits),
        }
    }
}

impl ConditionMetrics {
    fn wrote(&self, old: &[Condition], new: &[Condition]) {
        for condition in new {
            let before = find(old, &condition.type_);
            if before.is_some_and(|b| b.status == condition.status) {
                continue;
            }
            self.transitions
                .get_or_create(&TransitionLabels {
                    condition: condition.type_.clone(),
                    status: condition.status.as_str(),
                    reason: condition.reason.clone(),
                })
                .inc();
            if let Some(before) = before {
                let lasted = condition.last_transition_time - before.last_transition_time;
                self.lasted
                    .get_or_create(&StateLabels {
                        condition: before.type_.clone(),
                        status: before.status.as_str(),
                    })
                    .observe(lasted.to_std().unwrap_or_default().as_secs_f64());
            }
        }
    }

    fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "lockstep_condition_transitions",
            "Changes of the status of conditions of workloads",
            metrics.transitions.clone(),
        );
        registry.register(
            "lockstep_condition_seconds",
            "How long a status that has ended had lasted",
            metrics.lasted.clone(),
        );
        metrics
    }
}

#[cfg(test)]
mod tests;
