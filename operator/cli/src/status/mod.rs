//! How one workload is: where its members are, what happens to it, what happened, and what to do.

mod advice;
mod budget;
mod render;

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::scheduling::PodGroupStatus;
use lockstep_api::time::utc;
use lockstep_api::workload::{
    Cause, CauseKind, GroupStatus, HistoryEntry, Incident, IncidentStage, Phase, TrainingProgress,
};
use lockstep_api::{PodGroup, TrainingWorkload};
use serde::Serialize;

pub use self::budget::RestartsLeft;
use crate::objects::{holds, member, node};

/// Failures that are shown, of the last 20 that the status keeps.
const FAILURES: usize = 3;

/// What was read of a workload.
#[derive(Debug)]
pub struct WorkloadObjects {
    /// The workload.
    pub workload: TrainingWorkload,
    /// Its pod groups.
    pub groups: Vec<PodGroup>,
    /// Its pods; `None`: they may not be read.
    pub pods: Option<Vec<Pod>>,
    /// Topology domain of nodes, by name, where nodes may be read and the workload has a topology.
    pub domains: BTreeMap<String, String>,
}

/// How a workload is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub workload: String,
    /// Phase, once the operator has seen the workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Why, in a word.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// Members that are ready or have succeeded, of all that should run.
    pub ready: String,
    /// Highest attempt.
    pub attempt: i64,
    /// Accelerators that it holds.
    pub accelerators: i64,
    /// How far training has come, where its processes tell it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<TrainingProgress>,
    /// When it was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<DateTime<Utc>>,
    /// Its groups.
    pub groups: Vec<ReportedGroup>,
    /// Label of nodes that the topology is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// Where members are or will be, by domain and node; those without a node last.
    pub nodes: Vec<NodeShare>,
    /// Restarts that are under way.
    pub restarting: Vec<OpenRestart>,
    /// The last failures, newest first.
    pub failures: Vec<PastFailure>,
    /// The restart budget.
    pub budget: RestartsLeft,
    /// What to do next, as sentences.
    pub next: Vec<String>,
}

/// Members of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportedGroup {
    /// Name.
    pub group: String,
    /// Members that should run.
    pub desired: i32,
    /// Members that are ready.
    pub ready: i32,
    /// Members that have succeeded.
    pub succeeded: i32,
    /// Members whose pod has failed.
    pub failed: i32,
}

/// Members on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeShare {
    /// Name of the node; absent for members that have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Topology domain of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Members, as ranges.
    pub members: Vec<String>,
    /// How many members are ready; absent where pods may not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<usize>,
    /// Number of members.
    pub count: usize,
}

/// A restart that is under way.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenRestart {
    /// Restart domain.
    pub domain: String,
    /// Attempt that it leads to.
    pub attempt: i64,
    /// What is done.
    pub action: String,
    /// How far it is.
    pub stage: IncidentStage,
    /// Since when it is there.
    pub since: DateTime<Utc>,
    /// It begins at this time: a back-off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<DateTime<Utc>>,
    /// Whether it took a unit of the budget.
    pub counted: bool,
    /// What happened.
    pub cause: Cause,
}

/// A failure that is over.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PastFailure {
    /// When.
    pub time: DateTime<Utc>,
    /// Restart domain.
    pub domain: String,
    /// Attempt that it led to.
    pub attempt: i64,
    /// What happened first.
    pub cause: Cause,
    /// What was done.
    pub action: String,
    /// Whether it took a unit of the budget.
    pub counted: bool,
    /// From the failure until all members ran again, in milliseconds; absent when they did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovered_after_ms: Option<i64>,
    /// Accelerator-seconds lost.
    pub lost_accelerator_seconds: i64,
}

