//! Writes with their preconditions.
//!
//! Changes are merge patches of what differs, at the UID and the version that the difference was
//! seen at (ADR 0014): what has changed or was recreated meanwhile is left alone and decided again.

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
use crate::merge::difference;
use crate::time_conversion::to_jiff;

/// Name under which the fields that we write are ours.
pub const FIELD_MANAGER: &str = "lockstep-manager";

/// The object that a patch is meant for: this one of its name, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Precondition {
    uid: Uid,
    version: ResourceVersion,
}

impl Precondition {
    /// The object of this UID at this version.
    pub fn new(uid: Uid, version: ResourceVersion) -> Self {
        Self { uid, version }
    }

    /// From what a decision carries along.
    ///
    /// # Errors
    /// Without UID or version there is nothing to hold the patch to, so it is not sent.
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

/// What has become of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// Nothing differs: nothing was sent.
    Unchanged,
    /// It is there as of this version.
    At(ResourceVersion),
}

impl Written {
    /// The version that an answer shows.
    pub fn of<K: Resource>(answer: &K) -> Result<Self, ApiError> {
        let version = ResourceVersion::read(answer.meta().resource_version.as_deref());
        version
            .map(Self::At)
            .ok_or_else(|| ApiError::new(ErrorClass::Other, "the answer has no resourceVersion"))
    }
}

/// The object of a name, read as a list of one: the watches need the verb `list` anyway, so that no
/// role needs `get`.
pub async fn by_name<K>(api: &Api<K>, name: &str) -> Result<Option<K>, ApiError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let one = ListParams::default().fields(&format!("metadata.name={name}"));
    Ok(api.list(&one).await?.items.into_iter().next())
}

/// Creates an object.
pub async fn create<K>(api: &Api<K>, object: &K) -> Result<Written, ApiError>
where
    K: Resource + Clone + Debug + DeserializeOwned + Serialize,
{
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.into()),
        ..PostParams::default()
    };
    Written::of(&api.create(&params, object).await?)
}

/// Patches what differs in the spec.
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

/// Patches what differs in the status. The object as it is then; None: nothing differs.
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

/// Patches a pod's metadata or spec, whatever its version: a pod changes with each heartbeat of its
/// containers, and what we change in it is ours alone. The UID is in the patch.
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

/// Adds the condition `DisruptionTarget` to a pod, as kube-scheduler does with its victims.
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

/// Deletes the object of a name if it is the one with this UID. The version that it has while it is
/// on its way out, where it does not go at once.
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
