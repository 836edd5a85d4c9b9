//! One action, one request (and a look at who owns a name that is taken).

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{DeleteParams, Patch, PostParams};
use kube::{Api, Resource, ResourceExt};
use lockstep_api::names::{PREEMPTION_GATE, annotations, labels};
use lockstep_api::{PodGroup, RestartOrder, TrainingWorkload, Workload};
use lockstep_lifecycle::tier::Tier;
use lockstep_lifecycle::view::{DryRun, RefusalKind, RefusedRequest, Target};
use lockstep_lifecycle::{Action, Object, WorkloadView};
use lockstep_model::Admission;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{ActionResult, ActionSender, Judged};
use crate::api::error::{ApiError, ErrorClass};
use crate::api::write::{
    Precondition, Written, by_name, create, delete, mark_disrupted, patch_pod, patch_spec,
};
use crate::index::{WatchedKind, controller_uid};

/// Part of the words of an API server that cannot ask a webhook (`NewDryRunUnsupportedErr` of
/// k8s.io/apiserver).
const NO_DRY_RUN: &str = "does not support dry run";

/// What the API server says about a pod of a dry run.
enum Judgement {
    /// It takes it as it is, or refuses it for a reason that depends on the moment.
    Kept(Admission),
    /// It drops its restart rules, or cannot say whether it does.
    Dropped(Admission),
    /// It is invalid, for this reason.
    Invalid(String),
}

async fn judge(api: &Api<Pod>, params: &PostParams, pod: &Pod) -> Result<Judgement, ApiError> {
    let error = match api.create(params, pod).await {
        Ok(answer) => {
            let kept = keeps_restart_rules(pod, &answer);
            let admission = Admission::As(Box::new(answer.into()));
            return Ok(if kept {
                Judgement::Kept(admission)
            } else {
                Judgement::Dropped(admission)
            });
        }
        Err(error) => ApiError::from(error),
    };
    match error.class {
        ErrorClass::Invalid if error.message.contains(NO_DRY_RUN) => {
            Ok(Judgement::Dropped(Admission::Unsupported(error.message)))
        }
        ErrorClass::Invalid => Ok(Judgement::Invalid(error.message)),
        ErrorClass::Forbidden | ErrorClass::AlreadyExists => {
            Ok(Judgement::Kept(Admission::Unanswered(error.message)))
        }
        _ => Err(error),
    }
}

/// The group of a pod that was built here.
fn group_of(pod: &Pod) -> String {
    let labels = pod.metadata.labels.as_ref();
    labels
        .and_then(|l| l.get(labels::GROUP))
        .cloned()
        .unwrap_or_default()
}

impl ActionSender {
    pub(super) async fn send(
        &self,
        view: &WorkloadView,
        action: Action,
        now: DateTime<Utc>,
    ) -> ActionResult {
        match action {
            Action::Create(object) => self.create_object(view, object, now).await,
            Action::Update {
                object,
                uid,
                resource_version,
            } => match Precondition::read(Some(&uid), Some(&resource_version)) {
                Ok(on) => self.update(view, &object, &on, now).await,
                Err(error) => ActionResult::Failed(error),
            },
            Action::Unpublish { name, uid } => {
                let patch = json!({"metadata": {"uid": uid, "labels": {labels::PUBLISHED: null}}});
                let pods = self.actor.writes(view.namespace());
                best_effort(patch_pod(&pods, &name, &Patch::Merge(patch)).await)
            }
            Action::Publish { name, uid } => {
                let label = json!({labels::PUBLISHED: view.uid()});
                let patch = json!({"metadata": {"uid": uid, "labels": label}});
                let pods = self.actor.writes(view.namespace());
                changed(patch_pod(&pods, &name, &Patch::Merge(patch)).await)
            }
            Action::MarkDisrupted { name, uid, message } => {
                let pods = self.actor.writes(view.namespace());
                best_effort(mark_disrupted(&pods, &name, &uid, &message, now).await)
            }
            Action::DeletePod { name, uid, grace } => {
                let params = DeleteParams {
                    grace_period_seconds: grace,
                    ..DeleteParams::background()
                };
                self.delete::<Pod>(view, &name, &uid, params, WatchedKind::Pod)
                    .await
            }
            Action::RemoveGate { name, uid } => {
                let gate = json!([{"$patch": "delete", "name": PREEMPTION_GATE}]);
                let patch = json!({"metadata": {"uid": uid}, "spec": {"schedulingGates": gate}});
                let pods = self.actor.writes(view.namespace());
                changed(patch_pod(&pods, &name, &Patch::Strategic(patch)).await)
            }
            Action::CreatePod { member, pod } => {
                self.create(view, WatchedKind::Pod, Target::Pod(member), &*pod, now)
                    .await
            }
            Action::DeletePodGroup { name, uid } => {
                let params = DeleteParams::background();
                self.delete::<PodGroup>(view, &name, &uid, params, WatchedKind::PodGroup)
                    .await
            }
            Action::DeleteWorkload { uid } => {
                self.delete::<TrainingWorkload>(
                    view,
                    view.name(),
                    &uid,
                    DeleteParams::background(),
                    WatchedKind::TrainingWorkload,
                )
                .await
            }
            Action::DryRun {
                needed,
                spec_hash,
                pods,
                restart_all,
            } => match self
                .dry_run(view, &spec_hash, &pods, &restart_all, now)
                .await
            {
                Ok(judged) => ActionResult::Judged(Box::new(judged)),
                Err(failed) if needed || failed.class == ErrorClass::NotLeading => {
                    ActionResult::Failed(failed)
                }
                Err(failed) => {
                    let unanswered = Admission::Unanswered(failed.message);
                    let groups = pods.iter().map(|pod| (group_of(pod), unanswered.clone()));
                    let dry_run = DryRun {
                        failed: true,
                        ..unjudged(spec_hash, now)
                    };
                    ActionResult::Judged(Box::new(Judged {
                        dry_run,
                        pods: groups.collect(),
                    }))
                }
            },
        }
    }

