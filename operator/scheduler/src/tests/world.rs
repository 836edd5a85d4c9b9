//! The world that the scheduler is tested in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lockstep_api::condition::{Condition, find, is_true, types};
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::names::{MANAGED_BY, WHOLE, pod_group_name};
use lockstep_api::scheduling::{Placement, PodGroupStatus, Preemption};
use lockstep_api::workload::GangStatus;
use lockstep_api::{PodGroup, TrainingWorkload, TrainingWorkloadStatus};
use lockstep_model::pod::Stage;
use lockstep_model::{Budget, ClusterModel, Node, Pod, Resources};
use serde_json::{Value, json};

use crate::{
    GangSources, Memory, SchedulerSettings, SchedulingInput, SchedulingPlan, Step, schedule,
};
use lockstep_api::key::Key;

/// What kube-scheduler says of a pinned pod that lacks accelerators on its node.
pub(super) const INSUFFICIENT: &str = "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) didn't satisfy \
    plugin(s) [NodeAffinity]. no new claims to deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful \
    for scheduling.";

/// Everything there is.
pub(super) struct World {
    pub now: DateTime<Utc>,
    pub settings: SchedulerSettings,
    pub memory: Memory,
    pub model: ClusterModel,
    pub workloads: BTreeMap<String, TrainingWorkload>,
    pub groups: BTreeMap<String, PodGroup>,
    /// Pods by name.
    pub pods: BTreeMap<String, Pod>,
    pub budgets: Vec<Arc<Budget>>,
    /// What the watch of pod groups shows; `None`: all that is stored.
    pub stale: Option<BTreeMap<String, PodGroup>>,
    /// Priorities as victims, by name of the gang.
    pub preemption_priority: BTreeMap<String, i32>,
    /// Pods that were evicted, by name, in order.
    pub evicted: Vec<String>,
    /// Gangs whose pods name a claim that does not exist.
    pub without_claim: BTreeSet<String>,
    /// Preemptions that evicted work, by name of the preemptor: what was decided when, for which
    /// placement.
    pub preempted_for: BTreeMap<String, BTreeSet<(DateTime<Utc>, String)>>,
    version: u64,
}

/// A gang to be made.
#[derive(Clone, Copy)]
pub(super) struct Spec {
    pub priority: i32,
    pub members: i32,
    pub gpus: i64,
}

impl World {
    pub fn new(nodes: &[(&str, i64)]) -> Self {
        let mut world = Self {
            now: DateTime::from_timestamp(1_795_000_000, 0).unwrap(),
            settings: SchedulerSettings::default(),
            memory: Memory::default(),
            model: ClusterModel::default(),
            workloads: BTreeMap::new(),
            groups: BTreeMap::new(),
            pods: BTreeMap::new(),
            budgets: Vec::new(),
            stale: None,
            preemption_priority: BTreeMap::new(),
            evicted: Vec::new(),
            without_claim: BTreeSet::new(),
            preempted_for: BTreeMap::new(),
            version: 100,
        };
        for (name, gpus) in nodes {
            world.node(name, *gpus, true);
        }
        world
    }

    pub fn node(&mut self, name: &str, gpus: i64, ready: bool) {
        let allocatable = resources(&[
            ("cpu", "100"),
            ("pods", "110"),
            ("nvidia.com/gpu", &gpus.to_string()),
        ]);
        self.model.upsert_node(Node {
            name: name.into(),
            allocatable,
            ready,
            ..Node::default()
        });
    }

    pub fn later(&mut self, seconds: i64) {
        self.now += TimeDelta::seconds(seconds);
    }

    /// A gang of one group that goes whole, ready to be placed.
    pub fn gang(&mut self, name: &str, spec: Spec) {
        self.gang_with(name, spec, json!({}), json!({}));
    }

