//! The manifests of the custom resource definitions.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::{NodeAgent, PodGroup, RestartOrder, TrainingWorkload, Workload};

/// All definitions, in the order in which they are installed.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![TrainingWorkload::crd(), RestartOrder::crd(), NodeAgent::crd(), Workload::crd(), PodGroup::crd()]
}
