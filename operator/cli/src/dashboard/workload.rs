//! What happened to one workload, what was lost, and is it training?

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use lockstep_api::TrainingWorkload;
use lockstep_api::gangs::gangs;
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::membership::{LATE, Membership, completed_members};
use lockstep_api::workload::{BarrierArrivals, TrainingWorkloadStatus};
use serde_json::{Map, Value, json};

use super::incidents::{id, incident};
use super::occupancy::occupation;
use super::queue::row;
use super::view::{ClusterView, PageReads};
use crate::explain::{Story, explain};
use crate::objects::{has_ended, holds, member, node};
use crate::status::{WorkloadObjects, domains, next_steps, restarting, status};

pub fn workload(
    view: &ClusterView,
    reads: &PageReads,
    (namespace, name): (&str, &str),
    now: DateTime<Utc>,
) -> Value {
    let Some(workload) = view.workload(namespace, name) else {
        let text = format!("no workload {namespace}/{name}");
        return json!({ "notFound": text });
    };
    let groups = view.groups_of(workload);
    let levels = workload.spec.scheduling.levels();
    let nodes = view.nodes.iter().flatten();
    let labelled = nodes.filter_map(|n| Some((n.metadata.name.as_deref()?, n.labels())));
    let report = status(
        &WorkloadObjects {
            workload: workload.clone(),
            groups: groups.clone(),
            pods: reads.pods.clone(),
            domains: if levels.is_empty() {
                BTreeMap::new()
            } else {
                domains(&levels, labelled)
            },
        },
        now,
    );
    let story = explain(&Story {
        workload: workload.clone(),
        groups,
        events: reads.events.clone(),
    });
    let none = TrainingWorkloadStatus::default();
    let ledger = workload.status.as_ref().unwrap_or(&none);
    let progress = ledger.progress.as_ref();
    let barrier = AtBarrier {
        pods: reads.pods.as_deref().map(by_member),
        arrived: arrived(view, workload, ledger),
    };
    let (_, budget) = next_steps(workload, now);
    let queue = view.queue_report(reads);
    let mut waiting = queue.gangs.iter();
    let waiting = waiting.find(|g| g.namespace == namespace && g.workload == name);
    let restarts = ledger.history.iter().map(|entry| {
        let mut row = incident(entry);
        row["id"] = json!(id(entry));
        row["preemptor"] = json!(entry.preemptor);
        row
    });
    json!({
        "status": report,
        "explain": story,
        "phases": ledger.phases,
        "arrivals": arrivals(&barrier, workload, now),
        "slowest": progress.map(|p| &p.slowest),
        "restarts": restarts.collect::<Vec<_>>(),
        "checkpoint": {
            "step": progress.map(|p| p.step),
            "savedStep": progress.and_then(|p| p.checkpoint_step),
            "savedAt": progress.and_then(|p| p.checkpoint_time),
            "ratePerMinute": progress.and_then(|p| p.steps_per_hour).map(|rate| rate as f64 / 60.0),
        },
        "budget": {"used": budget.of - budget.left, "limit": budget.of},
        "members": members(view, &barrier, workload),
        "queue": waiting.map(|gang| row(view, gang, &occupation(view, now))),
        "command": commands(workload, namespace, name),
    })
}

fn commands(workload: &TrainingWorkload, namespace: &str, name: &str) -> BTreeMap<String, String> {
    let of = |verb: &str| format!("kubectl lockstep {verb} {name} -n {namespace}");
    let failed = format!("kubectl lockstep logs {name} --failed -n {namespace}");
    let mut out = vec![
        ("status", of("status")),
        ("explain", of("explain")),
        ("log of the first failed member", failed),
    ];
    if !has_ended(workload) {
        let change = if workload.spec.suspend {
            "resume"
        } else {
            "suspend"
        };
        out.extend([(change, of(change)), ("restart", of("restart"))]);
    }
    let named = out
        .into_iter()
        .map(|(label, text)| (label.to_owned(), text));
    named.collect()
}

/// All members by name, with what placements, pods and node agents say about them.
fn members(
    view: &ClusterView,
    barrier: &AtBarrier<'_>,
    workload: &TrainingWorkload,
) -> Map<String, Value> {
    let none = TrainingWorkloadStatus::default();
    let ledger = workload.status.as_ref().unwrap_or(&none);
    let membership = Membership::of(&workload.spec, ledger);
    let mut nodes = BTreeMap::new();
    for group in view.groups_of(workload) {
        let placement = group.status.and_then(|s| s.placement);
        for on in placement.into_iter().flat_map(|p| p.nodes) {
            for who in MemberSet::parse(&on.members).unwrap_or_default() {
                nodes.insert(who, on.node.clone());
            }
        }
    }
    let pods = || barrier.pods.iter().flatten();
    let steps = steps(view);
    let step_of = |pod: &Pod| steps.get(pod.metadata.uid.as_deref()?).copied();
    let most = pods().filter_map(|(_, pod)| step_of(pod)).max();
    let all = gangs(&workload.spec);
    let all = all.iter().flat_map(lockstep_api::gangs::Gang::members);
    let members = all.map(|who| {
        let pod = barrier.pod(who);
        let step = pod.and_then(step_of);
        let phase = pod.and_then(|p| p.status.as_ref()?.phase.clone());
        let row = json!({
            "rank": membership.place(who).map(|place| place.rank),
            "node": nodes.get(who).map(String::as_str).or_else(|| pod.and_then(node)),
            "pod": pod.map(ResourceExt::name_any),
            "phase": phase,
            "step": step,
            "behind": step.and_then(|step| Some(most? - step)),
            "arrived": pod.and_then(|pod| barrier.has_arrived(pod)),
            "ready": pod.is_some_and(|p| holds(p, "Ready")),
        });
        (who.to_range(), row)
    });
    members.collect()
}

