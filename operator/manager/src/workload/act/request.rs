use chrono::{DateTime, Utc};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::scheduling::v1beta1;
use kube::api::{DeleteParams, Patch};
use kube::{Api, Resource, ResourceExt};
use lockstep_api::ids::Uid;
use lockstep_api::names::{PREEMPTION_GATE, labels};
use lockstep_api::{PodGroup, RestartOrder, TrainingWorkload, Workload};
use lockstep_lifecycle::plan::Surplus;
use lockstep_lifecycle::pods::END_AT_ONCE;
use lockstep_lifecycle::view::{RejectedRequest, RejectionKind, Target};
use lockstep_lifecycle::{Action, Object, WorkloadView, altered_part};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::answer::{accepted, best_effort, changed, deleted, rejected};
use super::creation::Creation;
use super::dry_run::{empty_dry_run, failed_dry_run};
use super::quota::quota_api;
use super::{ActionResult, ActionSender, placement_of};
use crate::api::error::{ApiError, ErrorClass};
use crate::api::write::{
    Precondition, Written, by_name, create, delete, mark_disrupted, patch_pod, patch_spec,
    restore_label,
};
use crate::index::{WatchedKind, controller_uid};

impl ActionSender {
    pub(super) async fn send(
        &self,
        view: &WorkloadView,
        action: Action,
        now: DateTime<Utc>,
    ) -> ActionResult {
        let background = DeleteParams::background();
        match action {
            Action::Create(object) => self.create_object(view, object, now).await,
            Action::Update {
                object,
                uid,
                resource_version,
            } => {
                let on = Precondition::new(uid, resource_version);
                self.update(view, &object, &on, now).await
            }
            Action::Unpublish { name, uid } => {
                best_effort(self.label_published(view, &name, &uid, None).await)
            }
            Action::Publish { name, uid } => {
                let label = Some(view.uid());
                changed(self.label_published(view, &name, &uid, label).await)
            }
            Action::MarkDisrupted { name, uid, message } => {
                let pods = self.actor.writes(view.namespace());
                best_effort(mark_disrupted(&pods, &name, uid.as_str(), &message, now).await)
            }
            Action::DeletePod { name, uid, grace } => {
                let params = DeleteParams {
                    grace_period_seconds: grace,
                    ..background
                };
                let pods: Api<Pod> = self.actor.writes(view.namespace());
                let answer = delete(&pods, &name, uid.as_str(), params).await;
                deleted(WatchedKind::Pod, answer)
            }
            Action::EndPod { name, uid } => changed(self.end_pod(view, &name, &uid).await),
            Action::RemoveGate { name, uid } => changed(self.remove_gate(view, &name, &uid).await),
            Action::CreatePod { member, pod } => {
                let creation = Creation {
                    altered: altered_part,
                    ..Creation::unchecked(WatchedKind::Pod, Target::Pod(member), &*pod)
                };
                self.create(view, creation, now).await
            }
            Action::DeleteSurplus { surplus, name, uid } => {
                self.delete_surplus(view, surplus, &name, &uid).await
            }
            Action::DeleteWorkload { uid } => {
                let workloads: Api<TrainingWorkload> = self.actor.writes(view.namespace());
                let answer = delete(&workloads, view.name(), uid.as_str(), background).await;
                deleted(WatchedKind::TrainingWorkload, answer)
            }
            Action::DryRun {
                needed,
                spec_hash,
                pods,
                restart_all,
            } => {
                let without = empty_dry_run(spec_hash, now);
                let results = self.dry_run(view, without.clone(), &pods, &restart_all);
                match results.await {
                    Err(error) if needed || error.class == ErrorClass::NotLeading => {
                        ActionResult::Failed(error)
                    }
                    results => ActionResult::DryRunResults(Box::new(
                        results.unwrap_or_else(|error| failed_dry_run(without, &pods, &error)),
                    )),
                }
            }
        }
    }

    async fn label_published(
        &self,
        view: &WorkloadView,
        name: &str,
        uid: &Uid,
        label: Option<&str>,
    ) -> Result<Written, ApiError> {
        let patch = json!({"metadata": {"uid": uid, "labels": {labels::PUBLISHED: label}}});
        let pods = self.actor.writes(view.namespace());
        patch_pod(&pods, name, &Patch::Merge(patch)).await
    }

    /// The kubelet ends the pod and keeps its logs.
    async fn end_pod(
        &self,
        view: &WorkloadView,
        name: &str,
        uid: &Uid,
    ) -> Result<Written, ApiError> {
        let spec = json!({"activeDeadlineSeconds": END_AT_ONCE});
        let patch = json!({"metadata": {"uid": uid}, "spec": spec});
        let pods = self.actor.writes(view.namespace());
        patch_pod(&pods, name, &Patch::Merge(patch)).await
    }

