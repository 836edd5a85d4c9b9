//! One action, one request (and a look at who owns a name that is taken).

use std::time::Duration;

use chrono::{DateTime, Utc};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Resource, ResourceExt};
use lockstep_api::condition::{reasons, types};
use lockstep_api::names::{PREEMPTION_GATE, labels};
use lockstep_api::{PodGroup, RestartOrder, TrainingWorkload, Workload};
use lockstep_lifecycle::view::{DryRun, Refusal, RefusalKind, Target};
use lockstep_lifecycle::{Action, Object, WorkloadView};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Actor, Done, FIELD_MANAGER, Failure};
use crate::clients::{ErrorClass, by_name, classify, message};
use crate::edge::to_jiff;
use crate::index::{Kind, controller_uid};
use crate::merge::difference;

impl Actor {
    pub(super) async fn send(&self, view: &WorkloadView, action: Action, now: DateTime<Utc>) -> Done {
        match action {
            Action::DryRun { spec_hash, pods } => self.dry_run(view, spec_hash, &pods).await,
            Action::Create(object) => self.create_object(view, object, now).await,
            Action::Update { object, resource_version, .. } => self.update(view, &object, &resource_version, now).await,
            Action::Unpublish { name, uid } => {
                let patch = json!({"metadata": {"uid": uid, "labels": {labels::PUBLISHED: null}}});
                best_effort(self.patch_pod(view, &name, &Patch::Merge(patch)).await)
            }
            Action::MarkDisrupted { name, uid, message } => {
                let condition = json!({"type": types::DISRUPTION_TARGET, "status": "True", "message": message,
                    "reason": reasons::PREEMPTION_BY_SCHEDULER, "lastTransitionTime": to_jiff(now)});
                let patch = json!({"metadata": {"uid": uid}, "status": {"conditions": [condition]}});
                let pods: Api<Pod> = Api::namespaced(self.write.clone(), view.namespace());
                best_effort(pods.patch_status(&name, &manager(), &Patch::Strategic(patch)).await)
            }
            Action::DeletePod { name, uid } => self.delete::<Pod>(view, &name, &uid, Kind::Pod).await,
            Action::RemoveGate { name, uid } => {
                let gate = json!([{"$patch": "delete", "name": PREEMPTION_GATE}]);
                let patch = json!({"metadata": {"uid": uid}, "spec": {"schedulingGates": gate}});
                match self.patch_pod(view, &name, &Patch::Strategic(patch)).await {
                    Ok(pod) => Done::Wrote(Kind::Pod, pod.resource_version()),
                    Err(error) if gone(&error) => Done::Nothing,
                    Err(error) => failed(&error),
                }
            }
            Action::CreatePod { member, pod } => self.create(view, Kind::Pod, Target::Pod(member), &*pod, now).await,
            Action::DeletePodGroup { name, uid } => self.delete::<PodGroup>(view, &name, &uid, Kind::PodGroup).await,
            Action::DeleteWorkload { uid } => {
                self.delete::<TrainingWorkload>(view, view.name(), &uid, Kind::TrainingWorkload).await
            }
        }
    }

    /// Creates one pod per group without keeping it. A pod that is invalid is a verdict on the template; any other
    /// refusal depends on the moment and is met again at the real create.
    async fn dry_run(&self, view: &WorkloadView, spec_hash: String, pods: &[Pod]) -> Done {
        let api: Api<Pod> = Api::namespaced(self.write.clone(), view.namespace());
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let mut verdict = DryRun { spec_hash, invalid: None, keeps_restart_rules: true };
        for pod in pods {
            match api.create(&params, pod).await {
                Ok(answer) => verdict.keeps_restart_rules &= keeps_restart_rules(pod, &answer),
                Err(error) => match classify(&error) {
                    ErrorClass::Invalid => {
                        verdict.invalid = Some(message(&error));
                        break;
                    }
                    ErrorClass::Forbidden | ErrorClass::AlreadyExists => {}
                    _ => return failed(&error),
                },
            }
        }
        Done::Judged(verdict)
    }

