//! Sends the steps of a cycle: the only requests of the scheduler.
//!
//! The requests are independent. If one fails, the next cycle decides again. Before that, the
//! result of every status write must be known: an unknown stored placement would be promised twice.
//! So the actor reads objects whose response is lost.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PartialObjectMeta, Patch, PostParams};
use lockstep_api::PodGroup;
use lockstep_api::condition::{reasons, types};
use lockstep_api::ids::{NodeName, ResourceVersion, Uid};
use lockstep_api::names::labels;
use lockstep_model::pods::pod::workload_of;
use lockstep_scheduler::messages::demand::DemandEvent;
use lockstep_scheduler::{Memory, PodRef, StatusWrite, Step, Vacated, waves};
use serde_json::{Value, json};
use tracing::{debug, info};

use super::metrics::SchedulerMetrics;
use crate::api::Actor;
use crate::api::clients::Clients;
use crate::api::error::{ApiError, ErrorClass};
use crate::api::write::{
    Precondition, by_name, delete, mark_disrupted, patch_pod_status, patch_status,
};
use crate::events::{EventReport, Events};
use crate::index::Key;

const IN_FLIGHT: usize = 16;

pub struct StepSender {
    actor: Actor,
    events: Events,
    pub metrics: SchedulerMetrics,
}

#[derive(Debug, Default)]
pub(super) struct StepResults {
    /// Pod groups whose last write has an unknown result.
    pub unsure: BTreeSet<Key>,
    pub again: bool,
}

impl StepResults {
    fn take(&mut self, result: StepResult, memory: &mut Memory) {
        match result {
            StepResult::Wrote(key, group) => memory.wrote(key, &group),
            StepResult::Unsure(key) => {
                self.unsure.insert(key);
            }
            StepResult::EvictionDryRun(uid, allowed, at) => memory.note_dry_run(uid, allowed, at),
            StepResult::Failed => self.again = true,
            StepResult::Nothing => {}
        }
    }
}

enum StepResult {
    Wrote(Key, Box<PodGroup>),
    EvictionDryRun(Uid, bool, chrono::DateTime<chrono::Utc>),
    Nothing,
    Failed,
    Unsure(Key),
}

impl StepSender {
    pub fn new(clients: &Clients, events: Events, metrics: SchedulerMetrics) -> Self {
        Self {
            actor: Actor::new(clients, IN_FLIGHT),
            events,
            metrics,
        }
    }