    /// Creates one pod per group without keeping it. A pod that is invalid is a verdict on the
    /// template; any other refusal depends on the moment and is met again at the real create.
    async fn dry_run(
        &self,
        view: &WorkloadView,
        spec_hash: &str,
        pods: &[Pod],
        restart_all: &Pod,
        now: DateTime<Utc>,
    ) -> Result<Judged, ApiError> {
        let api: Api<Pod> = self.actor.writes(view.namespace());
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let mut verdict = DryRun {
            tier: Tier::RestartAll,
            ..unjudged(spec_hash.to_owned(), now)
        };
        let mut admitted = BTreeMap::new();
        for pod in pods {
            let admission = match judge(&api, &params, pod).await? {
                Judgement::Kept(admission) => admission,
                Judgement::Dropped(admission) => {
                    verdict.tier = Tier::Plain;
                    admission
                }
                Judgement::Invalid(message) => {
                    verdict.invalid = Some(message);
                    break;
                }
            };
            admitted.insert(group_of(pod), admission);
        }
        if verdict.invalid.is_none() && verdict.tier == Tier::RestartAll {
            match judge(&api, &params, restart_all).await? {
                Judgement::Kept(_) => {}
                Judgement::Dropped(_) | Judgement::Invalid(_) => {
                    verdict.tier = Tier::RestartRules;
                }
            }
        }
        Ok(Judged {
            dry_run: verdict,
            pods: admitted,
        })
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
                self.create(view, WatchedKind::Service, target, &*o, now)
                    .await
            }
            Object::Workload(o) => {
                self.create(view, WatchedKind::Workload, target, &*o, now)
                    .await
            }
            Object::PodGroup(o) => {
                self.create(view, WatchedKind::PodGroup, target, &*o, now)
                    .await
            }
            Object::RestartOrder(o) => {
                self.create(view, WatchedKind::RestartOrder, target, &*o, now)
                    .await
            }
        }
    }

    async fn create<K>(
        &self,
        view: &WorkloadView,
        kind: WatchedKind,
        target: Target,
        object: &K,
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
        match create(&api, object).await {
            Ok(written) => accepted(target, kind, written),
            Err(error) if error.class == ErrorClass::AlreadyExists => {
                self.adopt(view, kind, target, object, now).await
            }
            Err(error) => refused(target, error, placement_of(object), now),
        }
    }

    /// The name is taken: by our own earlier create whose answer was lost, by something on its way
    /// out, or by another client. Names of pods contain the incarnation, so the same name under our
    /// UID is the same pod.
    async fn adopt<K>(
        &self,
        view: &WorkloadView,
        kind: WatchedKind,
        target: Target,
        object: &K,
        now: DateTime<Utc>,
    ) -> ActionResult
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned
            + Serialize,
    {
        let api: Api<K> = self.actor.reads(view.namespace());
        let found = match by_name(&api, &object.name_any()).await {
            Ok(Some(found)) => found,
            Ok(None) => return still_leaving(kind, object),
            Err(error) => return ActionResult::Failed(error),
        };
        let leaving = found.meta().deletion_timestamp.is_some() || ended(&found);
        match controller_uid(&found) {
            Some(uid) if uid == view.uid() && !leaving => match Written::of(&found) {
                Ok(written) => accepted(target, kind, written),
                Err(error) => ActionResult::Failed(error),
            },
            Some(uid) if uid == view.uid() || left_over(view, &found) => {
                still_leaving(kind, object)
            }
            _ => ActionResult::Refused(RefusedRequest {
                target,
                kind: RefusalKind::NameTaken,
                message: format!(
                    "{} {} exists and is not owned by this workload",
                    kind.name(),
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
        let (kind, answer) = match object {
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
                let old = json!(view.pod_groups.get(&o.spec.gang_key).map(|g| &g.spec));
                let api: Api<PodGroup> = self.actor.writes(namespace);
                (
                    WatchedKind::PodGroup,
                    patch_spec(&api, name, on, &old, &json!(o.spec)).await,
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
        };
        let target = Target::Object(object.kind(), name.to_owned());
        match answer {
            Ok(written) => accepted(target, kind, written),
            Err(error) => refused(target, error, None, now),
        }
    }

    async fn delete<K>(
        &self,
        view: &WorkloadView,
        name: &str,
        uid: &str,
        params: DeleteParams,
        kind: WatchedKind,
    ) -> ActionResult
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
    {
        let api: Api<K> = self.actor.writes(view.namespace());
        match delete(&api, name, uid, params).await {
            Ok(Some(version)) => ActionResult::Wrote(kind, version),
            Ok(None) => ActionResult::Nothing,
            Err(error) if gone(&error) => ActionResult::Nothing,
            Err(error) => ActionResult::Failed(error),
        }
    }
}

/// A verdict that says nothing yet.
fn unjudged(spec_hash: String, now: DateTime<Utc>) -> DryRun {
    DryRun {
        spec_hash,
        at: now,
        until: now,
        invalid: None,
        tier: Tier::Plain,
        failed: false,
    }
}

fn accepted(target: Target, kind: WatchedKind, written: Written) -> ActionResult {
    match written {
        Written::At(version) => ActionResult::Accepted(target, kind, version),
        Written::Unchanged => ActionResult::Nothing,
    }
}

/// An error that says no for good is a refusal, which conditions tell of; any other is tried again.
fn refused(
    target: Target,
    error: ApiError,
    placement: Option<String>,
    now: DateTime<Utc>,
) -> ActionResult {
    let kind = match error.class {
        ErrorClass::Forbidden if error.message.contains("exceeded quota") => {
            RefusalKind::QuotaExceeded
        }
        ErrorClass::Forbidden => RefusalKind::Forbidden,
        ErrorClass::Invalid => RefusalKind::Invalid,
        _ => return ActionResult::Failed(error),
    };
    ActionResult::Refused(RefusedRequest {
        target,
        kind,
        message: error.message,
        at: now,
        placement,
    })
}

/// The placement that a pod is made for; other objects have none.
fn placement_of(object: &impl ResourceExt) -> Option<String> {
    object.annotations().get(annotations::PLACEMENT).cloned()
}

/// The name is free as soon as what has it is gone.
fn still_leaving<K: ResourceExt>(kind: WatchedKind, object: &K) -> ActionResult {
    ActionResult::Failed(ApiError::new(
        ErrorClass::Conflict,
        format!(
            "{} {} is still being deleted",
            kind.name(),
            object.name_any()
        ),
    ))
}

/// Whether the object that was meant is not there any more: no such name, or another UID.
fn gone(error: &ApiError) -> bool {
    matches!(error.class, ErrorClass::NotFound | ErrorClass::Conflict)
}

fn changed(result: Result<Written, ApiError>) -> ActionResult {
    match result {
        Ok(Written::At(version)) => ActionResult::Wrote(WatchedKind::Pod, version),
        Ok(Written::Unchanged) => ActionResult::Nothing,
        Err(error) if gone(&error) => ActionResult::Nothing,
        Err(error) => ActionResult::Failed(error),
    }
}

fn best_effort(result: Result<Written, ApiError>) -> ActionResult {
    match changed(result) {
        ActionResult::Failed(error) if error.class != ErrorClass::NotLeading => {
            ActionResult::Ignored(error.class)
        }
        result => result,
    }
}

/// Whether the server kept the rules that were sent: without KEP-5307 it drops them silently.
fn keeps_restart_rules(sent: &Pod, answer: &Pod) -> bool {
    let rules = |pod: &Pod| {
        let containers = pod.spec.iter().flat_map(|s| &s.containers);
        let rules = containers.flat_map(|c| c.restart_policy_rules.clone().unwrap_or_default());
        rules.map(|r| r.action).collect::<Vec<String>>()
    };
    rules(sent) == rules(answer)
}

/// Whether a pod has ended. Other objects never do.
fn ended<K: Serialize>(object: &K) -> bool {
    let value = json!(object);
    matches!(
        value.pointer("/status/phase").and_then(Value::as_str),
        Some("Succeeded" | "Failed")
    )
}

/// Whether the object belongs to an earlier workload of the same name, which the garbage collector
/// will delete.
fn left_over<K: Resource>(view: &WorkloadView, object: &K) -> bool {
    let kind = TrainingWorkload::kind(&());
    object
        .meta()
        .owner_references
        .iter()
        .flatten()
        .any(|o| o.controller == Some(true) && o.kind == kind && o.name == view.name())
}
