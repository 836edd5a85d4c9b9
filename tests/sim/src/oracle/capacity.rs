//! Capacity is never promised twice among gangs (I11).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use lockstep_api::gangs::gangs;
use lockstep_api::key::Key;
use lockstep_api::member::Member;
use lockstep_api::workload::Phase;
use lockstep_api::{PodGroup, TrainingWorkload};
use serde_json::Value;

use super::ownership::owner;
use super::rest::controller;
use crate::SimCluster;
use crate::api::Write;
use crate::gangs::assigned;
use crate::pods::{leaving, member_of, node_of, over};

const RESOURCES: [&str; 2] = ["nvidia.com/gpu", "rdma/hca"];

#[derive(Default)]
pub(super) struct Capacity {
    /// Largest offer of each node, by resource: the scheduler may not have received a decrease yet.
    most: BTreeMap<String, [i64; 2]>,
    /// UIDs of workloads with a forged pod in their namespace, owner reference included. Such a pod
    /// replaces a member and can hold less than the member needs.
    forged: BTreeSet<String>,
}

impl Capacity {
    pub fn offered(&mut self, write: &Write) {
        let most = self.most.entry(write.key.name.to_string()).or_default();
        for (at, resource) in RESOURCES.into_iter().enumerate() {
            let offered = number(&write.object["status"]["allocatable"][resource]);
            most[at] = most[at].max(offered);
        }
    }

    /// Records a forged pod.
    pub fn stands_in(&mut self, write: &Write) {
        self.forged.extend(owner(&write.object).map(str::to_owned));
    }

    /// UIDs of workloads with a forged pod.
    pub fn forged(&self) -> &BTreeSet<String> {
        &self.forged
    }

    /// Checks the nodes on which the gang has new members.
    pub fn judge(
        &self,
        old: Option<&PodGroup>,
        new: &PodGroup,
        groups: &BTreeMap<String, PodGroup>,
        workloads: &BTreeMap<String, TrainingWorkload>,
        cluster: &SimCluster,
    ) -> Vec<String> {
        let before = old.map(placed).unwrap_or_default();
        let gained = placed(new)
            .into_iter()
            .filter(|(member, node)| before.get(member) != Some(node));
        let nodes: Vec<String> = gained.map(|(_, node)| node).collect();
        if nodes.is_empty() || !holds(new, workloads) || self.is_forged(new, workloads) {
            return Vec::new();
        }
        let over = self.overcommitted(&nodes, groups, workloads, None);
        if over.is_empty() {
            return over;
        }
        self.overcommitted(&nodes, groups, workloads, Some(cluster))
    }

    fn is_forged(&self, group: &PodGroup, workloads: &BTreeMap<String, TrainingWorkload>) -> bool {
        let uid = workload(group, workloads).and_then(|w| w.metadata.uid.as_ref());
        uid.is_some_and(|uid| self.forged.contains(uid))
    }

    /// Nodes with more promised than offered capacity. With `cluster`, two kinds of members take none
    /// of their promise. Those with a pod on another node: gangs whose pods kube-scheduler has
    /// exchanged take each other's nodes, one write after the other. And those that the manager knows
    /// as finished, because it has not received the write by which they start again.
    fn overcommitted(
        &self,
        nodes: &[String],
        groups: &BTreeMap<String, PodGroup>,
        workloads: &BTreeMap<String, TrainingWorkload>,
        cluster: Option<&SimCluster>,
    ) -> Vec<String> {
        let bound = cluster.map(bound).unwrap_or_default();
        let mut promised: BTreeMap<String, [i64; 2]> = BTreeMap::new();
        for group in groups
            .values()
            .filter(|g| holds(g, workloads) && !self.is_forged(g, workloads))
        {
            let workload = workload(group, workloads);
            let done = workload
                .and_then(|w| Some(w.spec.completed(w.status.as_ref()?)))
                .unwrap_or_default();
            let known = workload.and_then(|w| {
                let view = cluster?.known(&Key::of(w))?;
                Some(w.spec.completed(&view.status()))
            });
            let known = known.unwrap_or_default();
            let unfinished = placed(group).into_iter();
            let unfinished = unfinished.filter(|(m, _)| !done.contains(m) && !known.contains(m));
            let uid = workload
                .and_then(|w| w.metadata.uid.clone())
                .unwrap_or_default();
            for (member, node) in unfinished {
                let pod = bound.get(&(uid.clone(), member.clone()));
                if pod.is_some_and(|at| *at != node) {
                    continue;
                }
                let each = request(workload, &member);
                let sum = promised.entry(node).or_default();
                for at in 0..RESOURCES.len() {
                    sum[at] += each[at];
                }
            }
        }
        let over = nodes.iter().filter_map(|node| {
            let (promised, offered) = (promised.get(node)?, self.most.get(node)?);
            let over = (0..RESOURCES.len()).any(|at| promised[at] > offered[at]);
            over.then(|| {
                let who = who(node, groups, workloads);
                format!("{node}: {promised:?} of {offered:?} promised, to {who}")
            })
        });
        over.collect()
    }
}

