//! A cluster with running and waiting gangs for the scheduling cycle, without an API server.
//! Requests of a cycle are applied before the next cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lockstep_api::NodeState;
use lockstep_api::gangs::{Assignments, Domain, Gang};
use lockstep_api::ids::{DomainKey, GangKey, NodeName, Uid};
use lockstep_api::key::Key;
use lockstep_api::member::Member;
use lockstep_api::scheduling::{Placement, PodGroupStatus};
use lockstep_api::workload::{DisruptionMode, TopologyLevel, TopologyMode, TopologyScope};
use lockstep_model::volumes::{VolumeCheck, VolumeNeeds};
use lockstep_model::{ClusterModel, Constraints, Node, Pod, Resources};
use lockstep_scheduler::GangPhase;
use lockstep_scheduler::input::{
    GangEnd, GangInput, PodGroupInput, SchedulingInput, TemplateInput, TemplateNodes, WorkloadInput,
};
use lockstep_scheduler::members::{DomainInput, MembersInput};
use lockstep_scheduler::{Memory, SchedulerSettings, SchedulingPlan, Step, schedule};

use crate::scenes::Dice;

/// The cluster, its gangs and the scheduler's memory.
pub struct World {
    model: ClusterModel,
    gangs: BTreeMap<Key, Arc<GangInput>>,
    memory: Memory,
    settings: SchedulerSettings,
    now: DateTime<Utc>,
    dice: Dice,
    nodes: usize,
    /// Small pods that exist, in order of creation.
    come: Vec<String>,
    pods: u64,
}

/// Number of nodes that are cordoned at first, with work of low priority.
const CORDONED: usize = 64;
/// Label of a node's rack, and number of nodes of a rack, as in upstream's `scheduler_perf`.
const RACK: (&str, usize) = ("topology.kubernetes.io/rack", 100);

impl World {
    fn empty(nodes: usize) -> Self {
        Self {
            model: ClusterModel::default(),
            gangs: BTreeMap::new(),
            memory: Memory::default(),
            settings: SchedulerSettings::default(),
            now: DateTime::UNIX_EPOCH + TimeDelta::days(20_000),
            dice: Dice::new(7),
            nodes,
            come: Vec::new(),
            pods: 0,
        }
    }

    /// Nodes of 8 GPUs, all used by single pods of one GPU, and a gang that needs all nodes. Also
    /// returns the number of pods.
    pub fn of_single_pods(nodes: usize) -> (Self, usize) {
        let (mut world, pods) = (Self::empty(nodes), nodes * 8);
        for ix in 0..nodes {
            world.model.upsert_node(node(ix, false));
        }
        let holds = Arc::new(requests(1));
        for number in 0..pods {
            let uid = format!("single-{number}");
            world.model.upsert_pod(Pod {
                bound: Some(node_name(number % nodes)),
                requests: Arc::clone(&holds),
                started: Some(world.now),
                ..pod("web", &uid)
            });
        }
        world.gang("wants-all", 100, nodes, &Arc::new(requests(8)), None);
        (world, pods)
    }

    /// Full nodes, and waiting gangs that differ only in their deadlines.
    pub fn of_equal_gangs(nodes: usize, waiting: usize) -> Self {
        let mut world = Self::new(nodes, 0);
        let holds = Arc::new(requests(8));
        for number in 0..waiting {
            let name = format!("wait-{number:05}");
            world.gang(&name, 50, 16, &holds, None);
            let gang = world.gangs.get_mut(&Key::new("ml", name));
            if let Some(gang) = gang.map(Arc::make_mut) {
                let ends = world.now + TimeDelta::seconds(3_600 + number as i64);
                Arc::make_mut(&mut gang.workload).ends = Some(GangEnd::At(ends));
            }
        }
        world
    }

