//! Objects by kind, with the rules of the API server for every write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::runtime::watcher::Event;
use lockstep_api::key::Key;
use lockstep_api::names::labels;
use lockstep_manager::stepped::WatchedKind;
use serde_json::{Value, json};

use super::admission::Admission;
use super::answer::Refused;
use super::kinds::{Stored, api_version, kind_name, namespaced};
use super::log::{Author, Verb, Write};
use super::patch::{merge, strategic};
use super::watches::Watches;
use crate::clock::{SimClock, api_time};

pub type Object = Arc<Value>;

#[derive(Clone, Debug, PartialEq)]
pub enum Patch {
    /// RFC 7386.
    Merge(Value),
    /// Merges lists of conditions and gates by their key.
    Strategic(Value),
}

pub struct Store {
    pub(crate) clock: SimClock,
    pub(super) objects: BTreeMap<WatchedKind, BTreeMap<Key, Object>>,
    pub(super) version: u64,
    ids: u64,
    /// Every write, oldest first.
    pub log: Vec<Write>,
    /// Undelivered events of the manager's watches.
    pub watches: Watches,
    /// Checks and changes before an object is stored.
    pub admission: Admission,
    /// Names of the running schedulers. Pods with another name wait.
    pub schedulers: BTreeSet<String>,
    /// Most pods that kube-scheduler tries in one turn.
    pub attempts_per_turn: Option<usize>,
    /// Version at the last attempt to schedule a pod, by UID. Kept only with a limit.
    pub attempts: BTreeMap<String, u64>,
}

impl Store {
    pub fn new(clock: SimClock) -> Self {
        Self {
            clock,
            objects: BTreeMap::new(),
            version: 1,
            ids: 0,
            log: Vec::new(),
            watches: Watches::default(),
            admission: Admission::default(),
            schedulers: BTreeSet::from(["default-scheduler".to_owned()]),
            attempts_per_turn: None,
            attempts: BTreeMap::new(),
        }
    }

    /// The highest resource version. Rises with every write.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// All objects of a kind, by key.
    pub fn all(&self, kind: WatchedKind) -> impl Iterator<Item = (&Key, &Object)> {
        self.objects.get(&kind).into_iter().flatten()
    }

    /// An object as stored.
    pub fn raw(&self, kind: WatchedKind, key: &Key) -> Option<&Object> {
        self.objects.get(&kind)?.get(key)
    }

    pub fn get<K: Stored>(&self, key: &Key) -> Option<K> {
        self.raw(K::KIND, key).map(|object| typed(object))
    }

    pub fn list<K: Stored>(&self) -> Vec<K> {
        self.all(K::KIND).map(|(_, object)| typed(object)).collect()
    }

    /// Creates an object. Keeps a UID in the request, which only tests send.
    ///
    /// # Errors
    ///
    /// The name is taken, or admission refuses.
    pub fn create(
        &mut self,
        who: &str,
        kind: WatchedKind,
        mut object: Value,
        dry_run: bool,
    ) -> Result<Object, Refused> {
        let key = key_of(&object);
        self.admit(kind, &mut object, dry_run)?;
        if self.raw(kind, &key).is_some() {
            let message = format!("{} {:?} already exists", kind.as_str(), key.name);
            return Err(Refused::new(409, "AlreadyExists", message));
        }
        self.ids += 1;
        let id = self.ids;
        let meta = &mut object["metadata"];
        if meta["uid"].is_null() {
            meta["uid"] = json!(format!("{}-{id}", kind.as_str().to_lowercase()));
        }
        meta["creationTimestamp"] = json!(api_time(self.clock.now()));
        meta["generation"] = json!(1);
        object["apiVersion"] = json!(api_version(kind));
        object["kind"] = json!(kind_name(kind));
        if dry_run {
            return Ok(Arc::new(object));
        }
        let by = Author { who, guarded: true };
        Ok(self.save(by, Verb::Create, kind, key, object))
    }

    fn admit(&self, kind: WatchedKind, object: &mut Value, dry_run: bool) -> Result<(), Refused> {
        self.admission.refuse(kind, Verb::Create, object)?;
        if namespaced(kind) && object["metadata"]["namespace"].is_null() {
            return Err(Refused::invalid("metadata.namespace is missing"));
        }
        if kind == WatchedKind::Pod {
            self.admission.pod(object, self, dry_run)?;
        }
        Ok(())
    }

