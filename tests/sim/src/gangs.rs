//! A scenario with many gangs, each a whole workload of namespace `ml`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lockstep_api::condition::{Condition, find, is_true, types};
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::names::annotations;
use lockstep_api::scheduling::{Placement, PodGroupStatus, Preemption};
use lockstep_api::workload::GangStatus;
use lockstep_api::{PodGroup, TrainingWorkload};
use serde_json::{Value, json};

use crate::api::{Patch, Verb, merge};
use crate::nodes::node;
use crate::pods::{leaving, node_of, over};
use crate::{CycleSummary, Key, SimCluster, WatchedKind};

const NAMESPACE: &str = "ml";

#[derive(Clone, Copy, Debug)]
pub struct Spec {
    pub priority: i32,
    /// Number of members, one per replica.
    pub members: i32,
    pub gpus: i64,
}

pub struct Gangs {
    pub cluster: SimCluster,
}

/// Node of each placed member in a status.
pub fn assigned(status: &PodGroupStatus) -> BTreeMap<Member, String> {
    let placed = status.placement.iter().flat_map(|p| &p.nodes);
    let each = placed.flat_map(|at| {
        let members = MemberSet::parse(&at.members).expect("ranges");
        let on_node = members.into_iter().map(|m| (m, at.node.clone()));
        on_node.collect::<Vec<_>>()
    });
    each.collect()
}

impl Deref for Gangs {
    type Target = SimCluster;

    fn deref(&self) -> &SimCluster {
        &self.cluster
    }
}

impl DerefMut for Gangs {
    fn deref_mut(&mut self) -> &mut SimCluster {
        &mut self.cluster
    }
}

impl Gangs {
    /// A cluster of these nodes with this number of accelerators.
    pub fn new(nodes: &[(&str, i64)]) -> Self {
        Self::with_seed(0, nodes)
    }

    /// [`Self::new`] with a seed.
    pub fn with_seed(seed: u64, nodes: &[(&str, i64)]) -> Self {
        let mut gangs = Self {
            cluster: SimCluster::new(seed),
        };
        for (name, gpus) in nodes {
            gangs.node(name, *gpus, true);
        }
        gangs
    }

    /// Sets accelerators and readiness of a node. Adds a missing node.
    pub fn node(&mut self, name: &str, gpus: i64, ready: bool) {
        let key = Key::new("", name);
        let amount = Quantity(gpus.to_string());
        if self.cluster.get::<Node>(&key).is_none() {
            self.zone(name, gpus, &json!({}));
        }
        let there = self
            .cluster
            .get::<Node>(&key)
            .and_then(|n| n.status?.allocatable);
        if there.is_some_and(|a| a.get("nvidia.com/gpu") != Some(&amount)) {
            self.cluster.edit::<Node>(&key, |n| {
                let status = n.status.get_or_insert_default();
                let allocatable = status.allocatable.get_or_insert_default();
                allocatable.insert("nvidia.com/gpu".into(), amount);
            });
        }
        if self.cluster.node(name).alive() != ready {
            self.cluster.fault(name, |f| f.lost = !ready);
        }
    }

    pub fn zone(&mut self, name: &str, gpus: i64, labels: &Value) {
        let gpus = gpus.to_string();
        self.cluster
            .add_node(node(name, &[("nvidia.com/gpu", &gpus)], labels));
    }

    /// Adds a gang of one group that is evicted whole.
    pub fn gang(&mut self, name: &str, spec: Spec) {
        self.gang_with(name, spec, &json!({}));
    }

    /// [`Self::gang`] with further fields of the workload's spec. Its priority class has its name.
    pub fn gang_with(&mut self, name: &str, spec: Spec, more: &Value) {
        self.gang_in(NAMESPACE, name, spec, more);
    }

