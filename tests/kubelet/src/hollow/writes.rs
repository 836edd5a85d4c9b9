//! Writes of the kubelets about pods, with bounded concurrency and one at a time per pod.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::nodes::DEADLINE;
use crate::model::PodDesc;

/// A write about a pod.
#[derive(Clone, Debug)]
pub(super) enum Write {
    /// Post the status.
    Status(Box<PodStatus>),
    /// Delete the object.
    Delete,
}

/// Result of a write.
#[derive(Debug)]
pub(super) enum Written {
    /// The write is complete.
    Done,
    /// The pod is gone.
    Gone,
    /// The write failed and should be retried.
    Failed(String),
}

/// Executes a write. Both kinds contain the UID as a precondition, so that they never affect a
/// later pod of the same name.
pub(super) async fn write(client: Client, pod: Arc<PodDesc>, write: Write) -> Written {
    let api = Api::<Pod>::namespaced(client, &pod.namespace);
    let call = async {
        match write {
            Write::Status(status) => {
                let patch = json!({"metadata": {"uid": pod.uid}, "status": complete(&status)});
                api.patch_status(&pod.name, &PatchParams::default(), &Patch::Strategic(patch))
                    .await
                    .map(drop)
            }
            Write::Delete => {
                let preconditions = Preconditions {
                    uid: Some(pod.uid.clone()),
                    ..Preconditions::default()
                };
                let params = DeleteParams {
                    grace_period_seconds: Some(0),
                    preconditions: Some(preconditions),
                    ..DeleteParams::default()
                };
                api.delete(&pod.name, &params).await.map(drop)
            }
        }
    };
    match timeout(DEADLINE, call).await {
        Ok(Ok(())) => Written::Done,
        Ok(Err(kube::Error::Api(e))) if e.is_not_found() => Written::Gone,
        Ok(Err(e)) => Written::Failed(e.to_string()),
        Err(_) => Written::Failed("API server did not answer in time".into()),
    }
}

/// The status with explicit nulls for reasons and messages that no longer apply, which a merge
/// would keep.
fn complete(status: &PodStatus) -> Value {
    let mut status = json!(status);
    let absent = |object: &mut Value| {
        for key in ["reason", "message"] {
            if object.get(key).is_none() {
                object[key] = Value::Null;
            }
        }
    };
    absent(&mut status);
    status["conditions"]
        .as_array_mut()
        .into_iter()
        .flatten()
        .for_each(absent);
    status
}