/// Puts together how a workload is.
pub fn status(objects: &WorkloadObjects, now: DateTime<Utc>) -> StatusReport {
    let workload = &objects.workload;
    let status = workload.status.clone().unwrap_or_default();
    let budget = budget::left(workload, &status, now);
    let open = status.domains.iter();
    let open = open.filter_map(|d| Some((d.key.as_str(), d.incident.as_ref()?)));
    let failures = status.history.iter().filter(|h| is_failure(h.cause.kind));
    StatusReport {
        namespace: workload.namespace().unwrap_or_default(),
        workload: workload.name_any(),
        phase: status.phase,
        reason: status.reason.clone(),
        message: status.message.clone(),
        ready: status.ready.clone(),
        attempt: status.attempt,
        accelerators: status.accounting.accelerators,
        progress: status.progress.clone(),
        created: workload.metadata.creation_timestamp.as_ref().and_then(utc),
        groups: status.groups.iter().map(group).collect(),
        topology: workload
            .spec
            .scheduling
            .topology
            .as_ref()
            .map(|t| t.key.clone()),
        nodes: nodes(objects),
        restarting: open
            .map(|(domain, incident)| restart(domain, incident))
            .collect(),
        failures: failures.take(FAILURES).map(failure).collect(),
        budget,
        next: advice::next(workload, &status, budget),
    }
}

fn is_failure(kind: CauseKind) -> bool {
    !kind.is_requested() && kind != CauseKind::Preempted
}

/// What is shown of a group.
fn group(status: &GroupStatus) -> ReportedGroup {
    ReportedGroup {
        group: status.name.clone(),
        desired: status.desired,
        ready: status.ready,
        succeeded: status.succeeded,
        failed: status.failed,
    }
}

/// Members by node: of pods where they may be read, else as placed.
fn nodes(objects: &WorkloadObjects) -> Vec<NodeShare> {
    let mut by_node: BTreeMap<Option<String>, (BTreeSet<Member>, usize)> = BTreeMap::new();
    for (at, who) in placed(&objects.groups) {
        by_node.entry(Some(at)).or_default().0.insert(who);
    }
    for pod in objects.pods.iter().flatten() {
        let Some(who) = member(pod) else { continue };
        let placed = by_node
            .iter()
            .find(|(_, (members, _))| members.contains(&who));
        let at = placed.and_then(|(at, _)| at.clone());
        let at = at.or_else(|| node(pod).map(str::to_owned));
        let entry = by_node.entry(at).or_default();
        entry.0.insert(who);
        entry.1 += usize::from(holds(pod, "Ready"));
    }
    let shares = by_node.into_iter().map(|(at, (members, ready))| NodeShare {
        domain: at.as_ref().and_then(|n| objects.domains.get(n)).cloned(),
        node: at,
        count: members.len(),
        members: MemberSet::from_iter(members).to_ranges(),
        ready: objects.pods.is_some().then_some(ready),
    });
    let mut shares: Vec<NodeShare> = shares.collect();
    shares.sort_by_cached_key(|s| (s.node.is_none(), s.domain.clone(), s.node.clone()));
    shares
}

/// Node and member of every placement.
fn placed(groups: &[PodGroup]) -> impl Iterator<Item = (String, Member)> {
    let statuses = groups.iter().filter_map(|g| g.status.as_ref());
    let placements = statuses.filter_map(|s: &PodGroupStatus| s.placement.as_ref());
    placements.flat_map(|p| &p.nodes).flat_map(|on| {
        let members = MemberSet::parse(&on.members).unwrap_or_default();
        members.into_iter().map(|m| (on.node.clone(), m))
    })
}

fn restart(domain: &str, incident: &Incident) -> OpenRestart {
    OpenRestart {
        domain: domain.to_owned(),
        attempt: incident.attempt,
        action: incident.action.as_str().to_owned(),
        stage: incident.stage,
        since: incident.decided_at,
        not_before: incident.not_before,
        counted: incident.counted,
        cause: incident.cause.clone(),
    }
}

fn failure(entry: &HistoryEntry) -> PastFailure {
    let recovered = entry.recovered_at.map(|at| at - entry.time);
    PastFailure {
        time: entry.time,
        domain: entry.domain.clone(),
        attempt: entry.attempt,
        cause: entry.cause.clone(),
        action: entry.action.as_str().to_owned(),
        counted: entry.counted,
        recovered_after_ms: recovered.map(|t| t.num_milliseconds().max(0)),
        lost_accelerator_seconds: entry.lost_accelerator_seconds,
    }
}
