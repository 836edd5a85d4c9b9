//! The kinds that the API server knows: where they are served, and their Rust types.

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use lockstep_api::{NodeAgent, PodGroup, RestartOrder, TrainingWorkload, Workload};
use lockstep_manager::stepped::Kind;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A Rust type of a kind.
pub trait Stored: Serialize + DeserializeOwned {
    /// The kind.
    const KIND: Kind;
}

macro_rules! stored {
    ($($type:ident),*) => {
        $(impl Stored for $type {
            const KIND: Kind = Kind::$type;
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
    PodDisruptionBudget
);

/// API version of a kind, as in its objects.
pub(crate) fn api_version(kind: Kind) -> &'static str {
    match kind {
        Kind::TrainingWorkload | Kind::RestartOrder | Kind::NodeAgent => {
            "training.lockstep.dev/v1alpha1"
        }
        Kind::Workload | Kind::PodGroup => "scheduling.lockstep.dev/v1alpha1",
        Kind::Service | Kind::Pod | Kind::Node => "v1",
        Kind::PriorityClass => "scheduling.k8s.io/v1",
        Kind::PodDisruptionBudget => "policy/v1",
    }
}

/// The kind that is served under a group and version (`v1` for the core) and a resource name.
pub(crate) fn served(version: &str, resource: &str) -> Option<Kind> {
    Kind::ALL
        .into_iter()
        .find(|kind| api_version(*kind) == version && plural(*kind) == resource)
}

/// Whether objects of a kind have a namespace.
pub(crate) fn namespaced(kind: Kind) -> bool {
    !matches!(kind, Kind::NodeAgent | Kind::Node | Kind::PriorityClass)
}

fn plural(kind: Kind) -> String {
    let name = kind.name().to_lowercase();
    match kind {
        Kind::PriorityClass => name + "es",
        Kind::TrainingWorkload
        | Kind::RestartOrder
        | Kind::NodeAgent
        | Kind::Workload
        | Kind::PodGroup
        | Kind::Service
        | Kind::Pod
        | Kind::Node
        | Kind::PodDisruptionBudget => name + "s",
    }
}
