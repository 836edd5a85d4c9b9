//! What must hold whatever happens, looked at after every step: the invariants of the design.
//!
//! | | invariant | where |
//! |---|---|---|
//! | I1 | nothing of a new attempt is made while a training container of the old one runs, where pods are recreated | [`attempts`] |
//! | I2 | an incident takes one unit of budget | [`statuses`] |
//! | I3 | at rest a gang has at least what it needs, or holds nothing | [`rest`] |
//! | I4 | the manager writes only what is its own, and names it by UID or version | [`ownership`] |
//! | I5 | once faults stop, everything that can run runs, and nothing is written any more | [`rest`] |
//! | I6 | attempts, counters and generations never go back; an end is final | [`statuses`] |
//! | I7 | of a deleted workload nothing is left | [`rest`] |
//! | I8 | what waits says why; nobody writes again and again | [`rest`], [`pace`] |
//! | I10 | preempted are whole units of strictly lower priority, those of a stored intent only | [`preemption`] |
//! | I11 | capacity is never promised twice among gangs | [`capacity`] |
//! | I12 | after a preemption that was of no use, or a refusal that is not about capacity, no other | [`preemption`] |
//! | I13 | who holds capacity and does not come to run keeps nobody waiting for ever | [`holders`] |
//! | I14 | who makes no progress in time is found, and nobody else; each hang is answered once | [`hangs`] |
//! | I15 | a member that is refused or does not start costs running members of policy Basic nothing | [`independent`] |
//! | I16 | a group whose dependency is broken starts nothing and is not charged | [`dependencies`] |
//! | I17 | a pod whose checkpoint is requested is not stopped; each request ends in time | [`checkpoints`] |
//! | I18 | a gang moves once for a signal of a node; no deadline passes without a request | [`moves`] |
//!
//! I9 is about a lease, which a stepped manager does not have: `operator/manager/src/api` tests it.
//! What I13 says of reservations: `operator/scheduler/tests/suite`.
//!
//! The oracles read the store and the log of writes, never the product's memory, and none of the
//! product's decisions.

mod attempts;
mod capacity;
mod checkpoints;
mod dependencies;
mod hangs;
mod holders;
mod independent;
mod moves;
mod ownership;
mod pace;
mod preemption;
mod rest;
mod statuses;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::key::Key;
use lockstep_api::{PodGroup, RestartOrder, TrainingWorkload};
use lockstep_manager::stepped::WatchedKind;
use serde::Deserialize;

use crate::SimCluster;
use crate::api::{Verb, Write};

use dependencies::Dependents;
pub use rest::left;
pub use statuses::check_order;

/// The oracles, with what they have seen so far.
#[derive(Default)]
pub struct Oracles {
    /// Writes of the log that were looked at.
    read: usize,
    /// Workloads that ever were, by UID, as they were last.
    workloads: BTreeMap<String, TrainingWorkload>,
    /// UIDs of those that are not there any more.
    gone: BTreeSet<String>,
    /// Pod groups of workloads that are there, by UID.
    groups: BTreeMap<String, PodGroup>,
    /// UIDs of workloads that were resized: what runs is not disturbed until there is capacity for
    /// the others (docs/decisions/0009).
    resized: BTreeSet<String>,
    capacity: capacity::Capacity,
    dependents: dependencies::Dependents,
    hangs: hangs::Hangs,
    holders: holders::Holders,
    moves: moves::Moves,
    pace: pace::Pace,
    preemption: preemption::Preemptions,
    /// Writes looked at, by oracle, that could have broken it.
    pub looked: BTreeMap<&'static str, usize>,
}