    /// Empty nodes in racks of 100, and waiting gangs of `members` pods that must each share a rack.
    /// Amounts are those of the topology cases of upstream's `scheduler_perf`.
    pub fn of_racks(nodes: usize, gangs: usize, members: usize) -> Self {
        let mut world = Self::empty(nodes);
        let (key, size) = RACK;
        world.model.use_topology_key(key);
        let offers = resources(&[("cpu", "4"), ("memory", "32Gi"), ("pods", "110")]);
        for ix in 0..nodes {
            let mut node = Node {
                allocatable: offers.clone(),
                ..node(ix, false)
            };
            node.labels
                .insert(key.to_owned(), format!("rack-{}", ix / size));
            world.model.upsert_node(node);
        }
        let requests = resources(&[("cpu", "100m"), ("memory", "100Mi"), ("pods", "1")]);
        let holds = Arc::new(requests);
        for number in 0..gangs {
            let name = format!("gang-{number:05}");
            world.gang(&name, 0, members, &holds, None);
        }
        let level = TopologyLevel {
            key: key.to_owned(),
            mode: TopologyMode::Required,
            scope: TopologyScope::Gang,
        };
        for gang in world.gangs.values_mut() {
            Arc::make_mut(gang).group.topology = vec![level.clone()];
        }
        world
    }

    /// Number of gangs with a node for each member, all in one rack.
    pub fn placed_in_a_rack(&self) -> usize {
        let placed = self.gangs.values().filter(|gang| {
            let Some(assigned) = &gang.group.assigned else {
                return false;
            };
            let rack_of = |node: &NodeName| -> Option<usize> {
                Some(node.as_str().strip_prefix("node-")?.parse::<usize>().ok()? / RACK.1)
            };
            let racks: BTreeSet<Option<usize>> = assigned.values().map(rack_of).collect();
            racks.len() == 1 && assigned.len() == gang.gang.members().count()
        });
        placed.count()
    }

    /// Nodes of 8 GPUs, all used by gangs of 16 nodes, and waiting gangs.
    pub fn new(nodes: usize, waiting: usize) -> Self {
        let mut world = Self::empty(nodes);
        for ix in 0..nodes {
            world.model.upsert_node(node(ix, ix < CORDONED));
            for _ in 0..4 {
                world.small_pod(ix);
            }
        }
        let kinds = [
            Arc::new(requests(8)),
            Arc::new(requests(4)),
            Arc::new(requests(1)),
        ];
        for (number, first) in (0..nodes).step_by(16).enumerate() {
            let last = (first + 16).min(nodes);
            // Work on cordoned nodes has the lowest priority. Most other work has a higher priority
            // than all waiting gangs.
            let priority = if first < CORDONED {
                10
            } else {
                [100, 100, 70][number % 3]
            };
            world.run_gang(
                &format!("run-{number:05}"),
                priority,
                first..last,
                &kinds[0],
            );
        }
        for number in 0..waiting {
            let gpus = number % 3;
            let members = [16, 24, 64][number / 3 % 3];
            let priority = [10, 50, 50, 60][number % 4];
            world.gang(
                &format!("wait-{number:05}"),
                priority,
                members,
                &kinds[gpus],
                None,
            );
        }
        world
    }

    /// Runs a cycle and applies its requests.
    pub fn pass(&mut self) -> SchedulingPlan {
        let input = SchedulingInput {
            cluster: self.model.snapshot(),
            gangs: self.gangs.values().cloned().collect(),
            budgets: Vec::new(),
            quotas: Vec::new(),
            weights: Arc::default(),
        };
        let plan = schedule(&input, &mut self.memory, &self.settings, self.now).plan;
        drop(input);
        self.apply(&plan);
        plan
    }

    /// Advances the time by a tenth of a second.
    pub fn later(&mut self) {
        self.now += TimeDelta::milliseconds(100);
    }

    fn apply(&mut self, plan: &SchedulingPlan) {
        for step in &plan.steps {
            let Step::Status(write) = step else { continue };
            let Some(gang) = self.gangs.get_mut(&write.key) else {
                continue;
            };
            let old = &**gang;
            let assigned = write.status.placement.as_ref().map(Placement::assignments);
            let version = old.group.resource_version.as_ref();
            let version = version.and_then(|v| v.as_str().parse::<u64>().ok());
            let version = version.unwrap_or(0) + 1;
            let group = PodGroupInput {
                status: Arc::new(write.status.clone()),
                assigned: assigned.map(Arc::new),
                resource_version: version.to_string().parse().ok(),
                ..old.group.clone()
            };
            *gang = Arc::new(GangInput {
                group,
                ..old.clone()
            });
        }
    }

