//! The scheduler's inputs from pod groups and workloads. Only changes of these inputs wake the
//! scheduler.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockstep_api::TrainingWorkload;
use lockstep_api::ids::Uid;
use lockstep_api::names::pod_group_prefix;
use lockstep_lifecycle::spec_hash;
use lockstep_model::{Admission, AdmittedPods, PriorityClass, VolumeNeeds};
use lockstep_scheduler::{GangInput, PodSource};

use super::state::{AdmittedSpec, Key, State, Touched, controller_uid};

impl State {
    pub(super) fn read_gang(&mut self, key: &Key, touched: &mut Touched) {
        let old = self.gang_inputs.get(key);
        let new = self.gang_input(key, old.map(|old| &**old));
        if old.map(|old| &**old) == new.as_ref() {
            return;
        }
        touched.scheduler = true;
        match new {
            Some(new) => {
                if new.slots().any(|slot| !self.model.has_slot(slot)) {
                    self.forget_unused();
                }
                self.model.use_slots(new.slots());
                self.gang_inputs.insert(key.clone(), Arc::new(new));
            }
            None => {
                self.gang_inputs.remove(key);
            }
        }
    }

    /// Drops unused topology keys and slots, before a new one causes a rebuild. Then adds slots
    /// that did not fit.
    pub(super) fn forget_unused(&mut self) {
        let groups = self.pod_groups.values();
        let constraints = groups.flat_map(|g| &g.spec.gang.scheduling_constraints);
        let topologies = constraints.flat_map(|c| &c.topology);
        let keys = topologies.map(|t| t.key.as_str()).collect();
        let slots: BTreeSet<&str> = self.gang_inputs.values().flat_map(|g| g.slots()).collect();
        self.model.forget_unused(&keys, &slots);
        self.model.use_slots(slots.iter().copied());
    }

    /// Names of pod groups start with the workload's name.
    pub(super) fn read_gangs_of(&mut self, workload: &Key, touched: &mut Touched) {
        let first = Key::new(&workload.namespace, pod_group_prefix(&workload.name));
        let behind = self
            .pod_groups
            .range(first.clone()..)
            .map(|(key, _)| key)
            .take_while(|key| key.namespace == first.namespace);
        let named = behind.take_while(|key| key.name.starts_with(&*first.name));
        let keys: Vec<Key> = named.cloned().collect();
        for key in keys {
            self.read_gang(&key, touched);
        }
    }

    /// Stores how the API server admits a workload's pods. Ignores results for an outdated spec.
    /// True if that has changed.
    pub(super) fn record_admitted(
        &mut self,
        workload: &Key,
        uid: &str,
        hash: &str,
        pods: &BTreeMap<String, Admission>,
    ) -> bool {
        let Some(current) = self.workloads.get(workload) else {
            return false;
        };
        let Some(uid) = Uid::read(current.metadata.uid.as_deref()).filter(|u| *u == *uid) else {
            return false;
        };
        if spec_hash(&current.spec) != hash {
            return false;
        }
        let last = self.admitted.get(&uid).map(|last| &last.pods.groups);
        let of_last = |group: &String| last.and_then(|last| last.get(group));
        let groups: BTreeMap<String, Admission> = pods
            .iter()
            .map(|(group, pod)| (group.clone(), pod.clone().or_last(of_last(group))))
            .collect();
        if last == Some(&groups) {
            return false;
        }
        self.revision += 1;
        let pods = AdmittedPods {
            revision: self.revision,
            groups,
        };
        let spec_hash = hash.to_owned();
        self.admitted.insert(uid, AdmittedSpec { spec_hash, pods });
        true
    }

    pub(super) fn forget_other_spec(&mut self, uid: &Uid, workload: &TrainingWorkload) {
        let admitted = self.admitted.get(uid);
        if admitted.is_some_and(|admitted| admitted.spec_hash != spec_hash(&workload.spec)) {
            self.admitted.remove(uid);
        }
    }

    /// The default class includes gangs without a class.
    pub(super) fn read_gangs_of_class(
        &mut self,
        class: &str,
        default: bool,
        touched: &mut Touched,
    ) {
        let of_class = self.pod_groups.iter().filter(|(_, group)| {
            let name = group.spec.gang.priority_class_name.as_deref();
            is_of_class(name, class, default)
        });
        let keys: Vec<Key> = of_class.map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.read_gang(&key, touched);
        }
    }

    /// Reads gangs of a namespace (`None`: of all) again if a change affects their volume needs.
    pub(super) fn read_gangs_with(
        &mut self,
        namespace: Option<&str>,
        changed: impl Fn(&VolumeNeeds) -> bool,
        touched: &mut Touched,
    ) {
        let first = Key::new(namespace.unwrap_or_default(), "");
        let within = |key: &Key| namespace.is_none_or(|n| *n == *key.namespace);
        let gangs = self.gang_inputs.range(first..);
        let concerned = gangs
            .take_while(|(key, _)| within(key))
            .filter(|(_, gang)| {
                let mut templates = gang.workload.templates.iter();
                templates.any(|t| changed(&t.volumes))
            });
        let keys: Vec<Key> = concerned.map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.read_gang(&key, touched);
        }
    }

    pub(super) fn has_gangs(&self, namespace: &str) -> bool {
        let mut from = self.gang_inputs.range(Key::new(namespace, "")..);
        from.next()
            .is_some_and(|(key, _)| *key.namespace == *namespace)
    }

    fn gang_input(&self, key: &Key, previous: Option<&GangInput>) -> Option<GangInput> {
        let group = self.pod_groups.get(key)?;
        let uid = controller_uid(&**group)?;
        let of_namespace = |owner: &&Key| owner.namespace == key.namespace;
        let owner = self.workload_keys.get(uid).filter(of_namespace)?;
        let workload = self.workloads.get(owner)?;
        let class = group.spec.gang.priority_class_name.as_deref();
        let class = PriorityClass::resolve(class, self.priority_classes.values());
        let class = class.ok().flatten();
        let pods = PodSource::Cluster {
            admitted: self.admitted.get(uid).map(|spec| &spec.pods),
            storage: &self.storage,
        };
        let gang = GangInput::read(group, workload, class, pods, previous)?;
        Some(GangInput {
            provisioning: self.request_of(key, group, uid).map(|r| r.state.clone()),
            ..gang
        })
    }
}

/// True if `named` is `class`. Without a name, the default class applies.
pub(super) fn is_of_class(named: Option<&str>, class: &str, default: bool) -> bool {
    named.map_or(default, |named| named == class)
}
