use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use lockstep_api::names::labels;
use lockstep_api::{TRAINING_GROUP, VERSION};

use crate::observed::Observed;
use crate::view::WorkloadId;

pub(super) fn metadata(view: Observed<'_>, name: String) -> ObjectMeta {
    owned_metadata(view.id(), name)
}

/// Metadata of an object that the workload controls.
pub(crate) fn owned_metadata(workload: &WorkloadId, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(workload.namespace.clone()),
        labels: Some(BTreeMap::from([
            (labels::WORKLOAD.to_owned(), workload.name.clone()),
            (labels::WORKLOAD_UID.to_owned(), workload.uid.to_string()),
        ])),
        // blockOwnerDeletion would require a right on the owner's finalizers.
        owner_references: Some(vec![OwnerReference {
            api_version: format!("{TRAINING_GROUP}/{VERSION}"),
            kind: "TrainingWorkload".into(),
            name: workload.name.clone(),
            uid: workload.uid.to_string(),
            controller: Some(true),
            block_owner_deletion: None,
        }]),
        ..ObjectMeta::default()
    }
}
