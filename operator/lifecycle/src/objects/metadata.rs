use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use lockstep_api::names::labels;
use lockstep_api::{TRAINING_GROUP, VERSION};

use crate::observed::Observed;

pub(super) fn metadata(view: Observed<'_>, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(view.namespace().to_owned()),
        labels: Some(BTreeMap::from([
            (labels::WORKLOAD.to_owned(), view.name().to_owned()),
            (labels::WORKLOAD_UID.to_owned(), view.uid().to_owned()),
        ])),
        // blockOwnerDeletion would require a right on the owner's finalizers.
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
