//! Running gangs on a small cluster, as read by a cycle. Writes of a cycle are visible to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lockstep_api::gangs::Assignments;
use lockstep_api::ids::{NodeName, Uid};
use lockstep_api::key::Key;
use lockstep_api::member::Member;
use lockstep_api::scheduling::{MoveTarget, Placement, PodGroupStatus, TopologyLevel};
use lockstep_api::workload::{
    AvoidedNode, CauseKind, GangMove, MoveOutcome, NodeToLeave, TopologyMode, TopologyScope,
};
use lockstep_api::{NodeState, Outlook, Reach};
use lockstep_model::snapshot::{NodeRecord, PodRecord, VERSION};
use lockstep_model::{ClusterModel, Constraints, Node, Pod, Resources, SnapshotFile, Weights};
use lockstep_scheduler::input::{GangInput, SchedulingInput, WorkloadInput};
use lockstep_scheduler::members::Replacement;
use lockstep_scheduler::snapshot::record;
use lockstep_scheduler::{Memory, SchedulerSettings, SchedulingCycle, Step, schedule};

use crate::inputs;

pub const RACK: &str = "rack";
const GPU: &str = "nvidia.com/gpu";

pub struct World {
    pub model: ClusterModel,
    nodes: BTreeMap<String, Node>,
    pods: BTreeMap<Uid, Pod>,
    gangs: BTreeMap<Key, GangInput>,
    pub settings: SchedulerSettings,
    pub memory: Memory,
    pub now: DateTime<Utc>,
}

fn resources(gpus: i64) -> Resources {
    let amounts = [("pods", 1), ("cpu", 1), (GPU, gpus)];
    let amounts = amounts.map(|(name, n)| (name.to_owned(), Quantity(n.to_string())));
    Resources::parse(&amounts.into()).unwrap()
}

pub fn key(name: &str) -> Key {
    Key::new("ml", name)
}

pub fn member(index: i32) -> Member {
    Member::new("g", 0, index)
}

fn name(node: &str) -> NodeName {
    node.parse().unwrap()
}

impl World {
    /// Nodes with one accelerator each, named and labelled with their racks.
    pub fn new(nodes: &[(&str, &str)]) -> Self {
        let mut world = Self {
            model: ClusterModel::default(),
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            gangs: BTreeMap::new(),
            settings: SchedulerSettings::default(),
            memory: Memory::default(),
            now: DateTime::UNIX_EPOCH + TimeDelta::days(20_000),
        };
        world.model.use_topology_key(RACK);
        for (node, rack) in nodes {
            let node = Node {
                allocatable: Resources::parse(
                    &[("pods", "10"), ("cpu", "32"), (GPU, "1")]
                        .map(|(n, q)| (n.to_owned(), Quantity(q.to_owned())))
                        .into(),
                )
                .unwrap(),
                labels: [(RACK.to_owned(), (*rack).to_owned())].into(),
                state: NodeState::default(),
                ..Node::bare(name(node))
            };
            world.set(node);
        }
        world
    }

    fn set(&mut self, node: Node) {
        self.nodes.insert(node.name.to_string(), node.clone());
        self.model.upsert_node(node);
    }

    pub fn outlook(&mut self, node: &str, outlook: Outlook) {
        let mut node = self.nodes[node].clone();
        node.state.outlook = outlook;
        self.set(node);
    }

    pub fn cordon(&mut self, node: &str, cordoned: bool) {
        let mut node = self.nodes[node].clone();
        node.taints.clear();
        node.read_cordon(cordoned);
        self.set(node);
    }

    /// A gang of one accelerator for each member, which runs on these nodes. Without nodes, it waits.
    pub fn gang(&mut self, gang: &str, priority: i32, members: i32, nodes: &[&str]) {
        let assigned: Assignments = (0..)
            .map(member)
            .zip(nodes.iter().map(|n| name(n)))
            .collect();
        let running = !nodes.is_empty();
        let members: Vec<Member> = (0..members).map(member).collect();
        let placement = Placement {
            id: "first".to_owned(),
            decided_at: self.now,
            members: nodes.len() as i32,
            nodes: by_node(&assigned),
            ..Placement::default()
        };
        let status = PodGroupStatus {
            placement: running.then_some(placement),
            queued_at: Some(self.now),
            ..PodGroupStatus::default()
        };
        let uids = [gang.to_owned(), format!("w-{gang}")].map(|uid| uid.parse().unwrap());
        let template = inputs::template("g", resources(1), Constraints::default());
        let mut input = inputs::gang(key(gang), uids, [template].into(), members);
        input.group.priority = priority;
        input.group.assigned = running.then(|| Arc::new(assigned.clone()));
        input.group.status = Arc::new(status);
        let workload = Arc::make_mut(&mut input.workload);
        workload.members.domains[0].healthy_since = running.then_some(self.now);
        self.gangs.insert(key(gang), input);
        self.start(gang);
    }

