//! Instances of the format `preempt-quality/1`: nodes with GPUs, running groups, and one gang that
//! has to be placed.

use std::collections::BTreeMap;

use lockstep_engine::{Cluster, ClusterNode, Demand, EvictionPolicy, Pods, Shape, Unit, Units};
use serde::{Deserialize, Serialize};
use smallvec::smallvec;

/// One instance file.
#[derive(Debug, Deserialize)]
pub struct Instance {
    /// Name, as answers give it.
    pub name: String,
    /// The cluster.
    pub nodes: Vec<InstanceNode>,
    /// Running work.
    pub groups: Vec<Group>,
    /// Pod disruption budgets.
    pub pdbs: Vec<Pdb>,
    /// The gang that has to be placed.
    pub preemptor: Preemptor,
}

/// A node.
#[derive(Debug, Deserialize)]
pub struct InstanceNode {
    /// GPUs, the only resource.
    pub gpus: i64,
}

/// Work that runs.
#[derive(Debug, Deserialize)]
pub struct Group {
    /// Name.
    pub id: String,
    /// Priority of its pods.
    pub priority: i32,
    /// Whether it goes whole or pod by pod.
    pub mode: Mode,
    /// Seconds since its start.
    pub running_s: i64,
    /// Seconds since its last checkpoint.
    pub checkpoint_age_s: u64,
    /// Seconds that a restart costs besides.
    pub restart_overhead_s: u64,
    /// Budget that its pods count towards.
    pub pdb: Option<usize>,
    /// Where it runs.
    pub pods: Vec<InstancePod>,
}

/// How a group may be disrupted.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Whole or not at all.
    All,
    /// Pod by pod.
    Single,
}

/// A pod.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct InstancePod {
    /// Its node.
    pub node: usize,
    /// GPUs it holds.
    pub gpus: i64,
}

/// A pod disruption budget.
#[derive(Debug, Deserialize)]
pub struct Pdb {
    /// Pods that may be disrupted.
    pub disruptions_allowed: u32,
}

/// The gang that has to be placed.
#[derive(Debug, Deserialize)]
pub struct Preemptor {
    /// Its priority.
    pub priority: i32,
    /// Its pods.
    pub shapes: Vec<InstanceShape>,
}

/// Equal pods of the gang.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct InstanceShape {
    /// GPUs per pod.
    pub gpus: i64,
    /// Pods.
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
    /// Where the gang is placed; left out by arms that only choose victims.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Vec<AnswerAssignment>>,
    /// Whether the engine claims that no better answer exists.
    pub proven: bool,
    /// PDB excess that the engine claims every answer to have.
    pub bound_pdb_excess: u64,
    /// GPU-seconds that the engine claims every answer to lose.
    pub bound_gpu_s: u64,
}

/// Pods of the gang on a node.
#[derive(Debug, Serialize)]
pub struct AnswerAssignment {
    /// The node.
    pub node: usize,
    /// GPUs per pod.
    pub gpus: i64,
    /// Pods.
    pub count: u32,
}

impl Instance {
    /// The cluster with its running pods: what an index holds at any time.
    pub fn cluster(&self) -> Cluster {
        let mut cluster = Cluster::new(1, 0);
        for (ix, node) in self.nodes.iter().enumerate() {
            let spec = ClusterNode {
                allocatable: smallvec![node.gpus],
                domains: Vec::new(),
                schedulable: true,
            };
            cluster.upsert_node(ix, &spec);
        }
        for pod in self.groups.iter().flat_map(|g| &g.pods) {
            cluster.add_pod(pod.node, &[pod.gpus]);
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

    /// The gang, larger pods first.
    pub fn demand(&self) -> Demand {
        let mut sizes = self.preemptor.shapes.clone();
        sizes.sort_by_key(|s| std::cmp::Reverse((s.gpus, s.count)));
        let shapes: Vec<Shape> = sizes
            .iter()
            .map(|s| Shape::new([s.gpus].as_slice(), s.count))
            .collect();
        Demand {
            min_count: shapes.iter().map(|s| s.count).sum(),
            shapes,
            priority: self.preemptor.priority,
            preemption: EvictionPolicy::LowerPriority,
            topology: None,
            excluded: lockstep_engine::NodeSet::new(),
        }
    }
}

fn unit(group: &Group, pods: &[InstancePod]) -> Unit {
    let mut by_size: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
    for pod in pods {
        by_size.entry(pod.gpus).or_default().push(pod.node);
    }
    let gpus: i64 = pods.iter().map(|p| p.gpus).sum();
    Unit {
        pods: by_size
            .into_iter()
            .map(|(gpus, nodes)| Pods {
                request: smallvec![gpus],
                nodes,
            })
            .collect(),
        priority: group.priority,
        gang: group.mode == Mode::All,
        cost: gpus.unsigned_abs() * (group.checkpoint_age_s + group.restart_overhead_s),
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
