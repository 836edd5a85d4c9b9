use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use lockstep_api::key::Key;
use serde::Deserialize;

use crate::common::metadata::annotation;
use crate::common::unreadable::{Unreadable, present};
use crate::parse::partial::trimmed;
use crate::volumes::{Claim, StorageClass, Volume};

/// Annotation of a bound claim (`pkg/controller/volume/persistentvolume`).
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Former place of the storage class name.
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
const ONE_POD: &str = "ReadWriteOncePod";
/// Provisioner of classes whose volumes administrators create.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = core::PersistentVolumeClaim)]
#[serde(default)]
pub struct PartialClaim {
    /// Name, UID, annotations and times.
    #[serde(deserialize_with = "trimmed")]
    pub metadata: ObjectMeta,
    spec: PartialClaimSpec,
    status: PartialClaimStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PartialClaimSpec {
    volume_name: String,
    storage_class_name: Option<String>,
    access_modes: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PartialClaimStatus {
    phase: String,
}

impl PartialClaim {
    pub fn scheduling(&self) -> Result<Claim, Unreadable> {
        present("name", self.metadata.name.as_ref())?;
        present("namespace", self.metadata.namespace.as_ref())?;
        let volume = self.spec.volume_name.clone();
        let annotated = annotation(&self.metadata, CLASS_ANNOTATION);
        let class = annotated.or(self.spec.storage_class_name.as_deref());
        Ok(Claim {
            uid: present("uid", self.metadata.uid.as_ref())?.clone(),
            deleting: self.metadata.deletion_timestamp.is_some(),
            lost: self.status.phase == "Lost",
            bound: !volume.is_empty() && annotation(&self.metadata, BIND_COMPLETED).is_some(),
            volume,
            class: class.unwrap_or_default().to_owned(),
            one_pod: self.spec.access_modes.iter().any(|mode| mode == ONE_POD),
        })
    }
}

#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = core::PersistentVolume)]
#[serde(default)]
pub struct PartialVolume {
    /// Name and annotations.
    #[serde(deserialize_with = "trimmed")]
    pub metadata: ObjectMeta,
    spec: PartialVolumeSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PartialVolumeSpec {
    storage_class_name: String,
    claim_ref: Option<core::ObjectReference>,
    node_affinity: Option<core::VolumeNodeAffinity>,
}

impl PartialVolume {
    pub fn scheduling(&self) -> Result<Volume, Unreadable> {
        present("name", self.metadata.name.as_ref())?;
        let claim = self.spec.claim_ref.as_ref();
        let nodes = self.spec.node_affinity.as_ref();
        let class = annotation(&self.metadata, CLASS_ANNOTATION);
        Ok(Volume {
            claim: claim.and_then(|c| Some(Key::new(c.namespace.as_ref()?, c.name.as_ref()?))),
            class: class.unwrap_or(&self.spec.storage_class_name).to_owned(),
            nodes: nodes
                .and_then(|n| n.required.as_ref())
                .map(|r| r.node_selector_terms.clone()),
        })
    }
}

#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = storage::StorageClass)]
#[serde(rename_all = "camelCase", default)]
pub struct PartialStorageClass {
    #[serde(deserialize_with = "trimmed")]
    pub metadata: ObjectMeta,
    volume_binding_mode: Option<String>,
    provisioner: String,
    allowed_topologies: Vec<core::TopologySelectorTerm>,
}

impl PartialStorageClass {
    pub fn scheduling(&self) -> Result<StorageClass, Unreadable> {
        present("name", self.metadata.name.as_ref())?;
        let mode = self.volume_binding_mode.as_deref();
        let topologies = &self.allowed_topologies;
        Ok(StorageClass {
            waits_for_consumer: mode == Some("WaitForFirstConsumer"),
            provisions: !self.provisioner.is_empty() && self.provisioner != NO_PROVISIONER,
            nodes: (!topologies.is_empty()).then(|| topologies.iter().map(node_term).collect()),
        })
    }
}

/// Converts a topology term to a node term. Empty terms match nothing in both.
fn node_term(term: &core::TopologySelectorTerm) -> core::NodeSelectorTerm {
    let labels = term.match_label_expressions.iter().flatten();
    let expressions = labels.map(|label| core::NodeSelectorRequirement {
        key: label.key.clone(),
        operator: "In".to_owned(),
        values: Some(label.values.clone()),
    });
    core::NodeSelectorTerm {
        match_expressions: Some(expressions.collect()),
        match_fields: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_claim_is_bound_once_binding_is_complete() {
        let read = |notes, volume| -> Claim {
            let object = json!({"metadata": {"name": "data", "namespace": "ml", "uid": "u", "annotations": notes},
                "spec": {"volumeName": volume, "storageClassName": "fast"}});
            serde_json::from_value::<PartialClaim>(object)
                .unwrap()
                .scheduling()
                .unwrap()
        };
        let complete = json!({BIND_COMPLETED: "yes"});
        assert!(read(complete.clone(), "v").bound && !read(complete, "").bound);
        assert!(!read(json!({}), "v").bound);
        assert_eq!(read(json!({}), "").class, "fast");
        assert_eq!(read(json!({CLASS_ANNOTATION: "old"}), "").class, "old");
    }

    #[test]
    fn a_volume_is_read_with_its_claim_and_the_nodes_that_reach_it() {
        let terms = json!([{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]);
        let object = json!({"metadata": {"name": "v"}, "spec": {"claimRef": {"namespace": "ml", "name": "data"},
            "storageClassName": "fast", "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}});
        let volume = serde_json::from_value::<PartialVolume>(object)
            .unwrap()
            .scheduling()
            .unwrap();
        assert_eq!(volume.claim, Some(Key::new("ml", "data")));
        assert_eq!(
            (volume.class.as_str(), volume.nodes.unwrap().len()),
            ("fast", 1)
        );
    }

    #[test]
    fn a_volume_of_a_class_that_an_annotation_names_is_of_that_class() {
        let object = json!({"metadata": {"name": "v", "annotations": {CLASS_ANNOTATION: "local"}},
            "spec": {"storageClassName": "fast"}});
        let volume = serde_json::from_value::<PartialVolume>(object).unwrap();
        assert_eq!(volume.scheduling().unwrap().class, "local");
    }

    #[test]
    fn a_class_waits_for_the_first_consumer_only_if_it_says_so() {
        for (mode, waits) in [
            (None, false),
            (Some("Immediate"), false),
            (Some("WaitForFirstConsumer"), true),
        ] {
            let object = json!({"metadata": {"name": "c"}, "volumeBindingMode": mode});
            let class = serde_json::from_value::<PartialStorageClass>(object)
                .unwrap()
                .scheduling();
            assert_eq!(class.unwrap().waits_for_consumer, waits, "{mode:?}");
        }
    }

    #[test]
    fn a_storage_class_gives_the_provisioner_and_the_nodes_of_its_volumes() {
        let read = |object| {
            let class: PartialStorageClass = serde_json::from_value(object).unwrap();
            class.scheduling().unwrap()
        };
        let local = json!({"metadata": {"name": "local"}, "provisioner": NO_PROVISIONER});
        assert_eq!(read(local), StorageClass::default());
        let zones = json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}]);
        let zonal = json!({"metadata": {"name": "zonal"}, "provisioner": "csi.example", "allowedTopologies": zones});
        let zonal = read(zonal);
        let terms = json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}]);
        let terms: Vec<core::NodeSelectorTerm> = serde_json::from_value(terms).unwrap();
        assert!(zonal.provisions && zonal.nodes == Some(terms));
    }

    #[test]
    fn a_claim_says_whether_one_pod_at_a_time_may_mount_it() {
        for (modes, one_pod) in [(json!(["ReadWriteMany"]), false), (json!([ONE_POD]), true)] {
            let object = json!({"metadata": {"name": "data", "namespace": "ml", "uid": "u"}, "spec": {"accessModes": modes}});
            let claim: PartialClaim = serde_json::from_value(object).unwrap();
            assert_eq!(claim.scheduling().unwrap().one_pod, one_pod);
        }
    }
}
