//! One kubelet: a worker for each pod bound to its node, and its writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use lockstep_api::key::Key;
use lockstep_kubelet::model::admission::{Rejection, admit};
use lockstep_kubelet::model::{Action, FEATURE_RESTART_ALL, Outcome, PodDesc, PodWorker};
use lockstep_manager::stepped::WatchedKind;
use lockstep_model::pods::pod_view::PodSpecView;
use lockstep_model::pods::resources::{Resources, pod_requests};
use serde_json::{Value, json};

use super::{NAMESPACE, SimNode};
use crate::api::{DeleteOptions, Object, Patch, Store};

/// Most consecutive syncs of a pod; then it must have no work.
const MOST_SYNCS: usize = 20;

pub(super) struct Slot {
    pod: Arc<PodDesc>,
    /// The object from which the pod was last read.
    seen: Object,
    worker: PodWorker,
    requests: Resources,
    published: Option<PodStatus>,
}

/// Name of a node's kubelet in the log.
pub(super) fn actor(node: &str) -> String {
    format!("kubelet:{node}")
}

impl SimNode {
    /// One sync of every pod of the node. Returns true if it had an effect.
    pub(crate) fn kubelet(&mut self, store: &mut Store) -> bool {
        if self.faults.lost {
            return false;
        }
        let mut busy = self.catch_up();
        if !self.faults.cut_off {
            self.look(store);
        }
        self.wake = None;
        let uids: Vec<String> = self.pods.keys().cloned().collect();
        for uid in uids {
            busy |= self.sync(&uid, store);
        }
        busy
    }

    /// The kubelet evicts a pod because of memory pressure.
    pub fn evict(&mut self, uid: &str) {
        if let Some(slot) = self.pods.get_mut(uid) {
            slot.worker.evict("The node was low on resource: memory.");
        }
    }

    /// The kubelet evicts a pod because it exceeds the limit of its own volume `ckpt`.
    pub fn evict_for_own_limit(&mut self, uid: &str) {
        if let Some(slot) = self.pods.get_mut(uid) {
            let why = "Usage of EmptyDir volume \"ckpt\" exceeds the limit \"10Gi\". ";
            slot.worker.evict_for_own_limit(why);
        }
    }

    /// Reads the node's pods from the API server.
    fn look(&mut self, store: &Store) {
        let here = store.all(WatchedKind::Pod).filter(|(key, pod)| {
            *key.namespace != *NAMESPACE && pod["spec"]["nodeName"] == *self.name
        });
        let here: Vec<(Key, Object)> = here.map(|(k, o)| (k.clone(), o.clone())).collect();
        let mut missing: Vec<String> = self.pods.keys().cloned().collect();
        for (key, object) in here {
            missing.retain(|uid| object["metadata"]["uid"] != **uid);
            let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
            if self
                .pods
                .get(uid)
                .is_some_and(|slot| Arc::ptr_eq(&slot.seen, &object))
            {
                continue;
            }
            let mut pod: Pod = store.get(&key).expect("it was there a moment ago");
            let status = pod.status.take().unwrap_or_default();
            let Some(pod) = PodDesc::from_api(pod) else {
                continue;
            };
            match self.pods.get_mut(&pod.uid) {
                Some(slot) => (slot.pod, slot.seen) = (Arc::new(pod), object),
                None => self.take(pod, object, &status, store),
            }
        }
        for uid in missing {
            if let Some(slot) = self.pods.get_mut(&uid) {
                let mut pod = PodDesc::clone(&slot.pod);
                pod.gone = true;
                slot.pod = Arc::new(pod);
            }
        }
    }

    /// Handles a pod that is new to the kubelet.
    fn take(&mut self, pod: PodDesc, seen: Object, status: &PodStatus, store: &Store) {
        let requests = pod_requests(&PodSpecView::from(&pod.spec)).unwrap_or_default();
        let mut worker = PodWorker::new(Some(status), self.wall());
        let known = !self.runtime.table().view(&pod.uid).containers.is_empty();
        if !worker.over() && !known && pod.deletion.is_none() {
            let verdict = if self.faults.rejects {
                Err(Rejection {
                    reason: "OutOfcpu".into(),
                    message: "Node didn't have enough resource: cpu".into(),
                })
            } else {
                self.admit(&pod, &requests, store)
            };
            if let Err(rejection) = verdict {
                worker.reject(&rejection);
            }
        }
        if worker.over() && pod.deletion.is_some_and(|grace| grace.is_zero()) {
            // A finalizer keeps the object.
            return;
        }
        let slot = Slot {
            pod: Arc::new(pod),
            seen,
            worker,
            requests,
            published: None,
        };
        self.pods.insert(slot.pod.uid.clone(), slot);
    }

