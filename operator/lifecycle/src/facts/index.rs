use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::Reach;
use lockstep_api::member::Member;
use lockstep_api::node_agent::Report;
use lockstep_api::workload::TrainingWorkloadSpec;

use crate::nodes::NodeInfo;
use crate::objects::training::training_container;
use crate::observed::Observed;
use crate::pods::PodView;
use crate::wake::{Due, Wake};

/// How long pods may appear unready after their node has recovered. The node lifecycle controller
/// has marked all of them, and the kubelet corrects one after the other.
const READINESS_LAGS: TimeDelta = TimeDelta::seconds(10);

/// True if a node is out of service, or its silence has counted for `limit`.
pub(super) fn is_lost(
    node: &NodeInfo,
    limit: TimeDelta,
    now: DateTime<Utc>,
    wake: &mut Wake,
) -> bool {
    match node.state.reach {
        Reach::Silent { since } => since.is_some_and(|at| Due::of(at + limit, now).passed(wake)),
        reach => reach != Reach::Responding,
    }
}

pub(super) fn shows_readiness(node: &NodeInfo, now: DateTime<Utc>, wake: &mut Wake) -> bool {
    let settled = node.ready_since.map(|at| at + READINESS_LAGS);
    node.state.reach == Reach::Responding && settled.is_none_or(|at| Due::of(at, now).passed(wake))
}

/// Pods by group and index, oldest first. The group is a level of its own, because comparing group
/// names for each member is expensive.
#[derive(Default)]
pub(super) struct PodsByMember<'a>(BTreeMap<&'a str, BTreeMap<(i32, i32), Vec<&'a PodView>>>);

impl<'a> PodsByMember<'a> {
    pub fn of(&self, member: &Member) -> &[&'a PodView] {
        let group = self.0.get(member.group.as_str());
        let pods = group.and_then(|members| members.get(&(member.replica, member.index)));
        pods.map_or(&[], Vec::as_slice)
    }

    pub fn iter(&self) -> impl Iterator<Item = &'a PodView> {
        self.0
            .values()
            .flat_map(BTreeMap::values)
            .flatten()
            .copied()
    }
}

/// Pods by member, and pods whose labels name no member.
pub(super) fn pods_of_ours(view: Observed<'_>) -> (PodsByMember<'_>, Vec<&PodView>) {
    let mut by_member = PodsByMember::default();
    let mut strays = Vec::new();
    for pod in view.pods().iter().filter(|p| p.owner_uid == view.uid()) {
        match &pod.identity.member {
            Some(member) => {
                let group = by_member.0.entry(&member.group).or_default();
                let pods = group.entry((member.replica, member.index)).or_default();
                pods.push(&**pod);
            }
            None => strays.push(&**pod),
        }
    }
    for pods in by_member.0.values_mut().flat_map(BTreeMap::values_mut) {
        pods.sort_by_key(|p| (p.created_at, &p.uid));
    }
    (by_member, strays)
}

pub(super) fn reports_by_pod(view: Observed<'_>) -> BTreeMap<&str, Vec<(&str, &Report)>> {
    let mut out: BTreeMap<&str, Vec<(&str, &Report)>> = BTreeMap::new();
    for (node, agent) in view.agents() {
        for report in &agent.status.reports {
            out.entry(&report.pod_uid).or_default().push((node, report));
        }
    }
    out
}

pub(super) fn training_containers(spec: &TrainingWorkloadSpec) -> BTreeMap<&str, &str> {
    spec.groups
        .iter()
        .filter_map(|g| Some((g.name.as_str(), training_container(&g.template.0)?)))
        .collect()
}