    async fn create_object(&self, view: &WorkloadView, object: Object, now: DateTime<Utc>) -> Done {
        let target = Target::Object(object.kind(), object.name().to_owned());
        match object {
            Object::Service(o) => self.create(view, Kind::Service, target, &*o, now).await,
            Object::Workload(o) => self.create(view, Kind::Workload, target, &*o, now).await,
            Object::PodGroup(o) => self.create(view, Kind::PodGroup, target, &*o, now).await,
            Object::RestartOrder(o) => self.create(view, Kind::RestartOrder, target, &*o, now).await,
        }
    }

    async fn create<K>(&self, view: &WorkloadView, kind: Kind, target: Target, object: &K, now: DateTime<Utc>) -> Done
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned
            + Serialize,
    {
        let api: Api<K> = Api::namespaced(self.write.clone(), view.namespace());
        let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..PostParams::default() };
        let error = match api.create(&params, object).await {
            Ok(made) => return Done::Accepted(target, kind, made.resource_version()),
            Err(error) => error,
        };
        match classify(&error) {
            ErrorClass::AlreadyExists => self.adopt(view, kind, target, object, now).await,
            _ => refused(target, &error, now),
        }
    }

    /// The name is taken: by our own earlier create whose answer was lost, by something on its way out, or by somebody
    /// else. Names of pods contain the incarnation, so the same name under our UID is the same pod.
    async fn adopt<K>(&self, view: &WorkloadView, kind: Kind, target: Target, object: &K, now: DateTime<Utc>) -> Done
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned
            + Serialize,
    {
        let api: Api<K> = Api::namespaced(self.read.clone(), view.namespace());
        let found = match by_name(&api, &object.name_any()).await {
            Ok(Some(found)) => found,
            Ok(None) => return still_leaving(kind, object),
            Err(error) => return failed(&error),
        };
        let leaving = found.meta().deletion_timestamp.is_some() || ended(&found);
        match controller_uid(&found) {
            Some(uid) if uid == view.uid() && !leaving => Done::Accepted(target, kind, found.resource_version()),
            Some(uid) if uid == view.uid() || left_over(view, &found) => still_leaving(kind, object),
            _ => Done::Refused(Refusal {
                target,
                kind: RefusalKind::NameTaken,
                message: format!("{} {} exists and is not owned by this workload", kind.name(), object.name_any()),
                at: now,
            }),
        }
    }

    async fn update(&self, view: &WorkloadView, object: &Object, version: &str, now: DateTime<Utc>) -> Done {
        let (write, namespace, name) = (self.write.clone(), view.namespace(), object.name());
        let (kind, answer) = match object {
            Object::Service(o) => {
                let old = view.service.as_ref().map(|s| {
                    json!({"selector": s.content.selector,
                           "publishNotReadyAddresses": s.content.publish_not_ready_addresses})
                });
                let spec = o.spec.clone().unwrap_or_default();
                let new =
                    json!({"selector": spec.selector, "publishNotReadyAddresses": spec.publish_not_ready_addresses});
                let api = Api::<Service>::namespaced(write, namespace);
                (Kind::Service, patch_spec(&api, name, old, new, version).await)
            }
            Object::Workload(o) => {
                let old = view.scheduling.as_ref().map(|s| json!(s.content));
                let api = Api::<Workload>::namespaced(write, namespace);
                (Kind::Workload, patch_spec(&api, name, old, json!(o.spec), version).await)
            }
            Object::PodGroup(o) => {
                let old = view.pod_groups.get(&o.spec.gang_key).map(|g| json!(g.spec));
                let api = Api::<PodGroup>::namespaced(write, namespace);
                (Kind::PodGroup, patch_spec(&api, name, old, json!(o.spec), version).await)
            }
            Object::RestartOrder(o) => {
                let old = view.order.as_ref().map(|s| json!(s.content));
                let api = Api::<RestartOrder>::namespaced(write, namespace);
                (Kind::RestartOrder, patch_spec(&api, name, old, json!(o.spec), version).await)
            }
        };
        let target = Target::Object(object.kind(), name.to_owned());
        match answer {
            Ok(Some(version)) => Done::Accepted(target, kind, version),
            Ok(None) => Done::Nothing,
            Err(error) => refused(target, &error, now),
        }
    }

    async fn patch_pod(&self, view: &WorkloadView, name: &str, patch: &Patch<Value>) -> kube::Result<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.write.clone(), view.namespace());
        pods.patch(name, &manager(), patch).await
    }

    async fn delete<K>(&self, view: &WorkloadView, name: &str, uid: &str, kind: Kind) -> Done
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.write.clone(), view.namespace());
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        match api.delete(name, &params).await {
            Ok(answer) => Done::Wrote(kind, answer.left().and_then(|object| object.resource_version())),
            Err(error) if gone(&error) => Done::Nothing,
            Err(error) => failed(&error),
        }
    }
}

