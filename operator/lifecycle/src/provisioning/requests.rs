//! Mode `ProvisioningRequest`: one request for each gang, and one template for each of its groups.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PodTemplate, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::ids::Uid;
use lockstep_api::key::Key;
use lockstep_api::names::{annotations, labels};
use lockstep_api::provisioning::{
    PodTemplateRef, ProvisioningPodSet, ProvisioningRequest, ProvisioningRequestSpec,
};
use lockstep_api::workload::Group;

use super::actions::{ProvisioningAction, ProvisioningPlan};
use super::demand_pod::{labels_of, spec_of};
use super::input::{DemandingGang, HeldObject, ProvisioningSettings, ProvisioningView};
use crate::objects::metadata::owned_metadata;

/// `gangs`: in queue order.
pub(super) fn plan(
    view: &ProvisioningView,
    gangs: &[&DemandingGang],
    settings: &ProvisioningSettings,
    out: &mut ProvisioningPlan,
) {
    let requests: BTreeSet<Key> = gangs.iter().map(|gang| request_key(gang)).collect();
    let templates: BTreeSet<Key> = gangs
        .iter()
        .flat_map(|gang| {
            let all = gang.workload.spec.groups.iter();
            all.map(|group| template_key(gang, group))
        })
        .collect();
    for (key, uid) in surplus(&view.requests, &requests) {
        out.first
            .push(ProvisioningAction::DeleteRequest { key, uid });
    }
    for (key, uid) in surplus(&view.templates, &templates) {
        out.first
            .push(ProvisioningAction::DeleteTemplate { key, uid });
    }
    for gang in gangs {
        plan_gang(view, gang, settings, out);
    }
}

fn surplus<'v>(
    held: &'v BTreeMap<Key, HeldObject>,
    needed: &'v BTreeSet<Key>,
) -> impl Iterator<Item = (Key, Uid)> + use<'v> {
    held.iter()
        .filter(|(key, object)| object.ours && !object.terminating && !needed.contains(*key))
        .map(|(key, object)| (key.clone(), object.uid.clone()))
}

/// The request follows its templates, because the autoscaler refuses a request without them.
fn plan_gang(
    view: &ProvisioningView,
    gang: &DemandingGang,
    settings: &ProvisioningSettings,
    out: &mut ProvisioningPlan,
) {
    let key = request_key(gang);
    match view.requests.get(&key) {
        Some(request) if request.ours => return,
        Some(_) => return out.taken.push(key),
        None => {}
    }
    let (mut creations, mut whole) = (Vec::new(), true);
    for (group, _) in groups(gang) {
        let key = template_key(gang, group);
        match view.templates.get(&key) {
            Some(template) if !template.ours => return out.taken.push(key),
            Some(template) => whole &= !template.terminating,
            None => {
                whole = false;
                let template = Box::new(template(gang, group));
                creations.push(ProvisioningAction::CreateTemplate(template));
            }
        }
    }
    if whole && !gang.members.is_empty() {
        let request = Box::new(request(gang, settings));
        creations.push(ProvisioningAction::CreateRequest(request));
    }
    if !gang.placed && !creations.is_empty() {
        out.creations.push((gang.key(), creations));
    }
}

/// Groups with members that lack a node, and the number of these members.
fn groups(gang: &DemandingGang) -> impl Iterator<Item = (&Group, i32)> {
    gang.workload.spec.groups.iter().filter_map(|group| {
        let members = gang.members.iter().filter(|m| m.group == group.name);
        let count = i32::try_from(members.count()).unwrap_or(i32::MAX);
        (count > 0).then_some((group, count))
    })
}

fn request_key(gang: &DemandingGang) -> Key {
    Key::new(&gang.id.namespace, gang.request_name())
}

fn template_key(gang: &DemandingGang, group: &Group) -> Key {
    let name = format!("{}-{}", gang.request_name(), group.name);
    Key::new(&gang.id.namespace, name)
}

fn metadata(gang: &DemandingGang, key: &Key) -> ObjectMeta {
    let mut metadata = owned_metadata(&gang.id, key.name.to_string());
    let all = metadata.labels.get_or_insert_default();
    all.insert(labels::POD_GROUP.to_owned(), gang.pod_group.clone());
    metadata
}

fn template(gang: &DemandingGang, group: &Group) -> PodTemplate {
    PodTemplate {
        metadata: metadata(gang, &template_key(gang, group)),
        template: Some(PodTemplateSpec {
            metadata: Some(ObjectMeta {
                labels: Some(labels_of(gang, group)),
                ..ObjectMeta::default()
            }),
            spec: Some(spec_of(gang, group)),
        }),
    }
}

/// Annotations of the workload replace class and parameters of the configuration.
fn request(gang: &DemandingGang, settings: &ProvisioningSettings) -> ProvisioningRequest {
    let own = gang.workload.metadata.annotations.iter().flatten();
    let (mut class, mut parameters) = (settings.class.clone(), settings.parameters.clone());
    for (key, value) in own {
        if key == annotations::PROVISIONING_CLASS {
            class.clone_from(value);
        } else if let Some(name) = key.strip_prefix(annotations::PROVISIONING_PARAMETER) {
            parameters.insert(name.to_owned(), value.clone());
        }
    }
    let pod_sets = groups(gang).map(|(group, count)| ProvisioningPodSet {
        pod_template_ref: PodTemplateRef {
            name: template_key(gang, group).name.to_string(),
        },
        count,
    });
    let spec = ProvisioningRequestSpec {
        pod_sets: pod_sets.collect(),
        provisioning_class_name: class,
        parameters,
    };
    let mut request = ProvisioningRequest::new("", spec);
    request.metadata = metadata(gang, &request_key(gang));
    request
}