    /// Patches metadata and spec, or the status, of an object.
    ///
    /// # Errors
    ///
    /// The object does not exist, has another UID or version, or admission refuses.
    pub fn patch(
        &mut self,
        who: &str,
        kind: WatchedKind,
        key: &Key,
        patch: &Patch,
        status: bool,
    ) -> Result<Object, Refused> {
        let old = self.found(kind, key)?;
        let (Patch::Merge(changes) | Patch::Strategic(changes)) = patch;
        let asked = &changes["metadata"];
        if !asked["uid"].is_null() && asked["uid"] != old["metadata"]["uid"] {
            return Err(Refused::other_uid());
        }
        let (expected, found) = (
            &asked["resourceVersion"],
            &old["metadata"]["resourceVersion"],
        );
        if !expected.is_null() && expected != found {
            return Err(Refused::conflict("the object has been modified"));
        }
        let verb = if status {
            Verb::UpdateStatus
        } else {
            Verb::Update
        };
        let mut changes = changes.clone();
        if let Some(parts) = changes.as_object_mut() {
            parts.retain(|part, _| (part == "status") == status);
        }
        let mut new = Value::clone(&old);
        match patch {
            Patch::Merge(_) => merge(&mut new, &changes),
            Patch::Strategic(_) => strategic(&mut new, &changes),
        }
        self.admission.refuse(kind, verb, &new)?;
        let guarded = !asked["uid"].is_null() || !expected.is_null();
        let by = Author { who, guarded };
        let stored = self.replace(by, verb, kind, key, &old, new)?;
        let metadata = &stored["metadata"];
        let kept = metadata["finalizers"]
            .as_array()
            .is_some_and(|all| !all.is_empty());
        // The kubelet confirms the end of a pod.
        let is_released = !metadata["deletionTimestamp"].is_null() && !kept;
        if is_released && kind != WatchedKind::Pod {
            let by = Author { who, guarded };
            return Ok(self.take_away(by, kind, key, &stored));
        }
        Ok(stored)
    }

    /// Changes an object directly, whatever its version, like a test or a controller of the
    /// cluster.
    ///
    /// # Panics
    ///
    /// The object does not exist, or has another type.
    pub fn edit<K: Stored>(&mut self, who: &str, key: &Key, change: impl FnOnce(&mut K)) {
        let old = self
            .found(K::KIND, key)
            .unwrap_or_else(|refused| panic!("{}", refused.message));
        let mut object: K = typed(&old);
        change(&mut object);
        let new = serde_json::to_value(object).expect("an object of the API is JSON");
        let verb = if new["status"] == old["status"] {
            Verb::Update
        } else {
            Verb::UpdateStatus
        };
        self.replace(Author::unguarded(who), verb, K::KIND, key, &old, new)
            .unwrap_or_else(|refused| panic!("{}", refused.message));
    }

    fn replace(
        &mut self,
        by: Author<'_>,
        verb: Verb,
        kind: WatchedKind,
        key: &Key,
        old: &Object,
        mut new: Value,
    ) -> Result<Object, Refused> {
        if new == **old {
            return Ok(old.clone());
        }
        keep_facts(kind, old, &new)?;
        if new["spec"] != old["spec"] {
            let generation = new["metadata"]["generation"].as_i64().unwrap_or_default();
            new["metadata"]["generation"] = json!(generation + 1);
        }
        Ok(self.save(by, verb, kind, key.clone(), new))
    }

