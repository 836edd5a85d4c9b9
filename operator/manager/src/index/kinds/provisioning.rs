//! Objects for Cluster Autoscaler. They are watched only in mode `ProvisioningRequest`.

use k8s_openapi::api::core::v1::PodTemplate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DynamicObject;
use lockstep_api::ids::Uid;
use lockstep_api::names::labels;
use lockstep_api::provisioning::ProvisioningRequest;
use lockstep_lifecycle::provisioning::HeldObject;
use lockstep_model::pods::pod::workload_of;

use super::{AgentSelector, Watched, identified};
use crate::index::provisioning_table::HeldRequest;
use crate::index::state::{Identified, Key, State, Touched};
use crate::index::watched_kind::WatchedKind;

pub(in crate::index) struct ProvisioningRequests;

impl Watched for ProvisioningRequests {
    /// Both served versions have the same fields.
    type Received = DynamicObject;
    type Object = Identified<ProvisioningRequest>;
    const KIND: WatchedKind = WatchedKind::ProvisioningRequest;

    fn read(received: DynamicObject) -> Result<Self::Object, String> {
        identified(received.try_parse().map_err(|error| error.to_string())?)
    }

    fn apply(
        state: &mut State,
        _: &AgentSelector,
        key: Key,
        request: Self::Object,
        touched: &mut Touched,
    ) {
        let object = &request.object;
        let held = HeldRequest {
            held: held(&object.metadata, &request.uid),
            owner: workload_of(&object.metadata).and_then(|o| Uid::read(Some(&o.uid))),
            class: object.spec.provisioning_class_name.clone(),
            state: object.state(),
        };
        state.set_request(&key, Some(held), touched);
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        state.set_request(key, None, touched);
    }

    fn keys(state: &State) -> Vec<Key> {
        state.provisioning.requests.keys().cloned().collect()
    }
}

pub(in crate::index) struct PodTemplates;

impl Watched for PodTemplates {
    type Received = PodTemplate;
    type Object = Identified<PodTemplate>;
    const KIND: WatchedKind = WatchedKind::PodTemplate;

    fn read(received: PodTemplate) -> Result<Self::Object, String> {
        identified(received)
    }

    fn apply(
        state: &mut State,
        _: &AgentSelector,
        key: Key,
        template: Self::Object,
        touched: &mut Touched,
    ) {
        let held = held(&template.object.metadata, &template.uid);
        touched.provisioning = true;
        state.provisioning.templates.insert(key, held);
    }

    fn delete(state: &mut State, key: &Key, touched: &mut Touched) {
        touched.provisioning |= state.provisioning.templates.remove(key).is_some();
    }

    fn keys(state: &State) -> Vec<Key> {
        state.provisioning.templates.keys().cloned().collect()
    }
}

fn held(metadata: &ObjectMeta, uid: &Uid) -> HeldObject {
    let owner = workload_of(metadata).map(|owner| &owner.uid);
    let label = metadata.labels.as_ref();
    let label = label.and_then(|labels| labels.get(labels::WORKLOAD_UID));
    HeldObject {
        uid: uid.clone(),
        ours: owner.is_some() && owner == label,
        terminating: metadata.deletion_timestamp.is_some(),
    }
}
