mod advice;
mod budget;
mod render;

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use lockstep_api::condition::{find, types};
use lockstep_api::gangs::gangs;
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::names::annotations;
use lockstep_api::scheduling::{PodGroupStatus, QueueStatus};
use lockstep_api::time::utc;
use lockstep_api::workload::{
    Backend, BarrierArrivals, Cause, CauseKind, CheckpointRequest, DomainStatus, FailureAction,
    GroupStatus, HistoryEntry, Incident, IncidentStage, Phase, PodReplacement, TopologyLevel,
    TopologyMode, TrainingProgress,
};
use lockstep_api::{PodGroup, TrainingWorkload};
use serde::Serialize;

pub use self::advice::page;
pub use self::budget::RestartsLeft;
use crate::objects::{has_ended, holds, member, node};

/// Number of shown failures. The status keeps the last 20.
const FAILURES: usize = 3;

#[derive(Debug)]
pub struct WorkloadObjects {
    pub workload: TrainingWorkload,
    pub groups: Vec<PodGroup>,
    pub pods: Option<Vec<Pod>>,
    /// Topology domains by node name, with slashes between the levels. Empty without a topology or
    /// without access to nodes.
    pub domains: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    pub namespace: String,
    pub workload: String,
    /// Phase; absent before the first reconcile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    pub reason: String,
    pub message: String,
    /// Address of the page about the reason, if the workload waits, has failed, or needs a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page: Option<String>,
    /// Ready or succeeded members, of all members that should run.
    pub ready: String,
    pub attempt: i64,
    pub accelerators: i64,
    /// Backend of the next placement; absent: Lockstep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<TrainingProgress>,
    /// Places of the waiting gangs in the queue, the first one first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub queue: Vec<GangPlace>,
    /// The open or last request for a checkpoint of each restart domain.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checkpoint_requests: Vec<DomainRequest>,
    /// Message of condition NodeLeaving: nodes with signals, and the plan of the gang.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_leaving: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<DateTime<Utc>>,
    pub groups: Vec<ReportedGroup>,
    /// Keys of the levels of the topology, outermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub topology: Vec<String>,
    /// Nodes of members or of their placement, by domain and node. Members without a node come
    /// last. Empty for an ended workload, whose nodes are released.
    pub nodes: Vec<NodeShare>,
    pub restarting: Vec<OpenRestart>,
    /// Last failures, newest first.
    pub failures: Vec<PastFailure>,
    pub budget: RestartsLeft,
    pub next: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GangPlace {
    pub gang: String,
    #[serde(flatten)]
    pub queue: QueueStatus,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainRequest {
    pub domain: String,
    #[serde(flatten)]
    pub request: CheckpointRequest,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportedGroup {
    pub group: String,
    /// Members that should run.
    pub desired: i32,
    pub ready: i32,
    pub succeeded: i32,
    pub failed: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeShare {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    pub members: Vec<String>,
    /// Ready members whose process is not held for a restart; absent if the user may not list pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<usize>,
    pub count: usize,
}

impl NodeShare {
    /// True if all members of the node are known to be ready.
    fn is_ready(&self) -> bool {
        self.node.is_some() && self.ready == Some(self.count)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenRestart {
    pub domain: String,
    pub attempt: i64,
    pub action: String,
    /// Absent for a replacement of single pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<IncidentStage>,
    pub since: DateTime<Utc>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<DateTime<Utc>>,
    pub counted: bool,
    pub cause: Cause,
    /// Members at the barrier, once it has waited for 5 s.
    #[serde(flatten)]
    pub arrivals: Option<BarrierArrivals>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PastFailure {
    pub time: DateTime<Utc>,
    pub domain: String,
    pub attempt: i64,
    pub cause: Cause,
    pub action: String,
    pub counted: bool,
    /// Time from the failure until all members ran again, in milliseconds. Absent if they never
    /// did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovered_after_ms: Option<i64>,
    pub lost_accelerator_seconds: i64,
    pub restart_accelerator_seconds: i64,
}

pub fn status(objects: &WorkloadObjects, now: DateTime<Utc>) -> StatusReport {
    let workload = &objects.workload;
    let status = workload.status.clone().unwrap_or_default();
    let budget = budget::left(workload, &status, now);
    let open = status.domains.iter().flat_map(|d| {
        let incident = d.incident.iter().map(|i| restart(&d.key, i));
        incident.chain(d.replacement.iter().map(|r| replacement(d, r)))
    });
    let failures = status.history.iter().filter(|h| is_failure(h.cause.kind));
    StatusReport {
        namespace: workload.namespace().unwrap_or_default(),
        workload: workload.name_any(),
        phase: status.phase,
        reason: status.reason.clone(),
        message: status.message.clone(),
        page: advice::page(&status),
        ready: status.ready.clone(),
        attempt: status.attempt,
        accelerators: status.accounting.accelerators,
        backend: status.backend,
        progress: status.progress.clone(),
        queue: if has_ended(workload) {
            Vec::new()
        } else {
            places(&objects.groups)
        },
        checkpoint_requests: status.domains.iter().filter_map(request).collect(),
        node_leaving: find(&status.conditions, types::NODE_LEAVING).map(|c| c.message.clone()),
        created: workload.metadata.creation_timestamp.as_ref().and_then(utc),
        groups: status.groups.iter().map(group).collect(),
        topology: (workload.spec.scheduling.levels().into_iter())
            .map(|level| level.key)
            .collect(),
        nodes: if has_ended(workload) {
            Vec::new()
        } else {
            nodes(objects)
        },
        restarting: open.collect(),
        failures: failures.take(FAILURES).map(failure).collect(),
        budget,
        next: advice::next(workload, &status, budget, now),
    }
}

/// What a reader can do next, most important first; and the restarts that are left.
pub fn next_steps(workload: &TrainingWorkload, now: DateTime<Utc>) -> (Vec<String>, RestartsLeft) {
    let status = workload.status.clone().unwrap_or_default();
    let budget = budget::left(workload, &status, now);
    (advice::next(workload, &status, budget, now), budget)
}

/// Domains by node, with slashes between the levels. Nodes without the label of a required level
/// are left out.
pub fn domains<'n>(
    levels: &[TopologyLevel],
    nodes: impl Iterator<Item = (&'n str, &'n BTreeMap<String, String>)>,
) -> BTreeMap<String, String> {
    let required = levels.iter().filter(|l| l.mode == TopologyMode::Required);
    let required: Vec<&str> = required.map(|l| l.key.as_str()).collect();
    let inside = nodes.filter(|(_, labels)| required.iter().all(|key| labels.contains_key(*key)));
    let domains = inside.map(|(node, labels)| {
        let values = levels.iter().map(|l| labels.get(&l.key).map_or("-", |v| v));
        (node.to_owned(), values.collect::<Vec<_>>().join("/"))
    });
    domains.collect()
}

fn places(groups: &[PodGroup]) -> Vec<GangPlace> {
    let waiting = groups.iter().filter_map(|group| {
        Some(GangPlace {
            gang: group.spec.gang_key.clone(),
            queue: group.status.as_ref()?.queue.clone()?,
        })
    });
    let mut places: Vec<GangPlace> = waiting.collect();
    places.sort_by_key(|place| place.queue.ahead);
    places
}

fn request(domain: &DomainStatus) -> Option<DomainRequest> {
    Some(DomainRequest {
        domain: domain.key.clone(),
        request: domain.checkpoint_request.clone()?,
    })
}

fn is_failure(kind: CauseKind) -> bool {
    !kind.is_requested() && kind != CauseKind::Preempted
}

fn group(status: &GroupStatus) -> ReportedGroup {
    ReportedGroup {
        group: status.name.clone(),
        desired: status.desired,
        ready: status.ready,
        succeeded: status.succeeded,
        failed: status.failed,
    }
}

/// Members by node, from pods if known, else from placements.
fn nodes(objects: &WorkloadObjects) -> Vec<NodeShare> {
    let mut by_node: BTreeMap<Option<String>, (BTreeSet<Member>, usize)> = BTreeMap::new();
    for (at, who) in placed(&objects.groups) {
        by_node.entry(Some(at)).or_default().0.insert(who);
    }
    let restarting = restarting(&objects.workload);
    for pod in objects.pods.iter().flatten() {
        let Some(who) = member(pod) else { continue };
        let placed = by_node
            .iter()
            .find(|(_, (members, _))| members.contains(&who));
        let at = placed
            .and_then(|(at, _)| at.clone())
            .or_else(|| node(pod).map(str::to_owned));
        let entry = by_node.entry(at).or_default();
        let held = restarting.get(&who).is_some_and(|i| is_held(pod, i));
        entry.0.insert(who);
        entry.1 += usize::from(holds(pod, "Ready") && !held);
    }
    let mut shares: Vec<NodeShare> = by_node
        .into_iter()
        .map(|(at, (members, ready))| NodeShare {
            domain: at.as_ref().and_then(|n| objects.domains.get(n)).cloned(),
            node: at,
            count: members.len(),
            members: MemberSet::from_iter(members).to_ranges(),
            ready: objects.pods.is_some().then_some(ready),
        })
        .collect();
    shares.sort_by_cached_key(|s| (s.node.is_none(), s.domain.clone(), s.node.clone()));
    shares
}

/// Members of restart domains with an open incident.
pub fn restarting(workload: &TrainingWorkload) -> BTreeMap<Member, &Incident> {
    let status = workload.status.iter();
    let domains = status.flat_map(|s| &s.domains);
    let open: BTreeMap<&str, &Incident> = domains
        .filter_map(|d| Some((d.key.as_str(), d.incident.as_ref()?)))
        .collect();
    if open.is_empty() {
        return BTreeMap::new();
    }
    let domains = gangs(&workload.spec).into_iter().flat_map(|g| g.domains);
    let members = domains.filter_map(|domain| {
        let incident = *open.get(domain.key.as_str())?;
        Some(domain.members.into_iter().map(move |m| (m, incident)))
    });
    members.flatten().collect()
}

/// True if the pod waits for the attempt of an incident. The kubelet reports a supervised pod
/// without a readiness probe as ready in that time, too.
fn is_held(pod: &Pod, incident: &Incident) -> bool {
    let text = |annotation: &str| pod.annotations().get(annotation).map(String::as_str);
    let attempt: i64 = text(annotations::ATTEMPT).map_or(0, |a| a.parse().unwrap_or_default());
    let stopped =
        incident.stage != IncidentStage::Arrived && text(annotations::TIER) == Some("supervised");
    let recreated = incident.action == FailureAction::RecreateGang;
    attempt < incident.attempt && (stopped || recreated)
}

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
        stage: Some(incident.stage),
        since: incident.decided_at,
        not_before: incident.not_before,
        counted: incident.counted,
        cause: incident.cause.clone(),
        arrivals: incident.arrivals.clone(),
    }
}

fn replacement(domain: &DomainStatus, replacement: &PodReplacement) -> OpenRestart {
    OpenRestart {
        domain: domain.key.clone(),
        attempt: domain.attempt,
        action: FailureAction::RestartPod.as_str().to_owned(),
        stage: None,
        since: replacement.detected_at,
        not_before: replacement.not_before,
        counted: replacement.counted,
        cause: replacement.cause.clone(),
        arrivals: None,
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
        restart_accelerator_seconds: entry.restart_accelerator_seconds,
    }
}
