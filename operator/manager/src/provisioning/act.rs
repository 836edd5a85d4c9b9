//! Requests of the loop. Each delete and each patch names the UID, so that a later object of the
//! same name is safe.

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::{Pod, PodTemplate};
use kube::api::{DeleteParams, Patch};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Resource};
use lockstep_api::condition::reasons;
use lockstep_api::ids::ResourceVersion;
use lockstep_lifecycle::provisioning::ProvisioningAction;
use serde_json::json;

use crate::api::Actor;
use crate::api::error::{ApiError, ErrorClass};
use crate::api::write::{Written, create, delete, patch_pod_status};
use crate::index::WatchedKind;
use crate::time_conversion::to_jiff;

/// Message of the condition by which autoscalers see a signal pod.
const SHOWN: &str =
    "a member of a waiting gang lacks a node; this pod stands for it and never runs";

/// Kind and version of a written object. `None`: nothing to await.
pub(super) type Wrote = Option<(WatchedKind, ResourceVersion)>;

#[derive(Clone)]
pub(super) struct ProvisioningSender {
    pub actor: Actor,
    /// Namespace of signal pods.
    pub namespace: String,
    /// The served resource. `None`: requests can be neither created nor deleted.
    pub requests: Option<ApiResource>,
}

impl ProvisioningSender {
    pub async fn send(
        &self,
        action: ProvisioningAction,
        now: DateTime<Utc>,
    ) -> Result<Wrote, ApiError> {
        let background = DeleteParams::background();
        match action {
            ProvisioningAction::DeletePod { name, uid, grace } => {
                let params = DeleteParams {
                    grace_period_seconds: grace,
                    ..background
                };
                let answer = delete(&self.pods(), &name, uid.as_str(), params).await;
                removed(WatchedKind::Pod, answer)
            }
            ProvisioningAction::DeleteTemplate { key, uid } => {
                let api: Api<PodTemplate> = self.actor.writes(&key.namespace);
                let answer = delete(&api, &key.name, uid.as_str(), background).await;
                removed(WatchedKind::PodTemplate, answer)
            }
            ProvisioningAction::DeleteRequest { key, uid } => {
                let api = self.requests(&key.namespace)?;
                let answer = delete(&api, &key.name, uid.as_str(), background).await;
                removed(WatchedKind::ProvisioningRequest, answer)
            }
            ProvisioningAction::ShowPod { name, uid } => {
                let condition = json!({"type": "PodScheduled", "status": "False",
                    "reason": reasons::UNSCHEDULABLE, "message": SHOWN, "lastTransitionTime": to_jiff(now)});
                let patch =
                    json!({"metadata": {"uid": uid}, "status": {"conditions": [condition]}});
                let shown = patch_pod_status(&self.pods(), &name, &Patch::Strategic(patch)).await;
                removed(WatchedKind::Pod, shown.map(Written::version))
            }
            ProvisioningAction::CreatePod(pod) => {
                created(WatchedKind::Pod, create(&self.pods(), &*pod).await)
            }
            ProvisioningAction::CreateTemplate(template) => {
                let namespace = template.metadata.namespace.as_deref();
                let api = self.actor.writes(namespace.unwrap_or_default());
                created(WatchedKind::PodTemplate, create(&api, &*template).await)
            }
            ProvisioningAction::CreateRequest(request) => {
                let namespace = request.metadata.namespace.as_deref();
                let api = self.requests(namespace.unwrap_or_default())?;
                let mut object = json!(request);
                object["apiVersion"] = json!(self.requests.as_ref().map(|r| &r.api_version));
                let object = serde_json::from_value(object)
                    .map_err(|error| ApiError::new(ErrorClass::Other, error.to_string()))?;
                let kind = WatchedKind::ProvisioningRequest;
                created(kind, create(&api, &object).await)
            }
        }
    }

    fn pods(&self) -> Api<Pod> {
        self.actor.writes(&self.namespace)
    }

    fn requests(&self, namespace: &str) -> Result<Api<DynamicObject>, ApiError> {
        let served = self.requests.as_ref().ok_or_else(|| {
            ApiError::new(
                ErrorClass::NotFound,
                "the API server serves no ProvisioningRequest",
            )
        })?;
        let client = self.actor.write.clone();
        Ok(Api::namespaced_with(client, namespace, served))
    }
}

/// A name that is taken is taken by an earlier create whose answer was lost. The next pass sees whose
/// object it is.
fn created<K: Resource>(kind: WatchedKind, answer: Result<K, ApiError>) -> Result<Wrote, ApiError> {
    let written = Written::of(&answer?)?;
    Ok(written.version().map(|version| (kind, version)))
}

/// An object that is gone or another one needs no request.
fn removed(
    kind: WatchedKind,
    answer: Result<Option<ResourceVersion>, ApiError>,
) -> Result<Wrote, ApiError> {
    match answer {
        Ok(version) => Ok(version.map(|version| (kind, version))),
        Err(error) if error.is_deleted() => Ok(None),
        Err(error) => Err(error),
    }
}
