//! What the kubelets write about pods, a bounded number of calls at once and one per pod.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::nodes::DEADLINE;
use crate::model::PodDesc;

/// A write about one pod.
#[derive(Clone, Debug)]
pub(super) enum Write {
    /// Post the status.
    Status(Box<PodStatus>),
    /// Let the object go.
    Delete,
}

/// What became of a write.
#[derive(Debug)]
pub(super) enum Written {
    /// It is done.
    Done,
    /// The pod is gone.
    Gone,
    /// It failed and is worth another try.
    Failed(String),
}

/// Carries out one write. Both kinds name the UID, so that they never hit a later pod of the same
/// name.
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

/// The status with explicit nulls for what a merge would keep from before: reasons and messages
/// that no longer apply.
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
