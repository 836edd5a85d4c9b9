//! Configuration of kube-state-metrics for custom resources, from one table, and a model of its
//! output.

use std::path::PathBuf;

use lockstep_api::workload::Phase;
use serde_json::{Map, Value, json};

use crate::metric::Kind::Gauge;
use crate::metric::Metric;

mod render;

pub use render::{Series, render};

/// Path of the configuration from the root.
pub const FILE: &str = "config/components/kube-state-metrics/custom-resource-state.yaml";
/// Prefix of the metric names.
pub const PREFIX: &str = "kube_trainingworkload";

/// Path to a field, from the object or from a list element.
pub type FieldPath = &'static [&'static str];

/// A metric and the source of its values.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The metric, as queries name it.
    pub metric: Metric,
    pub from: From,
}

/// Source of a metric's values.
#[derive(Clone, Copy, Debug)]
pub enum From {
    /// Value 1 with labels.
    Info,
    /// The phase: one series per possible phase, 1 for the current one.
    Phase(FieldPath),
    /// The number in this field; 0 if absent.
    Field(FieldPath),
    /// One value per list element: path of the list, and of the field in an element.
    Each(FieldPath, FieldPath),
}

/// Labels of a family in addition to namespace and name, with their fields.
fn labels_from(family: &Family) -> &'static [(&'static str, FieldPath)] {
    match family.from {
        From::Info => &[
            ("phase", &["status", "phase"]),
            ("reason", &["status", "reason"]),
            ("priority_class", &["spec", "priorityClassName"]),
        ],
        From::Phase(_) | From::Field(_) => &[],
        From::Each(["status", "groups"], _) => &[("group", &["name"])],
        From::Each(..) => &[
            ("condition", &["type"]),
            ("status", &["status"]),
            ("reason", &["reason"]),
        ],
    }
}

const OF_ALL: [(&str, FieldPath); 2] = [
    ("namespace", &["metadata", "namespace"]),
    ("name", &["metadata", "name"]),
];

const fn family(
    name: &'static str,
    labels: &'static [&'static str],
    meaning: &'static str,
    from: From,
) -> Family {
    Family {
        metric: Metric {
            name,
            kind: Gauge,
            labels,
            meaning,
        },
        from,
    }
}

/// Exported metrics. The dashboard of a workload uses these names.
pub const FAMILIES: [Family; 10] = [
    family(
        "kube_trainingworkload_info",
        &["namespace", "name", "phase", "reason", "priority_class"],
        "1; where a workload stands",
        From::Info,
    ),
    family(
        "kube_trainingworkload_status_phase",
        &["namespace", "name", "phase"],
        "1 for the phase that a workload is in, 0 for the others",
        From::Phase(&["status", "phase"]),
    ),
    family(
        "kube_trainingworkload_status_condition",
        &["namespace", "name", "condition", "status", "reason"],
        "1 where the status of the condition is True, 0 where it is not",
        From::Each(&["status", "conditions"], &["status"]),
    ),
    family(
        "kube_trainingworkload_ready",
        &["namespace", "name", "group"],
        "members of a group that are ready",
        From::Each(&["status", "groups"], &["ready"]),
    ),
    family(
        "kube_trainingworkload_succeeded",
        &["namespace", "name", "group"],
        "members of a group that have succeeded",
        From::Each(&["status", "groups"], &["succeeded"]),
    ),
    family(
        "kube_trainingworkload_members",
        &["namespace", "name", "group"],
        "members of a group that should be there",
        From::Each(&["status", "groups"], &["desired"]),
    ),
    family(
        "kube_trainingworkload_restarts",
        &["namespace", "name"],
        "failures that were answered by a restart",
        From::Field(&["status", "restarts", "total"]),
    ),
    family(
        "kube_trainingworkload_attempt",
        &["namespace", "name"],
        "attempt, the highest of its restart domains",
        From::Field(&["status", "attempt"]),
    ),
    family(
        "kube_trainingworkload_accelerators",
        &["namespace", "name"],
        "accelerators that a workload holds",
        From::Field(&["status", "accounting", "accelerators"]),
    ),
    family(
        "kube_trainingworkload_lost_accelerator_seconds",
        &["namespace", "name"],
        "accelerator-seconds that failures and preemption have lost",
        From::Field(&["status", "accounting", "lostAcceleratorSeconds"]),
    ),
];

/// The configuration in kube-state-metrics' format.
pub fn config() -> Value {
    let metrics: Vec<Value> = FAMILIES.iter().map(Family::json).collect();
    json!({
        "kind": "CustomResourceStateMetrics",
        "spec": {"resources": [{
            "groupVersionKind": {"group": "training.lockstep.dev", "version": "v1alpha1", "kind": "TrainingWorkload"},
            "metricNamePrefix": PREFIX,
            "labelsFromPath": paths(&OF_ALL),
            // A missing field is no error; the default level would log each one.
            "errorLogV": 4,
            "metrics": metrics,
        }]},
    })
}

/// Path from the root and content of the generated file.
pub fn files() -> Vec<(PathBuf, String)> {
    let yaml = serde_saphyr::to_string(&config()).unwrap_or_default();
    vec![(
        PathBuf::from(FILE),
        format!(
            "# Generated by `make generate`: `--custom-resource-state-config-file` of kube-state-metrics.\n{yaml}"
        ),
    )]
}

impl Family {
    fn json(&self) -> Value {
        let name = self.metric.name.strip_prefix(PREFIX).unwrap_or_default();
        let mut source = match self.from {
            From::Info => json!({}),
            From::Phase(path) => {
                let phases = Phase::ALL.map(Phase::as_str);
                json!({"path": path, "labelName": "phase", "list": phases})
            }
            From::Field(path) => json!({"path": path, "nilIsZero": true}),
            From::Each(path, field) => json!({"path": path, "valueFrom": field}),
        };
        let labels = labels_from(self);
        if !labels.is_empty() {
            source["labelsFromPath"] = paths(labels);
        }
        let (kind, key) = match self.from {
            From::Info => ("Info", "info"),
            From::Phase(_) => ("StateSet", "stateSet"),
            From::Field(_) | From::Each(..) => ("Gauge", "gauge"),
        };
        json!({
            "name": name.trim_start_matches('_'),
            "help": self.metric.meaning,
            "each": {"type": kind, key: source},
        })
    }
}

fn paths(labels: &[(&str, FieldPath)]) -> Value {
    let fields = labels
        .iter()
        .map(|(label, path)| ((*label).to_owned(), json!(path)));
    Value::Object(fields.collect::<Map<String, Value>>())
}