    /// Creates the pods of placed members that have none on their nodes.
    pub fn start(&mut self, gang: &str) {
        let input = self.gangs[&key(gang)].clone();
        for (member, node) in input.group.assigned.iter().flat_map(|a| a.iter()) {
            let uid: Uid = format!("{gang}-{member}-{node}").parse().unwrap();
            let pod = Pod {
                owner: Some(input.workload.uid.clone()),
                pod_group: Some(input.key.name.clone()),
                member: Some(member.clone()),
                bound: Some(node.clone()),
                pinned: Some(node.clone()),
                requests: Arc::new(resources(1)),
                priority: input.group.priority,
                started: Some(self.now),
                ..Pod::bare("ml", uid.to_string(), uid.clone())
            };
            self.pods.insert(uid, pod.clone());
            self.model.upsert_pod(pod);
        }
    }

    /// A pod of another controller.
    pub fn foreign(&mut self, pod: &str, node: &str) {
        let pod = Pod {
            bound: Some(name(node)),
            requests: Arc::new(resources(1)),
            priority: 1000,
            started: Some(self.now),
            ..Pod::bare("ml", pod, pod.parse().unwrap())
        };
        self.pods.insert(pod.uid.clone(), pod.clone());
        self.model.upsert_pod(pod);
    }

    pub fn edit(&mut self, gang: &str, change: impl FnOnce(&mut GangInput)) {
        change(self.gangs.get_mut(&key(gang)).unwrap());
    }

    fn edit_workload(&mut self, gang: &str, change: impl FnOnce(&mut WorkloadInput)) {
        self.edit(gang, |gang| change(Arc::make_mut(&mut gang.workload)));
    }

    /// The workload requests a move from these nodes, or changes its nodes.
    pub fn moves(&mut self, gang: &str, reason: CauseKind, nodes: &[&str]) {
        let leave = |node: &&str| NodeToLeave {
            node: (*node).to_owned(),
            signal: "Maintenance".to_owned(),
            deadline: None,
        };
        let moving = GangMove {
            id: format!("move-{gang}"),
            reason,
            nodes: nodes.iter().map(leave).collect(),
            settled: Vec::new(),
            with_restart: false,
            began_at: None,
            requested_at: self.now,
            begin_by: None,
            outcome: None,
            ended_at: None,
        };
        self.edit_workload(gang, |w| w.moving = Some(moving));
    }

    /// The gang leaves the nodes only with the restart in progress.
    pub fn within_restart(&mut self, gang: &str) {
        self.edit_workload(gang, |w| {
            w.moving.as_mut().unwrap().with_restart = true;
        });
    }

    pub fn begins_by(&mut self, gang: &str, at: DateTime<Utc>) {
        self.edit_workload(gang, |w| w.moving.as_mut().unwrap().begin_by = Some(at));
    }

    /// Sets the deadline of all nodes to leave.
    pub fn deadline(&mut self, gang: &str, after: TimeDelta) {
        let at = self.now + after;
        self.edit_workload(gang, |w| {
            let nodes = w.moving.iter_mut().flat_map(|m| &mut m.nodes);
            nodes.for_each(|left| left.deadline = Some(at));
        });
    }

    /// The node of a member is lost, and an incident replaces the member.
    pub fn loses(&mut self, gang: &str, index: i32, node: &str) {
        let mut lost = self.nodes[node].clone();
        lost.state.reach = Reach::OutOfService;
        self.set(lost);
        let uid: Uid = format!("{gang}-{}-{node}", member(index)).parse().unwrap();
        self.edit_workload(gang, |w| {
            w.members.domains[0].incident = Some(Replacement {
                members: [member(index)].into(),
                old_pods: [uid.to_string()].into(),
            });
        });
    }

    pub fn ends(&mut self, gang: &str, outcome: MoveOutcome) {
        let now = self.now;
        self.edit_workload(gang, |w| {
            let moving = w.moving.as_mut().unwrap();
            (moving.outcome, moving.ended_at) = (Some(outcome), Some(now));
        });
    }

    /// An incident replaces these members, and their nodes to leave are avoided.
    pub fn replaces(&mut self, gang: &str, members: &[i32]) {
        let uids: Vec<Uid> = self.pods.keys().cloned().collect();
        let until = self.now + TimeDelta::hours(1);
        self.edit_workload(gang, |w| {
            let members = members.iter().map(|n| member(*n)).collect();
            let of_gang = |uid: &&Uid| uid.as_str().starts_with(gang);
            let old_pods = uids.iter().filter(of_gang).map(Uid::to_string).collect();
            w.members.domains[0].incident = Some(Replacement { members, old_pods });
            let left = w.moving.iter().flat_map(|m| &m.nodes);
            w.avoid = left
                .map(|left| AvoidedNode {
                    node: left.node.clone(),
                    reason: "NodeLeaving".to_owned(),
                    until,
                    ..AvoidedNode::default()
                })
                .collect();
        });
    }