    /// kube-scheduler can then bind the pod, whose victims are gone.
    async fn remove_gate(
        &self,
        view: &WorkloadView,
        name: &str,
        uid: &Uid,
    ) -> Result<Written, ApiError> {
        let gate = json!([{"$patch": "delete", "name": PREEMPTION_GATE}]);
        let patch = json!({"metadata": {"uid": uid}, "spec": {"schedulingGates": gate}});
        let pods = self.actor.writes(view.namespace());
        patch_pod(&pods, name, &Patch::Strategic(patch)).await
    }

    async fn create_object(
        &self,
        view: &WorkloadView,
        object: Object,
        now: DateTime<Utc>,
    ) -> ActionResult {
        let target = Target::Object(object.kind(), object.name().to_owned());
        match object {
            Object::Service(o) => {
                let creation = Creation::unchecked(WatchedKind::Service, target, &*o);
                self.create(view, creation, now).await
            }
            Object::Workload(o) => {
                let creation = Creation::unchecked(WatchedKind::Workload, target, &*o);
                self.create(view, creation, now).await
            }
            Object::PodGroup(o) => {
                let creation = Creation::unchecked(WatchedKind::PodGroup, target, &*o);
                self.create(view, creation, now).await
            }
            Object::NativeWorkload(o) => {
                let creation = Creation::unchecked(WatchedKind::NativeWorkload, target, &*o);
                self.create(view, creation, now).await
            }
            Object::NativePodGroup(o) => {
                let creation = Creation::unchecked(WatchedKind::NativePodGroup, target, &*o);
                self.create(view, creation, now).await
            }
            Object::RestartOrder(o) => {
                let creation = Creation::unchecked(WatchedKind::RestartOrder, target, &*o);
                self.create(view, creation, now).await
            }
            Object::KueueWorkload(o) => self.create_quota(view, *o, now).await,
        }
    }

    async fn create<K>(
        &self,
        view: &WorkloadView,
        creation: Creation<'_, K>,
        now: DateTime<Utc>,
    ) -> ActionResult
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned
            + Serialize,
    {
        let api: Api<K> = self.actor.writes(view.namespace());
        match create(&api, creation.object).await {
            Ok(stored) => creation.stored_as(&stored, now),
            Err(error) if error.class == ErrorClass::AlreadyExists => {
                self.adopt(view, creation, now).await
            }
            Err(error) => rejected(creation.target, error, placement_of(creation.object), now),
        }
    }

    /// Handles a taken name: by an earlier create of this process without a response, by a
    /// terminating object, or by another client's object. Pod names contain the incarnation, so a
    /// pod with this name and owner is the requested pod.
    async fn adopt<K>(
        &self,
        view: &WorkloadView,
        creation: Creation<'_, K>,
        now: DateTime<Utc>,
    ) -> ActionResult
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned
            + Serialize,
    {
        let (kind, object) = (creation.kind, creation.object);
        let api: Api<K> = self.actor.reads(view.namespace());
        let found = match by_name(&api, &object.name_any()).await {
            Ok(Some(found)) => found,
            Ok(None) => return still_leaving(kind, object),
            Err(error) => return ActionResult::Failed(error),
        };
        let leaving = found.meta().deletion_timestamp.is_some() || ended(&found);
        match controller_uid(&found) {
            Some(uid)
                if uid == view.uid()
                    && !leaving
                    && (creation.altered)(object, &found).is_some() =>
            {
                creation.stored_as(&found, now)
            }
            Some(uid) if uid == view.uid() && !leaving => {
                // The watch selects objects by this label, so without it the cache lacks the
                // object.
                let api: Api<K> = self.actor.writes(view.namespace());
                match restore_label(&api, &found, labels::WORKLOAD_UID, uid).await {
                    Ok(written) => accepted(creation.target, kind, written),
                    Err(error) => ActionResult::Failed(error),
                }
            }
            Some(uid) if uid == view.uid() || left_over(view, &found) => {
                still_leaving(kind, object)
            }
            _ => ActionResult::Rejected(RejectedRequest {
                target: creation.target,
                kind: RejectionKind::NameTaken,
                message: format!(
                    "{} {} exists and is not owned by this workload",
                    kind.as_str(),
                    object.name_any()
                ),
                at: now,
                placement: placement_of(object),
            }),
        }
    }

