//! The objects that are made for a workload.

mod affinity;
mod env;
mod hash;
mod objects;
mod pod;
mod restart;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use lockstep_api::names::labels;
use lockstep_api::{TRAINING_GROUP, VERSION};

pub use hash::spec_hash;
pub(crate) use objects::{pod_group, restart_order, service, service_content, workload};
pub(crate) use pod::{PodPlan, dry_run_pods, pod};
pub(crate) use restart::training_container;

use crate::view::WorkloadView;

/// Metadata of an object made for the workload: its namespace, its controller and the label with its UID.
fn metadata(view: &WorkloadView, name: String) -> ObjectMeta {
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    ObjectMeta {
        name: Some(name),
        namespace: Some(view.namespace().to_owned()),
        labels: Some(BTreeMap::from([label(labels::WORKLOAD, view.name()), label(labels::WORKLOAD_UID, view.uid())])),
        // No blockOwnerDeletion: it would need a right on the owner's finalizers, and nothing here outlives the owner.
        owner_references: Some(vec![OwnerReference {
            api_version: format!("{TRAINING_GROUP}/{VERSION}"),
            kind: "TrainingWorkload".into(),
            name: view.name().to_owned(),
            uid: view.uid().to_owned(),
            controller: Some(true),
            block_owner_deletion: None,
        }]),
        ..ObjectMeta::default()
    }
}
