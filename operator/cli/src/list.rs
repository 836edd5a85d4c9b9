use chrono::{DateTime, Utc};
use lockstep_api::TrainingWorkload;
use lockstep_api::time::utc;
use lockstep_api::workload::Phase;
use serde::Serialize;

use crate::view::age::age;
use crate::view::table::{Cell, Table, phase_tone};
use crate::view::{Look, View, workload_name};

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Listing {
    /// The only namespace read; absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_namespace: Option<String>,
    /// Sorted by namespace and name.
    pub workloads: Vec<ListedWorkload>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedWorkload {
    pub namespace: String,
    pub name: String,
    /// Phase; absent before the first reconcile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Ready or succeeded members, of all members that should run.
    pub ready: String,
    pub restarts: i64,
    pub accelerators: i64,
    pub attempt: i64,
    pub preemptions: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<String>,
    /// Queue time of the longest waiting gang; absent if none waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_since: Option<DateTime<Utc>>,
    pub reason: String,
    pub message: String,
    pub created: Option<DateTime<Utc>>,
}

pub fn list(workloads: &[TrainingWorkload], namespace: Option<&str>) -> Listing {
    Listing {
        only_namespace: namespace.map(str::to_owned),
        workloads: workloads.iter().map(listed).collect(),
    }
}

fn listed(workload: &TrainingWorkload) -> ListedWorkload {
    let status = workload.status.clone().unwrap_or_default();
    let metadata = &workload.metadata;
    ListedWorkload {
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        phase: status.phase,
        ready: status.ready,
        restarts: status.restarts.total,
        accelerators: status.accounting.accelerators,
        attempt: status.attempt,
        preemptions: status.preemptions,
        priority_class: workload.spec.priority_class_name.clone(),
        queued_since: status.accounting.waiting_since,
        reason: status.reason,
        message: status.message,
        created: metadata.creation_timestamp.as_ref().and_then(utc),
    }
}

impl View for Listing {
    fn screen(&self, look: &Look) -> String {
        if self.workloads.is_empty() {
            return match &self.only_namespace {
                Some(namespace) => format!(
                    "no TrainingWorkload found in namespace {namespace}; -A lists all namespaces\n"
                ),
                None => "no TrainingWorkload found\n".to_owned(),
            };
        }
        // As in kubectl, only several namespaces have a column.
        let namespace = match self.only_namespace {
            None => "NAMESPACE",
            Some(_) => "+NAMESPACE",
        };
        let mut table = Table::new(&[
            namespace,
            "NAME",
            "STATUS",
            "READY",
            "RESTARTS",
            "ACCELERATORS",
            "REASON",
            "+ATTEMPT",
            "+PREEMPTIONS",
            "+PRIORITY",
            "+QUEUED",
            "AGE",
            "+MESSAGE",
        ]);
        for w in &self.workloads {
            let phase = w.phase.map_or("Unseen", Phase::as_str);
            table.row([
                w.namespace.clone().into(),
                w.name.clone().into(),
                Cell::new(phase, phase_tone(w.phase)),
                w.ready.clone().into(),
                w.restarts.to_string().into(),
                w.accelerators.to_string().into(),
                w.reason.clone().into(),
                w.attempt.to_string().into(),
                w.preemptions.to_string().into(),
                w.priority_class.clone().unwrap_or_default().into(),
                age(w.queued_since, look.now).into(),
                age(w.created, look.now).into(),
                w.message.clone().into(),
            ]);
        }
        table.render(look)
    }

    fn names(&self) -> Vec<String> {
        self.workloads
            .iter()
            .map(|w| workload_name(&w.name))
            .collect()
    }
}