    /// Gangs that have decided to preempt.
    pub fn preempting(&self) -> usize {
        let mut count = 0;
        for gang in self.gangs.values() {
            count += usize::from(gang.group.status.preemption.is_some());
        }
        count
    }

    /// Adds a small pod or removes one.
    pub fn pod_event(&mut self) {
        if self.come.len() > 20 {
            let uid = self.come.remove(0);
            self.model.remove_pod(&uid);
        } else {
            let node = self.dice.roll(self.nodes as u64) as usize;
            let uid = self.small_pod(node);
            self.come.push(uid);
        }
    }

    /// Uncordons the cordoned nodes.
    pub fn uncordon(&mut self) {
        for ix in 0..CORDONED {
            self.model.upsert_node(node(ix, false));
        }
    }

    /// Creates missing pods of gangs with a placement, as their workloads do.
    pub fn make_pods(&mut self) {
        for (key, gang) in &self.gangs {
            let templates = &gang.workload.templates;
            let requests = templates.first().and_then(|t| t.requests.as_ref().ok());
            let (Some(assigned), Some(holds)) = (&gang.group.assigned, requests) else {
                continue;
            };
            for (member, node) in assigned.iter() {
                let pod = member_pod(&key.name, member, node, holds, gang.group.priority);
                self.model.upsert_pod(pod);
            }
        }
    }

    fn small_pod(&mut self, node: usize) -> String {
        self.pods += 1;
        let uid = format!("small-{}", self.pods);
        let requests = resources(&[("cpu", "200m"), ("memory", "512Mi"), ("pods", "1")]);
        self.model.upsert_pod(Pod {
            bound: Some(node_name(node)),
            requests: Arc::new(requests),
            started: Some(self.now),
            ..pod("web", &uid)
        });
        uid
    }

    fn run_gang(
        &mut self,
        name: &str,
        priority: i32,
        on: std::ops::Range<usize>,
        holds: &Arc<Resources>,
    ) {
        let members = members(on.len());
        let nodes: Assignments = members.iter().cloned().zip(on.map(node_name)).collect();
        for (member, node) in &nodes {
            self.model.upsert_pod(Pod {
                bound: Some(node.clone()),
                started: Some(self.now),
                ..member_pod(name, member, node, holds, priority)
            });
        }
        self.gang(name, priority, members.len(), holds, Some(nodes));
    }

    fn gang(
        &mut self,
        name: &str,
        priority: i32,
        size: usize,
        holds: &Arc<Resources>,
        nodes: Option<Assignments>,
    ) {
        let key = Key::new("ml", name);
        let uid = |of: &str| Uid::read(Some(&format!("{name}-{of}"))).expect("not empty");
        let workload_uid = Uid::read(Some(&format!("{name}-uid"))).expect("not empty");
        let runs = nodes.is_some();
        let status = PodGroupStatus {
            placement: nodes.map(|nodes| placement(&nodes, self.now)),
            ..PodGroupStatus::default()
        };
        let template = TemplateInput {
            group: "w".to_owned(),
            labels: BTreeMap::new(),
            grace: Duration::from_secs(30),
            requests: Ok(Arc::clone(holds)),
            nodes: TemplateNodes::Satisfying(Constraints::default()),
            volumes: VolumeNeeds::default(),
            storage: VolumeCheck::default(),
            charge: None,
            apart: None,
            avoids: Vec::new(),
            pods_preempt: true,
            not_modelled: None,
            scheduler_name: String::new(),
            foreign_gate: None,
            not_admitted: None,
        };
        let input = GangInput {
            key: key.clone(),
            group: PodGroupInput {
                uid: uid("group"),
                resource_version: "1".parse().ok(),
                generation: 1,
                deleting: false,
                priority,
                preempts: true,
                whole: true,
                topology: Vec::new(),
                assigned: status
                    .placement
                    .as_ref()
                    .map(Placement::assignments)
                    .map(Arc::new),
                status: Arc::new(status),
            },
            workload: Arc::new(WorkloadInput {
                uid: workload_uid,
                name: name.to_owned(),
                generation: 1,
                phase: GangPhase::Active,
                checkpoint: None,
                on_request: None,
                checkpoint_interval: None,
                backend: None,
                templates: vec![template].into(),
                admitted: 0,
                released: None,
                node_lost: TimeDelta::seconds(60),
                avoid: Vec::new(),
                moving: None,
                placement_tries: 0,
                ends: None,
                quota: None,
                members: MembersInput {
                    domains: vec![DomainInput {
                        key: DomainKey::from(&GangKey::whole()),
                        incident: None,
                        healthy_since: runs.then_some(self.now),
                        request: None,
                    }],
                    ..MembersInput::default()
                },
            }),
            gang: Arc::new(Gang {
                key: GangKey::whole(),
                template: "workload".to_owned(),
                basic: false,
                min_count: size as i32,
                disruption: DisruptionMode::All,
                domains: vec![Domain {
                    key: DomainKey::from(&GangKey::whole()),
                    members: members(size),
                }],
            }),
            preemption_priority: None,
            checkpoint_wait: None,
            provisioning: None,
        };
        self.gangs.insert(key, Arc::new(input));
    }
}

