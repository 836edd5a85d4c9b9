//! Requests about Kueue Workloads, in the version that the API server serves.

use chrono::{DateTime, Utc};
use kube::Client;
use kube::api::{Api, DynamicObject, TypeMeta};
use kube::core::ApiResource;
use lockstep_api::kueue::{FINALIZER, KUEUE_VERSIONS, KueueWorkload, kueue_resource};
use lockstep_lifecycle::WorkloadView;
use lockstep_lifecycle::plan::Surplus;
use lockstep_lifecycle::view::{KueueAccess, RejectedRequest, RejectionKind, Target};
use serde_json::json;

use super::answer::{accepted, rejected};
use super::{ActionResult, ActionSender};
use crate::api::error::{ApiError, ErrorClass};
use crate::api::write::{
    Precondition, Written, by_name, create, patch_finalizers, patch_spec, patch_status,
};
use crate::index::{Key, OrphanedQuota, WatchedKind, controller_uid};

const KIND: WatchedKind = WatchedKind::KueueWorkload;

fn quota_resource(access: KueueAccess) -> ApiResource {
    let version = match access {
        KueueAccess::Served(version) => version,
        KueueAccess::Unread | KueueAccess::NotServed => KUEUE_VERSIONS[0],
    };
    kueue_resource(version, "Workload")
}

pub(super) fn quota_api(client: &Client, view: &WorkloadView) -> Api<DynamicObject> {
    let resource = quota_resource(view.kueue.access);
    Api::namespaced_with(client.clone(), view.namespace(), &resource)
}

impl ActionSender {
    pub(super) async fn create_quota(
        &self,
        view: &WorkloadView,
        workload: KueueWorkload,
        now: DateTime<Utc>,
    ) -> ActionResult {
        let resource = quota_resource(view.kueue.access);
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
        match create(&quota_api(&self.actor.write, view), &object).await {
            Ok(stored) => match Written::of(&stored) {
                Ok(written) => accepted(target, KIND, written),
                Err(error) => ActionResult::Failed(error),
            },
            Err(error) if error.class == ErrorClass::AlreadyExists => {
                let found = by_name(&quota_api(&self.actor.read, view), &name).await;
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

    /// Writes the part in which the Kueue Workload differs: finalizers, status or spec. One that has
    /// changed or is gone is decided about again.
    pub(super) async fn update_quota(
        &self,
        view: &WorkloadView,
        new: &KueueWorkload,
        on: &Precondition,
        now: DateTime<Utc>,
    ) -> ActionResult {
        let Some(held) = &view.kueue.workload else {
            return ActionResult::Nothing;
        };
        let (old, api) = (&held.content, quota_api(&self.actor.write, view));
        let name = old.metadata.name.as_deref().unwrap_or_default();
        let finalizers = new.metadata.finalizers.as_deref().unwrap_or_default();
        let written = if old.metadata.finalizers != new.metadata.finalizers {
            patch_finalizers(&api, name, on, finalizers).await
        } else if old.status != new.status {
            let (old, new) = (json!(old.status), json!(new.status));
            let stored = patch_status(&api, name, on, &old, &new).await;
            stored.and_then(|s| s.as_ref().map_or(Ok(Written::Unchanged), Written::of))
        } else {
            let version = quota_resource(view.kueue.access).version;
            let (old, new) = (old.spec.to_json(&version), new.spec.to_json(&version));
            patch_spec(&api, name, on, &old, &new).await
        };
        let target = quota_target(name.to_owned());
        match written {
            Ok(written) => accepted(target, KIND, written),
            Err(error) if error.is_deleted() => ActionResult::Nothing,
            Err(error) => rejected(target, error, None, now),
        }
    }

    /// Releases the Kueue Workload of a deleted workload, whose pods are gone.
    pub(in crate::workload) async fn release_orphaned_quota(
        &self,
        workload: &Key,
        quota: &OrphanedQuota,
    ) -> Result<(), ApiError> {
        let (client, resource) = (self.actor.write.clone(), quota_resource(quota.access));
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
}

fn quota_target(name: String) -> Target {
    Target::Object(Surplus::KueueWorkload.kind(), name)
}
