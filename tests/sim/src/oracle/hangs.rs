//! Each process that stops making progress is detected, and no other (I14). Compares the real fate
//! of training processes with reports and decisions.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::Pod;
use lockstep_api::names::labels;
use lockstep_api::workload::{Cause, CauseKind, Phase};
use lockstep_api::{NodeAgentStatus, TrainingWorkload};
use lockstep_kubelet::runtime::Patience;
use serde::Deserialize;

use crate::SimCluster;
use crate::api::Write;
use crate::nodes::Life;
use crate::pods::{leaving, over};

/// An incident, open or in the history: UID of the workload, name of the pod, attempt and time of
/// the cause.
type Answer = (String, String, i64, DateTime<Utc>);

/// Reports and decisions about hangs.
#[derive(Default)]
pub(super) struct Hangs {
    /// Pod and attempt of each report.
    reported: BTreeSet<(String, i64)>,
    answers: BTreeSet<Answer>,
}

impl Hangs {
    /// Checks reports of an agent: the process of every new hang made no progress.
    pub fn report(
        &mut self,
        write: &Write,
        workloads: &BTreeMap<String, TrainingWorkload>,
        cluster: &SimCluster,
    ) -> Vec<String> {
        let told = NodeAgentStatus::deserialize(&write.object["status"]).unwrap_or_default();
        let hangs = told.reports.into_iter();
        let hangs = hangs.filter(|r| r.supervised && r.reason == CauseKind::Hang.as_str());
        let mut broken = Vec::new();
        for report in hangs {
            let (uid, attempt) = (report.pod_uid, report.attempt);
            let mut own = cluster
                .lives()
                .filter(|l| l.pod.uid == uid && l.attempt as i64 == attempt);
            let is_new = self.reported.insert((uid.clone(), attempt));
            if is_new && !own.any(|l| has_hung(l, workloads)) {
                broken.push(format!("attempt {attempt} of pod {uid} has not hung"));
            }
        }
        broken
    }

    /// Checks the status of a workload: each hang is handled once.
    pub fn answer(
        &mut self,
        workload: &TrainingWorkload,
        workloads: &BTreeMap<String, TrainingWorkload>,
        cluster: &SimCluster,
    ) -> Vec<String> {
        let Some(status) = &workload.status else {
            return Vec::new();
        };
        let uid = workload.metadata.uid.clone().unwrap_or_default();
        let open = status.domains.iter();
        let open = open.flat_map(|d| d.open_causes().map(|cause| (d.attempt, cause)));
        let over = status.history.iter().map(|h| (h.attempt, &h.cause));
        let is_hang = |cause: &Cause| cause.kind == CauseKind::Hang;
        let hangs = open.chain(over).filter(|(_, cause)| is_hang(cause));
        let hangs = hangs.map(|(at, cause)| (uid.clone(), cause.pod.clone(), at, cause.time));
        let mut broken = Vec::new();
        for new in hangs.collect::<Vec<_>>() {
            if !self.answers.insert(new.clone()) {
                continue;
            }
            let of_pod = |answer: &&Answer| (&answer.0, &answer.1) == (&new.0, &new.1);
            let answers = self.answers.iter().filter(of_pod).count();
            let own = cluster.lives().filter(|l| l.pod.name == new.1);
            let hung = own.filter(|l| has_hung(l, workloads)).count();
            if answers > hung {
                let name = &new.1;
                broken.push(format!(
                    "{name} has hung {hung} times, answered {answers} times"
                ));
            }
        }
        broken
    }

    /// Number of reported and of handled hangs.
    pub fn counts(&self) -> [(&'static str, usize); 2] {
        [
            ("hangs told", self.reported.len()),
            ("hangs answered", self.answers.len()),
        ]
    }
}

/// True if a process ended after it made no progress for as long as its workload allows. A process
/// that the kubelet stops has its grace period instead.
fn has_hung(life: &Life, workloads: &BTreeMap<String, TrainingWorkload>) -> bool {
    let limit = limit(life, workloads).filter(|_| life.ended && !life.stopping);
    limit.is_some_and(|at| life.lived_until >= at)
}

/// Time at which a process hangs without further progress. `None`: never. A requested checkpoint has
/// time until its deadline, and is progress.
fn limit(life: &Life, workloads: &BTreeMap<String, TrainingWorkload>) -> Option<DateTime<Utc>> {
    let uid = life.pod.labels.get(labels::WORKLOAD_UID)?;
    let policy = workloads.get(uid)?.spec.failure_policy.progress?;
    let begun = life.started_at + TimeDelta::seconds(policy.startup_seconds);
    let silent = |at| at + TimeDelta::seconds(policy.timeout_seconds);
    let patient = match life.patience {
        Some(Patience::Until(at)) => begun.max(at),
        Some(Patience::SavedAt(at)) => begun.max(silent(at)),
        None => begun,
    };
    match life.stepped_at {
        Some(at) => Some(patient.max(silent(at))),
        None => life.told_before.then_some(patient),
    }
}

/// Living processes that have hung.
pub(super) fn unnoticed(
    cluster: &SimCluster,
    workloads: &BTreeMap<String, TrainingWorkload>,
) -> Vec<String> {
    let lives = cluster.lives().filter(|l| !l.stopping);
    let unnoticed = lives.filter(|l| limit(l, workloads).is_some_and(|at| l.lived_until > at));
    unnoticed
        .map(|l| format!("I14: {} hangs and lives on: {l:?}", l.pod.name))
        .collect()
}

/// Hangs without a consequence after faults have stopped.
pub(super) fn unanswered(
    cluster: &SimCluster,
    workloads: &BTreeMap<String, TrainingWorkload>,
) -> Vec<String> {
    let hung = cluster.lives().filter(|l| has_hung(l, workloads));
    let left = hung.filter(|life| {
        let later = |l: &Life| l.pod.uid == life.pod.uid && l.started_at > life.started_at;
        is_there(cluster, life) && !cluster.lives().any(later) && !has_moved_on(cluster, life)
    });
    left.map(|l| format!("I14: nothing has come of the hang of {}: {l:?}", l.pod.name))
        .collect()
}

/// True if the pod of a process exists and has not ended.
fn is_there(cluster: &SimCluster, life: &Life) -> bool {
    let mut pods = cluster.list::<Pod>();
    pods.retain(|p| p.metadata.uid.as_ref() == Some(&life.pod.uid));
    pods.iter().any(|p| !leaving(p) && !over(p))
}

/// True if its restart domain is at a later attempt, or its workload no longer runs.
fn has_moved_on(cluster: &SimCluster, life: &Life) -> bool {
    let mut workloads = cluster.list::<TrainingWorkload>();
    workloads.retain(|w| w.metadata.uid.as_ref() == life.pod.labels.get(labels::WORKLOAD_UID));
    let Some(status) = workloads.first().and_then(|w| w.status.as_ref()) else {
        return true;
    };
    let over = [Phase::Succeeded, Phase::Failed, Phase::Suspended];
    let mut domains = status.domains.iter();
    let domain = domains.find(|d| life.pod.labels.get(labels::DOMAIN) == Some(&d.key));
    status.phase.is_some_and(|phase| over.contains(&phase))
        || domain.is_none_or(|d| d.attempt > life.attempt as i64)
}