    async fn update(
        &self,
        view: &WorkloadView,
        object: &Object,
        on: &Precondition,
        now: DateTime<Utc>,
    ) -> ActionResult {
        let (namespace, name) = (view.namespace(), object.name());
        let (kind, result) = match object {
            Object::Service(o) => {
                let old = view.service.as_ref().map(|s| {
                    json!({"selector": s.content.selector,
                           "publishNotReadyAddresses": s.content.publish_not_ready_addresses})
                });
                let spec = o.spec.clone().unwrap_or_default();
                let new = json!({"selector": spec.selector, "publishNotReadyAddresses": spec.publish_not_ready_addresses});
                let api: Api<Service> = self.actor.writes(namespace);
                (
                    WatchedKind::Service,
                    patch_spec(&api, name, on, &json!(old), &new).await,
                )
            }
            Object::Workload(o) => {
                let old = json!(view.scheduling.as_ref().map(|s| &s.content));
                let api: Api<Workload> = self.actor.writes(namespace);
                (
                    WatchedKind::Workload,
                    patch_spec(&api, name, on, &old, &json!(o.spec)).await,
                )
            }
            Object::PodGroup(o) => {
                let old = json!(
                    view.pod_groups
                        .get(o.spec.gang_key.as_str())
                        .map(|g| &g.spec)
                );
                let api: Api<PodGroup> = self.actor.writes(namespace);
                (
                    WatchedKind::PodGroup,
                    patch_spec(&api, name, on, &old, &json!(o.spec)).await,
                )
            }
            // Everything else of it is immutable.
            Object::NativeWorkload(_) => return ActionResult::Nothing,
            Object::NativePodGroup(o) => {
                let old = view.native.pod_groups.get(name);
                let min_count =
                    |n: Option<i32>| json!({"schedulingPolicy": {"gang": {"minCount": n}}});
                let gang = o.spec.scheduling_policy.gang.as_ref();
                let api: Api<v1beta1::PodGroup> = self.actor.writes(namespace);
                (
                    WatchedKind::NativePodGroup,
                    patch_spec(
                        &api,
                        name,
                        on,
                        &min_count(old.map(|held| held.content.min_count)),
                        &min_count(gang.map(|gang| gang.min_count)),
                    )
                    .await,
                )
            }
            Object::RestartOrder(o) => {
                let old = json!(view.order.as_ref().map(|s| &s.content));
                let api: Api<RestartOrder> = self.actor.writes(namespace);
                (
                    WatchedKind::RestartOrder,
                    patch_spec(&api, name, on, &old, &json!(o.spec)).await,
                )
            }
            Object::KueueWorkload(o) => return self.update_quota(view, o, on, now).await,
        };
        let target = Target::Object(object.kind(), name.to_owned());
        match result {
            Ok(written) => accepted(target, kind, written),
            Err(error) => rejected(target, error, None, now),
        }
    }

    async fn delete_surplus(
        &self,
        view: &WorkloadView,
        surplus: Surplus,
        name: &str,
        uid: &Uid,
    ) -> ActionResult {
        let (actor, namespace) = (&self.actor, view.namespace());
        match surplus {
            Surplus::PodGroup => {
                let api: Api<PodGroup> = actor.writes(namespace);
                remove(WatchedKind::PodGroup, &api, name, uid).await
            }
            Surplus::NativePodGroup => {
                let api: Api<v1beta1::PodGroup> = actor.writes(namespace);
                remove(WatchedKind::NativePodGroup, &api, name, uid).await
            }
            Surplus::NativeWorkload => {
                let api: Api<v1beta1::Workload> = actor.writes(namespace);
                remove(WatchedKind::NativeWorkload, &api, name, uid).await
            }
            Surplus::Workload => {
                let api: Api<Workload> = actor.writes(namespace);
                remove(WatchedKind::Workload, &api, name, uid).await
            }
            Surplus::KueueWorkload => {
                let api = quota_api(&actor.write, view);
                remove(WatchedKind::KueueWorkload, &api, name, uid).await
            }
            Surplus::RestartOrder => {
                let api: Api<RestartOrder> = actor.writes(namespace);
                remove(WatchedKind::RestartOrder, &api, name, uid).await
            }
        }
    }
}

async fn remove<K>(kind: WatchedKind, api: &Api<K>, name: &str, uid: &Uid) -> ActionResult
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let background = DeleteParams::background();
    deleted(kind, delete(api, name, uid.as_str(), background).await)
}

fn still_leaving<K: ResourceExt>(kind: WatchedKind, object: &K) -> ActionResult {
    ActionResult::Failed(ApiError::new(
        ErrorClass::Conflict,
        format!(
            "{} {} is still being deleted",
            kind.as_str(),
            object.name_any()
        ),
    ))
}

/// True for an ended pod.
fn ended<K: Serialize>(object: &K) -> bool {
    let value = json!(object);
    matches!(
        value.pointer("/status/phase").and_then(Value::as_str),
        Some("Succeeded" | "Failed")
    )
}

/// True if the object belongs to an earlier workload of this name. The garbage collector will
/// delete it.
fn left_over<K: Resource>(view: &WorkloadView, object: &K) -> bool {
    let kind = TrainingWorkload::kind(&());
    object
        .meta()
        .owner_references
        .iter()
        .flatten()
        .any(|o| o.controller == Some(true) && o.kind == kind && o.name == view.name())
}