    /// The same, with more in the specs of the workload and of the pod group.
    pub fn gang_with(&mut self, name: &str, spec: Spec, workload: Value, group: Value) {
        let uid = format!("w-{name}");
        let mut object = json!({
            "apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
            "metadata": {"name": name, "namespace": "ml", "uid": uid, "generation": 1},
            "spec": {"managedBy": MANAGED_BY, "groups": [{"name": "g", "replicas": spec.members, "template": {"spec":
                {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": spec.gpus.to_string()}}}]}}}]},
        });
        merge(&mut object["spec"], workload);
        let mut tw: TrainingWorkload = serde_json::from_value(object).unwrap();
        let gang = GangStatus {
            key: WHOLE.into(),
            started: true,
            ..GangStatus::default()
        };
        tw.status = Some(TrainingWorkloadStatus {
            gangs: vec![gang],
            ..TrainingWorkloadStatus::default()
        });
        let mut object = json!({
            "apiVersion": "scheduling.lockstep.dev/v1alpha1", "kind": "PodGroup",
            "metadata": {"name": pod_group_name(name, &uid, WHOLE), "namespace": "ml", "uid": format!("pg-{name}"),
                "resourceVersion": "1"},
            "spec": {"workloadRef": {"workloadName": name, "templateName": "t"}, "gangKey": WHOLE,
                "schedulingPolicy": {"gang": {"minCount": spec.members}}, "disruptionMode": {"all": {}},
                "priority": spec.priority},
        });
        merge(&mut object["spec"], group);
        self.groups
            .insert(name.into(), serde_json::from_value(object).unwrap());
        self.workloads.insert(name.into(), tw);
    }

    /// A pod of somebody else, running on a node.
    pub fn foreign(&mut self, name: &str, node: &str, priority: i32, gpus: i64) {
        let pod = Pod {
            priority,
            bound: Some(node.into()),
            ..self.pod(name, gpus)
        };
        self.put(pod);
    }

    pub fn pod(&self, name: &str, gpus: i64) -> Pod {
        Pod {
            uid: format!("uid-{name}"),
            namespace: "ml".into(),
            name: name.into(),
            requests: Arc::new(resources(&[
                ("pods", "1"),
                ("nvidia.com/gpu", &gpus.to_string()),
            ])),
            started: Some(self.now),
            preempts: true,
            ..Pod::default()
        }
    }

    pub fn put(&mut self, pod: Pod) {
        self.model.upsert_pod(pod.clone());
        self.pods.insert(pod.name.clone(), pod);
    }

    pub fn change(&mut self, name: &str, change: impl FnOnce(&mut Pod)) {
        let mut pod = self.pods[name].clone();
        change(&mut pod);
        self.put(pod);
    }

    pub fn remove(&mut self, name: &str) {
        let pod = self.pods.remove(name).unwrap();
        self.model.remove_pod(&pod.uid);
    }

    pub fn input(&self) -> SchedulingInput {
        let groups = self.stale.as_ref().unwrap_or(&self.groups);
        let gangs = groups.iter().map(|(name, group)| {
            let sources = GangSources {
                key: &Key::new("ml", group.metadata.name.clone().unwrap()),
                group,
                workload: &self.workloads[name],
                preemption_priority: self.preemption_priority.get(name).copied(),
            };
            Arc::new(sources.read(None).unwrap())
        });
        SchedulingInput {
            cluster: self.model.snapshot(),
            gangs: gangs.collect(),
            budgets: self.budgets.clone(),
        }
    }

    /// One pass, of which everything succeeds.
    pub fn pass(&mut self) -> SchedulingPlan {
        let input = self.input();
        let plan = schedule(&input, &mut self.memory, &self.settings, self.now).plan;
        for step in &plan.steps {
            self.note_preemptor(step);
            self.store(step);
        }
        plan
    }

    /// Notes whose intent names the victim, where a step evicts one.
    fn note_preemptor(&mut self, step: &Step) {
        let victim = match step {
            Step::Evict { uid, .. } => uid,
            Step::Status(write) if is_true(&write.status.conditions, types::DISRUPTION_TARGET) => {
                &write.uid
            }
            _ => return,
        };
        let intents = self
            .groups
            .iter()
            .filter_map(|(name, g)| Some((name, g.status.as_ref()?.preemption.as_ref()?)));
        for (name, intent) in
            intents.filter(|(_, intent)| intent.victims.iter().any(|v| v.uid == *victim))
        {
            let decision = (intent.decided_at, intent.placement.clone());
            self.preempted_for
                .entry(name.clone())
                .or_default()
                .insert(decision);
        }
    }

    fn store(&mut self, step: &Step) {
        match step {
            Step::Status(write) => {
                self.version += 1;
                let version = self.version;
                let group = self
                    .groups
                    .values_mut()
                    .find(|g| g.metadata.uid.as_ref() == Some(&write.uid))
                    .unwrap();
                assert_eq!(
                    group.metadata.resource_version.as_ref(),
                    Some(&write.resource_version),
                    "written blindly"
                );
                group.status = Some(write.status.clone());
                group.metadata.resource_version = Some(version.to_string());
                self.memory.wrote(write.key.clone(), group);
            }
            Step::MarkPod { name, .. } => self.change(&name.clone(), |p| p.disrupted = true),
            Step::Evict { name, .. } => {
                self.evicted.push(name.clone());
                let end = self.now + TimeDelta::seconds(30);
                self.change(&name.clone(), |p| p.terminating = Some(end));
            }
            Step::Nominate { name, node, .. } => {
                self.change(&name.clone(), |p| p.nominated = Some(node.clone()));
            }
        }
    }

    /// The workload controller: makes pods for seats, gated while there is an intent; takes gates
    /// off nominated pods; gives room back when preempted, and deletes pods without a seat.
    pub fn control(&mut self) {
        for name in self.groups.keys().cloned().collect::<Vec<_>>() {
            if self.disrupted(&name) && !self.released(&name) {
                self.release(&name);
            }
            let seats = if self.released(&name) {
                BTreeMap::new()
            } else {
                self.seats(&name)
            };
            for pod in self.pods_of(&name) {
                let seat = pod.member.as_ref().and_then(|m| seats.get(m));
                if pod.terminating.is_some() || pod.ended() {
                    continue;
                }
                if pod.bound.is_none() && seat != pod.pinned.as_ref() {
                    self.remove(&pod.name);
                } else if seat.is_none() {
                    let end = self.now + TimeDelta::seconds(30);
                    self.change(&pod.name, |p| p.terminating = Some(end));
                } else if pod.gated() && (pod.nominated.is_some() || self.intent(&name).is_none()) {
                    self.change(&pod.name, |p| p.stage = Stage::Open);
                }
            }
            let there: BTreeSet<Member> = self
                .pods_of(&name)
                .into_iter()
                .filter_map(|p| p.member)
                .collect();
            for (member, node) in seats.into_iter().filter(|(m, _)| !there.contains(m)) {
                self.make(&name, &member, &node);
            }
        }
    }

    fn make(&mut self, name: &str, member: &Member, node: &str) {
        self.version += 1;
        let group = &self.groups[name];
        let gpus = self.workloads[name].spec.groups[0]
            .template
            .0
            .spec
            .as_ref()
            .unwrap()
            .containers[0]
            .resources
            .clone();
        let gpus = gpus.unwrap().limits.unwrap()["nvidia.com/gpu"]
            .0
            .parse()
            .unwrap();
        let pod = Pod {
            owner: self.workloads[name].metadata.uid.clone(),
            pod_group: group.metadata.name.clone(),
            member: Some(member.clone()),
            pinned: Some(node.into()),
            priority: group.spec.gang.priority,
            stage: if self.intent(name).is_some() {
                Stage::Gated
            } else {
                Stage::Open
            },
            ..self.pod(&format!("{name}-{member}-{}", self.version), gpus)
        };
        self.put(pod);
    }

    /// Why kube-scheduler refuses a pod, on a node that has capacity for it or not.
    fn refusal(&self, pod: &Pod, fits: bool) -> Option<Arc<str>> {
        let gang = pod
            .owner
            .as_deref()
            .and_then(|owner| owner.strip_prefix("w-"));
        if let Some(gang) = gang.filter(|gang| self.without_claim.contains(*gang)) {
            let claim = format!(
                "0/3 nodes are available: persistentvolumeclaim \"data-{gang}\" not found. not found"
            );
            return Some(claim.into());
        }
        (!fits).then(|| INSUFFICIENT.into())
    }

    /// kube-scheduler: binds pinned pods whose claims exist and whose node has room, counting only
    /// bound pods.
    pub fn bind(&mut self) {
        for pod in self.pods.values().cloned().collect::<Vec<_>>() {
            let Some(node) = pod
                .pinned
                .clone()
                .filter(|_| pod.bound.is_none() && pod.stage != Stage::Gated)
            else {
                continue;
            };
            let snapshot = self.model.snapshot();
            let ix = snapshot.ordinal(&node).unwrap();
            let held: i64 = snapshot
                .pods_on(ix)
                .filter(|p| p.bound.is_some())
                .map(|p| p.requests.get("nvidia.com/gpu"))
                .sum();
            let room = snapshot
                .node(ix)
                .map_or(0, |n| n.allocatable.get("nvidia.com/gpu"))
                - held;
            let fits = room >= pod.requests.get("nvidia.com/gpu");
            let refusal = self.refusal(&pod, fits);
            self.change(&pod.name, |p| {
                p.bound = refusal.is_none().then(|| node.clone());
                p.stage = if refusal.is_none() {
                    Stage::Open
                } else {
                    Stage::Refused
                };
                p.refusal = refusal;
            });
        }
    }

    /// The kubelets: pods that are ending have ended.
    pub fn end_terminating(&mut self) {
        let ending: Vec<String> = self
            .pods
            .values()
            .filter(|p| p.terminating.is_some())
            .map(|p| p.name.clone())
            .collect();
        for name in ending {
            self.remove(&name);
        }
    }

    /// Passes, one after the other as long as the next is asked for at once; whether none of them
    /// did anything.
    fn idle(&mut self) -> bool {
        for _ in 0..100 {
            let plan = self.pass();
            if !plan.steps.is_empty() {
                return false;
            }
            if plan.wake_after != Some(Duration::ZERO) {
                return true;
            }
        }
        false
    }

    /// Lets everybody do what they do until nothing changes.
    pub fn settle(&mut self) {
        for _ in 0..20 {
            let idle = self.idle();
            self.control();
            self.bind();
            self.end_terminating();
            if idle && self.idle() {
                return;
            }
            self.later(1);
        }
        panic!("the world does not come to rest: {}", self.picture());
    }

    /// What there is, for failed tests.
    fn picture(&self) -> String {
        let gang = |name: &String| {
            let pods: Vec<String> = self
                .pods_of(name)
                .iter()
                .map(|p| format!("{}@{:?}/{:?}", p.name, p.bound, p.stage))
                .collect();
            format!(
                "{name}: {:?} {:?} {:?} {pods:?}",
                self.seats(name),
                self.intent(name),
                self.status(name).conditions
            )
        };
        self.groups.keys().map(gang).collect::<Vec<_>>().join("\n")
    }

    /// The workload gives its room back.
    pub fn release(&mut self, name: &str) {
        let id = self.placement(name).map(|p| p.id);
        self.ledger(name).released = id;
    }

    pub fn ledger(&mut self, name: &str) -> &mut GangStatus {
        &mut self
            .workloads
            .get_mut(name)
            .unwrap()
            .status
            .as_mut()
            .unwrap()
            .gangs[0]
    }

    pub fn status(&self, name: &str) -> PodGroupStatus {
        self.groups[name].status.clone().unwrap_or_default()
    }

    pub fn placement(&self, name: &str) -> Option<Placement> {
        self.status(name).placement
    }

    pub fn intent(&self, name: &str) -> Option<Preemption> {
        self.status(name).preemption
    }

    pub fn condition(&self, name: &str) -> Condition {
        find(
            &self.status(name).conditions,
            types::POD_GROUP_INITIALLY_SCHEDULED,
        )
        .unwrap()
        .clone()
    }

    pub fn disrupted(&self, name: &str) -> bool {
        is_true(&self.status(name).conditions, types::DISRUPTION_TARGET)
    }

    pub fn released(&self, name: &str) -> bool {
        let released = self.workloads[name].status.as_ref().unwrap().gangs[0]
            .released
            .clone();
        released.is_some() && released == self.placement(name).map(|p| p.id)
    }

    pub fn seats(&self, name: &str) -> BTreeMap<Member, String> {
        let mut out = BTreeMap::new();
        for at in self.placement(name).map(|p| p.nodes).unwrap_or_default() {
            for member in MemberSet::parse(&at.members).unwrap() {
                out.insert(member, at.node.clone());
            }
        }
        out
    }

    /// Nodes of a gang's seats, in rank order.
    pub fn nodes(&self, name: &str) -> Vec<String> {
        self.seats(name).into_values().collect()
    }

    pub fn pods_of(&self, name: &str) -> Vec<Pod> {
        let owner = self.workloads[name].metadata.uid.clone();
        self.pods
            .values()
            .filter(|p| p.owner == owner)
            .cloned()
            .collect()
    }

    pub fn running(&self, name: &str) -> usize {
        self.pods_of(name)
            .iter()
            .filter(|p| p.bound.is_some() && p.alive())
            .count()
    }
}

pub(super) fn resources(pairs: &[(&str, &str)]) -> Resources {
    let quantities = pairs
        .iter()
        .map(|(n, q)| ((*n).to_owned(), Quantity((*q).to_owned())))
        .collect();
    Resources::parse(&quantities).unwrap()
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}