    /// Sends status writes first, in waves: releases of a node before its new placements. If a node
    /// cannot be released, no gang gains it. If a gang's status cannot be written, its victims are
    /// not evicted, because no object would name their preemptor.
    pub(super) async fn act(
        &self,
        steps: Vec<Step>,
        memory: &mut Memory,
        now: chrono::DateTime<chrono::Utc>,
    ) -> StepResults {
        let mut results = StepResults::default();
        let mut kept: BTreeSet<NodeName> = BTreeSet::new();
        let mut unwritten: BTreeSet<Key> = BTreeSet::new();
        let (mut writes, mut rest) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Status(write) => writes.push(*write),
                other => rest.push(other),
            }
        }
        for mut wave in waves(writes) {
            wave.retain(|write| {
                let (moves, preemptor) = (write.moves(), write.preemptor.as_ref());
                let possible = moves.gains.is_disjoint(&kept)
                    && preemptor.is_none_or(|by| !unwritten.contains(by));
                results.again |= !possible;
                if !possible {
                    info!(object = %write.key, "status write held back: another, which it follows from, failed");
                    unwritten.insert(write.key.clone());
                    kept.extend(moves.gives_up);
                }
                possible
            });
            let requests = wave.into_iter().map(|write| async move {
                let gives_up = write.moves().gives_up;
                let key = write.key.clone();
                (self.write_status(write, now).await, key, gives_up)
            });
            let settle = |(result, key, gives_up): (StepResult, Key, BTreeSet<NodeName>)| {
                if matches!(result, StepResult::Failed | StepResult::Unsure(_)) {
                    kept.extend(gives_up);
                }
                // `Nothing`: the gang was deleted.
                if !matches!(result, StepResult::Wrote(..)) {
                    unwritten.insert(key);
                }
                results.take(result, memory);
                ControlFlow::Continue(())
            };
            self.actor.send_all(requests, settle).await;
        }
        rest.retain(|step| step.preemptor().is_none_or(|by| !unwritten.contains(by)));
        let requests = rest.into_iter().map(|step| self.send(step, now));
        let settle = |result| {
            results.take(result, memory);
            ControlFlow::Continue(())
        };
        self.actor.send_all(requests, settle).await;
        results
    }

    /// Reads pod groups with an unknown write result. Returns the unreadable ones.
    pub async fn resolve_unsure(
        &self,
        unsure: BTreeSet<Key>,
        memory: &mut Memory,
    ) -> BTreeSet<Key> {
        let mut left = BTreeSet::new();
        for key in unsure {
            match by_name::<PodGroup>(&self.actor.reads(&key.namespace), &key.name).await {
                Ok(Some(group)) => memory.wrote(key, &group),
                Ok(None) => {}
                Err(error) => {
                    debug!(object = %key, %error, "pod group cannot be read");
                    left.insert(key);
                }
            }
        }
        left
    }

    async fn send(&self, step: Step, now: chrono::DateTime<chrono::Utc>) -> StepResult {
        match step {
            Step::Status(write) => self.write_status(*write, now).await,
            Step::MarkPod {
                preemptor: _,
                pod,
                message,
            } => {
                self.publish_preemption(&pod, &message);
                let result = mark_disrupted(
                    &self.pods(&pod),
                    &pod.key.name,
                    pod.uid.as_str(),
                    &message,
                    now,
                )
                .await;
                settled(&pod.key.to_string(), "mark victim", result)
            }
            Step::Evict {
                preemptor: _,
                pod,
                by_force,
            } => self.evict(&pod, by_force).await,
            Step::DryRunEviction(pod) => self.dry_run_eviction(pod, now).await,
            Step::Nominate { pod, node } => {
                let patch =
                    json!({"metadata": {"uid": pod.uid}, "status": {"nominatedNodeName": node}});
                let name = &pod.key.name;
                let result = patch_pod_status(&self.pods(&pod), name, &Patch::Merge(patch)).await;
                settled(&pod.key.to_string(), "nominate", result)
            }
        }
    }

    fn pods(&self, pod: &PodRef) -> Api<Pod> {
        self.actor.writes(&pod.key.namespace)
    }

    async fn write_status(
        &self,
        write: StatusWrite,
        now: chrono::DateTime<chrono::Utc>,
    ) -> StepResult {
        let StatusWrite {
            key,
            uid,
            resource_version,
            read,
            status,
            vacated,
            preemptor: _,
        } = write;
        if let Some(vacated) = &vacated {
            match self.other(&key, vacated).await {
                Ok(None) => {}
                Ok(Some(pod)) => {
                    info!(object = %key, pod, "nodes are not given up yet: a pod of the gang is there that the watch has not \
                        shown");
                    return StepResult::Failed;
                }
                Err(error) => return settled(&key.to_string(), "list pods", Err::<(), _>(error)),
            }
        }
        let version = resource_version.as_ref().map(ResourceVersion::as_str);
        let on = match Precondition::read(Some(uid.as_str()), version) {
            Ok(on) => on,
            Err(error) => return settled(&key.to_string(), "status write", Err::<(), _>(error)),
        };
        let groups: Api<PodGroup> = self.actor.writes(&key.namespace);
        match patch_status(&groups, &key.name, &on, &json!(read), &json!(status)).await {
            Ok(None) => StepResult::Nothing,
            Ok(Some(group)) => {
                log(&key, &group);
                let class = group.spec.gang.priority_class_name.as_deref();
                self.metrics.wrote(class, &read, &status, now);
                if let Some(event) = DemandEvent::between(&read, &status) {
                    self.publish_demand(&group, event);
                }
                StepResult::Wrote(key, Box::new(group))
            }
            Err(error) => match error.class {
                ErrorClass::Timeout | ErrorClass::ServerError | ErrorClass::Other => {
                    info!(object = %key, %error, "status write without an answer");
                    StepResult::Unsure(key)
                }
                _ => settled(&key.to_string(), "status write", Err::<(), _>(error)),
            },
        }
    }

    /// A pod of the gang that the cycle has not seen. Pods of other owners can have the same
    /// labels.
    async fn other(&self, key: &Key, vacated: &Vacated) -> Result<Option<String>, ApiError> {
        let api: Api<PartialObjectMeta<Pod>> =
            Api::namespaced(self.actor.read.clone(), &key.namespace);
        let selector = format!(
            "{}={},{}={}",
            labels::WORKLOAD_UID,
            vacated.workload_uid,
            labels::POD_GROUP,
            key.name
        );
        let pods = api
            .list_metadata(&ListParams::default().labels(&selector))
            .await?;
        let mut unobserved = pods.into_iter().filter(|pod| {
            let uid = pod.metadata.uid.as_ref();
            let ours = workload_of(&pod.metadata).is_some_and(|o| vacated.workload_uid == *o.uid);
            ours && uid.is_some_and(|uid| !vacated.observed.contains(uid.as_str()))
        });
        Ok(unobserved.next().and_then(|pod| pod.metadata.name))
    }

    async fn evict(&self, pod: &PodRef, by_force: bool) -> StepResult {
        let (object, pods) = (pod.key.to_string(), self.pods(pod));
        match request_eviction(&pods, pod, false).await {
            Err(error) if by_force && error.class == ErrorClass::Budget => {
                info!(
                    pod = object,
                    "disruption budgets refuse the eviction of a victim: deleting it"
                );
                let (name, uid) = (&pod.key.name, pod.uid.as_str());
                let answer = delete(&pods, name, uid, DeleteParams::default()).await;
                settled(&object, "delete victim", answer)
            }
            answer => settled(&object, "evict", answer),
        }
    }

    async fn dry_run_eviction(
        &self,
        pod: PodRef,
        now: chrono::DateTime<chrono::Utc>,
    ) -> StepResult {
        match request_eviction(&self.pods(&pod), &pod, true).await {
            Ok(_) => StepResult::EvictionDryRun(pod.uid, true, now),
            Err(error) if error.class == ErrorClass::Budget => {
                StepResult::EvictionDryRun(pod.uid, false, now)
            }
            answer => settled(&pod.key.to_string(), "ask eviction", answer),
        }
    }

    /// Publishes on the workload that controls the pod group.
    fn publish_demand(&self, group: &PodGroup, event: DemandEvent) {
        let Some(owner) = workload_of(&group.metadata) else {
            return;
        };
        self.events.publish(EventReport {
            regarding: ObjectReference {
                api_version: Some(owner.api_version.clone()),
                kind: Some(owner.kind.clone()),
                namespace: group.metadata.namespace.clone(),
                name: Some(owner.name.clone()),
                uid: Some(owner.uid.clone()),
                ..ObjectReference::default()
            },
            related: None,
            warning: event.warning,
            action: event.reason.to_owned(),
            reason: event.reason.to_owned(),
            note: event.note,
        });
    }

    /// For a workload, its controller publishes the event.
    fn publish_preemption(&self, pod: &PodRef, note: &str) {
        self.events.publish(EventReport {
            regarding: ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Pod".into()),
                namespace: Some(pod.key.namespace.to_string()),
                name: Some(pod.key.name.to_string()),
                uid: Some(pod.uid.to_string()),
                ..ObjectReference::default()
            },
            related: None,
            warning: false,
            reason: reasons::PREEMPTED.to_owned(),
            action: "Preempting".to_owned(),
            note: note.to_owned(),
        });
    }
}

