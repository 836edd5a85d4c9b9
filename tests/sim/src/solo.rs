use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::{Node, Pod, PodCondition, Service};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use lockstep_api::condition::{Condition, ConditionStatus, find, reasons, types, upsert};
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::names::RESTART_ALL_FEATURE;
use lockstep_api::scheduling::{NodePlacement, Placement, Preemptor};
use lockstep_api::workload::{Backend, TrainingWorkloadSpec, TrainingWorkloadStatus};
use lockstep_api::{PodGroup, RestartOrder, TrainingWorkload, Workload};
use lockstep_lifecycle::{LifecycleSettings, Plan, WorkloadView};
use serde_json::{Value, json};

use crate::api::Verb;
use crate::nodes::node;
use crate::pods::{leaving, member_of, node_of};
use crate::{Key, SimCluster, WatchedKind};

const GPUS: usize = 8;
/// As in the stories: shorter than the default.
const GROW_AFTER: TimeDelta = TimeDelta::minutes(1);

fn placed_by_kube_scheduler() -> LifecycleSettings {
    LifecycleSettings {
        supervisor_image: Some("lockstep-supervisor".into()),
        backend: Backend::Kubernetes,
        ..LifecycleSettings::default()
    }
}

/// Workload `ns/w`, and the cluster around it.
pub struct Solo {
    pub cluster: SimCluster,
    key: Key,
}

impl Deref for Solo {
    type Target = SimCluster;

    fn deref(&self) -> &SimCluster {
        &self.cluster
    }
}

impl DerefMut for Solo {
    fn deref_mut(&mut self) -> &mut SimCluster {
        &mut self.cluster
    }
}

/// A workload of one group of `n` single-member replicas that restarts in place.
pub fn gang(n: i32) -> Value {
    json!({
        "groups": [{"name": "g", "replicas": n, "template": {"spec": {"containers": [{"name": "t", "image": "i",
            "resources": {"limits": {"nvidia.com/gpu": GPUS.to_string()}}}]}}}],
        "failurePolicy": {"inPlace": {"withoutSupervisor": "Allow"}},
    })
}

/// [`gang`] with further fields of the spec, merged at the top level.
pub fn gang_with(n: i32, more: &Value) -> Value {
    let mut spec = gang(n);
    for (key, value) in more.as_object().cloned().unwrap_or_default() {
        let old = &mut spec[&key];
        match (old.as_object_mut(), value.as_object()) {
            (Some(old), Some(new)) => old.extend(new.clone()),
            _ => *old = value,
        }
    }
    spec
}

impl Solo {
    /// Four nodes `n0` to `n3` with capacity for two members each, and a workload of this spec.
    pub fn new(spec: Value) -> Self {
        Self::with_seed(0, spec)
    }

    /// [`Self::new`] with a seed.
    pub fn with_seed(seed: u64, spec: Value) -> Self {
        Self::with_settings(seed, spec, LifecycleSettings::default())
    }

    /// [`Self::supervised`] or [`Self::new`].
    pub fn supervised_if(supervised: bool, spec: Value) -> Self {
        if supervised {
            Self::supervised(spec)
        } else {
            Self::new(spec)
        }
    }

    /// [`Self::new`] in an installation with supervisors: training containers set a command, and
    /// get a supervisor unless the spec disables it.
    pub fn supervised(mut spec: Value) -> Self {
        for group in spec["groups"].as_array_mut().into_iter().flatten() {
            let container = &mut group["template"]["spec"]["containers"][0];
            if container["command"].is_null() {
                container["command"] = json!(["train"]);
            }
        }
        let settings = LifecycleSettings {
            supervisor_image: Some("lockstep-supervisor".into()),
            ..LifecycleSettings::default()
        };
        Self::with_settings(0, spec, settings)
    }

    /// The same in an installation whose gangs get native groups, on an API server that supports them.
    pub fn native(spec: Value) -> Self {
        let settings = LifecycleSettings {
            backend: Backend::Both,
            ..LifecycleSettings::default()
        };
        Self::with_settings(0, spec, settings)
    }

    /// The same in an installation whose gangs are placed by kube-scheduler. Pods with a command get
    /// a supervisor.
    pub fn kubernetes(spec: Value) -> Self {
        Self::with_settings(0, spec, placed_by_kube_scheduler())
    }

