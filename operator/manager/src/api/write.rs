//! Writes with preconditions.
//!
//! Changes of a spec or status are merge patches of the differing fields, with the UID and
//! resourceVersion from which the difference was computed (ADR 0014). If the object has changed,
//! the write fails, and the next reconcile decides again. Patches of pods, and of a label that is
//! restored, have only the UID.

use std::fmt::Debug;

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Resource};
use lockstep_api::condition::{reasons, types};
use lockstep_api::ids::{ResourceVersion, Uid};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::error::{ApiError, ErrorClass};
use crate::time_conversion::to_jiff;
use lockstep_api::merge_patch::difference;

pub const FIELD_MANAGER: &str = "lockstep-manager";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Precondition {
    uid: Uid,
    version: ResourceVersion,
}

impl Precondition {
    pub fn new(uid: Uid, version: ResourceVersion) -> Self {
        Self { uid, version }
    }

    /// Fails without UID or version: an unconditional patch is never sent.
    pub fn read(uid: Option<&str>, version: Option<&str>) -> Result<Self, ApiError> {
        match (Uid::read(uid), ResourceVersion::read(version)) {
            (Some(uid), Some(version)) => Ok(Self::new(uid, version)),
            _ => Err(ApiError::new(
                ErrorClass::Other,
                "a change without the UID and resourceVersion of its object is not sent",
            )),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// No difference, so no request.
    Unchanged,
    /// Written; the object's new version.
    At(ResourceVersion),
}

impl Written {
    pub fn of<K: Resource>(stored: &K) -> Result<Self, ApiError> {
        let version = ResourceVersion::read(stored.meta().resource_version.as_deref());
        version
            .map(Self::At)
            .ok_or_else(|| ApiError::new(ErrorClass::Other, "the answer has no resourceVersion"))
    }

    /// The version to await; `None`: nothing was changed.
    pub fn version(self) -> Option<ResourceVersion> {
        match self {
            Self::At(version) => Some(version),
            Self::Unchanged => None,
        }
    }
}

/// Reads one object with `list`, which watches need anyway, so the ClusterRole needs no `get`.
pub async fn by_name<K>(api: &Api<K>, name: &str) -> Result<Option<K>, ApiError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let one = ListParams::default().fields(&format!("metadata.name={name}"));
    Ok(api.list(&one).await?.items.into_iter().next())
}

/// Returns the object as stored.
pub async fn create<K>(api: &Api<K>, object: &K) -> Result<K, ApiError>
where
    K: Resource + Clone + Debug + DeserializeOwned + Serialize,
{
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.into()),
        ..PostParams::default()
    };
    Ok(api.create(&params, object).await?)
}

/// Restores a label with this value.
pub async fn restore_label<K>(
    api: &Api<K>,
    found: &K,
    label: &str,
    value: &str,
) -> Result<Written, ApiError>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let metadata = found.meta();
    let present = metadata.labels.as_ref().and_then(|l| l.get(label));
    if present.is_some_and(|v| v == value) {
        return Written::of(found);
    }
    let patch = json!({"metadata": {"uid": metadata.uid, "labels": {label: value}}});
    let name = metadata.name.as_deref().unwrap_or_default();
    Written::of(
        &api.patch(name, &field_manager(), &Patch::Merge(patch))
            .await?,
    )
}

pub async fn patch_spec<K>(
    api: &Api<K>,
    name: &str,
    on: &Precondition,
    old: &Value,
    new: &Value,
) -> Result<Written, ApiError>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let Some(change) = difference(old, new) else {
        return Ok(Written::Unchanged);
    };
    let patch = conditional(on, "spec", &change);
    Written::of(&api.patch(name, &field_manager(), &patch).await?)
}

/// Replaces the finalizers of an object.
pub async fn patch_finalizers<K>(
    api: &Api<K>,
    name: &str,
    on: &Precondition,
    finalizers: &[String],
) -> Result<Written, ApiError>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let metadata = json!({"uid": on.uid, "resourceVersion": on.version, "finalizers": finalizers});
    let patch = Patch::Merge(json!({"metadata": metadata}));
    Written::of(&api.patch(name, &field_manager(), &patch).await?)
}

/// Returns the new object, or `None` if nothing differs.
pub async fn patch_status<K>(
    api: &Api<K>,
    name: &str,
    on: &Precondition,
    old: &Value,
    new: &Value,
) -> Result<Option<K>, ApiError>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let Some(change) = difference(old, new) else {
        return Ok(None);
    };
    let patch = conditional(on, "status", &change);
    Ok(Some(
        api.patch_status(name, &field_manager(), &patch).await?,
    ))
}

fn conditional(on: &Precondition, part: &str, change: &Value) -> Patch<Value> {
    let metadata = json!({"uid": on.uid, "resourceVersion": on.version});
    Patch::Merge(json!({"metadata": metadata, part: change}))
}

/// Patches a pod's metadata or spec. Ignores the pod's version, which changes often; no other
/// controller writes these fields.
pub async fn patch_pod(
    pods: &Api<Pod>,
    name: &str,
    patch: &Patch<Value>,
) -> Result<Written, ApiError> {
    Written::of(&pods.patch(name, &field_manager(), patch).await?)
}

/// Patches a pod's status, as [`patch_pod`].
pub async fn patch_pod_status(
    pods: &Api<Pod>,
    name: &str,
    patch: &Patch<Value>,
) -> Result<Written, ApiError> {
    Written::of(&pods.patch_status(name, &field_manager(), patch).await?)
}

/// Adds the condition `DisruptionTarget`, as kube-scheduler does.
pub async fn mark_disrupted(
    pods: &Api<Pod>,
    name: &str,
    uid: &str,
    message: &str,
    now: DateTime<Utc>,
) -> Result<Written, ApiError> {
    let condition = json!({
        "type": types::DISRUPTION_TARGET, "status": "True", "message": message,
        "reason": reasons::PREEMPTION_BY_SCHEDULER, "lastTransitionTime": to_jiff(now),
    });
    let patch = json!({"metadata": {"uid": uid}, "status": {"conditions": [condition]}});
    patch_pod_status(pods, name, &Patch::Strategic(patch)).await
}

/// Deletes an object if it has this UID. Returns the version of an object that is now terminating,
/// or `None` if the object is gone.
pub async fn delete<K>(
    api: &Api<K>,
    name: &str,
    uid: &str,
    params: DeleteParams,
) -> Result<Option<ResourceVersion>, ApiError>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let preconditions = Preconditions {
        uid: Some(uid.to_owned()),
        resource_version: None,
    };
    let params = DeleteParams {
        preconditions: Some(preconditions),
        ..params
    };
    let leaving = api.delete(name, &params).await?.left();
    Ok(leaving.and_then(|object| ResourceVersion::read(object.meta().resource_version.as_deref())))
}

fn field_manager() -> PatchParams {
    PatchParams {
        field_manager: Some(FIELD_MANAGER.into()),
        ..PatchParams::default()
    }
}
