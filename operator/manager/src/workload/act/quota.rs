//! Requests about Kueue Workloads, in the version that the API server serves.

use chrono::{DateTime, Utc};
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, TypeMeta};
use kube::core::{ApiResource, GroupVersionKind};
use lockstep_api::kueue::{
    FINALIZER, KUEUE_GROUP, KUEUE_VERSIONS, KueueWorkload, KueueWorkloadStatus,
};
use lockstep_lifecycle::WorkloadView;
use lockstep_lifecycle::plan::Surplus;
use lockstep_lifecycle::view::{KueueAccess, RejectedRequest, RejectionKind, Target};
use serde_json::json;

use super::answer::{accepted, deleted, rejected};
use super::{ActionResult, ActionSender};
use crate::api::error::{ApiError, ErrorClass};
use crate::api::write::Written;
use crate::api::write::{
    Precondition, by_name, create, delete, patch_finalizers, patch_spec, patch_status,
};
use crate::index::{Key, OrphanedQuota, WatchedKind, controller_uid};

const KIND: WatchedKind = WatchedKind::KueueWorkload;

fn quota_resource(access: &KueueAccess) -> ApiResource {
    let version = match access {
        KueueAccess::Served(version) => version.as_str(),
        KueueAccess::Unread | KueueAccess::NotServed => KUEUE_VERSIONS[0],
    };
    ApiResource::from_gvk(&GroupVersionKind::gvk(KUEUE_GROUP, version, "Workload"))
}

fn api(client: &Client, view: &WorkloadView) -> Api<DynamicObject> {
    let resource = quota_resource(&view.kueue.access);
    Api::namespaced_with(client.clone(), view.namespace(), &resource)
}

impl ActionSender {
    pub(super) async fn create_quota(
        &self,
        view: &WorkloadView,
        workload: KueueWorkload,
        now: DateTime<Utc>,
    ) -> ActionResult {
        let resource = quota_resource(&view.kueue.access);
        let name = workload.metadata.name.clone().unwrap_or_default();
        let target = quota_target(name.clone());
        let object = DynamicObject {
            types: Some(TypeMeta {
                api_version: resource.api_version.clone(),
                kind: resource.kind.clone(),
            }),
            metadata: workload.metadata,
            data: json!({"spec": workload.spec.to_json(&resource.version)}),
        };
        match create(&api(&self.actor.write, view), &object).await {
            Ok(stored) => accepted_or_failed(target, Written::of(&stored)),
            Err(error) if error.class == ErrorClass::AlreadyExists => {
                let found = by_name(&api(&self.actor.read, view), &name).await;
                match found {
                    Err(error) => ActionResult::Failed(error),
                    Ok(Some(found))
                        if controller_uid(&found) != Some(view.uid())
                            && found.metadata.deletion_timestamp.is_none() =>
                    {
                        ActionResult::Rejected(RejectedRequest {
                            target,
                            kind: RejectionKind::NameTaken,
                            message: format!("{name} exists and is not owned by this workload"),
                            at: now,
                            placement: None,
                        })
                    }
                    // The watch shows it, or it is about to go.
                    Ok(_) => ActionResult::Failed(ApiError::new(
                        ErrorClass::Conflict,
                        format!("Workload {name} exists"),
                    )),
                }
            }
            Err(error) => rejected(target, error, None, now),
        }
    }

    pub(super) async fn update_quota_spec(
        &self,
        view: &WorkloadView,
        workload: &KueueWorkload,
        on: &Precondition,
    ) -> Result<Written, ApiError> {
        let resource = quota_resource(&view.kueue.access);
        let name = workload.metadata.name.as_deref().unwrap_or_default();
        let held = view.kueue.workloads.get(name);
        let old = json!(held.map(|h| h.content.spec.to_json(&resource.version)));
        let new = workload.spec.to_json(&resource.version);
        patch_spec(&api(&self.actor.write, view), name, on, &old, &new).await
    }

    pub(super) async fn update_quota_status(
        &self,
        view: &WorkloadView,
        name: &str,
        on: &Precondition,
        status: &KueueWorkloadStatus,
    ) -> Result<Written, ApiError> {
        let held = view.kueue.workloads.get(name);
        let old = json!(held.map(|h| &h.content.status));
        let api = api(&self.actor.write, view);
        match patch_status(&api, name, on, &old, &json!(status)).await? {
            Some(stored) => Written::of(&stored),
            None => Ok(Written::Unchanged),
        }
    }

    pub(super) async fn release_quota(
        &self,
        view: &WorkloadView,
        name: &str,
        on: &Precondition,
        finalizers: &[String],
    ) -> Result<Written, ApiError> {
        patch_finalizers(&api(&self.actor.write, view), name, on, finalizers).await
    }

    /// Releases the Kueue Workload of a deleted workload, whose pods are gone.
    pub(in crate::workload) async fn release_orphaned_quota(
        &self,
        workload: &Key,
        quota: &OrphanedQuota,
    ) -> Result<(), ApiError> {
        let (client, resource) = (self.actor.write.clone(), quota_resource(&quota.access));
        let api = Api::<DynamicObject>::namespaced_with(client, &workload.namespace, &resource);
        let held = &quota.held;
        let on = Precondition::new(held.uid.clone(), held.resource_version.clone());
        let finalizers = held.content.metadata.finalizers.iter().flatten();
        let others: Vec<String> = finalizers.filter(|f| *f != FINALIZER).cloned().collect();
        match patch_finalizers(&api, &quota.name, &on, &others).await {
            Err(error) if error.class == ErrorClass::NotFound => Ok(()),
            written => written.map(drop),
        }
    }

    pub(super) async fn delete_quota(
        &self,
        view: &WorkloadView,
        name: &str,
        uid: &str,
    ) -> ActionResult {
        let api = api(&self.actor.write, view);
        let background = DeleteParams::background();
        deleted(KIND, delete(&api, name, uid, background).await)
    }
}

pub(super) fn quota_target(name: String) -> Target {
    Target::Object(Surplus::KueueWorkload.kind(), name)
}

/// A Kueue Workload that has changed or is gone is decided about again.
pub(super) fn quota_written(
    target: Target,
    result: Result<Written, ApiError>,
    now: DateTime<Utc>,
) -> ActionResult {
    match result {
        Err(error) if error.is_deleted() => ActionResult::Nothing,
        Err(error) => rejected(target, error, None, now),
        written => accepted_or_failed(target, written),
    }
}

fn accepted_or_failed(target: Target, result: Result<Written, ApiError>) -> ActionResult {
    match result {
        Ok(written) => accepted(target, KIND, written),
        Err(error) => ActionResult::Failed(error),
    }
}