    /// The manager restarts and leaves the placement of gangs to kube-scheduler.
    pub fn switch_to_kubernetes(&mut self) {
        self.scheduler_settings().backend = Backend::Kubernetes;
        self.restart_with(LifecycleSettings {
            supervisor_image: None,
            ..placed_by_kube_scheduler()
        });
    }

    /// [`Self::new`] in an installation with Kueue. The workload has queue `q`.
    pub fn kueue(spec: Value) -> Self {
        let settings = LifecycleSettings {
            kueue: true,
            ..LifecycleSettings::default()
        };
        let mut solo = Self::with_settings(0, spec, settings);
        let key = solo.key.clone();
        solo.cluster.set_queue(&key, Some("q"));
        solo
    }

    fn with_settings(seed: u64, spec: Value, mut settings: LifecycleSettings) -> Self {
        let backend = settings.backend;
        settings.grow_after = GROW_AFTER;
        let mut cluster = SimCluster::with_settings(seed, settings);
        for name in ["n0", "n1", "n2", "n3"] {
            let gpus = (2 * GPUS).to_string();
            cluster.add_node(node(name, &[("nvidia.com/gpu", &gpus)], &json!({})));
        }
        cluster.scheduler_settings().backend = backend;
        cluster.scheduler_settings().grow_after = GROW_AFTER.to_std().unwrap_or_default();
        let mut solo = Self {
            cluster,
            key: Key::new("ns", "w"),
        };
        solo.add_workload("w", spec);
        solo
    }

    /// Adds a second workload.
    pub fn add_workload(&mut self, name: &str, spec: Value) {
        let spec: TrainingWorkloadSpec = serde_json::from_value(spec).unwrap();
        let mut object = TrainingWorkload::new(name, spec);
        object.metadata.namespace = Some("ns".into());
        object.metadata.uid = Some(format!("{name}-uid"));
        self.cluster.create(&object);
    }

    pub fn key(&self) -> &Key {
        &self.key
    }

    /// `None` if it was deleted.
    pub fn workload(&self) -> Option<TrainingWorkload> {
        self.cluster.get(&self.key)
    }

    pub fn deleted(&self) -> bool {
        self.workload().is_none()
    }

    pub fn status(&self) -> TrainingWorkloadStatus {
        let status = self.workload().and_then(|w| w.status);
        status.unwrap_or_default()
    }

    /// Every written status, oldest first.
    pub fn written(&self) -> Vec<TrainingWorkloadStatus> {
        let store = self.cluster.store();
        let ours = store.log.iter().filter(|write| {
            write.kind == WatchedKind::TrainingWorkload && write.verb == Verb::UpdateStatus
        });
        ours.map(|write| serde_json::from_value(write.object["status"].clone()).unwrap())
            .collect()
    }

    /// Reason of a condition, with prefix `!` if it is False.
    pub fn condition(&self, type_: &str) -> String {
        let status = self.status();
        let Some(c) = find(&status.conditions, type_) else {
            return "absent".into();
        };
        let not = if c.status == true.into() { "" } else { "!" };
        format!("{not}{}", c.reason)
    }

    pub fn edit(&mut self, change: impl FnOnce(&mut TrainingWorkloadSpec)) {
        let key = self.key.clone();
        self.cluster
            .edit::<TrainingWorkload>(&key, |w| change(&mut w.spec));
    }

    /// View of the next pass.
    pub fn view(&mut self) -> WorkloadView {
        self.cluster.view(&self.key).expect("there is a workload")
    }

    /// Plan of the next pass.
    pub fn plan(&mut self) -> Plan {
        self.cluster.plan(&self.key).expect("there is a workload")
    }

    /// Runs one pass, whether due or not. Returns true if it wrote.
    pub fn pass(&mut self) -> bool {
        self.cluster.pass(&self.key)
    }

    /// True if the controller has no work and no write.
    pub fn is_idle(&mut self) -> bool {
        self.cluster.is_idle(&self.key)
    }

    /// Sets the capacity of a node, in members.
    pub fn capacity(&mut self, node: &str, members: usize) {
        let gpus = (GPUS * members).to_string();
        let key = Key::new("", node);
        self.cluster.edit::<Node>(&key, |n| {
            let status = n.status.get_or_insert_default();
            let gpus = k8s_openapi::apimachinery::pkg::api::resource::Quantity(gpus);
            status
                .allocatable
                .get_or_insert_default()
                .insert("nvidia.com/gpu".into(), gpus);
        });
    }