    fn admit(&self, pod: &PodDesc, requests: &Resources, store: &Store) -> Result<(), Rejection> {
        let mut used: BTreeMap<&str, i64> = BTreeMap::new();
        let table = self.runtime.table();
        let active = self
            .pods
            .values()
            .filter(|slot| slot.worker.active(&table.view(&slot.pod.uid)));
        for (name, amount) in active.flat_map(|slot| slot.requests.iter()) {
            *used.entry(name).or_default() += amount;
        }
        let node: Option<Node> = store.get(&Key::new("", &self.name));
        let allocatable = node.and_then(|n| n.status?.allocatable).unwrap_or_default();
        let allocatable = Resources::parse(&allocatable).unwrap_or_default();
        let features = [FEATURE_RESTART_ALL.to_owned()];
        let features = if self.config.restart_all {
            &features[..]
        } else {
            &[]
        };
        admit(pod, requests, features, &allocatable, &|name| {
            used.get(name).copied().unwrap_or(0)
        })
    }

    fn sync(&mut self, uid: &str, store: &mut Store) -> bool {
        let mut busy = false;
        for _ in 0..MOST_SYNCS {
            let Some(outcome) = self.step(uid) else {
                return busy;
            };
            let delete = outcome.actions.contains(&Action::DeletePod);
            let idle = outcome.actions.is_empty() || self.faults.starts_nothing;
            // With quick restarts, intermediate states are never shown.
            if idle || delete || !self.faults.quick {
                busy |= self.publish(uid, &outcome.status, store);
            }
            if let Some(at) = outcome.wake {
                let at = at - self.clock_ahead;
                self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
            }
            if delete {
                return self.let_go(uid, store) || busy;
            }
            if idle {
                return busy;
            }
            busy = true;
            // Immediate effects of the runtime appear at the next relist.
            if !self.faults.quick {
                return busy;
            }
        }
        busy
    }

    /// One step of a pod's worker, with its requests to the runtime.
    fn step(&mut self, uid: &str) -> Option<Outcome> {
        let view = self.runtime.table().view(uid);
        let now = self.wall();
        let slot = self.pods.get_mut(uid)?;
        let mut outcome = slot.worker.sync(&slot.pod, &view, &self.config, now);
        let pod = slot.pod.clone();
        if self.faults.unkillable {
            outcome
                .actions
                .retain(|a| !matches!(a, Action::Stop { .. }));
        }
        if self.faults.starts_nothing {
            outcome
                .actions
                .retain(|a| !matches!(a, Action::CreateSandbox | Action::Start { .. }));
        }
        let done = outcome.actions.is_empty() && !outcome.blocked && !view.any_alive();
        if pod.gone && done {
            self.runtime.table().forget(uid);
            self.pods.remove(uid);
            return None;
        }
        for action in &outcome.actions {
            if let Action::Stop { .. } = action {
                self.training.stopping(uid);
            }
            let effects = self.runtime.act(&pod, action, now);
            self.follow(effects);
        }
        Some(outcome)
    }

    fn publish(&mut self, uid: &str, status: &PodStatus, store: &mut Store) -> bool {
        if self.faults.cut_off {
            return false;
        }
        let Some(slot) = self.pods.get_mut(uid) else {
            return false;
        };
        if slot.pod.gone || slot.published.as_ref() == Some(status) {
            return false;
        }
        let key = Key::new(&slot.pod.namespace, &slot.pod.name);
        let patch = Patch::Strategic(json!({"metadata": {"uid": uid}, "status": complete(status)}));
        let before = store.version();
        let _ = store.patch(&actor(&self.name), WatchedKind::Pod, &key, &patch, true);
        slot.published = Some(status.clone());
        store.version() != before
    }

    /// The object is deleted with its last container.
    fn let_go(&mut self, uid: &str, store: &mut Store) -> bool {
        if self.faults.cut_off {
            return false;
        }
        let Some(slot) = self.pods.get(uid) else {
            return false;
        };
        let key = Key::new(&slot.pod.namespace, &slot.pod.name);
        let options = DeleteOptions {
            uid: Some(uid.to_owned()),
            grace: Some(0),
            ..DeleteOptions::default()
        };
        let deleted = store.delete(&actor(&self.name), WatchedKind::Pod, &key, &options);
        self.runtime.table().forget(uid);
        self.pods.remove(uid);
        deleted.is_ok()
    }
}

/// The status with explicit nulls for outdated reasons and messages.
fn complete(status: &PodStatus) -> Value {
    let mut status = json!(status);
    let absent = |object: &mut Value| {
        for key in ["reason", "message"] {
            if object[key].is_null() {
                object[key] = Value::Null;
            }
        }
    };
    absent(&mut status);
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        absent(condition);
    }
    status
}
