//! The objects of a scenario.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use lockstep_api::names::{labels, pod_group_name};
use lockstep_cli::record::Objects;
use lockstep_model::{Pod, PriorityClass};
use serde_json::{Value, json};

use super::scenario::{Foreign, ForeignKind, GangThere, GangThereState, Scenario};
use crate::support::{GPU, ago, budget, class, node, now, pod, workload};

/// Builds the objects of a scenario one after another.
pub(super) struct Builder {
    pub objects: Objects,
    free: Vec<i64>,
}

fn name(node: usize) -> String {
    format!("n{node}")
}

pub(super) fn groups(members: usize, gpus: i64, second: Option<i64>) -> Value {
    let group = |name: &str, size: usize, gpus: i64| {
        json!({"name": name, "size": size, "template": {"spec": {"containers": [
            {"name": "t", "image": "i", "resources": {"limits": {GPU: gpus}}}]}}})
    };
    let mut all = vec![group("workers", members, gpus)];
    all.extend(second.map(|gpus| group("head", 1, gpus)));
    json!(all)
}

pub(super) fn gang_objects(
    workload_name: &str,
    groups: &Value,
    spec: &Value,
    group: &Value,
) -> (Value, Value) {
    let uid = format!("uid-{workload_name}");
    let owner = json!([{"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
        "name": workload_name, "uid": uid, "controller": true}]);
    let mut tw = json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
        "metadata": {"name": workload_name, "namespace": "ml", "uid": uid, "generation": 1},
        "spec": {"groups": groups}, "status": {"gangs": [{"key": "workload", "started": true}]}});
    merge(&mut tw["spec"], spec);
    let size: u64 = groups
        .as_array()
        .unwrap()
        .iter()
        .map(|g| g["size"].as_u64().unwrap())
        .sum();
    let mut pg = json!({"apiVersion": "scheduling.lockstep.dev/v1alpha1", "kind": "PodGroup",
        "metadata": {"name": pod_group_name(workload_name, &uid, "workload"), "namespace": "ml",
            "uid": format!("uid-group-{workload_name}"), "generation": 1, "ownerReferences": owner},
        "spec": {"workloadRef": {"workloadName": workload_name, "templateName": "workload"}, "gangKey": "workload",
            "schedulingPolicy": {"gang": {"minCount": size}}, "disruptionMode": {"all": {}}}});
    merge(&mut pg, group);
    (tw, pg)
}

fn merge(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more.clone(),
    }
}

