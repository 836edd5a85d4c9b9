//! The kinds that are watched.

/// A kind that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WatchedKind {
    /// Our workloads.
    TrainingWorkload,
    /// Our orders.
    RestartOrder,
    /// Our agents.
    NodeAgent,
    /// Our Workload.
    Workload,
    /// Our PodGroup.
    PodGroup,
    /// Services of workloads.
    Service,
    /// All pods.
    Pod,
    /// All nodes.
    Node,
    /// All priority classes.
    PriorityClass,
    /// All disruption budgets.
    PodDisruptionBudget,
}

impl WatchedKind {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::TrainingWorkload,
        Self::RestartOrder,
        Self::NodeAgent,
        Self::Workload,
        Self::PodGroup,
        Self::Service,
        Self::Pod,
        Self::Node,
        Self::PriorityClass,
        Self::PodDisruptionBudget,
    ];

    /// The name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::TrainingWorkload => "TrainingWorkload",
            Self::RestartOrder => "RestartOrder",
            Self::NodeAgent => "NodeAgent",
            Self::Workload => "Workload",
            Self::PodGroup => "PodGroup",
            Self::Service => "Service",
            Self::Pod => "Pod",
            Self::Node => "Node",
            Self::PriorityClass => "PriorityClass",
            Self::PodDisruptionBudget => "PodDisruptionBudget",
        }
    }
}
