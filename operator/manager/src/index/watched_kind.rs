lockstep_api::worded! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum WatchedKind {
        TrainingWorkload = "TrainingWorkload",
        RestartOrder = "RestartOrder",
        NodeAgent = "NodeAgent",
        /// `Workload` of Lockstep's API group.
        Workload = "Workload",
        /// `PodGroup` of Lockstep's API group.
        PodGroup = "PodGroup",
        /// `Workload` of `scheduling.k8s.io`.
        NativeWorkload = "NativeWorkload",
        /// `PodGroup` of `scheduling.k8s.io`.
        NativePodGroup = "NativePodGroup",
        Service = "Service",
        Pod = "Pod",
        Node = "Node",
        PriorityClass = "PriorityClass",
        PodDisruptionBudget = "PodDisruptionBudget",
        PersistentVolumeClaim = "PersistentVolumeClaim",
        PersistentVolume = "PersistentVolume",
        StorageClass = "StorageClass",
        ResourceQuota = "ResourceQuota",
        Namespace = "Namespace",
        /// `ProvisioningRequest` of Cluster Autoscaler.
        ProvisioningRequest = "ProvisioningRequest",
        PodTemplate = "PodTemplate",
        /// `Workload` of Kueue.
        KueueWorkload = "KueueWorkload",
        ResourceFlavor = "ResourceFlavor",
        WorkloadPriorityClass = "WorkloadPriorityClass",
    }
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

    /// Kinds that every manager watches.
    pub fn always() -> impl Iterator<Item = Self> {
        let kinds = Self::ALL.into_iter();
        kinds.filter(|kind| !Self::OPTIONAL.contains(kind))
    }
}