    /// [`Self::gang_with`] in another namespace. Lookups by the workload's name alone do not find
    /// it.
    pub fn gang_in(&mut self, namespace: &str, name: &str, spec: Spec, more: &Value) {
        self.class(name, &json!({"value": spec.priority}));
        let mut object = json!({
            "apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
            "metadata": {"name": name, "namespace": namespace, "uid": format!("w-{name}")},
            "spec": {"priorityClassName": name, "failurePolicy": {"inPlace": {"withoutSupervisor": "Allow"}},
                "groups": [{"name": "g", "replicas": spec.members, "template": {"spec": {"containers": [
                    {"name": "c", "resources": {"limits": {"nvidia.com/gpu": spec.gpus.to_string()}}}]}}}]},
        });
        merge(&mut object["spec"], more);
        let workload: TrainingWorkload = serde_json::from_value(object).unwrap();
        self.cluster.create(&workload);
    }

    /// Adds a gang whose pods name claim `data-<name>`, which does not exist until
    /// [`Self::make_claim`].
    pub fn gang_with_claim(&mut self, name: &str, spec: Spec) {
        let claim =
            json!({"name": "data", "persistentVolumeClaim": {"claimName": format!("data-{name}")}});
        let container = json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": spec.gpus.to_string()}}});
        let group = json!({"name": "g", "replicas": spec.members,
            "template": {"spec": {"containers": [container], "volumes": [claim]}}});
        self.gang_with(name, spec, &json!({"groups": [group]}));
    }

