//! The vocabulary of a decision: resources, running work, and the gang to be placed.
//!
//! Everything is an ordinal or an integer. The caller keeps the tables from names to ordinals;
//! equal tables and equal input give equal answers.

use std::sync::Arc;

use fixedbitset::FixedBitSet;
use smallvec::SmallVec;

/// Ordinal of a node in its [`Cluster`](crate::Cluster).
pub type NodeIx = usize;
/// Ordinal of a resource dimension (milli-CPU, bytes, pods, each extended resource).
pub type DimIx = usize;
/// Ordinal of a topology key in use (rack, zone).
pub type KeyIx = usize;
/// Ordinal of a topology domain among the values of its key.
pub type DomainIx = usize;
/// Ordinal of a shape within its [`Demand`].
pub type ShapeIx = usize;
/// Ordinal of a unit of disruption within its [`Units`].
pub type UnitIx = usize;
/// Ordinal of a pod disruption budget within its [`Units`].
pub type PdbIx = usize;
/// Ordinal of a set of units that restart together within its [`Units`].
pub type CascadeIx = usize;

/// One amount per resource dimension, in the unit of that dimension.
pub type Amounts = SmallVec<[i64; 6]>;
/// A set of nodes.
pub type NodeSet = FixedBitSet;

/// Pods of a gang that ask for the same and may run on the same nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What one pod asks for, the pod itself included where pods are counted.
    pub request: Amounts,
    /// Pods wanted in total, those in `running` included.
    pub count: u32,
    /// Pods without which the gang is useless; at most `count`.
    pub min: u32,
    /// Pods of one replica. Read only under [`Scope::Replica`], where it divides `count`.
    pub replica_size: u32,
    /// Nodes whose selectors, affinity and taints admit the pod; `None` is every node.
    pub eligible: Option<Arc<NodeSet>>,
    /// Members that run already. They stay, count towards `min` and `count`, and the cluster
    /// accounts for them as pods.
    pub running: Vec<RunningMembers>,
}

impl Shape {
    /// A shape whose pods are all needed and may run anywhere.
    pub fn new(request: impl Into<Amounts>, count: u32) -> Self {
        Self {
            request: request.into(),
            count,
            min: count,
            replica_size: count.max(1),
            eligible: None,
            running: Vec::new(),
        }
    }

    /// Members that run already.
    pub fn running_count(&self) -> u32 {
        self.running.iter().map(|r| r.count).sum()
    }
}

/// Members of a gang that run already on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningMembers {
    /// Replica they belong to; 0 unless the scope is [`Scope::Replica`].
    pub replica: u32,
    /// Node they run on.
    pub node: NodeIx,
    /// How many of them.
    pub count: u32,
}

/// Whether the gang may evict at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// Units of strictly lower priority may be evicted.
    #[default]
    LowerPriority,
    /// The gang waits for free capacity.
    Never,
}

/// How binding a topology is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyStrictness {
    /// The gang waits rather than be spread.
    Required,
    /// The gang is kept together where it fits so; nothing is evicted for that.
    Preferred,
}

/// What has to share a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole gang.
    Gang,
    /// Each replica by itself.
    Replica,
}

/// Members that are to share a topology domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopologyDemand {
    /// The topology key. Nodes without a value for it are not used when the mode is `Required`.
    pub key: KeyIx,
    /// How binding it is.
    pub mode: TopologyStrictness,
    /// What has to share a domain.
    pub scope: Scope,
}

/// A gang to be placed, whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The pods, by what they ask for.
    pub shapes: Vec<Shape>,
    /// Pods over all shapes without which the gang is useless, running ones included. What exceeds
    /// the sum of the shapes' minima is taken from the shapes in order.
    pub min_count: u32,
    /// Priority; only units strictly below it may be evicted.
    pub priority: i32,
    /// Whether the gang may evict.
    pub preemption: EvictionPolicy,
    /// Members to be kept together.
    pub topology: Option<TopologyDemand>,
    /// Nodes not to be used: refused by kube-scheduler before, suspected of being broken.
    pub excluded: NodeSet,
}