/// A merge patch of what differs, at the version that the difference was seen at. The new version, unless nothing differs.
async fn patch_spec<K>(
    api: &Api<K>,
    name: &str,
    old: Option<Value>,
    new: Value,
    version: &str,
) -> kube::Result<Option<Option<String>>>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let Some(change) = difference(&old.unwrap_or(Value::Null), &new) else { return Ok(None) };
    let patch = json!({"metadata": {"resourceVersion": version}, "spec": change});
    Ok(Some(api.patch(name, &manager(), &Patch::Merge(patch)).await?.resource_version()))
}

/// An error that says no for good is a refusal, which conditions tell of; any other is tried again.
fn refused(target: Target, error: &kube::Error, now: DateTime<Utc>) -> Done {
    let kind = match classify(error) {
        ErrorClass::Forbidden if message(error).contains("exceeded quota") => RefusalKind::QuotaExceeded,
        ErrorClass::Forbidden => RefusalKind::Forbidden,
        ErrorClass::Invalid => RefusalKind::Invalid,
        _ => return failed(error),
    };
    Done::Refused(Refusal { target, kind, message: message(error), at: now })
}

fn manager() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() }
}

fn failed(error: &kube::Error) -> Done {
    Done::Failed(Failure::from(error))
}

/// The name is free as soon as what has it is gone.
fn still_leaving<K: ResourceExt>(kind: Kind, object: &K) -> Done {
    Done::Failed(Failure {
        class: ErrorClass::Conflict,
        message: format!("{} {} is still being deleted", kind.name(), object.name_any()),
        retry_after: Duration::ZERO,
    })
}

/// Whether the pod that was meant is not there any more: no such name, or another UID (a delete says 409, a patch 422,
/// because the UID of an object is immutable).
fn gone(error: &kube::Error) -> bool {
    matches!(classify(error), ErrorClass::NotFound | ErrorClass::Conflict | ErrorClass::Invalid)
}

fn best_effort(result: kube::Result<Pod>) -> Done {
    match result {
        Ok(pod) => Done::Wrote(Kind::Pod, pod.resource_version()),
        Err(error) if gone(&error) => Done::Nothing,
        Err(error) if classify(&error) == ErrorClass::NotLeading => failed(&error),
        Err(error) => Done::Ignored(classify(&error)),
    }
}

/// Whether the server kept the rules that were sent: without KEP-5307 it drops them silently.
fn keeps_restart_rules(sent: &Pod, answer: &Pod) -> bool {
    let rules = |pod: &Pod| {
        let containers = pod.spec.iter().flat_map(|s| &s.containers);
        containers.filter(|c| c.restart_policy_rules.as_ref().is_some_and(|r| !r.is_empty())).count()
    };
    rules(sent) == rules(answer)
}

/// Whether a pod has ended. Other objects never do.
fn ended<K: Serialize>(object: &K) -> bool {
    let value = json!(object);
    matches!(value.pointer("/status/phase").and_then(Value::as_str), Some("Succeeded" | "Failed"))
}

/// Whether the object belongs to an earlier workload of the same name, which the garbage collector will delete.
fn left_over<K: Resource>(view: &WorkloadView, object: &K) -> bool {
    let kind = TrainingWorkload::kind(&());
    object
        .meta()
        .owner_references
        .iter()
        .flatten()
        .any(|o| o.controller == Some(true) && o.kind == kind && o.name == view.name())
}
