//! What an agent that has lost its file still knows of a pod: what it has told.

use chrono::{DateTime, Utc};
use lockstep_api::NodeAgentStatus;
use lockstep_api::node_agent::Report;

use super::arrivals::reported_of;
use super::view::{NodePod, Record};

/// The newest training container of the pod that was told of: that it has come to an attempt, or how
/// it has ended. Numbers of restarts cannot say that: the container after one that has failed has
/// more of them although nobody has answered that failure yet.
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

/// Where it was the child that ended, its container is still to be looked for.
fn after_end(end: &Report, now: DateTime<Utc>) -> Record {
    Record {
        exited_at: Some(end.time).filter(|_| !end.supervised),
        arrived: end.supervised,
        told_end: Some(end.attempt).filter(|_| end.supervised),
        ..Record::new(&end.container_id, end.restarts, end.attempt, now)
    }
}