/// The pod of a member, not bound.
fn member_pod(
    gang: &str,
    member: &Member,
    node: &NodeName,
    holds: &Arc<Resources>,
    priority: i32,
) -> Pod {
    let uid = format!("{gang}-{member}");
    Pod {
        owner: format!("{gang}-uid").parse().ok(),
        pod_group: Some(gang.into()),
        member: Some(member.clone()),
        pinned: Some(node.clone()),
        requests: Arc::clone(holds),
        priority,
        may_end: true,
        ..pod("ml", &uid)
    }
}

/// A pod whose UID is its name.
fn pod(namespace: &str, name: &str) -> Pod {
    Pod::bare(namespace, name, name.parse().expect("a UID"))
}

fn placement(nodes: &Assignments, at: DateTime<Utc>) -> lockstep_api::scheduling::Placement {
    use lockstep_api::member::MemberSet;
    use lockstep_api::scheduling::{NodePlacement, Placement};
    Placement {
        id: "given".to_owned(),
        decided_at: at,
        members: nodes.len() as i32,
        nodes: nodes
            .iter()
            .map(|(member, node)| NodePlacement {
                node: node.to_string(),
                members: MemberSet::from_iter([member.clone()]).to_ranges(),
            })
            .collect(),
        backfill: None,
    }
}

fn members(size: usize) -> Vec<Member> {
    (0..size as i32).map(|ix| Member::new("w", 0, ix)).collect()
}

fn node_name(ix: usize) -> NodeName {
    let name = format!("node-{ix:05}");
    name.parse().expect("not empty")
}

fn node(ix: usize, cordoned: bool) -> Node {
    let allocatable = resources(&[
        ("cpu", "64"),
        ("memory", "512Gi"),
        ("pods", "110"),
        ("nvidia.com/gpu", "8"),
    ]);
    let mut node = Node {
        allocatable,
        labels: BTreeMap::from([(
            "kubernetes.io/hostname".to_owned(),
            node_name(ix).to_string(),
        )]),
        state: NodeState::default(),
        ..Node::bare(node_name(ix))
    };
    node.read_cordon(cordoned);
    node
}

fn requests(gpus: usize) -> Resources {
    resources(&[
        ("cpu", &(6 * gpus).to_string()),
        ("memory", &format!("{}Gi", 40 * gpus)),
        ("pods", "1"),
        ("nvidia.com/gpu", &gpus.to_string()),
    ])
}

fn resources(pairs: &[(&str, &str)]) -> Resources {
    let quantities: BTreeMap<String, Quantity> = pairs
        .iter()
        .map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned())))
        .collect();
    Resources::parse(&quantities).expect("quantities")
}
