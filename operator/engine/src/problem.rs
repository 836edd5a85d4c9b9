//! Types of a decision: resources, running work, and the gang to place.
//!
//! All values are ordinals, mapped from names by the caller, or integers.

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

/// Pods of a gang with equal requests and equal eligible nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Request of one pod, including the pod itself if pods are a dimension.
    pub request: Amounts,
    /// Wanted pods, including `running`.
    pub count: u32,
    /// Pods that the gang needs; at most `count`.
    pub min: u32,
    /// Pods per replica. Only used if a level has [`Scope::Replica`], and must divide `count`.
    pub replica_size: u32,
    /// Nodes that admit the pod by selectors, affinity and taints. `None`: every node.
    pub eligible: Option<Arc<NodeSet>>,
    /// Running members. They stay, count towards `min` and `count`, and are pods in the cluster.
    pub running: Vec<RunningMembers>,
}

impl Shape {
    /// A shape that needs all its pods, on any nodes.
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

    /// Number of running members.
    pub fn running_count(&self) -> u32 {
        self.running.iter().map(|r| r.count).sum()
    }
}

/// Running members of a gang on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunningMembers {
    /// Their replica; 0 unless a level has [`Scope::Replica`].
    pub replica: u32,
    /// Their node.
    pub node: NodeIx,
    /// Number of members.
    pub count: u32,
}

/// Whether the gang may evict work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EvictionPolicy {
    /// May evict units of strictly lower priority.
    #[default]
    LowerPriority,
    /// Waits for free capacity.
    Never,
}

/// How strict a topology constraint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TopologyStrictness {
    /// The gang waits until it fits into a domain.
    Required,
    /// The gang shares a domain if it fits into free capacity there, without evictions. Inner levels
    /// are given up before outer levels.
    Preferred,
}

/// What must share a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The whole gang.
    Gang,
    /// Each replica separately.
    Replica,
}

/// A level of the topology, and what must share one of its domains.
///
/// A domain is one value of the key within one domain of the levels outside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopologyDemand {
    /// The topology key. With mode `Required`, nodes without a value are not used.
    pub key: KeyIx,
    /// How strict it is.
    pub mode: TopologyStrictness,
    /// What must share a domain.
    pub scope: Scope,
}

/// A gang to place, whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Demand {
    /// Pods by request.
    pub shapes: Vec<Shape>,
    /// Pods that the gang needs over all shapes, including running ones. Pods of any shapes count
    /// beyond the shapes' minima.
    pub min_count: u32,
    /// Priority. Only units of strictly lower priority may be evicted.
    pub priority: i32,
    /// Whether the gang may evict work.
    pub preemption: EvictionPolicy,
    /// Topology constraints, outermost level first.
    pub topology: Vec<TopologyDemand>,
    /// Nodes that must not be used, for example after a refusal by kube-scheduler.
    pub excluded: NodeSet,
}

impl Demand {
    /// A gang of one shape that needs all its pods, on any nodes.
    pub fn homogeneous(request: impl Into<Amounts>, count: u32, priority: i32) -> Self {
        Self {
            shapes: vec![Shape::new(request, count)],
            min_count: count,
            priority,
            preemption: EvictionPolicy::LowerPriority,
            topology: Vec::new(),
            excluded: NodeSet::new(),
        }
    }

    /// New pods per shape that the gang needs: the minima minus running members, and the rest of
    /// `min_count` from the shapes in order. Placements and evictions may divide the rest otherwise.
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

    /// New pods per shape that the gang wants in total.
    pub fn desired(&self) -> Vec<u32> {
        self.shapes
            .iter()
            .map(|s| s.count.saturating_sub(s.running_count()))
            .collect()
    }

    /// True if a level concerns replicas, so that they are placed whole.
    pub fn by_replica(&self) -> bool {
        self.topology.iter().any(|l| l.scope == Scope::Replica)
    }

    /// True if the gang permits the node for a shape.
    pub fn admits(&self, shape: &Shape, node: NodeIx) -> bool {
        !self.excluded.contains(node)
            && shape.eligible.as_ref().is_none_or(|set| set.contains(node))
    }
}

/// Pods of a placement on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Assignment {
    /// Shape of the pods.
    pub shape: ShapeIx,
    /// Their replica; 0 unless a level has [`Scope::Replica`].
    pub replica: u32,
    /// Their node.
    pub node: NodeIx,
    /// Number of pods.
    pub count: u32,
}

/// New pods of a gang by shape, replica and node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GangPlacement {
    /// Sorted, at most one entry per shape, replica and node.
    pub assignments: Vec<Assignment>,
}

impl GangPlacement {
    /// Number of placed pods.
    pub fn count(&self) -> u32 {
        self.assignments.iter().map(|s| s.count).sum()
    }

    pub(crate) fn count_of(&self, shape: ShapeIx) -> u32 {
        let of_shape = self.assignments.iter().filter(|a| a.shape == shape);
        of_shape.map(|a| a.count).sum()
    }
}

/// Pods of a unit with equal requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pods {
    /// Request of one pod.
    pub request: Amounts,
    /// Node of each pod; a node with several pods is repeated.
    pub nodes: Vec<NodeIx>,
}

/// A unit of disruption: a single pod, or a gang that is evicted whole or not at all.
///
/// Work that must never be a victim (`DaemonSet`, mirror and system-priority pods) is no unit; it
/// only holds capacity in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Its pods.
    pub pods: Vec<Pods>,
    /// Priority of the pod or of its gang.
    pub priority: i32,
    /// True for a gang, which is more important than a pod of equal priority (KEP-5710).
    pub gang: bool,
    /// Accelerator-seconds lost by its eviction.
    pub cost: u64,
    /// Pods guarded by each budget.
    pub pdbs: SmallVec<[(PdbIx, u32); 1]>,
    /// Start in seconds on any fixed scale. Smaller is earlier.
    pub start: i64,
    /// Gang that restarts when this unit is evicted. Its loss replaces `cost` and is counted once.
    pub cascade: Option<CascadeIx>,
    /// Nodes where the unit could restart, for the follow-on cost. `None`: every node.
    pub eligible: Option<Arc<NodeSet>>,
    /// True if the evicted unit would preempt in turn.
    pub preempts: bool,
}

impl Unit {
    /// Number of pods.
    pub fn pod_count(&self) -> u32 {
        self.pods.iter().map(|p| p.nodes.len() as u32).sum()
    }
}

/// Running work, and limits of its disruption.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Units {
    /// The units. Ties go to the smaller ordinal.
    pub units: Vec<Unit>,
    /// Disruptions that each budget permits, in pods.
    pub pdb_allowed: Vec<u32>,
    /// Loss of each gang that restarts together, in accelerator-seconds.
    pub cascade_loss: Vec<u64>,
}
