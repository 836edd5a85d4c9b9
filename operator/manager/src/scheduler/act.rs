//! Sends what a pass has decided: the only requests of the scheduler.
//!
//! Requests of one pass are independent, so each may fail alone; what failed is decided anew. The one thing that must be
//! known before the next pass is whether a status was written: a placement that was stored without our knowing would be
//! promised twice. Where an answer is lost, the object is read.

use std::collections::BTreeSet;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::api::{DeleteParams, ListParams, PartialObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use lockstep_api::PodGroup;
use lockstep_api::condition::{reasons, types};
use lockstep_api::names::labels;
use serde_json::{Value, json};
use tracing::{debug, info};

use super::decide::{StatusWrite, Step, Vacated};
use super::memory::Memory;
use crate::clients::{ErrorClass, by_name, classify, message};
use crate::edge::to_jiff;
use crate::events::{Events, Report};
use crate::index::Key;
use crate::merge::difference;
use crate::metrics::Scheduling;
use crate::workload::act::FIELD_MANAGER;

/// Most requests of one pass in flight.
const IN_FLIGHT: usize = 16;

/// Sends steps.
pub(super) struct Actor {
    /// For reads.
    pub read: Client,
    /// For writes.
    pub write: Client,
    /// For people.
    pub events: Events,
    /// Counts what is decided.
    pub metrics: Scheduling,
}

/// What has become of the steps of a pass.
#[derive(Debug, Default)]
pub(super) struct Acted {
    /// Pod groups of which it is not known whether they were written.
    pub unsure: BTreeSet<Key>,
    /// Whether something is to be tried again.
    pub again: bool,
}

/// What has become of one step.
enum Done {
    Wrote(Key, Box<PodGroup>),
    Nothing,
    Failed,
    Unsure(Key),
}

impl Actor {
    /// Sends the steps, status writes before all others.
    pub async fn act(&self, steps: Vec<Step>, memory: &mut Memory, now: chrono::DateTime<chrono::Utc>) -> Acted {
        let mut acted = Acted::default();
        let (status, rest): (Vec<Step>, Vec<Step>) = steps.into_iter().partition(|s| matches!(s, Step::Status(_)));
        for batch in [status, rest] {
            let mut waiting = batch.into_iter();
            let mut flying = FuturesUnordered::new();
            loop {
                while flying.len() < IN_FLIGHT
                    && let Some(step) = waiting.next()
                {
                    flying.push(self.send(step, now));
                }
                match flying.next().await {
                    Some(Done::Wrote(key, group)) => memory.wrote(key, *group),
                    Some(Done::Unsure(key)) => {
                        acted.unsure.insert(key);
                    }
                    Some(Done::Failed) => acted.again = true,
                    Some(Done::Nothing) => {}
                    None => break,
                }
            }
        }
        acted
    }

    /// Reads pod groups of which it is not known whether they were written; returns those that cannot be read either.
    pub async fn look_up(&self, unsure: BTreeSet<Key>, memory: &mut Memory) -> BTreeSet<Key> {
        let mut left = BTreeSet::new();
        for key in unsure {
            match by_name(&groups(&self.read, &key), &key.name).await {
                Ok(Some(group)) => memory.wrote(key, group),
                Ok(None) => {}
                Err(error) => {
                    debug!(object = %key, error = message(&error), "pod group cannot be read");
                    left.insert(key);
                }
            }
        }
        left
    }

    async fn send(&self, step: Step, now: chrono::DateTime<chrono::Utc>) -> Done {
        match step {
            Step::Status(write) => self.write_status(*write).await,
            Step::MarkPod { namespace, name, uid, message } => {
                self.tell(&namespace, &name, &uid, &message);
                let condition = json!({"type": types::DISRUPTION_TARGET, "status": "True", "message": message,
                    "reason": reasons::PREEMPTION_BY_SCHEDULER, "lastTransitionTime": to_jiff(now)});
                let patch = json!({"metadata": {"uid": uid}, "status": {"conditions": [condition]}});
                let answer = self.pods(&namespace).patch_status(&name, &manager(), &Patch::Strategic(patch)).await;
                settled(&format!("{namespace}/{name}"), "mark victim", answer)
            }
            Step::Evict { namespace, name, uid, by_force } => self.evict(&namespace, &name, uid, by_force).await,
            Step::Nominate { namespace, name, uid, node } => {
                let patch = json!({"metadata": {"uid": uid}, "status": {"nominatedNodeName": node}});
                let answer = self.pods(&namespace).patch_status(&name, &manager(), &Patch::Merge(patch)).await;
                settled(&format!("{namespace}/{name}"), "nominate", answer)
            }
        }
    }

    async fn write_status(&self, write: StatusWrite) -> Done {
        let StatusWrite { key, uid, resource_version, read, status, vacated } = write;
        if let Some(vacated) = &vacated {
            match self.others(&key, vacated).await {
                Ok(false) => {}
                Ok(true) => return Done::Failed,
                Err(error) => return settled(&key.to_string(), "list pods", Err::<(), _>(error)),
            }
        }
        let Some(change) = difference(&json!(read), &json!(status)) else { return Done::Nothing };
        let patch = json!({"metadata": {"uid": uid, "resourceVersion": resource_version}, "status": change});
        match groups(&self.write, &key).patch_status(&key.name, &manager(), &Patch::Merge(patch)).await {
            Ok(group) => {
                log(&key, &group);
                self.metrics.wrote(&read, &status);
                Done::Wrote(key, Box::new(group))
            }
            Err(error) => match classify(&error) {
                ErrorClass::NotFound => Done::Nothing,
                ErrorClass::Timeout | ErrorClass::Other => {
                    info!(object = %key, error = message(&error), "status write without an answer");
                    Done::Unsure(key)
                }
                _ => settled(&key.to_string(), "status write", Err::<(), _>(error)),
            },
        }
    }

    /// Whether the API server knows pods of the gang that the pass did not.
    async fn others(&self, key: &Key, vacated: &Vacated) -> kube::Result<bool> {
        let api: Api<PartialObjectMeta<Pod>> = Api::namespaced(self.read.clone(), &key.namespace);
        let selector = format!("{}={},{}={}", labels::WORKLOAD_UID, vacated.workload_uid, labels::POD_GROUP, key.name);
        let pods = api.list_metadata(&ListParams::default().labels(&selector)).await?;
        Ok(pods.iter().any(|p| p.metadata.uid.as_ref().is_some_and(|uid| !vacated.seen.contains(uid))))
    }

    async fn evict(&self, namespace: &str, name: &str, uid: String, by_force: bool) -> Done {
        let object = format!("{namespace}/{name}");
        let pods = self.pods(namespace);
        // Not `Api::evict`: kube 5.0 sends its options as `delete_options`, which the API server does not know, so that the
        // UID would be no precondition.
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace}, "deleteOptions": {"preconditions": {"uid": uid}}});
        let answer: kube::Result<Value> =
            pods.create_subresource("eviction", name, &PostParams::default(), &eviction).await;
        match answer {
            Err(error) if by_force && classify(&error) == ErrorClass::Throttled => {
                info!(pod = object, "disruption budgets refuse the eviction of a victim: deleting it");
                let preconditions = Some(Preconditions { uid: Some(uid), resource_version: None });
                let params = DeleteParams { preconditions, ..DeleteParams::default() };
                settled(&object, "delete victim", pods.delete(name, &params).await)
            }
            answer => settled(&object, "evict", answer),
        }
    }

    /// An event on a foreign victim; workloads have theirs from their controller.
    fn tell(&self, namespace: &str, name: &str, uid: &str, note: &str) {
        self.events.publish(Report {
            regarding: ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("Pod".into()),
                namespace: Some(namespace.to_owned()),
                name: Some(name.to_owned()),
                uid: Some(uid.to_owned()),
                ..ObjectReference::default()
            },
            related: None,
            warning: false,
            reason: reasons::PREEMPTED.to_owned(),
            action: "Preempting".to_owned(),
            note: note.to_owned(),
        });
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.write.clone(), namespace)
    }
}

fn groups(client: &Client, key: &Key) -> Api<PodGroup> {
    Api::namespaced(client.clone(), &key.namespace)
}

fn manager() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() }
}

/// Success, somebody else's success, or something to try again.
fn settled<T>(object: &str, what: &str, answer: kube::Result<T>) -> Done {
    let Err(error) = answer else { return Done::Nothing };
    match classify(&error) {
        // Gone, or the name belongs to another object now.
        ErrorClass::NotFound => Done::Nothing,
        class => {
            debug!(object, what, class = class.as_str(), error = message(&error), "request failed");
            Done::Failed
        }
    }
}

/// One line per decision with the why.
fn log(key: &Key, group: &PodGroup) {
    let Some(status) = &group.status else { return };
    let condition = lockstep_api::condition::find(&status.conditions, types::POD_GROUP_INITIALLY_SCHEDULED);
    info!(
        object = %key,
        placement = status.placement.as_ref().map_or("", |p| p.id.as_str()),
        intent = status.preemption.as_ref().map_or("", |p| p.id.as_str()),
        reason = condition.map_or("", |c| c.reason.as_str()),
        "{}",
        condition.map_or("", |c| c.message.as_str()),
    );
}
