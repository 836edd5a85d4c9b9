#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WatchedKind {
    TrainingWorkload,
    RestartOrder,
    NodeAgent,
    /// `Workload` of Lockstep's API group.
    Workload,
    /// `PodGroup` of Lockstep's API group.
    PodGroup,
    /// `Workload` of `scheduling.k8s.io`.
    NativeWorkload,
    /// `PodGroup` of `scheduling.k8s.io`.
    NativePodGroup,
    Service,
    Pod,
    Node,
    PriorityClass,
    PodDisruptionBudget,
    PersistentVolumeClaim,
    PersistentVolume,
    StorageClass,
    ResourceQuota,
    Namespace,
    /// `ProvisioningRequest` of Cluster Autoscaler.
    ProvisioningRequest,
    PodTemplate,
    /// `Workload` of Kueue.
    KueueWorkload,
    ResourceFlavor,
    WorkloadPriorityClass,
}

impl WatchedKind {
    /// Kinds that are watched only where the API server serves them, or where the configuration
    /// needs them.
    pub const OPTIONAL: [Self; 7] = [
        Self::NativeWorkload,
        Self::NativePodGroup,
        Self::ProvisioningRequest,
        Self::PodTemplate,
        Self::KueueWorkload,
        Self::ResourceFlavor,
        Self::WorkloadPriorityClass,
    ];

    pub const ALL: [Self; 22] = [
        Self::TrainingWorkload,
        Self::RestartOrder,
        Self::NodeAgent,
        Self::Workload,
        Self::PodGroup,
        Self::NativeWorkload,
        Self::NativePodGroup,
        Self::Service,
        Self::Pod,
        Self::Node,
        Self::PriorityClass,
        Self::PodDisruptionBudget,
        Self::PersistentVolumeClaim,
        Self::PersistentVolume,
        Self::StorageClass,
        Self::ResourceQuota,
        Self::Namespace,
        Self::ProvisioningRequest,
        Self::PodTemplate,
        Self::KueueWorkload,
        Self::ResourceFlavor,
        Self::WorkloadPriorityClass,
    ];

    /// Kinds that every manager watches.
    pub fn always() -> impl Iterator<Item = Self> {
        let kinds = Self::ALL.into_iter();
        kinds.filter(|kind| !Self::OPTIONAL.contains(kind))
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::TrainingWorkload => "TrainingWorkload",
            Self::RestartOrder => "RestartOrder",
            Self::NodeAgent => "NodeAgent",
            Self::Workload => "Workload",
            Self::PodGroup => "PodGroup",
            Self::NativeWorkload => "NativeWorkload",
            Self::NativePodGroup => "NativePodGroup",
            Self::Service => "Service",
            Self::Pod => "Pod",
            Self::Node => "Node",
            Self::PriorityClass => "PriorityClass",
            Self::PodDisruptionBudget => "PodDisruptionBudget",
            Self::PersistentVolumeClaim => "PersistentVolumeClaim",
            Self::PersistentVolume => "PersistentVolume",
            Self::StorageClass => "StorageClass",
            Self::ResourceQuota => "ResourceQuota",
            Self::Namespace => "Namespace",
            Self::ProvisioningRequest => "ProvisioningRequest",
            Self::PodTemplate => "PodTemplate",
            Self::KueueWorkload => "KueueWorkload",
            Self::ResourceFlavor => "ResourceFlavor",
            Self::WorkloadPriorityClass => "WorkloadPriorityClass",
        }
    }
}
