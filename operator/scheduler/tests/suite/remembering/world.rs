//! A small cluster under random changes, as read by a cycle. Writes of a cycle are visible to the
//! next.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use lockstep_api::condition::{is_true, reasons, types};
use lockstep_api::ids::{NodeName, Uid};
use lockstep_api::key::Key;
use lockstep_api::member::Member;
use lockstep_api::scheduling::{Placement, TopologyLevel};
use lockstep_api::workload::{
    AvoidedNode, CauseKind, DisruptionMode, GangMove, MoveOutcome, NodeToLeave, TopologyMode,
    TopologyScope,
};
use lockstep_api::{Outlook, Reach};
use lockstep_model::pods::pod::Stage;
use lockstep_model::{
    Budget, ClusterModel, Constraints, Pod, Quota, QuotaCharge, Resources, Weights,
};
use lockstep_scheduler::hold::{GangPhase, Hold};
use lockstep_scheduler::input::{GangEnd, GangInput, SchedulingInput, TemplateInput};
use lockstep_scheduler::{StatusWrite, Step};
use serde_json::json;

use crate::inputs;

use super::parts::{self, Dice, ZONE, members_of, node, node_name, resources};

const NODES: usize = 5;

pub struct World {
    model: ClusterModel,
    pods: BTreeMap<Uid, Pod>,
    pub gangs: BTreeMap<Key, Arc<GangInput>>,
    budgets: Vec<Arc<Budget>>,
    quotas: Vec<Arc<Quota>>,
    weights: Arc<Weights>,
    pub now: DateTime<Utc>,
    pub dice: Dice,
    made: usize,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut world = Self {
            model: ClusterModel::default(),
            pods: BTreeMap::new(),
            gangs: BTreeMap::new(),
            budgets: Vec::new(),
            quotas: Vec::new(),
            weights: Arc::default(),
            now: DateTime::UNIX_EPOCH + TimeDelta::days(20_000),
            dice: Dice::new(seed),
            made: 0,
        };
        world.model.use_topology_key(ZONE);
        for ix in 0..NODES {
            world.model.upsert_node(node(ix, 4, 32));
        }
        world
    }

    pub fn input(&self) -> SchedulingInput {
        SchedulingInput {
            cluster: self.model.snapshot(),
            gangs: self.gangs.values().cloned().collect(),
            budgets: self.budgets.clone(),
            quotas: self.quotas.clone(),
            weights: Arc::clone(&self.weights),
        }
    }

    /// Applies a random event, in most cases irrelevant to gangs. Returns its kind.
    pub fn happen(&mut self) -> &'static str {
        match self.dice.roll(40) {
            0..=11 => self.small_pod_comes(),
            12..=17 => self.pod_goes("small-"),
            18 => self.large_pod_comes(),
            19 => self.pod_goes("large-"),
            20..=21 => self.node_changes(),
            22..=24 => self.gang_comes(),
            25 => self.gang_goes(),
            26..=27 => self.gang_changes(),
            28..=31 => self.members_start(),
            32..=33 => self.members_end(),
            34 => self.budgets_change(),
            35 => self.namespaces_change(),
            36 => self.checkpoint(),
            37 => self.gang_moves(),
            _ => "time passes",
        }
    }

    /// Advances the time to the next cycle.
    pub fn later(&mut self) {
        let millis = self
            .dice
            .one(&[0, 100, 100, 100, 1000, 7000, 31_000, 700_000]);
        self.now += TimeDelta::milliseconds(millis);
    }

    fn name(&mut self, prefix: &str) -> String {
        self.made += 1;
        format!("{prefix}{}", self.made)
    }

    fn upsert(&mut self, pod: Pod) {
        self.pods.insert(pod.uid.clone(), pod.clone());
        self.model.upsert_pod(pod);
    }

    fn remove(&mut self, uid: &str) {
        self.pods.remove(uid);
        self.model.remove_pod(uid);
    }

    fn foreign(&mut self, prefix: &str, requests: Resources) {
        let name = self.name(prefix);
        let node = self.dice.roll(NODES);
        let bound = self.dice.roll(20) > 0;
        let ends = TimeDelta::seconds(self.dice.one(&[5, 60, 600]));
        let namespace = self.dice.one(&["a", "b", "web"]);
        let uid = name.parse().expect("a UID");
        let pod = Pod {
            labels: Arc::new([("app".to_owned(), self.dice.one(&["x", "y"]).to_owned())].into()),
            bound: bound.then(|| node_name(node)),
            nominated: (!bound).then(|| node_name(node)),
            requests: Arc::new(requests),
            priority: self.dice.one(&[0, 20, 100]),
            protected: self.dice.roll(4) == 0,
            may_end: self.dice.roll(3) == 0,
            ends: (self.dice.roll(4) == 0).then(|| self.now + ends),
            started: Some(self.now),
            ..Pod::bare(namespace, name, uid)
        };
        self.upsert(pod);
    }

    fn small_pod_comes(&mut self) -> &'static str {
        let cpu = if self.dice.roll(8) == 0 {
            "20"
        } else {
            self.dice.one(&["100m", "500m", "2"])
        };
        self.foreign(
            "small-",
            resources(&[("cpu", cpu), ("memory", "1Gi"), ("pods", "1")]),
        );
        "a small pod comes"
    }

    fn large_pod_comes(&mut self) -> &'static str {
        let gpus = self.dice.one(&["1", "2", "4"]);
        self.foreign(
            "large-",
            resources(&[("cpu", "1"), ("pods", "1"), ("gpu.example/a", gpus)]),
        );
        "a large pod comes"
    }

    fn pod_goes(&mut self, prefix: &str) -> &'static str {
        let all: Vec<&Uid> = self
            .pods
            .keys()
            .filter(|uid| uid.as_str().starts_with(prefix))
            .collect();
        let Some(uid) = self.dice.pick(&all).map(|uid| (*uid).clone()) else {
            return "no pod goes";
        };
        if self.dice.roll(2) == 0 {
            self.remove(uid.as_str());
            return "a pod goes";
        }
        let mut pod = self.pods[&uid].clone();
        pod.terminating = Some(self.now + TimeDelta::seconds(30));
        self.upsert(pod);
        "a pod is about to go"
    }

    fn node_changes(&mut self) -> &'static str {
        let ix = self.dice.roll(NODES);
        let (gpus, cpus) = (
            self.dice.one(&[4, 4, 4, 2, 0]),
            self.dice.one(&[32, 32, 32, 8]),
        );
        let mut node = node(ix, gpus, cpus);
        match self.dice.roll(6) {
            0 => {
                node.state.reach = Reach::Silent {
                    since: Some(self.now),
                }
            }
            1 => node.read_cordon(true),
            2 => drop(node.labels.insert(ZONE.to_owned(), "c".to_owned())),
            3 => {
                self.model.remove_node(node.name.as_str());
                // All nodes may get new ordinals.
                let key = self.name("key-");
                let mut other = parts::node(self.dice.roll(NODES), 4, 32);
                other.labels.insert(key.clone(), "a".to_owned());
                self.model.use_topology_key(&key);
                self.model.upsert_node(other);
                return "a node goes";
            }
            4 => node.state.outlook = Outlook::Faulty,
            _ => {}
        }
        self.model.upsert_node(node);
        "a node changes"
    }

    fn gang_comes(&mut self) -> &'static str {
        let name = self.name("gang-");
        let namespace = self.dice.one(&["a", "b"]);
        let key = Key::new(namespace, name.as_str());
        let members = 1 + self.dice.roll(5);
        let least = if self.dice.roll(5) == 0 { 1 } else { members };
        let uid = |of: &str| Uid::read(Some(&format!("{name}-{of}"))).expect("not empty");
        let groups = if self.dice.roll(5) == 0 {
            vec!["w", "v"]
        } else {
            vec!["w"]
        };
        let templates = groups.iter().map(|group| self.template(group)).collect();
        let members: Vec<Member> = groups
            .iter()
            .flat_map(|group| members_of(group, members))
            .collect();
        let least = least * groups.len();
        let whole = self.dice.roll(5) > 0;
        let uids = [uid("group"), uid("workload")];
        let mut input = inputs::gang(key.clone(), uids, templates, members);
        let gang = Arc::make_mut(&mut input.gang);
        gang.min_count = least as i32;
        if !whole {
            gang.disruption = DisruptionMode::Single;
        }
        input.group.whole = whole;
        input.group.priority = self.dice.one(&[10, 10, 50, 90]);
        input.group.preempts = self.dice.roll(6) > 0;
        input.group.topology = Vec::from_iter((self.dice.roll(6) == 0).then(|| TopologyLevel {
            key: ZONE.to_owned(),
            mode: TopologyMode::Required,
            scope: TopologyScope::Gang,
        }));
        Arc::make_mut(&mut input.workload).ends = self.dice.one(&[
            None,
            None,
            Some(GangEnd::At(self.now + TimeDelta::minutes(20))),
            Some(GangEnd::After(TimeDelta::minutes(20))),
        ]);
        input.preemption_priority = (self.dice.roll(6) == 0).then_some(60);
        self.gangs.insert(key, Arc::new(input));
        "a gang comes"
    }

    fn template(&mut self, group: &str) -> TemplateInput {
        let gpus = if self.dice.roll(20) == 0 {
            "0"
        } else {
            self.dice.one(&["1", "2", "4"])
        };
        let cpu = self.dice.one(&["1", "2"]);
        let requests = resources(&[("cpu", cpu), ("pods", "1"), ("gpu.example/a", gpus)]);
        let spec = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]});
        let spec: PodSpec = serde_json::from_value(spec).expect("a pod");
        let selects = json!({"nodeSelector": {ZONE: self.dice.one(&["a", "b"])}, "containers": []});
        let constraints = match self.dice.roll(4) {
            0 => Constraints::from(&serde_json::from_value::<PodSpec>(selects).expect("a pod")),
            _ => Constraints::default(),
        };
        TemplateInput {
            charge: QuotaCharge::new(&spec, None).ok().map(Arc::new),
            not_modelled: (self.dice.roll(12) == 0).then(|| "a pod nearby".to_owned()),
            not_admitted: (self.dice.roll(12) == 0).then(|| "a quota".to_owned()),
            ..inputs::template(group, requests, constraints)
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut Dice, DateTime<Utc>, &mut GangInput)) -> bool {
        let keys: Vec<Key> = self.gangs.keys().cloned().collect();
        let Some(key) = self.dice.pick(&keys) else {
            return false;
        };
        let gang = self.gangs.get_mut(key).expect("it was listed");
        change(&mut self.dice, self.now, Arc::make_mut(gang));
        true
    }

    fn gang_goes(&mut self) -> &'static str {
        let keys: Vec<Key> = self.gangs.keys().cloned().collect();
        if let Some(key) = self.dice.pick(&keys).cloned() {
            self.drop_pods(&key);
            self.gangs.remove(&key);
        }
        "a gang goes"
    }

    fn gang_changes(&mut self) -> &'static str {
        self.change(|dice, now, gang| {
            let workload = Arc::make_mut(&mut gang.workload);
            match dice.roll(7) {
                0 => gang.group.priority = dice.one(&[10, 50, 90]),
                1 => gang.preemption_priority = dice.one(&[None, Some(60)]),
                2 => workload.phase = GangPhase::Held(Hold::Suspended),
                3 => workload.phase = GangPhase::Active,
                4 => {
                    workload.avoid = vec![AvoidedNode {
                        node: node_name(dice.roll(NODES)).to_string(),
                        reason: reasons::REJECTED_BY_NODE.to_owned(),
                        until: now + TimeDelta::seconds(dice.one(&[1, 10, 60])),
                        ..AvoidedNode::default()
                    }];
                }
                5 => {
                    let minutes = TimeDelta::minutes(5);
                    let ends = [GangEnd::At(now + minutes), GangEnd::After(minutes)];
                    workload.ends = dice.one(&[None, None, Some(ends[0]), Some(ends[1])]);
                }
                _ => {
                    workload.generation += 1;
                    gang.group.generation += 1;
                    let templates = workload.templates.iter().map(|template| TemplateInput {
                        requests: Ok(Arc::new(resources(&[
                            ("pods", "1"),
                            ("gpu.example/a", "1"),
                        ]))),
                        ..template.clone()
                    });
                    workload.templates = templates.collect();
                }
            }
        });
        "a gang changes"
    }

    /// A placed gang moves from one of its nodes, or its move ends.
    fn gang_moves(&mut self) -> &'static str {
        self.change(|dice, now, gang| {
            let assigned = gang.group.assigned.clone().unwrap_or_default();
            let nodes: Vec<&NodeName> = assigned.values().collect();
            let Some(node) = dice.pick(&nodes) else {
                return;
            };
            let left = NodeToLeave {
                node: node.to_string(),
                signal: "any".to_owned(),
                deadline: None,
            };
            let begin_by = [None, Some(now), Some(now + TimeDelta::seconds(20))];
            let ended = [
                MoveOutcome::Moved,
                MoveOutcome::Withdrawn,
                MoveOutcome::Stayed,
            ]
            .map(Some);
            let outcome = dice.one(&[None, ended[0], ended[1], ended[2]]);
            Arc::make_mut(&mut gang.workload).moving = Some(GangMove {
                id: format!("from-{node}"),
                reason: dice.one(&[CauseKind::NodeLeaving, CauseKind::NodeFaulty]),
                nodes: vec![left],
                settled: Vec::new(),
                with_restart: dice.one(&[false, true]),
                began_at: None,
                requested_at: now,
                begin_by: dice.one(&begin_by),
                outcome,
                ended_at: outcome.map(|_| now),
            });
        });
        "a gang moves"
    }

    fn checkpoint(&mut self) -> &'static str {
        self.change(|_, now, gang| Arc::make_mut(&mut gang.workload).checkpoint = Some(now));
        "a gang declares a checkpoint"
    }

    /// Creates the pods of placed members. They are bound, unless their gang has an intent.
    fn members_start(&mut self) -> &'static str {
        for gang in self.gangs.values().cloned().collect::<Vec<_>>() {
            let (Some(assigned), false) = (gang.group.assigned.clone(), gang.released()) else {
                continue;
            };
            let waits = gang.group.status.preemption.is_some();
            for (member, node) in assigned.iter() {
                let name = format!("{}-{member}", gang.key.name);
                let uid: Uid = name.parse().expect("a UID");
                if waits && self.pods.contains_key(&uid) {
                    continue;
                }
                let requests = gang.requests(&member.group).cloned().unwrap_or_default();
                self.upsert(Pod {
                    owner: Some(gang.workload.uid.clone()),
                    pod_group: Some(gang.key.name.clone()),
                    member: Some(member.clone()),
                    bound: (!waits).then(|| node.clone()),
                    pinned: Some(node.clone()),
                    requests,
                    priority: gang.group.priority,
                    stage: if waits { Stage::Gated } else { Stage::Open },
                    started: Some(self.now),
                    may_end: true,
                    ..Pod::bare(gang.key.namespace.clone(), name, uid)
                });
            }
        }
        "members start"
    }

    fn drop_pods(&mut self, key: &Key) {
        let of = |pod: &&Pod| pod.pod_group.as_ref() == Some(&key.name);
        let uids: Vec<Uid> = self
            .pods
            .values()
            .filter(of)
            .map(|p| p.uid.clone())
            .collect();
        for uid in uids {
            self.remove(uid.as_str());
        }
    }

    /// Preempted gangs release their placement. One member of another gang is lost or refused.
    fn members_end(&mut self) -> &'static str {
        for key in self.gangs.keys().cloned().collect::<Vec<_>>() {
            let gang = &self.gangs[&key];
            let status = &gang.group.status;
            if is_true(&status.conditions, types::DISRUPTION_TARGET) {
                let placement = status.placement.as_ref().map(|p| p.id.clone());
                let mut gang = (**gang).clone();
                Arc::make_mut(&mut gang.workload).released = placement;
                self.drop_pods(&key);
                self.gangs.insert(key, Arc::new(gang));
            }
        }
        let members: Vec<Pod> = self
            .pods
            .values()
            .filter(|p| p.member.is_some())
            .cloned()
            .collect();
        if let Some(pod) = self.dice.pick(&members).cloned() {
            if self.dice.roll(3) == 0 {
                let refused = Pod {
                    bound: None,
                    stage: Stage::Refused,
                    refusal: Some(
                        self.dice
                            .one(&["a host port is taken", "1 Insufficient gpu.example/a"])
                            .into(),
                    ),
                    ..pod
                };
                self.upsert(refused);
            } else {
                self.remove(pod.uid.as_str());
            }
        }
        "members end"
    }

    fn budgets_change(&mut self) -> &'static str {
        let matches = BTreeMap::from([("app".to_owned(), self.dice.one(&["x", "y"]).to_owned())]);
        let budget = Budget {
            namespace: self.dice.one(&["a", "b"]).to_owned(),
            name: "budget".to_owned(),
            selector: Some(LabelSelector {
                match_labels: Some(matches),
                ..LabelSelector::default()
            }),
            allowed: self.dice.one(&[0, 1, 2]),
        };
        self.budgets = if self.dice.roll(3) == 0 {
            Vec::new()
        } else {
            vec![Arc::new(budget)]
        };
        "a budget changes"
    }

    fn namespaces_change(&mut self) -> &'static str {
        let quota = Quota {
            namespace: self.dice.one(&["a", "b", "web"]).to_owned(),
            name: "quota".to_owned(),
            hard: [("requests.cpu".to_owned(), self.dice.one(&[2000, 100_000]))].into(),
            used: [("requests.cpu".to_owned(), self.dice.one(&[0, 2000]))].into(),
            scopes: Some(Vec::new()),
        };
        self.quotas = if self.dice.roll(3) == 0 {
            Vec::new()
        } else {
            vec![Arc::new(quota)]
        };
        self.weights = Arc::new([("a".to_owned(), self.dice.one(&[500, 1000, 3000]))].into());
        "quotas and weights change"
    }

    /// Executes the requests of a cycle.
    pub fn apply(&mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Status(write) => self.write(write),
                Step::Evict { pod, .. } if self.dice.roll(2) == 0 => self.remove(pod.uid.as_str()),
                Step::Nominate { pod, node } => {
                    let mut pod = self.pods[pod.uid.as_str()].clone();
                    pod.nominated = Some(node.clone());
                    self.upsert(pod);
                }
                _ => {}
            }
        }
    }

    fn write(&mut self, write: &StatusWrite) {
        let gang = self.gangs.get_mut(&write.key).expect("it was read");
        let version = gang
            .group
            .resource_version
            .as_ref()
            .and_then(|v| v.as_str().parse::<u64>().ok())
            .expect("a number")
            + 1;
        let assigned = write.status.placement.as_ref().map(Placement::assignments);
        let group = &mut Arc::make_mut(gang).group;
        group.status = Arc::new(write.status.clone());
        group.assigned = assigned.map(Arc::new);
        group.resource_version = version.to_string().parse().ok();
    }
}
