//! Labels with a closed set of values. Rules and dashboards may use only these values, and tests of
//! manager and agent compare their output with the page. A renamed value would silence an alert.

use std::fmt::Write as _;

use lockstep_api::condition::types;
use lockstep_api::workload::{CauseKind, FailureAction, Phase};
use lockstep_manager::api::error::ErrorClass;

use crate::metric::Metric;

/// A label of some metrics and its possible values.
struct Closed {
    label: &'static str,
    /// Names of the metrics; empty: all metrics with this label.
    metrics: &'static [&'static str],
    values: fn() -> Vec<&'static str>,
}

const fn closed(
    label: &'static str,
    metrics: &'static [&'static str],
    values: fn() -> Vec<&'static str>,
) -> Closed {
    Closed {
        label,
        metrics,
        values,
    }
}

/// In the order of the page.
const ALL: [Closed; 26] = [
    closed("action", &[], || {
        FailureAction::ALL.map(FailureAction::as_str).to_vec()
    }),
    closed("cause", &[], || {
        CauseKind::ALL.map(CauseKind::as_str).to_vec()
    }),
    closed("class", &["lockstep_write_errors_total"], || {
        ErrorClass::ALL.map(ErrorClass::as_str).to_vec()
    }),
    closed("condition", &[], || OF_WORKLOADS.to_vec()),
    closed("controller", &[], || vec!["trainingworkload"]),
    closed("counted", &[], || vec!["true", "false"]),
    closed("how", &["lockstep_queue_wait_seconds"], || {
        vec!["free", "backfill", "preemption"]
    }),
    closed(
        "kind",
        &[
            "lockstep_synced",
            "lockstep_index_objects",
            "lockstep_unreadable_objects",
            "lockstep_watch_errors_total",
        ],
        || WATCHED.to_vec(),
    ),
    closed("kind", &["lockstep_scheduler_cycle_seconds"], || {
        vec!["upkeep", "placement", "preemption"]
    }),
    closed("kind", &["lockstep_preemption_victims_total"], || {
        vec!["podgroup", "pod"]
    }),
    closed("name", &["leader_election_master_status"], || {
        vec!["lockstep-manager"]
    }),
    closed(
        "name",
        &[
            "workqueue_depth",
            "workqueue_adds_total",
            "workqueue_retries_total",
            "workqueue_queue_duration_seconds",
            "workqueue_work_duration_seconds",
            "workqueue_unfinished_work_seconds",
            "workqueue_longest_running_processor_seconds",
        ],
        || vec!["trainingworkload"],
    ),
    closed(
        "phase",
        &["lockstep_workloads", "lockstep_workload_info"],
        || {
            let phases = Phase::ALL.map(Phase::as_str).into_iter();
            phases.chain(["New"]).collect()
        },
    ),
    closed("phase", &["lockstep_incident_phase_seconds"], || {
        vec!["detect", "decide", "stop", "barrier", "start"]
    }),
    closed("policy", &["lockstep_policy_check_failed"], || {
        vec!["lockstep-operator-objects", "lockstep-members"]
    }),
    closed("proven", &[], || vec!["true", "false"]),
    closed(
        "reason",
        &["lockstep_preemption_intents_withdrawn_total"],
        || vec!["overdue", "unanswered", "moved", "void"],
    ),
    closed(
        "reason",
        &["lockstep_agent_supervisor_refused_total"],
        || vec!["path", "greeting", "version", "frame", "flood", "unread"],
    ),
    closed("result", &["controller_runtime_reconcile_total"], || {
        vec!["requeue", "success", "error"]
    }),
    closed("result", &["lockstep_scheduler_cycle_seconds"], || {
        vec!["changes", "nothing"]
    }),
    closed("result", &["lockstep_recovery_seconds"], || {
        vec!["in_place", "recreated"]
    }),
    closed("result", &["lockstep_agent_stops_total"], || {
        vec!["stopped", "failed"]
    }),
    closed("state", &["lockstep_gangs"], || {
        vec!["waiting", "held", "placed", "preempting"]
    }),
    closed("state", &["lockstep_accelerators"], || {
        vec!["held", "leaving", "reserved", "unusable", "free"]
    }),
    closed("state", &["lockstep_agents"], || vec!["ready", "not_ready"]),
    closed("status", &[], || vec!["True", "False", "Unknown"]),
];

/// Conditions of a TrainingWorkload.
pub const OF_WORKLOADS: [&str; 11] = [
    types::ADMITTED,
    types::COMPLETE,
    types::DISRUPTION_TARGET,
    types::FAILED,
    types::PODS_NOT_MATCHING_PRIORITY,
    types::READY,
    types::RECONCILING,
    types::RESTARTING,
    types::RESTARTS_IN_PLACE,
    types::STALLED,
    types::SUSPENDED,
];

/// Kinds that the manager watches.
const WATCHED: [&str; 15] = [
    "TrainingWorkload",
    "RestartOrder",
    "NodeAgent",
    "Workload",
    "PodGroup",
    "Service",
    "Pod",
    "Node",
    "PriorityClass",
    "PodDisruptionBudget",
    "PersistentVolumeClaim",
    "PersistentVolume",
    "StorageClass",
    "ResourceQuota",
    "Namespace",
];

/// Possible values of a metric's label; `None` if the set is open.
pub fn of(metric: &Metric, label: &str) -> Option<Vec<&'static str>> {
    let found = ALL.iter().find(|closed| {
        let here = closed.metrics.is_empty() || closed.metrics.contains(&metric.name);
        closed.label == label && here && metric.labels.contains(&label)
    });
    found.map(|closed| (closed.values)())
}

const HEAD: &str = "
## Values of labels

These labels have no other values, where they are labels of these metrics.

| label | metrics | values |
|---|---|---|
";

pub(super) fn write(out: &mut String) {
    out.push_str(HEAD);
    for Closed {
        label,
        metrics,
        values,
    } in &ALL
    {
        let metrics = match metrics {
            [] => "all".to_owned(),
            some => format!("`{}`", some.join("`, `")),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "| {label} | {metrics} | {} |", values().join(", "));
    }
}
