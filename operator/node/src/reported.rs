//! Reconstructs a pod's record from published reports after the loss of the agent's file.

use chrono::{DateTime, Utc};
use lockstep_api::NodeAgentStatus;
use lockstep_api::node_agent::Report;

use super::arrivals::reported_of;
use super::view::{NodePod, Record};

/// From the newest arrival or exit. Restart counts do not suffice: the successor of a failed
/// container has a higher count before the failure is handled.
pub(super) fn record(
    pod: &NodePod,
    reports: &[Report],
    published: &NodeAgentStatus,
    now: DateTime<Utc>,
) -> Option<Record> {
    let end = reports
        .iter()
        .rev()
        .find(|r| r.pod_uid == pod.uid && r.container == pod.training)
        .map(|r| after_end(r, now));
    let key = |r: &Record| (r.attempt, r.restarts);
    match (arrival(pod, published, now), end) {
        (Some(came), Some(end)) if key(&came) > key(&end) => Some(came),
        (came, end) => end.or(came),
    }
}

fn arrival(pod: &NodePod, published: &NodeAgentStatus, now: DateTime<Utc>) -> Option<Record> {
    let domain = reported_of(published, &pod.workload_uid, &pod.domain)?;
    let came = domain.pods.iter().find(|a| a.pod_uid == pod.uid)?;
    Some(Record {
        arrived: pod.supervised,
        ..Record::new(&came.container_id, came.restarts, domain.attempt, now)
    })
}

fn after_end(end: &Report, now: DateTime<Utc>) -> Record {
    Record {
        exited_at: Some(end.time).filter(|_| !end.supervised),
        arrived: end.supervised,
        told_end: Some(end.attempt).filter(|_| end.supervised),
        ..Record::new(&end.container_id, end.restarts, end.attempt, now)
    }
}
