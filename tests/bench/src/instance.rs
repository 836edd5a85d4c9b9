//! Instances of the formats `preempt-quality/1` (nodes with GPUs) and `/2` (several resources, see
//! `tests/bench/quality`): nodes, running groups, and a gang to place.

use std::collections::BTreeMap;

use lockstep_engine::{
    Amounts, Cluster, ClusterNode, Demand, EvictionPolicy, Pods, Shape, Unit, Units,
};
use serde::{Deserialize, Serialize};

/// One instance file.
#[derive(Debug, Deserialize)]
pub struct Instance {
    /// Name in the answers.
    pub name: String,
    /// The cluster.
    pub nodes: Vec<InstanceNode>,
    /// Running work.
    pub groups: Vec<Group>,
    /// Pod disruption budgets.
    pub pdbs: Vec<Pdb>,
    /// The gang to place.
    pub preemptor: Preemptor,
}

/// Amounts of resources.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum InstanceAmounts {
    /// Of GPUs, the only resource of `/1`.
    Gpus(i64),
    /// Of each resource of the instance (`/2`).
    #[serde(alias = "allocatable")]
    Request(Vec<i64>),
}

impl InstanceAmounts {
    /// One amount per resource.
    pub fn amounts(&self) -> &[i64] {
        match self {
            Self::Gpus(gpus) => std::slice::from_ref(gpus),
            Self::Request(amounts) => amounts,
        }
    }
}

/// A node.
#[derive(Debug, Deserialize)]
pub struct InstanceNode {
    /// Its capacity.
    #[serde(flatten)]
    pub allocatable: InstanceAmounts,
}

/// A running group.
#[derive(Debug, Deserialize)]
pub struct Group {
    /// Name.
    pub id: String,
    /// Priority of its pods.
    pub priority: i32,
    /// Disruption as a whole or pod by pod.
    pub mode: Mode,
    /// Seconds since its start.
    pub running_s: i64,
    /// Loss through its eviction.
    #[serde(flatten)]
    pub loss: InstanceLoss,
    /// Budget of its pods.
    pub pdb: Option<usize>,
    /// Its pods and their nodes.
    pub pods: Vec<InstancePod>,
}

/// Loss through the eviction of a unit.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub enum InstanceLoss {
    /// Seconds of each of its GPUs (`/1`).
    Seconds {
        /// Seconds since its last checkpoint.
        checkpoint_age_s: u64,
        /// Additional seconds of a restart.
        restart_overhead_s: u64,
    },
    /// Work (`/2`).
    Work {
        /// Accelerator-seconds of a unit: of the group, or of each pod if it is evicted pod by pod.
        lost: u64,
    },
}

/// How a group may be disrupted.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// As a whole.
    All,
    /// Pod by pod.
    Single,
}

/// A pod.
#[derive(Clone, Debug, Deserialize)]
pub struct InstancePod {
    /// Its node.
    pub node: usize,
    /// Its request.
    #[serde(flatten)]
    pub request: InstanceAmounts,
}

/// A pod disruption budget.
#[derive(Debug, Deserialize)]
pub struct Pdb {
    /// Number of pods that can be disrupted.
    pub disruptions_allowed: u32,
}

/// The gang to place.
#[derive(Debug, Deserialize)]
pub struct Preemptor {
    /// Its priority.
    pub priority: i32,
    /// Its pods, by shape.
    pub shapes: Vec<InstanceShape>,
}

/// Equal pods of the gang.
#[derive(Clone, Debug, Deserialize)]
pub struct InstanceShape {
    /// Request of a pod.
    #[serde(flatten)]
    pub request: InstanceAmounts,
    /// Number of pods.
    pub count: u32,
}

/// One line of the answers.
#[derive(Debug, Serialize)]
pub struct Answer {
    /// Instance.
    pub name: String,
    /// Unit names.
    pub victims: Vec<String>,
    /// Microseconds from the index to the answer.
    pub decision_us: u64,
    /// Placement of the gang. Absent for algorithms that only select victims.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Vec<AnswerAssignment>>,
    /// True if the engine claims that no better answer exists.
    pub proven: bool,
    /// Lower bound of the PDB excess that the engine claims for every answer.
    pub bound_pdb_excess: u64,
    /// Lower bound of the lost GPU-seconds that the engine claims for every answer.
    pub bound_gpu_s: u64,
}