/// Nodes of bound pods, by UID of their workload and by member.
pub(super) type Bound = BTreeMap<(String, Member), String>;

pub(super) fn bound(cluster: &SimCluster) -> Bound {
    let pods = cluster.list::<Pod>().into_iter();
    let pods = pods.filter(|p| !over(p) && !leaving(p));
    let each = pods.filter_map(|pod| {
        let node = node_of(&pod)?.to_owned();
        let uid = controller(&pod)?.to_owned();
        Some(((uid, member_of(&pod)?), node))
    });
    each.collect()
}

/// Holders of promises on a node.
fn who(
    node: &str,
    groups: &BTreeMap<String, PodGroup>,
    workloads: &BTreeMap<String, TrainingWorkload>,
) -> String {
    let holders = groups.values().filter(|g| holds(g, workloads));
    let each = holders.filter_map(|g| {
        let here = placed(g).into_iter().filter(|(_, at)| at == node);
        let members: Vec<String> = here.map(|(member, _)| member.to_string()).collect();
        let name = &g.spec.workload_ref.workload_name;
        (!members.is_empty()).then(|| format!("{name}: {}", members.join(" ")))
    });
    each.collect::<Vec<_>>().join("; ")
}

fn placed(group: &PodGroup) -> BTreeMap<Member, String> {
    group.status.as_ref().map(assigned).unwrap_or_default()
}

fn workload<'a>(
    group: &PodGroup,
    workloads: &'a BTreeMap<String, TrainingWorkload>,
) -> Option<&'a TrainingWorkload> {
    workloads.get(controller(group)?)
}

fn has_ended(workload: &TrainingWorkload) -> bool {
    let phase = workload.status.as_ref().and_then(|s| s.phase);
    matches!(phase, Some(Phase::Succeeded | Phase::Failed))
}

/// True if the promise to a gang counts. It does not if the gang waits for victims (with which it
/// overlaps), or if its workload has ended, released it, or was resized so that the gang no longer
/// exists. Pods of such a gang hold their own capacity.
fn holds(group: &PodGroup, workloads: &BTreeMap<String, TrainingWorkload>) -> bool {
    let Some(status) = &group.status else {
        return false;
    };
    let Some(placement) = &status.placement else {
        return false;
    };
    let workload = workload(group, workloads);
    let is_there =
        |w: &TrainingWorkload| gangs(&w.spec).iter().any(|g| g.key == *group.spec.gang_key);
    if !workload.is_some_and(|w| is_there(w) && !has_ended(w)) {
        return false;
    }
    let ledger = workload.and_then(|w| {
        let gangs = &w.status.as_ref()?.gangs;
        gangs.iter().find(|g| g.key == *group.spec.gang_key)
    });
    let released = ledger.and_then(|g| g.released.as_ref()) == Some(&placement.id);
    status.preemption.is_none() && !released
}

/// Requests of a member by resource.
fn request(workload: Option<&TrainingWorkload>, member: &Member) -> [i64; 2] {
    let group = workload.and_then(|w| w.spec.groups.iter().find(|g| g.name == member.group));
    let template = group.map(|g| serde_json::to_value(&g.template).unwrap_or_default());
    let template = template.unwrap_or_default();
    let containers = template["spec"]["containers"].as_array();
    let each = |resource: &str| {
        let limits = containers.into_iter().flatten();
        limits
            .map(|c| number(&c["resources"]["limits"][resource]))
            .sum()
    };
    RESOURCES.map(each)
}

fn number(value: &Value) -> i64 {
    value
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}
