//! Deletion with grace period, eviction, and immediate removal.

use std::sync::Arc;

use kube::runtime::watcher::Event;
use lockstep_api::key::Key;
use lockstep_manager::stepped::WatchedKind;
use serde_json::{Value, json};

use super::answer::Refused;
use super::log::{Author, Verb};
use super::store::{Object, Patch, Store, over};
use crate::clock::api_time;

/// Precondition and grace period of a delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    /// Seconds. `None`: the pod's own.
    pub grace: Option<i64>,
}

impl Store {
    /// Deletes an object. A running pod is deleted after its grace period, when its kubelet
    /// confirms. An object with finalizers stays.
    ///
    /// # Errors
    ///
    /// The object does not exist or has another UID.
    pub fn delete(
        &mut self,
        who: &str,
        kind: WatchedKind,
        key: &Key,
        options: &DeleteOptions,
    ) -> Result<Object, Refused> {
        let old = self.found(kind, key)?;
        let meta = &old["metadata"];
        let differs = |wanted: &Option<String>, field: &str| {
            wanted
                .as_deref()
                .is_some_and(|wanted| meta[field].as_str() != Some(wanted))
        };
        if differs(&options.uid, "uid") || differs(&options.resource_version, "resourceVersion") {
            return Err(Refused::conflict("precondition failed"));
        }
        let guarded = options.uid.is_some() || options.resource_version.is_some();
        let by = Author { who, guarded };
        let grace = if kind == WatchedKind::Pod {
            grace_of(&old, options.grace)
        } else {
            0
        };
        let finalizers = meta["finalizers"].as_array();
        let kept = finalizers.is_some_and(|all| !all.is_empty());
        if grace == 0 && !kept {
            let last = if kind == WatchedKind::Pod {
                self.end_grace_period(&old)
            } else {
                old
            };
            return Ok(self.take_away(by, kind, key, &last));
        }
        let left = meta["deletionGracePeriodSeconds"].as_i64();
        if left.is_some_and(|left| left <= grace) {
            return Ok(old);
        }
        let mut new = Value::clone(&old);
        // `rest.BeforeDelete`: a shorter grace period counts from the first request.
        let first = match (meta["deletionTimestamp"].as_str(), left) {
            (Some(end), Some(left)) => end.parse::<chrono::DateTime<chrono::Utc>>().map_or_else(
                |_| self.clock.now(),
                |end| end - chrono::TimeDelta::seconds(left),
            ),
            _ => self.clock.now(),
        };
        let mut end = first + chrono::TimeDelta::seconds(grace);
        let mut grace = grace;
        if end < self.clock.now() && grace > 0 {
            // Not into the past: the shortest graceful time remains.
            (end, grace) = (self.clock.now(), 1);
        }
        new["metadata"]["deletionTimestamp"] = json!(api_time(end));
        new["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        let generation = new["metadata"]["generation"].as_i64().unwrap_or_default();
        new["metadata"]["generation"] = json!(generation + 1);
        Ok(self.save(by, Verb::Delete, kind, key.clone(), new))
    }

    /// Watches first receive a pod without a grace period, deleted at the time of this request
    /// (`rest.BeforeDelete`).
    fn end_grace_period(&mut self, pod: &Object) -> Object {
        self.version += 1;
        let mut last = Value::clone(pod);
        let meta = &mut last["metadata"];
        meta["resourceVersion"] = json!(self.version.to_string());
        meta["deletionTimestamp"] = json!(api_time(self.clock.now()));
        meta["deletionGracePeriodSeconds"] = json!(0);
        let last = Arc::new(last);
        self.tell(WatchedKind::Pod, Event::Apply(last.clone()), &last);
        last
    }

    /// Evicts a pod (the eviction subresource). A dry run changes nothing.
    ///
    /// # Errors
    ///
    /// As [`Self::delete`], or a budget refuses.
    pub fn evict(
        &mut self,
        who: &str,
        key: &Key,
        options: &DeleteOptions,
        dry_run: bool,
    ) -> Result<Object, Refused> {
        let old = self.found(WatchedKind::Pod, key)?;
        let uid = old["metadata"]["uid"].as_str();
        if options
            .uid
            .as_deref()
            .is_some_and(|wanted| uid != Some(wanted))
        {
            return Err(Refused::conflict("precondition failed"));
        }
        self.admission.refuse(WatchedKind::Pod, Verb::Evict, &old)?;
        if !over(&old) && old["metadata"]["deletionTimestamp"].is_null() {
            self.take_from_budgets(who, &old, dry_run)?;
        }
        if dry_run {
            return Ok(old);
        }
        let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting", "lastTransitionTime": api_time(self.clock.now())});
        let disrupted = old["status"]["conditions"]
            .as_array()
            .is_some_and(|all| all.iter().any(|c| c["type"] == "DisruptionTarget"));
        if !disrupted {
            let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
            self.patch(who, WatchedKind::Pod, key, &patch, true)?;
        }
        let by = Author {
            who,
            guarded: options.uid.is_some(),
        };
        self.note(by, Verb::Evict, WatchedKind::Pod, key, &old);
        self.delete(who, WatchedKind::Pod, key, options)
    }

    fn take_from_budgets(&mut self, who: &str, pod: &Object, dry_run: bool) -> Result<(), Refused> {
        let guards: Vec<Key> = self
            .all(WatchedKind::PodDisruptionBudget)
            .filter(|(key, budget)| {
                pod["metadata"]["namespace"] == *key.namespace && selects(budget, pod)
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in guards {
            let budget = self.found(WatchedKind::PodDisruptionBudget, &key)?;
            let allowed = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0);
            if allowed <= 0 {
                return Err(Refused::by_budget());
            }
            if dry_run {
                continue;
            }
            let patch = Patch::Merge(json!({"status": {"disruptionsAllowed": allowed - 1}}));
            self.patch(who, WatchedKind::PodDisruptionBudget, &key, &patch, true)?;
        }
        Ok(())
    }

    /// Removes an object at once, like a forced deletion.
    pub fn remove(&mut self, who: &str, kind: WatchedKind, key: &Key, old: &Object) -> Object {
        self.take_away(Author::unguarded(who), kind, key, old)
    }

    pub(super) fn take_away(
        &mut self,
        by: Author<'_>,
        kind: WatchedKind,
        key: &Key,
        old: &Object,
    ) -> Object {
        self.version += 1;
        let mut last = Value::clone(old);
        last["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let last = Arc::new(last);
        if let Some(objects) = self.objects.get_mut(&kind) {
            objects.remove(key);
        }
        self.note(by, Verb::Gone, kind, key, &last);
        self.tell(kind, Event::Delete(last.clone()), &last);
        last
    }
}

/// `CheckGracefulDelete` of pods: an unbound or ended pod is deleted at once.
fn grace_of(pod: &Value, asked: Option<i64>) -> i64 {
    if pod["spec"]["nodeName"].is_null() || over(pod) {
        return 0;
    }
    let own = pod["spec"]["terminationGracePeriodSeconds"].as_i64();
    asked.or(own).unwrap_or(30)
}

fn selects(budget: &Value, pod: &Value) -> bool {
    let labels = budget["spec"]["selector"]["matchLabels"].as_object();
    labels.is_some_and(|labels| {
        labels
            .iter()
            .all(|(key, value)| pod["metadata"]["labels"][key] == *value)
    })
}