/// Pods of the gang on a node.
#[derive(Debug, Serialize)]
pub struct AnswerAssignment {
    /// The node.
    pub node: usize,
    /// Request of a pod.
    #[serde(flatten)]
    pub request: InstanceAmounts,
    /// Number of pods.
    pub count: u32,
}

impl Instance {
    /// Number of resources.
    pub fn dims(&self) -> usize {
        self.nodes
            .first()
            .map_or(1, |n| n.allocatable.amounts().len())
    }

    /// The cluster with its running pods.
    pub fn cluster(&self) -> Cluster {
        let mut cluster = Cluster::new(self.dims(), 0);
        for (ix, node) in self.nodes.iter().enumerate() {
            let spec = ClusterNode {
                allocatable: Amounts::from_slice(node.allocatable.amounts()),
                domains: Vec::new(),
                schedulable: true,
            };
            cluster.upsert_node(ix, &spec);
        }
        for pod in self.groups.iter().flat_map(|g| &g.pods) {
            cluster.add_pod(pod.node, pod.request.amounts());
        }
        cluster
    }

    /// The units of disruption and their names, in the order of the names.
    pub fn units(&self) -> (Units, Vec<String>) {
        let mut named: Vec<(String, Unit)> = Vec::new();
        for group in &self.groups {
            match group.mode {
                Mode::All => named.push((group.id.clone(), unit(group, &group.pods))),
                Mode::Single => {
                    for (ix, pod) in group.pods.iter().enumerate() {
                        named.push((
                            format!("{}/{ix}", group.id),
                            unit(group, std::slice::from_ref(pod)),
                        ));
                    }
                }
            }
        }
        named.sort_by(|a, b| a.0.cmp(&b.0));
        let (ids, units) = named.into_iter().unzip();
        let pdb_allowed = self.pdbs.iter().map(|p| p.disruptions_allowed).collect();
        (
            Units {
                units,
                pdb_allowed,
                cascade_loss: Vec::new(),
            },
            ids,
        )
    }

    /// The shapes of the gang, larger pods first.
    pub fn shapes(&self) -> Vec<InstanceShape> {
        let mut shapes = self.preemptor.shapes.clone();
        shapes.sort_by(|a, b| (&b.request, b.count).cmp(&(&a.request, a.count)));
        shapes
    }

    /// The gang, its shapes in the order of [`Instance::shapes`].
    pub fn demand(&self) -> Demand {
        let shapes: Vec<Shape> = self
            .shapes()
            .iter()
            .map(|s| Shape::new(s.request.amounts(), s.count))
            .collect();
        Demand {
            min_count: shapes.iter().map(|s| s.count).sum(),
            shapes,
            priority: self.preemptor.priority,
            preemption: EvictionPolicy::LowerPriority,
            topology: Vec::new(),
            excluded: lockstep_engine::NodeSet::new(),
        }
    }
}

fn unit(group: &Group, pods: &[InstancePod]) -> Unit {
    let mut by_size: BTreeMap<&[i64], Vec<usize>> = BTreeMap::new();
    for pod in pods {
        let request = pod.request.amounts();
        by_size.entry(request).or_default().push(pod.node);
    }
    Unit {
        pods: by_size
            .into_iter()
            .map(|(request, nodes)| Pods {
                request: Amounts::from_slice(request),
                nodes,
            })
            .collect(),
        priority: group.priority,
        gang: group.mode == Mode::All,
        cost: lost(&group.loss, pods),
        pdbs: group
            .pdb
            .map(|p| (p, pods.len() as u32))
            .into_iter()
            .collect(),
        start: -group.running_s,
        cascade: None,
        eligible: None,
        preempts: false,
    }
}

/// Accelerator-seconds that evicting these pods of a group destroys.
fn lost(loss: &InstanceLoss, pods: &[InstancePod]) -> u64 {
    match loss {
        InstanceLoss::Work { lost } => *lost,
        InstanceLoss::Seconds {
            checkpoint_age_s,
            restart_overhead_s,
        } => {
            let gpus: i64 = pods.iter().flat_map(|p| p.request.amounts()).sum();
            gpus.unsigned_abs() * (checkpoint_age_s + restart_overhead_s)
        }
    }
}
