//! Kinds that the API server serves, and their Rust types.

use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, PodTemplate, ResourceQuota,
    Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::scheduling::v1beta1;
use k8s_openapi::api::storage::v1::StorageClass;
use lockstep_api::kueue::KueueWorkload;
use lockstep_api::provisioning::ProvisioningRequest;
use lockstep_api::{NodeAgent, PodGroup, RestartOrder, TrainingWorkload, Workload};
use lockstep_manager::stepped::WatchedKind;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub trait Stored: Serialize + DeserializeOwned {
    const KIND: WatchedKind;
}

macro_rules! stored {
    ($($type:ident),*) => {
        $(impl Stored for $type {
            const KIND: WatchedKind = WatchedKind::$type;
        })*
    };
}

stored!(
    NodeAgent,
    PodGroup,
    RestartOrder,
    TrainingWorkload,
    Workload,
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
    ProvisioningRequest,
    PodTemplate
);

impl Stored for v1beta1::Workload {
    const KIND: WatchedKind = WatchedKind::NativeWorkload;
}

impl Stored for v1beta1::PodGroup {
    const KIND: WatchedKind = WatchedKind::NativePodGroup;
}

impl Stored for KueueWorkload {
    const KIND: WatchedKind = WatchedKind::KueueWorkload;
}

/// API version of a kind, as in its objects.
pub(crate) fn api_version(kind: WatchedKind) -> &'static str {
    match kind {
        WatchedKind::TrainingWorkload | WatchedKind::RestartOrder | WatchedKind::NodeAgent => {
            "training.lockstep.dev/v1alpha1"
        }
        WatchedKind::Workload | WatchedKind::PodGroup => "scheduling.lockstep.dev/v1alpha1",
        WatchedKind::NativeWorkload | WatchedKind::NativePodGroup => "scheduling.k8s.io/v1beta1",
        WatchedKind::Service
        | WatchedKind::Pod
        | WatchedKind::Node
        | WatchedKind::PersistentVolumeClaim
        | WatchedKind::PersistentVolume
        | WatchedKind::ResourceQuota
        | WatchedKind::Namespace
        | WatchedKind::PodTemplate => "v1",
        WatchedKind::ProvisioningRequest => "autoscaling.x-k8s.io/v1",
        WatchedKind::StorageClass => "storage.k8s.io/v1",
        WatchedKind::PriorityClass => "scheduling.k8s.io/v1",
        WatchedKind::PodDisruptionBudget => "policy/v1",
        WatchedKind::KueueWorkload
        | WatchedKind::ResourceFlavor
        | WatchedKind::WorkloadPriorityClass => "kueue.x-k8s.io/v1beta2",
    }
}

/// The kind with this group and version (`v1` for the core) and resource name.
pub(crate) fn served(version: &str, resource: &str) -> Option<WatchedKind> {
    WatchedKind::ALL
        .into_iter()
        .find(|kind| api_version(*kind) == version && plural(*kind) == resource)
}

/// Kind in the objects themselves.
pub(crate) fn kind_name(kind: WatchedKind) -> &'static str {
    match kind {
        WatchedKind::NativeWorkload | WatchedKind::KueueWorkload => "Workload",
        WatchedKind::NativePodGroup => "PodGroup",
        other => other.as_str(),
    }
}

pub(crate) fn namespaced(kind: WatchedKind) -> bool {
    !matches!(
        kind,
        WatchedKind::NodeAgent
            | WatchedKind::Node
            | WatchedKind::PriorityClass
            | WatchedKind::PersistentVolume
            | WatchedKind::StorageClass
            | WatchedKind::Namespace
            | WatchedKind::ResourceFlavor
            | WatchedKind::WorkloadPriorityClass
    )
}

fn plural(kind: WatchedKind) -> String {
    let name = kind.as_str().to_lowercase();
    match kind {
        WatchedKind::NativeWorkload | WatchedKind::KueueWorkload => "workloads".into(),
        WatchedKind::NativePodGroup => "podgroups".into(),
        WatchedKind::PriorityClass
        | WatchedKind::StorageClass
        | WatchedKind::WorkloadPriorityClass => name + "es",
        WatchedKind::TrainingWorkload
        | WatchedKind::RestartOrder
        | WatchedKind::NodeAgent
        | WatchedKind::Workload
        | WatchedKind::PodGroup
        | WatchedKind::Service
        | WatchedKind::Pod
        | WatchedKind::Node
        | WatchedKind::PodDisruptionBudget
        | WatchedKind::PersistentVolumeClaim
        | WatchedKind::PersistentVolume
        | WatchedKind::ResourceQuota
        | WatchedKind::Namespace
        | WatchedKind::ProvisioningRequest
        | WatchedKind::PodTemplate
        | WatchedKind::ResourceFlavor => name + "s",
    }
}