/// Pods of members, and which of them are at the barriers of open incidents.
struct AtBarrier<'p> {
    /// `None`: not read.
    pods: Option<BTreeMap<Member, &'p Pod>>,
    /// UIDs. `None`: no incident is open, or node agents are not read.
    arrived: Option<BTreeSet<&'p str>>,
}

impl<'p> AtBarrier<'p> {
    fn pod(&self, member: &Member) -> Option<&'p Pod> {
        self.pods.as_ref()?.get(member).copied()
    }

    fn has_arrived(&self, pod: &Pod) -> Option<bool> {
        let uid = pod.metadata.uid.as_deref()?;
        Some(self.arrived.as_ref()?.contains(uid))
    }
}

/// Terminating pods come last, and count only without a newer pod.
fn by_member(pods: &[Pod]) -> BTreeMap<Member, &Pod> {
    let mut by_member = BTreeMap::new();
    for pod in pods {
        if let Some(who) = member(pod) {
            by_member.entry(who).or_insert(pod);
        }
    }
    by_member
}

/// Members at the barriers of open incidents, as node agents report them. A reader who may not read
/// node agents or pods gets the numbers of the status.
fn arrivals(barrier: &AtBarrier<'_>, workload: &TrainingWorkload, now: DateTime<Utc>) -> Value {
    let none = TrainingWorkloadStatus::default();
    let ledger = workload.status.as_ref().unwrap_or(&none);
    let mut all = BarrierArrivals::default();
    if barrier.arrived.is_some() && barrier.pods.is_some() {
        let membership = Membership::of(&workload.spec, ledger);
        let completed = completed_members(ledger, &workload.spec);
        let mut members = restarting(workload);
        members.retain(|m, incident| {
            incident.ordered_at.is_some() && membership.contains(m) && !completed.contains(m)
        });
        let has_arrived = |m| barrier.has_arrived(barrier.pod(m)?);
        let has_arrived = |m| has_arrived(m).unwrap_or(false);
        all = membership.arrivals(members.keys().map(|m| (m, has_arrived(m))), now);
    } else {
        let incidents = ledger.domains.iter().filter_map(|d| d.incident.as_ref());
        for written in incidents.filter_map(|i| i.arrivals.clone()) {
            all.arrived += written.arrived;
            all.expected += written.expected;
            all.late.extend(written.late);
        }
        all.late.truncate(LATE);
    }
    if all.expected == 0 {
        return Value::Null;
    }
    json!({"arrived": all.arrived, "expected": all.expected, "late": all.late})
}

/// Step of each member by UID of its pod, as node agents report it.
fn steps(view: &ClusterView) -> BTreeMap<&str, i64> {
    let statuses = view
        .agents
        .iter()
        .flatten()
        .filter_map(|a| a.status.as_ref());
    let reports = statuses.flat_map(|s| &s.progress);
    reports.map(|p| (p.pod_uid.as_str(), p.step)).collect()
}

/// UIDs of the pods that have arrived at the attempt of an open incident. `None` without one.
fn arrived<'v>(
    view: &'v ClusterView,
    workload: &TrainingWorkload,
    ledger: &TrainingWorkloadStatus,
) -> Option<BTreeSet<&'v str>> {
    let open = ledger
        .domains
        .iter()
        .filter_map(|d| Some((d, d.incident.as_ref()?)));
    let open: BTreeMap<&str, i64> = open.map(|(d, i)| (d.key.as_str(), i.attempt)).collect();
    let agents = view.agents.as_ref().filter(|_| !open.is_empty())?;
    let uid = workload.metadata.uid.as_deref()?;
    let arrivals = agents.iter().filter_map(|a| a.status.as_ref());
    let arrivals = arrivals
        .flat_map(|s| &s.arrivals)
        .filter(|a| a.workload_uid == uid && open.get(a.domain.as_str()) == Some(&a.attempt));
    let pods = arrivals.flat_map(|a| &a.pods);
    Some(pods.map(|p| p.pod_uid.as_str()).collect())
}
