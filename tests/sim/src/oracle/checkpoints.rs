//! The manager stops no process that it has asked for a checkpoint, and every request ends (I17).

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::Pod;
use lockstep_api::TrainingWorkload;
use lockstep_api::names::labels;
use lockstep_api::workload::{
    CheckpointOutcome, CheckpointRequest, DomainStatus, TrainingWorkloadStatus,
};

use super::ownership::owner;
use crate::api::Write;

/// A manager that was paused or replaced is late.
const LATE: TimeDelta = TimeDelta::hours(1);

/// A deletion of a running pod with an open request.
pub(super) fn stops(write: &Write, workloads: &BTreeMap<String, TrainingWorkload>) -> Vec<String> {
    let Ok(pod) = serde_json::from_value::<Pod>((*write.object).clone()) else {
        return Vec::new();
    };
    let runs = pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running");
    let workload = owner(&write.object).and_then(|uid| workloads.get(uid));
    let labels = pod.metadata.labels.unwrap_or_default();
    let status = workload.and_then(|w| w.status.as_ref()).filter(|_| runs);
    let domains = status.into_iter().flat_map(|s| &s.domains);
    let mut of_pod = domains.filter(|d| labels.get(labels::DOMAIN) == Some(&d.key));
    let open = of_pod.find_map(|d| d.checkpoint_request.as_ref().filter(|r| r.is_open()));
    let told = open.map(|r| format!("{} is deleted during request {}", write.key, r.id));
    told.into_iter().collect()
}

/// Requests that are open long after their deadline.
pub(super) fn late(after: &TrainingWorkloadStatus, at: DateTime<Utc>) -> Vec<String> {
    let requests = after.domains.iter().filter_map(request);
    let late = requests.filter(|r| r.is_open() && r.deadline.is_none_or(|by| by + LATE < at));
    late.map(|r| format!("request {} is open", r.id)).collect()
}

/// New outcomes.
pub(super) fn outcomes(
    before: &TrainingWorkloadStatus,
    after: &TrainingWorkloadStatus,
) -> Vec<CheckpointOutcome> {
    let known: Vec<&CheckpointRequest> = before.domains.iter().filter_map(request).collect();
    let new = after.domains.iter().filter_map(request);
    new.filter(|r| !known.contains(r))
        .filter_map(|r| r.outcome)
        .collect()
}

fn request(domain: &DomainStatus) -> Option<&CheckpointRequest> {
    domain.checkpoint_request.as_ref()
}