    /// Adds a gang whose bound pods get that claim from a webhook. Neither template nor dry run
    /// contain it, so only kube-scheduler knows it.
    pub fn obstructed_gang(&mut self, name: &str, spec: Spec) {
        self.cluster.store().admission.webhook = Some(Box::new(|pod| {
            let claim = pod["metadata"]["labels"]["obstructed-by"].as_str();
            let claim = claim.map(
                |name| json!([{"name": "data", "persistentVolumeClaim": {"claimName": name}}]),
            );
            let placed = !pod["spec"]["affinity"].is_null();
            if let Some(claim) = claim.filter(|_| placed) {
                pod["spec"]["volumes"] = claim;
            }
            Ok(())
        }));
        let container = json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": spec.gpus.to_string()}}});
        let labels = json!({"obstructed-by": format!("data-{name}")});
        let group = json!({"name": "g", "replicas": spec.members,
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}}});
        self.gang_with(name, spec, &json!({"groups": [group]}));
    }

    pub fn make_claim(&mut self, name: &str) {
        let claim = Key::new(NAMESPACE, format!("data-{name}"));
        self.cluster.store().make_claim(&claim, true);
    }

    /// Creates the claim of a gang, for a single pod.
    pub fn make_one_pod_claim(&mut self, name: &str) {
        self.make_claim(name);
        let claim = Key::new(NAMESPACE, format!("data-{name}"));
        self.cluster.edit::<PersistentVolumeClaim>(&claim, |claim| {
            claim.spec.get_or_insert_default().access_modes = Some(vec!["ReadWriteOncePod".into()]);
        });
    }

    /// Sets the priority of a gang as a victim. The gang need not exist yet.
    pub fn preemption_priority(&mut self, name: &str, priority: i32) {
        self.class_annotation(
            name,
            annotations::PREEMPTION_PRIORITY,
            &priority.to_string(),
        );
    }

    /// Annotates the priority class of a gang. The gang need not exist yet.
    pub fn class_annotation(&mut self, name: &str, annotation: &str, value: &str) {
        self.class(
            name,
            &json!({"metadata": {"annotations": {annotation: value}}}),
        );
    }

    /// Creates or changes the priority class of a gang.
    fn class(&mut self, name: &str, more: &Value) {
        let key = Key::new("", name);
        let mut store = self.cluster.store();
        if store.raw(WatchedKind::PriorityClass, &key).is_none() {
            let class = json!({"metadata": {"name": name}, "value": 0});
            let made = store.create("user", WatchedKind::PriorityClass, class, false);
            made.unwrap_or_else(|no| panic!("{}", no.message));
        }
        let patch = Patch::Merge(more.clone());
        let written = store.patch("user", WatchedKind::PriorityClass, &key, &patch, false);
        written.unwrap_or_else(|no| panic!("{}", no.message));
    }

    /// Adds a running pod of another controller.
    pub fn foreign(&mut self, name: &str, node: &str, priority: i32, gpus: i64) {
        self.foreign_with(name, node, priority, gpus, &json!({}));
    }

    /// [`Self::foreign`] with further fields.
    pub fn foreign_with(&mut self, name: &str, node: &str, priority: i32, gpus: i64, more: &Value) {
        let mut pod = json!({"metadata": {"name": name, "namespace": NAMESPACE, "uid": format!("uid-{name}")},
            "spec": {"nodeName": node, "priority": priority, "preemptionPolicy": "PreemptLowerPriority",
                "containers": [{"name": "c", "image": "i",
                    "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]}});
        merge(&mut pod, more);
        self.cluster
            .create::<Pod>(&serde_json::from_value(pod).unwrap());
        // The pod already runs: its work must not count as just begun.
        while self.cluster.kubelet(node) {}
    }

    /// Adds a foreign pod with one accelerator, whose budget allows no eviction.
    pub fn guarded(&mut self, name: &str, node: &str) {
        let labels = json!({"app": name});
        let budget = json!({"metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"selector": {"matchLabels": labels}},
            "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}});
        self.cluster
            .create::<PodDisruptionBudget>(&serde_json::from_value(budget).unwrap());
        self.foreign_with(name, node, 1, 1, &json!({"metadata": {"labels": labels}}));
    }

    /// Runs one cycle of the scheduler.
    pub fn pass(&mut self) -> CycleSummary {
        self.cluster.control();
        self.cluster.schedule()
    }

    /// Runs cycles and passes until neither has work: the result of decisions before other actors
    /// act.
    pub fn decide(&mut self) {
        while self.pass().requests > 0 {}
        self.cluster.control();
    }

    pub fn workload(&self, name: &str) -> TrainingWorkload {
        let key = Key::new(NAMESPACE, name);
        self.cluster
            .get(&key)
            .expect("there is a workload of that name")
    }

    /// Changes the workload as a user does, or its status directly.
    pub fn edit(&mut self, name: &str, change: impl FnOnce(&mut TrainingWorkload)) {
        let key = Key::new(NAMESPACE, name);
        self.cluster.edit::<TrainingWorkload>(&key, change);
    }

    /// The ledger entry of the gang.
    pub fn ledger(&self, name: &str) -> GangStatus {
        let status = self.workload(name).status.unwrap_or_default();
        status.gangs.into_iter().next().unwrap_or_default()
    }

    /// Changes the ledger entry of the gang directly.
    pub fn edit_ledger(&mut self, name: &str, change: impl FnOnce(&mut GangStatus)) {
        self.edit(name, |w| {
            let gangs = &mut w.status.get_or_insert_default().gangs;
            change(gangs.first_mut().expect("the ledger has its gang"));
        });
    }

    /// The workload releases its placement, directly in the status.
    pub fn release(&mut self, name: &str) {
        let id = self.placement(name).map(|p| p.id);
        self.edit_ledger(name, |gang| gang.released = id);
    }

    /// UID of a gang's pod group, as in intents.
    pub fn group_uid(&self, name: &str) -> String {
        let group = self.group(name).expect("the gang has a pod group");
        group.metadata.uid.expect("it is stored")
    }

    pub fn group(&self, name: &str) -> Option<PodGroup> {
        let groups = self.cluster.list::<PodGroup>();
        groups
            .into_iter()
            .find(|g| g.spec.workload_ref.workload_name == name)
    }

    /// Changes `spec` or `status` of the pod group directly.
    pub fn edit_group(&mut self, name: &str, change: impl FnOnce(&mut PodGroup)) {
        let key = Key::of(&self.group(name).expect("the gang has a pod group"));
        self.cluster.edit::<PodGroup>(&key, change);
    }

    pub fn names(&self) -> Vec<String> {
        let workloads = self.cluster.list::<TrainingWorkload>();
        workloads
            .into_iter()
            .filter_map(|w| w.metadata.name)
            .collect()
    }

    pub fn status(&self, name: &str) -> PodGroupStatus {
        self.group(name).and_then(|g| g.status).unwrap_or_default()
    }

    pub fn placement(&self, name: &str) -> Option<Placement> {
        self.status(name).placement
    }

    /// The gang's preemption in progress.
    pub fn intent(&self, name: &str) -> Option<Preemption> {
        self.status(name).preemption
    }

    /// Condition of the placement.
    pub fn condition(&self, name: &str) -> Condition {
        let type_ = types::POD_GROUP_INITIALLY_SCHEDULED;
        let status = self.status(name);
        let found = find(&status.conditions, type_);
        found.expect("its pod group has the condition").clone()
    }

    pub fn disrupted(&self, name: &str) -> bool {
        is_true(&self.status(name).conditions, types::DISRUPTION_TARGET)
    }

    /// True if its workload has released its current placement.
    pub fn released(&self, name: &str) -> bool {
        let released = self.ledger(name).released;
        released.is_some() && released == self.placement(name).map(|p| p.id)
    }

    /// Node of each placed member.
    pub fn assigned(&self, name: &str) -> BTreeMap<Member, String> {
        assigned(&self.status(name))
    }

    /// Nodes of a gang's members, in rank order.
    pub fn nodes(&self, name: &str) -> Vec<String> {
        self.assigned(name).into_values().collect()
    }

    pub fn pods_of(&self, name: &str) -> Vec<Pod> {
        let uid = format!("w-{name}");
        let mut pods = self.cluster.list::<Pod>();
        pods.retain(|pod| {
            let mut owners = pod.metadata.owner_references.iter().flatten();
            owners.any(|o| o.controller == Some(true) && o.uid == uid)
        });
        pods
    }

    /// kube-scheduler refuses the unbound pods of a gang, for a reason outside the engine.
    pub fn refuse_pods(&mut self, name: &str, message: &str) {
        self.leave_unscheduled(name, "Unschedulable", message);
    }

    /// The scheduler reports an error for all unbound pods of a gang.
    pub fn fail_pods(&mut self, name: &str, message: &str) {
        self.leave_unscheduled(name, "SchedulerError", message);
    }

    fn leave_unscheduled(&mut self, name: &str, reason: &str, message: &str) {
        let waiting = self
            .pods_of(name)
            .into_iter()
            .filter(|p| node_of(p).is_none());
        for pod in waiting {
            let condition = json!({"type": "PodScheduled", "status": "False", "reason": reason, "message": message});
            let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
            let mut store = self.cluster.store();
            let told = store.patch(
                "kube-scheduler",
                WatchedKind::Pod,
                &Key::of(&pod),
                &patch,
                true,
            );
            told.unwrap_or_else(|no| panic!("{}", no.message));
        }
    }

    /// Number of bound pods that are neither ended nor terminating.
    pub fn running(&self, name: &str) -> usize {
        let pods = self.pods_of(name);
        let runs = |p: &&Pod| node_of(p).is_some() && !over(p) && !leaving(p);
        pods.iter().filter(runs).count()
    }

    /// Names of pods that Lockstep's scheduler has evicted, in order.
    pub fn evicted(&self) -> Vec<String> {
        let store = self.cluster.store();
        let evictions = store
            .log
            .iter()
            .filter(|w| w.verb == Verb::Evict && w.who == "scheduler");
        evictions.map(|w| w.key.name.to_string()).collect()
    }

    /// Number of preemptions for a gang with evictions, by decision and placement.
    pub fn preemptions(&self, name: &str) -> usize {
        let store = self.cluster.store();
        let mut intent: Option<Preemption> = None;
        let mut made: BTreeSet<(DateTime<Utc>, String)> = BTreeSet::new();
        for write in &store.log {
            let told = &write.object;
            if write.kind == WatchedKind::PodGroup
                && told["spec"]["workloadRef"]["workloadName"] == name
            {
                intent = serde_json::from_value(told["status"]["preemption"].clone())
                    .unwrap_or_default();
            }
            let marked = write.who == "scheduler"
                && write.kind == WatchedKind::PodGroup
                && told["status"]["conditions"].as_array().is_some_and(|all| {
                    all.iter()
                        .any(|c| c["type"] == types::DISRUPTION_TARGET && c["status"] == "True")
                });
            let Some(decided) = intent
                .as_ref()
                .filter(|_| marked || write.verb == Verb::Evict)
            else {
                continue;
            };
            if decided.victims.iter().any(|v| v.uid == write.uid) {
                made.insert((decided.decided_at, decided.placement.clone()));
            }
        }
        made.len()
    }
}