/// `Api::evict` of kube 5.0 sends its options as `delete_options`, a field unknown to the API
/// server, so the UID would not be checked.
async fn request_eviction(pods: &Api<Pod>, pod: &PodRef, dry_run: bool) -> Result<Value, ApiError> {
    let (key, uid) = (&pod.key, &pod.uid);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": &*key.name, "namespace": &*key.namespace}, "deleteOptions": {"preconditions": {"uid": uid}}});
    let params = PostParams {
        dry_run,
        ..PostParams::default()
    };
    let answer = pods.create_subresource("eviction", &key.name, &params, &eviction);
    answer.await.map_err(ApiError::from)
}

fn settled<T>(object: &str, what: &str, answer: Result<T, ApiError>) -> StepResult {
    let Err(error) = answer else {
        return StepResult::Nothing;
    };
    match error.class {
        // Deleted, or another object has the name.
        ErrorClass::NotFound => StepResult::Nothing,
        class => {
            debug!(
                object,
                what,
                class = class.as_str(),
                %error,
                "request failed"
            );
            StepResult::Failed
        }
    }
}

fn log(key: &Key, group: &PodGroup) {
    let Some(status) = &group.status else { return };
    let condition =
        lockstep_api::condition::find(&status.conditions, types::POD_GROUP_INITIALLY_SCHEDULED);
    info!(
        object = %key,
        placement = status.placement.as_ref().map_or("", |p| p.id.as_str()),
        intent = status.preemption.as_ref().map_or("", |p| p.id.as_str()),
        reason = condition.map_or("", |c| c.reason.as_str()),
        "{}",
        condition.map_or("", |c| c.message.as_str()),
    );
}