    /// Sets whether the kubelet of a node can restart all containers of a pod.
    pub fn set_restart_all(&mut self, node: &str, able: bool) {
        self.cluster.node(node).config.restart_all = able;
        let features = able.then(|| vec![RESTART_ALL_FEATURE.to_owned()]);
        self.cluster.edit::<Node>(&Key::new("", node), |n| {
            n.status.get_or_insert_default().declared_features = features;
        });
    }

    /// Changes the faults of all nodes.
    pub fn faults(&mut self, change: impl Fn(&mut crate::NodeFaults)) {
        for node in self.cluster.node_names() {
            self.cluster.fault(&node, &change);
        }
    }

    /// Pods of the workload's namespace, oldest first.
    pub fn pods(&self) -> Vec<Pod> {
        let mut pods = self.cluster.list::<Pod>();
        pods.retain(|p| p.metadata.namespace.as_deref() == Some("ns"));
        pods.sort_by_key(|p| {
            let number = |uid: &str| uid.rsplit('-').next()?.parse::<u64>().ok();
            p.metadata.uid.as_deref().and_then(number)
        });
        pods
    }

    /// The newest pod of replica `index` that is not terminating, in a group of single members.
    pub fn pod(&self, group: &str, index: i32) -> Pod {
        let member = Member::new(group, index, 0);
        let mut pods = self.pods();
        pods.retain(|p| member_of(p).as_ref() == Some(&member) && !leaving(p));
        pods.pop().expect("the member has a pod")
    }

    pub fn node_of(&self, group: &str, index: i32) -> String {
        let pod = self.pod(group, index);
        node_of(&pod).expect("the pod is bound").to_owned()
    }

    /// Changes the pod of a member directly.
    pub fn edit_pod(&mut self, group: &str, index: i32, change: impl FnOnce(&mut Pod)) {
        let key = Key::of(&self.pod(group, index));
        self.cluster.edit::<Pod>(&key, change);
    }

    pub fn delete_pod(&mut self, group: &str, index: i32) {
        let key = Key::of(&self.pod(group, index));
        self.cluster.delete(WatchedKind::Pod, &key);
    }

    /// kube-scheduler preempts the pod of a member.
    pub fn take_pod(&mut self, group: &str, index: i32) {
        self.edit_pod(group, index, |pod| {
            let conditions = &mut pod.status.get_or_insert_default().conditions;
            conditions.get_or_insert_default().push(PodCondition {
                type_: types::DISRUPTION_TARGET.into(),
                status: "True".into(),
                reason: Some(reasons::PREEMPTION_BY_SCHEDULER.into()),
                ..PodCondition::default()
            });
        });
        self.delete_pod(group, index);
    }

    /// Runs this number of rounds, one second each.
    pub fn rounds(&mut self, n: usize) {
        for _ in 0..n {
            self.round();
            self.later(1);
        }
    }

    /// Runs rounds until a condition is met.
    ///
    /// # Panics
    ///
    /// It is not met within a minute.
    pub fn until(&mut self, what: &str, holds: impl Fn(&mut Self) -> bool) {
        for _ in 0..60 {
            if holds(self) {
                return;
            }
            self.rounds(1);
        }
        panic!("{what} does not come about:\n{}", self.story(60));
    }

    /// Attempts of supervised training processes, by member.
    pub fn children(&mut self) -> BTreeMap<String, u64> {
        let mut by_uid = BTreeMap::new();
        for name in self.node_names() {
            by_uid.extend(self.node(&name).runtime.children());
        }
        let pods = self.pods();
        let child = |pod: &Pod| {
            let attempt = by_uid.get(pod.metadata.uid.as_ref()?)?;
            Some((member_of(pod)?.to_string(), *attempt))
        };
        pods.iter().filter_map(child).collect()
    }

    pub fn exit(&mut self, group: &str, index: i32, code: i32) {
        let pod = self.pod(group, index);
        assert!(self.cluster.exit_pod(&pod, code), "it runs");
    }

    /// [`Self::exit`], if it runs.
    pub fn exit_if_running(&mut self, group: &str, index: i32, code: i32) -> bool {
        let member = format!("{group}-{index}-0");
        let pods = self.pods().into_iter();
        let pod = pods
            .filter(|p| !leaving(p))
            .find(|p| member_of(p).is_some_and(|m| m.to_string() == member));
        pod.is_some_and(|pod| self.cluster.exit_pod(&pod, code))
    }

