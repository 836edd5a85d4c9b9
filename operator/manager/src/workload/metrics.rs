use std::time::Duration;

use lockstep_api::TrainingWorkloadStatus;
use lockstep_api::condition::{Condition, find};
use lockstep_api::worded;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::incident_metrics::IncidentMetrics;
use crate::api::error::ErrorClass;
use crate::metrics::{CONTROLLER, decisions, waits};

#[derive(Clone, Debug, Default)]
pub struct WorkloadMetrics {
    pub passes: PassMetrics,
    incidents: IncidentMetrics,
    conditions: ConditionMetrics,
}

impl WorkloadMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            passes: PassMetrics::register(registry),
            incidents: IncidentMetrics::register(registry),
            conditions: ConditionMetrics::register(registry),
        }
    }

    /// Series of a namespace, created before its first incident.
    pub fn ensure_series(&self, namespace: &str, exists: impl Fn(&str) -> bool) {
        self.incidents.ensure_series(namespace, exists);
    }

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

worded! {
    /// As labelled by controller-runtime.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum PassResult {
        Changed = "requeue",
        Unchanged = "success",
        Error = "error",
    }
}

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
    pub fn ended(&self, outcome: PassResult, time: Duration) {
        let result = outcome.as_str();
        self.total.get_or_create(&PassLabels { result }).inc();
        if outcome == PassResult::Error {
            self.failed.inc();
        }
        self.time.observe(time.as_secs_f64());
    }

    pub fn failed(&self, class: ErrorClass) {
        self.errors
            .get_or_create(&ErrorLabels {
                class: class.as_str(),
            })
            .inc();
    }

    pub fn panicked(&self) {
        self.panics.inc();
    }

    /// Known label values start at zero.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        for result in PassResult::ALL.map(PassResult::as_str) {
            drop(metrics.total.get_or_create(&PassLabels { result }));
        }
        for class in ErrorClass::ALL.map(ErrorClass::as_str) {
            drop(metrics.errors.get_or_create(&ErrorLabels { class }));
        }
        let classes = ErrorClass::ALL.map(ErrorClass::as_str).join(", ");
        registry.register(
            "lockstep_write_errors",
            format!("Failed writes of passes by class: {classes}"),
            metrics.errors.clone(),
        );
        let registry = registry.sub_registry_with_label(("controller".into(), CONTROLLER.into()));
        registry.register(
            "controller_runtime_reconcile",
            "Passes over workloads by result: requeue has written something, success had nothing to do, error",
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
            "Length of passes, writes included",
            metrics.time.clone(),
        );
        metrics
    }
}

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
            "Changes of the status of a condition, by the new status and reason",
            metrics.transitions.clone(),
        );
        registry.register(
            "lockstep_condition_seconds",
            "How long a condition had a status before it changed",
            metrics.lasted.clone(),
        );
        metrics
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::{DateTime, TimeDelta, Utc};
    use lockstep_api::condition::{reasons, types, upsert};
    use lockstep_api::workload::{Cause, CauseKind, FailureAction, HistoryEntry, Phases};

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_795_000_000 + seconds, 0).unwrap()
    }

    fn entry(
        kind: CauseKind,
        action: FailureAction,
        failed: i64,
        took: Option<i64>,
    ) -> HistoryEntry {
        HistoryEntry {
            domain: "workload".into(),
            attempt: 2,
            cause: Cause::new(kind, at(failed)),
            action,
            counted: true,
            recreated: 0,
            time: at(failed),
            recovered_at: took.map(|s| at(failed) + TimeDelta::seconds(s)),
            phases: Phases::default(),
            lost_accelerator_seconds: 640,
            restart_accelerator_seconds: 80,
            preemptor: None,
        }
    }

    fn scrape(statuses: &[TrainingWorkloadStatus]) -> String {
        let mut registry = Registry::default();
        let metrics = WorkloadMetrics::register(&mut registry);
        let mut old = None;
        for status in statuses {
            metrics.wrote("ml", old, status);
            old = Some(status);
        }
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    #[test]
    fn a_preemption_of_the_attempt_that_a_restart_led_to_counts_beside_the_restart() {
        let restart = entry(
            CauseKind::ContainerExit,
            FailureAction::RestartGang,
            0,
            Some(7),
        );
        let preempted = entry(CauseKind::Preempted, FailureAction::RecreateGang, 100, None);
        let first = TrainingWorkloadStatus {
            history: vec![restart.clone()],
            ..TrainingWorkloadStatus::default()
        };
        let second = TrainingWorkloadStatus {
            history: vec![preempted, restart],
            preemptions: 1,
            ..TrainingWorkloadStatus::default()
        };
        let text = scrape(&[first, second.clone(), second]);
        for line in [
            "lockstep_incidents_total{namespace=\"ml\",action=\"RestartGang\",cause=\"ContainerExit\",counted=\"true\"} 1",
            "lockstep_incidents_total{namespace=\"ml\",action=\"RecreateGang\",cause=\"Preempted\",counted=\"true\"} 1",
            "lockstep_recovery_seconds_sum{action=\"RestartGang\",result=\"in_place\"} 7",
            "lockstep_lost_accelerator_seconds_total{namespace=\"ml\",cause=\"Preempted\"} 640",
            "lockstep_restart_accelerator_seconds_total 160",
            "lockstep_preemptions_total 1",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        let never =
            "lockstep_recovery_seconds_count{action=\"RecreateGang\",result=\"recreated\"} 0";
        assert!(
            text.contains(never),
            "what did not recover took no time\n{text}"
        );
    }

    #[test]
    fn a_restart_in_place_that_had_to_replace_a_pod_counts_as_recreated() {
        let mut replaced = entry(
            CauseKind::ContainerExit,
            FailureAction::RestartGang,
            0,
            Some(90),
        );
        replaced.recreated = 1;
        let text = scrape(&[TrainingWorkloadStatus {
            history: vec![replaced],
            ..TrainingWorkloadStatus::default()
        }]);
        for line in [
            "lockstep_recovery_seconds_sum{action=\"RestartGang\",result=\"recreated\"} 90",
            "lockstep_recovery_seconds_count{action=\"RestartGang\",result=\"in_place\"} 0",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn the_first_incident_of_a_namespace_is_an_increase() {
        let mut registry = Registry::default();
        let metrics = WorkloadMetrics::register(&mut registry);
        metrics.ensure_series("ml", |_| true);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "lockstep_incidents_total{namespace=\"ml\",action=\"RestartGang\",cause=\"ContainerExit\",counted=\"true\"} 0",
            "lockstep_incidents_total{namespace=\"ml\",action=\"RecreateGang\",cause=\"Preempted\",counted=\"false\"} 0",
            "lockstep_incidents_total{namespace=\"ml\",action=\"RestartGang\",cause=\"PodDeleted\",counted=\"false\"} 0",
            "lockstep_lost_accelerator_seconds_total{namespace=\"ml\",cause=\"Hang\"} 0",
            "lockstep_restart_accelerator_seconds_total 0",
            "lockstep_recovery_seconds_count{action=\"RestartGang\",result=\"in_place\"} 0",
            "lockstep_incident_phase_seconds_count{phase=\"stop\"} 0",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        // 50 namespaces stay well below the 4500 series of a scrape.
        let of_namespace = text.matches("namespace=\"ml\"").count();
        assert_eq!(of_namespace, 33);
    }

    #[test]
    fn a_condition_that_flips_counts_once_with_how_long_the_old_status_lasted() {
        let with = |status: bool, reason: &str, seconds: i64, old: &TrainingWorkloadStatus| {
            let mut new = old.clone();
            let ready = Condition {
                type_: types::READY.to_owned(),
                status: status.into(),
                reason: reason.to_owned(),
                message: String::new(),
                last_transition_time: at(seconds),
                observed_generation: 1,
            };
            upsert(&mut new.conditions, ready);
            new
        };
        let waits = with(
            false,
            reasons::MEMBERS_NOT_READY,
            0,
            &TrainingWorkloadStatus::default(),
        );
        let still = with(false, reasons::STARTING, 30, &waits);
        let ready = with(true, reasons::ALL_MEMBERS_READY, 90, &still);
        let text = scrape(&[waits, still, ready]);
        for line in [
            "lockstep_condition_transitions_total{condition=\"Ready\",status=\"False\",reason=\"MembersNotReady\"} 1",
            "lockstep_condition_transitions_total{condition=\"Ready\",status=\"True\",reason=\"AllMembersReady\"} 1",
            "lockstep_condition_seconds_sum{condition=\"Ready\",status=\"False\"} 90",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("reason=\"Starting\""), "{text}");
    }
}