impl Builder {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let sticky = PriorityClass {
            preemption_priority: Some(95),
            ..class("sticky", 10)
        };
        let rack = |second: bool| if second { "b" } else { "a" };
        Self {
            objects: Objects {
                classes: vec![class("high", 80), sticky],
                nodes: (0..)
                    .zip(&scenario.nodes)
                    .map(|(n, &(second, gpus))| node(&name(n), rack(second), gpus))
                    .collect(),
                budgets: vec![budget("web", scenario.allowed)],
                ..Objects::default()
            },
            free: scenario.nodes.iter().map(|n| n.1).collect(),
        }
    }

    /// The first node from this one on with enough free accelerators.
    fn take(&mut self, first: usize, gpus: i64) -> Option<String> {
        let count = self.free.len();
        let found = (0..count)
            .map(|i| (first + i) % count)
            .find(|&n| self.free[n] >= gpus)?;
        self.free[found] -= gpus;
        Some(name(found))
    }

    pub(super) fn foreign(&mut self, number: usize, foreign: &Foreign) -> bool {
        let at = foreign.node % self.free.len();
        if self.free[at] < foreign.gpus {
            return false;
        }
        self.free[at] -= foreign.gpus;
        let metadata = match foreign.kind {
            ForeignKind::Guarded => json!({"labels": {"app": "web"}}),
            ForeignKind::Protected => {
                json!({"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet",
                "name": "d", "uid": "d", "controller": true}]})
            }
            ForeignKind::Terminating => json!({"deletionTimestamp": ago(-30)}),
            ForeignKind::Unit => {
                json!({"labels": {"batch.kubernetes.io/job-completion-index": number.to_string()},
                    "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j",
                        "controller": true}]})
            }
            ForeignKind::Plain | ForeignKind::Nominated | ForeignKind::Job => json!({}),
        };
        let mut made = pod(
            &format!("p{number}"),
            &name(at),
            foreign.gpus,
            foreign.priority,
            foreign.age,
            &metadata,
        );
        if foreign.kind == ForeignKind::Nominated {
            made.nominated = made.bound.take();
            made.started = None;
        }
        if foreign.kind == ForeignKind::Job {
            made.may_end = true;
            made.ends = number
                .is_multiple_of(2)
                .then(|| now() + TimeDelta::seconds(foreign.age));
        }
        self.objects.pods.push(made);
        true
    }

    pub(super) fn gang(&mut self, number: usize, gang: &GangThere) {
        let workload_name = format!("g{number}");
        let mut status = json!({"queuedAt": ago(gang.age)});
        if let Some(refused) = gang.refused {
            let node = name(refused % self.free.len());
            status["excludedNodes"] =
                json!([{"node": node, "reason": "Unschedulable", "until": ago(-300)}]);
        }
        if gang.state == GangThereState::Preempted {
            status["conditions"] = json!([{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
                "lastTransitionTime": ago(5)}]);
        }
        let mut members: Vec<(String, i64)> = (0..gang.members)
            .map(|i| (format!("workers/0/{i}"), gang.gpus))
            .collect();
        members.extend(gang.second.map(|gpus| ("head/0/0".to_owned(), gpus)));
        if gang.state == GangThereState::Waiting {
            members.clear();
        }
        if gang.state == GangThereState::PartlyPlaced {
            members.pop();
        }
        let placed: Vec<(String, i64, String)> = members
            .into_iter()
            .filter_map(|(member, gpus)| Some((member, gpus, self.take(gang.first, gpus)?)))
            .collect();
        if !placed.is_empty() {
            let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for (member, _, node) in &placed {
                nodes.entry(node).or_default().push(member);
            }
            let nodes: Vec<Value> = nodes
                .into_iter()
                .map(|(node, members)| json!({"node": node, "members": members}))
                .collect();
            status["placement"] = json!({"id": "p", "decidedAt": ago(gang.age), "members": placed.len(), "nodes": nodes});
        }
        if let Some(reserved) = gang.reserved {
            let node = name(reserved % self.free.len());
            if placed.is_empty() {
                let nodes = json!([{"node": node, "members": {"workers": gang.members}}]);
                status["reservation"] = json!({"since": ago(30), "nodes": nodes});
            } else if gang.deadline.is_some() {
                status["placement"]["backfill"] =
                    json!({"endsBy": ago(-7000), "reservedFor": ["uid-group-g0"]});
            }
        }
        let mut spec = json!({"priority": gang.priority});
        if gang.whole {
            spec["disruptionMode"] = json!({"all": {}});
        } else {
            spec["disruptionMode"] = json!({"all": null, "single": {}});
        }
        if gang.sticky {
            spec["priorityClassName"] = json!("sticky");
        }
        let (mut tw, pg) = gang_objects(
            &workload_name,
            &groups(gang.members, gang.gpus, gang.second),
            &json!({"activeDeadlineSeconds": gang.deadline}),
            &json!({"spec": spec, "status": status}),
        );
        tw["status"]["startTime"] = json!(ago(gang.age));
        if gang.state == GangThereState::Released {
            tw["status"]["gangs"][0]["released"] = json!("p");
        }
        if gang.state != GangThereState::WithoutPods {
            for (member, gpus, node) in &placed {
                let made = member_pod(&tw, &pg, member, *gpus, node, gang);
                self.objects.pods.push(made);
            }
        }
        self.objects.workloads.push(workload(tw));
        self.objects
            .groups
            .push(serde_json::from_value(pg).unwrap());
    }
}

fn member_pod(
    tw: &Value,
    pg: &Value,
    member: &str,
    gpus: i64,
    node: &str,
    gang: &GangThere,
) -> Pod {
    let parts: Vec<&str> = member.split('/').collect();
    let mut metadata = json!({"ownerReferences": pg["metadata"]["ownerReferences"], "labels": {
            labels::GROUP: parts[0], labels::REPLICA: parts[1], labels::INDEX: parts[2],
            labels::POD_GROUP: pg["metadata"]["name"]}});
    if matches!(
        gang.state,
        GangThereState::Terminating | GangThereState::Released
    ) {
        metadata["deletionTimestamp"] = json!(ago(-20));
    }
    let name = format!(
        "{}-{}",
        tw["metadata"]["name"].as_str().unwrap(),
        member.replace('/', "-")
    );
    pod(&name, node, gpus, gang.priority, gang.age, &metadata)
}