    /// UIDs of the pods that are not terminating, by name of the member.
    pub fn uids(&self) -> BTreeMap<String, String> {
        let there = self.pods().into_iter().filter(|p| !leaving(p));
        there
            .filter_map(|p| Some((member_of(&p)?.to_string(), p.metadata.uid?)))
            .collect()
    }

    /// Restart counts of the pods that are not terminating, in the order of their members.
    pub fn restarts(&self) -> Vec<i32> {
        let count = |p: &Pod| {
            let containers = p
                .status
                .iter()
                .flat_map(|s| s.container_statuses.iter().flatten());
            containers.map(|c| c.restart_count).sum()
        };
        let there = self.pods().into_iter().filter(|p| !leaving(p));
        let mut all: Vec<(Option<Member>, i32)> =
            there.map(|p| (member_of(&p), count(&p))).collect();
        all.sort();
        all.into_iter().map(|(_, n)| n).collect()
    }

    pub fn groups(&self) -> BTreeMap<String, PodGroup> {
        let groups = self.cluster.list::<PodGroup>().into_iter();
        groups.map(|g| (g.spec.gang_key.clone(), g)).collect()
    }

    /// Changes the pod group of a gang directly.
    pub fn edit_group(&mut self, gang: &str, change: impl FnOnce(&mut PodGroup)) {
        let group = self
            .groups()
            .remove(gang)
            .expect("the gang has a pod group");
        self.cluster.edit::<PodGroup>(&Key::of(&group), change);
    }

    /// Writes the placement of a gang as the scheduler does.
    pub fn place(&mut self, gang: &str, assigned: &BTreeMap<Member, String>) {
        let now = self.cluster.now();
        let mut nodes: BTreeMap<&String, MemberSet> = BTreeMap::new();
        for (member, node) in assigned {
            nodes.entry(node).or_default().insert(member.clone());
        }
        let at = |(node, members): (&String, MemberSet)| NodePlacement {
            node: node.clone(),
            members: members.to_ranges(),
        };
        let placement = Placement {
            id: format!("by-hand-{}", self.cluster.store().version()),
            decided_at: now,
            members: assigned.len() as i32,
            nodes: nodes.into_iter().map(at).collect(),
            ..Placement::default()
        };
        self.edit_group(gang, |group| {
            let status = group.status.get_or_insert_default();
            status.placement = Some(placement);
            let scheduled = Condition {
                type_: types::POD_GROUP_INITIALLY_SCHEDULED.to_owned(),
                status: ConditionStatus::True,
                reason: reasons::SCHEDULED.to_owned(),
                message: String::new(),
                last_transition_time: now,
                observed_generation: 1,
            };
            upsert(&mut status.conditions, scheduled);
        });
    }

    pub fn create_class(&mut self, name: &str, value: i32, preemption: &str) {
        let mut class = PriorityClass {
            value: Some(value),
            preemption_policy: Some(preemption.to_owned()),
            ..PriorityClass::default()
        };
        class.metadata.name = Some(name.to_owned());
        self.cluster.create(&class);
    }

    pub fn delete_class(&mut self, name: &str) {
        let key = Key::new("", name);
        self.cluster.delete(WatchedKind::PriorityClass, &key);
    }

    /// Marks a gang as preempted as the scheduler does, and runs one pass at once: a scheduler
    /// without a preemptor would revert it.
    pub fn preempt(&mut self, gang: &str) {
        let now = self.cluster.now();
        self.edit_group(gang, |group| {
            let status = group.status.get_or_insert_default();
            status.preemptor = Some(Preemptor {
                namespace: "ns".to_owned(),
                name: "boss".to_owned(),
                priority: 500,
            });
            let conditions = &mut status.conditions;
            let preempted = Condition {
                type_: types::DISRUPTION_TARGET.to_owned(),
                status: ConditionStatus::True,
                reason: reasons::PREEMPTION_BY_SCHEDULER.to_owned(),
                message: "preempted by ns/boss".to_owned(),
                last_transition_time: now,
                observed_generation: 1,
            };
            upsert(conditions, preempted);
        });
        self.pass();
    }

    pub fn service(&self) -> Option<Service> {
        self.cluster.get(&self.key)
    }

    pub fn scheduling(&self) -> Option<Workload> {
        self.cluster.get(&self.key)
    }

    pub fn order(&self) -> Option<RestartOrder> {
        self.cluster.get(&self.key)
    }
}