impl Demand {
    /// A gang of one shape, all of it needed, on any nodes.
    pub fn homogeneous(request: impl Into<Amounts>, count: u32, priority: i32) -> Self {
        Self {
            shapes: vec![Shape::new(request, count)],
            min_count: count,
            priority,
            preemption: EvictionPolicy::LowerPriority,
            topology: None,
            excluded: NodeSet::new(),
        }
    }

    /// New pods per shape without which the gang is useless: the minima less what runs, then what
    /// `min_count` asks beyond them from the shapes in order.
    pub fn needed(&self) -> Vec<u32> {
        let mut target: Vec<u32> = self
            .shapes
            .iter()
            .map(|s| s.min.min(s.count).max(s.running_count()))
            .collect();
        let mut missing = self.min_count.saturating_sub(target.iter().sum());
        for (t, s) in target.iter_mut().zip(&self.shapes) {
            let more = missing.min(s.count.saturating_sub(*t));
            *t += more;
            missing -= more;
        }
        target
            .iter()
            .zip(&self.shapes)
            .map(|(t, s)| t - s.running_count())
            .collect()
    }

    /// New pods per shape that the gang would like to have in all.
    pub fn wanted(&self) -> Vec<u32> {
        self.shapes
            .iter()
            .map(|s| s.count.saturating_sub(s.running_count()))
            .collect()
    }

    /// Whether a node may be used for a shape, as far as the gang is concerned.
    pub fn admits(&self, shape: &Shape, node: NodeIx) -> bool {
        !self.excluded.contains(node)
            && shape.eligible.as_ref().is_none_or(|set| set.contains(node))
    }
}

/// Pods that a placement puts on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Assignment {
    /// Shape of the pods.
    pub shape: ShapeIx,
    /// Replica they belong to; 0 unless the scope is [`Scope::Replica`].
    pub replica: u32,
    /// The node.
    pub node: NodeIx,
    /// How many of them.
    pub count: u32,
}

/// Where the new pods of a gang are placed, by shape, replica and node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GangPlacement {
    /// Sorted, at most one entry per shape, replica and node.
    pub assignments: Vec<Assignment>,
}

impl GangPlacement {
    /// Pods placed.
    pub fn count(&self) -> u32 {
        self.assignments.iter().map(|s| s.count).sum()
    }

    /// Pods placed of one shape.
    pub(crate) fn count_of(&self, shape: ShapeIx) -> u32 {
        let of_shape = self.assignments.iter().filter(|a| a.shape == shape);
        of_shape.map(|a| a.count).sum()
    }
}

/// Equal pods of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pods {
    /// What one pod holds.
    pub request: Amounts,
    /// The node of each pod; a node with several pods appears several times.
    pub nodes: Vec<NodeIx>,
}

/// A unit of disruption: a single pod, or a gang that is evicted whole or not at all.
///
/// Work that must never be a victim (`DaemonSet`, mirror and system-priority pods) is not passed as
/// a unit; it only holds capacity in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Its pods.
    pub pods: Vec<Pods>,
    /// Priority: of the pod, or of its gang.
    pub priority: i32,
    /// Whether it is a gang; a gang counts as more important than a pod of equal priority
    /// (KEP-5710).
    pub gang: bool,
    /// Work that evicting it destroys, in accelerator-seconds.
    pub cost: u64,
    /// Pods that each budget sees of it.
    pub pdbs: SmallVec<[(PdbIx, u32); 1]>,
    /// Start in seconds on any fixed scale; a smaller number is an earlier start.
    pub start: i64,
    /// Gang that restarts as a whole when this unit is evicted: its loss replaces `cost`, and is
    /// paid once.
    pub cascade: Option<CascadeIx>,
    /// Nodes where the unit could run again, for the follow-on cost; `None` is every node.
    pub eligible: Option<Arc<NodeSet>>,
    /// Whether the unit, once evicted, would itself evict.
    pub preempts: bool,
}

impl Unit {
    /// Pods of the unit.
    pub fn pod_count(&self) -> u32 {
        self.pods.iter().map(|p| p.nodes.len() as u32).sum()
    }
}

/// The running work, and what limits its disruption.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Units {
    /// The units; ties between equals go to the smaller ordinal.
    pub units: Vec<Unit>,
    /// Disruptions that each budget still allows, in pods.
    pub pdb_allowed: Vec<u32>,
    /// Loss of each gang that restarts together, in accelerator-seconds.
    pub cascade_loss: Vec<u64>,
}