    pub fn recovers(&mut self, gang: &str) {
        self.start(gang);
        self.edit_workload(gang, |w| w.members.domains[0].incident = None);
        let placed = self.assigned(gang);
        let gone = |pod: &&Pod| {
            let member = pod.member.as_ref();
            let ours = pod.owner.as_ref() == Some(&format!("w-{gang}").parse().unwrap());
            ours && member.and_then(|m| placed.get(m)) != pod.bound.as_ref()
        };
        let gone: Vec<Uid> = self
            .pods
            .values()
            .filter(gone)
            .map(|p| p.uid.clone())
            .collect();
        for uid in gone {
            self.pods.remove(&uid);
            self.model.remove_pod(uid.as_str());
        }
    }

    pub fn rack_required(&mut self, gang: &str) {
        self.edit(gang, |gang| {
            gang.group.topology = vec![TopologyLevel {
                key: RACK.to_owned(),
                mode: TopologyMode::Required,
                scope: TopologyScope::Gang,
            }];
        });
    }

    pub fn input(&self) -> SchedulingInput {
        SchedulingInput {
            cluster: self.model.snapshot(),
            gangs: self.gangs.values().cloned().map(Arc::new).collect(),
            budgets: Vec::new(),
            quotas: Vec::new(),
            weights: Arc::new(Weights::new()),
        }
    }

    pub fn file(&self) -> SnapshotFile {
        let nodes: Vec<Node> = self.nodes.values().cloned().collect();
        let keys = BTreeSet::new();
        let gangs = self.gangs.values();
        let pods = self.pods.values();
        SnapshotFile {
            version: VERSION,
            taken_at: self.now,
            namespace: None,
            pods: pods.filter_map(|p| PodRecord::of(p, &keys)).collect(),
            gangs: gangs.map(|g| record(g, &nodes, &keys).unwrap()).collect(),
            nodes: nodes.iter().map(NodeRecord::of).collect(),
            budgets: Vec::new(),
            priority_classes: Vec::new(),
            namespace_weights: Weights::new(),
        }
    }

    /// One cycle, whose writes are applied.
    pub fn cycle(&mut self) -> SchedulingCycle {
        let cycle = schedule(&self.input(), &mut self.memory, &self.settings, self.now);
        for step in &cycle.plan.steps {
            let Step::Status(write) = step else { continue };
            let group = &mut self.gangs.get_mut(&write.key).unwrap().group;
            group.status = Arc::new(write.status.clone());
            let placement = write.status.placement.as_ref();
            group.assigned = placement.map(Placement::assignments).map(Arc::new);
            let version = group.resource_version.as_ref().unwrap().as_str();
            let version = version.parse::<u64>().unwrap() + 1;
            group.resource_version = version.to_string().parse().ok();
        }
        cycle
    }

    pub fn later(&mut self, seconds: i64) {
        self.now += TimeDelta::seconds(seconds);
    }

    pub fn status(&self, gang: &str) -> &PodGroupStatus {
        &self.gangs[&key(gang)].group.status
    }

    pub fn target(&self, gang: &str) -> Option<MoveTarget> {
        self.status(gang).move_target.clone()
    }

    /// Nodes of the target by member number, if the move may begin.
    pub fn to(&self, gang: &str) -> Option<Vec<(i32, String)>> {
        let target = self.target(gang)?;
        let moves = target.assignments().into_iter();
        let moves = moves.map(|(member, node)| (member.index, node.to_string()));
        target
            .permits(&format!("move-{gang}"))
            .then(|| moves.collect())
    }

    /// Reason why the move may not begin.
    pub fn reason(&self, gang: &str) -> String {
        self.target(gang).map(|t| t.reason).unwrap_or_default()
    }

    pub fn assigned(&self, gang: &str) -> Assignments {
        let placement = self.status(gang).placement.as_ref();
        placement.map(Placement::assignments).unwrap_or_default()
    }

    pub fn nodes(&self, gang: &str) -> Vec<String> {
        self.assigned(gang)
            .values()
            .map(NodeName::to_string)
            .collect()
    }
}

fn by_node(assigned: &Assignments) -> Vec<lockstep_api::scheduling::NodePlacement> {
    let each = assigned.iter();
    each.map(|(member, node)| lockstep_api::scheduling::NodePlacement {
        node: node.to_string(),
        members: vec![format!("g/0/{}", member.index)],
    })
    .collect()
}