    /// Creates a volume claim, with or without its volume. Returns true if it is new.
    pub fn make_claim(&mut self, claim: &Key, bound: bool) -> bool {
        let volume = format!("{}-{}", claim.namespace, claim.name);
        let key = Key::new("", &volume);
        if bound && self.raw(WatchedKind::PersistentVolume, &key).is_none() {
            let object = json!({"metadata": {"name": volume}, "spec": {
                "claimRef": {"namespace": &*claim.namespace, "name": &*claim.name}}});
            let made = self.create("user", WatchedKind::PersistentVolume, object, false);
            made.unwrap_or_else(|no| panic!("{}", no.message));
        }
        let there = self
            .raw(WatchedKind::PersistentVolumeClaim, claim)
            .is_some();
        if !there {
            let object =
                json!({"metadata": {"name": &*claim.name, "namespace": &*claim.namespace}});
            let made = self.create("user", WatchedKind::PersistentVolumeClaim, object, false);
            made.unwrap_or_else(|no| panic!("{}", no.message));
        }
        if bound {
            let patch = Patch::Merge(json!({"spec": {"volumeName": volume},
                "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}}));
            let kind = WatchedKind::PersistentVolumeClaim;
            let bound = self.patch("volume-controller", kind, claim, &patch, false);
            bound.unwrap_or_else(|no| panic!("{}", no.message));
        }
        !there
    }

    /// The manager's watch of a kind breaks: undelivered events are lost, and the manager lists
    /// again.
    pub fn relist(&mut self, kind: WatchedKind) {
        let objects = self.all(kind).map(|(_, object)| object.clone());
        let objects = objects.filter(|object| watched(kind, object)).collect();
        self.watches.relist(kind, objects, self.clock.now());
    }

    pub(super) fn found(&self, kind: WatchedKind, key: &Key) -> Result<Object, Refused> {
        self.raw(kind, key)
            .cloned()
            .ok_or_else(|| Refused::not_found(format_args!("{} {:?}", kind.as_str(), key.name)))
    }

    pub(super) fn save(
        &mut self,
        by: Author<'_>,
        verb: Verb,
        kind: WatchedKind,
        key: Key,
        mut object: Value,
    ) -> Object {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let object = Arc::new(object);
        self.note(by, verb, kind, &key, &object);
        self.tell(kind, Event::Apply(object.clone()), &object);
        self.objects
            .entry(kind)
            .or_default()
            .insert(key, object.clone());
        object
    }

    pub(super) fn note(
        &mut self,
        by: Author<'_>,
        verb: Verb,
        kind: WatchedKind,
        key: &Key,
        object: &Object,
    ) {
        self.log.push(Write {
            at: self.clock.now(),
            who: by.who.to_owned(),
            verb,
            guarded: by.guarded,
            kind,
            key: key.clone(),
            uid: text(&object["metadata"]["uid"]),
            object: object.clone(),
        });
    }

    pub(super) fn tell(&mut self, kind: WatchedKind, event: Event<Object>, object: &Object) {
        if watched(kind, object) {
            self.watches.tell(kind, event, self.clock.now());
        }
    }
}

/// The manager watches only Services with its label.
fn watched(kind: WatchedKind, object: &Object) -> bool {
    kind != WatchedKind::Service || !object["metadata"]["labels"][labels::WORKLOAD_UID].is_null()
}

pub(super) fn key_of(object: &Value) -> Key {
    let meta = &object["metadata"];
    Key::new(text(&meta["namespace"]), text(&meta["name"]))
}

fn typed<K: Stored>(object: &Object) -> K {
    K::deserialize(&**object)
        .unwrap_or_else(|error| panic!("{}: {error}: {object}", K::KIND.as_str()))
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

pub(crate) fn over(pod: &Value) -> bool {
    matches!(
        pod["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    )
}

/// Facts that never change: identity, a binding, a removed gate, the end of a pod.
fn keep_facts(kind: WatchedKind, old: &Value, new: &Value) -> Result<(), Refused> {
    for field in ["uid", "name", "namespace", "creationTimestamp"] {
        if old["metadata"][field] != new["metadata"][field] {
            return Err(Refused::invalid(format!(
                "metadata.{field}: field is immutable"
            )));
        }
    }
    if kind != WatchedKind::Pod {
        return Ok(());
    }
    let bound = &old["spec"]["nodeName"];
    if !bound.is_null() && *bound != new["spec"]["nodeName"] {
        return Err(Refused::invalid("spec.nodeName: field is immutable"));
    }
    let gates = |pod: &Value| {
        pod["spec"]["schedulingGates"]
            .as_array()
            .map_or(0, Vec::len)
    };
    if gates(new) > gates(old) {
        return Err(Refused::invalid(
            "spec.schedulingGates: only deletion is allowed",
        ));
    }
    if !new["spec"]["nodeName"].is_null() && gates(new) > 0 {
        return Err(Refused::invalid("a gated pod is not bound"));
    }
    if over(old) && old["status"]["phase"] != new["status"]["phase"] {
        return Err(Refused::invalid(
            "status.phase: a pod that is over stays so",
        ));
    }
    Ok(())
}