/// What is broken, by invariant.
type Broken = Vec<(&'static str, Vec<String>)>;

impl Oracles {
    /// Looks at what was written since the last time; what is broken, in words.
    pub fn look(&mut self, cluster: &mut SimCluster) -> Vec<String> {
        let new: Vec<Write> = {
            let store = cluster.store();
            let new = store.log[self.read..].to_vec();
            self.read = store.log.len();
            new
        };
        let mut broken = Vec::new();
        for write in &new {
            for (which, found) in self.judge(write, cluster) {
                *self.looked.entry(which).or_default() += 1;
                let by = write.line();
                broken.extend(
                    found
                        .into_iter()
                        .map(|text| format!("{which}: {text}\n    by {by}")),
                );
            }
        }
        broken.extend(hangs::unnoticed(cluster, &self.workloads));
        let held = self.holders.look(cluster, &self.groups, &self.workloads);
        if let Some(held) = held {
            *self.looked.entry("I13").or_default() += 1;
            broken.extend(held);
        }
        let missed = self.moves.look(cluster, &self.groups, &self.workloads);
        broken.extend(missed);
        self.looked.extend(self.hangs.counts());
        self.looked.extend(self.moves.counts());
        broken
    }

    /// What is broken some time after faults have stopped, while training goes on.
    pub fn look_at_training(&self, cluster: &SimCluster) -> Vec<String> {
        hangs::unanswered(cluster, &self.workloads)
    }

    /// What is broken once everything has come to rest.
    pub fn look_at_rest(&self, cluster: &mut SimCluster) -> Vec<String> {
        let partial = self.resized.union(self.capacity.forged()).cloned();
        rest::at_rest(cluster, &partial.collect())
    }

    /// What a write breaks, by invariant.
    fn judge(&mut self, write: &Write, cluster: &mut SimCluster) -> Broken {
        let mut found = Vec::new();
        let mut note = |which: &'static str, broken: Vec<String>| found.push((which, broken));
        if is_ours(write) {
            note("I4", ownership::judge(write, &self.workloads, &self.groups));
            note("I8", self.pace.judge(write));
        }
        match write.kind {
            WatchedKind::TrainingWorkload => {
                for (which, broken) in self.workload(write, cluster) {
                    note(which, broken);
                }
            }
            WatchedKind::PodGroup if write.verb == Verb::Gone => {
                self.groups.remove(&write.uid);
            }
            WatchedKind::PodGroup => {
                let new: PodGroup = read(write);
                if self.gone.iter().any(|uid| controls(uid, &new.metadata)) {
                    return found;
                }
                let old = self.groups.insert(write.uid.clone(), new);
                self.moves.places(old.as_ref(), &self.groups[&write.uid]);
                if is_ours(write) && write.verb == Verb::UpdateStatus {
                    let new = &self.groups[&write.uid];
                    note(
                        "I11",
                        self.capacity.judge(
                            old.as_ref(),
                            new,
                            &self.groups,
                            &self.workloads,
                            cluster,
                        ),
                    );
                    note(
                        "I10",
                        self.preemption.marks(write, old.as_ref(), &self.groups),
                    );
                    let claimless = claimless(new, &self.workloads, cluster);
                    note("I12", self.preemption.intends(old.as_ref(), new, claimless));
                }
            }
            WatchedKind::Node => self.capacity.offered(write),
            WatchedKind::NodeAgent if !is_ours(write) => {
                note("I14", self.hangs.report(write, &self.workloads, cluster));
            }
            WatchedKind::Pod if write.verb == Verb::Create && !is_ours(write) => {
                self.capacity.stands_in(write);
            }
            WatchedKind::Pod if write.who == "scheduler" => {
                if matches!(write.verb, Verb::Evict | Verb::Delete | Verb::Gone) {
                    let store = cluster.store();
                    let pods = store.all(WatchedKind::Pod).map(|(_, pod)| pod);
                    let (groups, workloads) = (&self.groups, &self.workloads);
                    let broken = self.preemption.evicts(write, groups, workloads, pods);
                    drop(store);
                    note("I10", broken);
                }
            }
            WatchedKind::Pod if write.who == "controller" && write.verb == Verb::Delete => {
                note("I17", checkpoints::stops(write, &self.workloads));
            }
            WatchedKind::Pod if write.who == "controller" && write.verb == Verb::Create => {
                note("I1", attempts::judge(write, &self.workloads, cluster));
                let owner = ownership::owner(&write.object);
                if let Some(workload) = owner.and_then(|owner| self.workloads.get(owner)) {
                    let started = Dependents::creates(&write.object, workload, &self.groups);
                    note("I16", started);
                }
            }
            WatchedKind::RestartOrder if is_ours(write) && write.verb != Verb::Gone => {
                let order: RestartOrder = read(write);
                if let Some(workload) = self.workloads.get(&order.spec.workload_uid) {
                    let starts = self.dependents.orders(&order, workload, &self.groups);
                    note("I16", starts);
                }
            }
            _ => {}
        }
        found
    }

    fn workload(&mut self, write: &Write, cluster: &mut SimCluster) -> Broken {
        let mut found = Vec::new();
        let mut note = |which: &'static str, broken: Vec<String>| found.push((which, broken));
        let new: TrainingWorkload = read(write);
        let old = self.workloads.insert(write.uid.clone(), new.clone());
        if old.as_ref().is_some_and(|old| sizes(old) != sizes(&new)) {
            self.resized.insert(write.uid.clone());
        }
        if write.verb == Verb::Gone {
            self.gone.insert(write.uid.clone());
            // What its gangs hold, their pods hold: the groups go with the collector.
            self.groups
                .retain(|_, group| !controls(&write.uid, &group.metadata));
        }
        if write.verb == Verb::UpdateStatus && is_ours(write) {
            note("I14", self.hangs.answer(&new, &self.workloads, cluster));
            if let Some(old) = &old {
                note("I16", Dependents::charges(old, &new));
            }
            let before = old.and_then(|w| w.status).unwrap_or_default();
            let after = new.status.clone().unwrap_or_default();
            note(
                "I15",
                independent::judge(&new, &before, &after, write.at, cluster),
            );
            note("I2 I6", check_order(&before, &after));
            note("I18", self.moves.begins(&before, &new, write.at));
            note("I17", checkpoints::late(&after, write.at));
            for outcome in checkpoints::outcomes(&before, &after) {
                note(outcome.as_str(), Vec::new());
            }
        }
        found
    }
}

fn sizes(workload: &TrainingWorkload) -> Vec<i32> {
    let spec = &workload.spec;
    spec.groups.iter().map(|g| spec.members_of(g)).collect()
}

fn controls(uid: &str, metadata: &ObjectMeta) -> bool {
    let mut owners = metadata.owner_references.iter().flatten();
    owners.any(|o| o.controller == Some(true) && o.uid == uid)
}

/// Whether the pods of a gang name a claim that does not exist.
fn claimless(
    group: &PodGroup,
    workloads: &BTreeMap<String, TrainingWorkload>,
    cluster: &SimCluster,
) -> bool {
    let owner = workloads
        .iter()
        .find(|(uid, _)| controls(uid, &group.metadata));
    owner.is_some_and(|(_, w)| {
        let spec = serde_json::to_string(&w.spec.groups).unwrap_or_default();
        let name = format!("data-{}", w.metadata.name.as_deref().unwrap_or_default());
        let claim = Key::new(w.metadata.namespace.as_deref().unwrap_or_default(), &name);
        let there = cluster.get::<PersistentVolumeClaim>(&claim).is_some();
        spec.contains(&name) && !there
    })
}

/// Whether the manager wrote it.
fn is_ours(write: &Write) -> bool {
    matches!(write.who.as_str(), "controller" | "scheduler")
}

fn read<K: for<'de> Deserialize<'de>>(write: &Write) -> K {
    K::deserialize(&*write.object).unwrap_or_else(|error| panic!("{}: {error}", write.line()))
}
