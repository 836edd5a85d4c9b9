//! A member of policy Basic that is refused, or does not start, costs no running member its pod
//! (I15).

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::Pod;
use lockstep_api::TrainingWorkload;
use lockstep_api::condition::reasons;
use lockstep_api::gangs::gangs;
use lockstep_api::workload::{SchedulingPolicy, TrainingWorkloadStatus};

use super::controls;
use crate::SimCluster;
use crate::pods::{leaving, member_of};

/// Events can be delayed: a pod that has started since then may be unknown to the manager.
const KNOWN: TimeDelta = TimeDelta::minutes(2);

/// Gangs of policy Basic that back off although members run. `at`: time of the write of `after`.
pub(super) fn judge(
    new: &TrainingWorkload,
    before: &TrainingWorkloadStatus,
    after: &TrainingWorkloadStatus,
    at: DateTime<Utc>,
    cluster: &SimCluster,
) -> Vec<String> {
    if new.spec.scheduling.policy != SchedulingPolicy::Basic {
        return Vec::new();
    }
    let uid = new.metadata.uid.as_deref().unwrap_or_default();
    let mut broken = Vec::new();
    for gang in gangs(&new.spec) {
        let backoff = |status: &TrainingWorkloadStatus| {
            let mut entries = status.gangs.iter().filter(|g| gang.key == *g.key);
            entries.find_map(|g| g.backoff.clone())
        };
        // Restarts of the whole domain are a choice of the user.
        let new = backoff(after).filter(|b| b.reason != reasons::RESTARTS_EXHAUSTED);
        let Some(new) = new.filter(|_| backoff(before).is_none()) else {
            continue;
        };
        let pods = cluster.store().list::<Pod>();
        let ours = pods.iter().filter(|pod| controls(uid, &pod.metadata));
        let is_member = |pod: &&Pod| {
            let member = member_of(pod);
            member.is_some_and(|member| gang.members().any(|m| *m == member))
        };
        for pod in ours
            .filter(is_member)
            .filter(|p| !leaving(p) && runs(p, at))
        {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            broken.push(format!("{name} runs and is released: {}", new.reason));
        }
    }
    broken
}

/// True if the pod existed and all its containers had run for some time. The clock of its node can be
/// behind, so the start of a container alone can name a time before the pod's creation.
fn runs(pod: &Pod, at: DateTime<Utc>) -> bool {
    let created = pod.metadata.creation_timestamp.as_ref();
    let existed = created
        .and_then(lockstep_api::time::utc)
        .is_some_and(|created| created + KNOWN <= at);
    let status = pod.status.iter();
    let mut containers = status.flat_map(|s| s.container_statuses.iter().flatten());
    let running = pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running");
    existed
        && running
        && containers.all(|c| {
            let running = c.state.as_ref().and_then(|s| s.running.as_ref());
            let since = running.and_then(|r| lockstep_api::time::utc(r.started_at.as_ref()?));
            since.is_some_and(|since| since + KNOWN <= at)
        })
}
