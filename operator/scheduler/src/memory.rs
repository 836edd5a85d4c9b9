//! What the scheduler remembers between cycles. All of it may be lost: it saves work and writes,
//! and paces what is repeated. Which nodes, victims and gangs are chosen does not depend on it:
//! what kube-scheduler and the budgets refused is in the status of the pod groups.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use lockstep_api::PodGroup;
use lockstep_api::key::Key;
use lockstep_engine::NodeSet;
use lockstep_model::{Budget, Snapshot, Verdicts, Weights};

use crate::claims::ClaimMemory;
use crate::context::Context;
use crate::input::{GangInput, PodGroupInput, TemplateInput, TemplateNodes};
use crate::pending::Pending;
use crate::state::GangState;
use crate::unknown::UnknownGangs;

/// What the scheduler remembers.
#[derive(Debug, Default)]
pub struct Memory {
    /// Pod groups as our own writes left them, until the watch has caught up.
    written: BTreeMap<Key, PodGroupInput>,
    /// Since when kube-scheduler refuses a pod, by UID.
    pub(crate) refused_since: HashMap<String, DateTime<Utc>>,
    /// When the eviction of a single pod was requested last, by UID.
    pub(crate) evicted_at: HashMap<String, DateTime<Utc>>,
    /// What the API server last said about evicting a pod, by UID.
    eviction_answers: HashMap<String, EvictionAnswer>,
    /// Claims for volumes that ended a refusal.
    pub(crate) claims: ClaimMemory,
    /// Gangs of which a search could not say whether they fit.
    pub(crate) unknown: UnknownGangs,
    /// Searches for victims that found none.
    pub(crate) no_victims: NoVictimsCache,
    /// When a gang was last told what is short, by the UID of its pod group.
    pub(crate) told: HashMap<String, DateTime<Utc>>,
    verdicts: Verdicts,
}

/// How long a pod is no candidate whose eviction the API server has refused: budgets change.
pub(crate) const REFUSAL_HOLDS: Duration = Duration::from_mins(1);

/// Whether budgets would allow an eviction.
#[derive(Clone, Copy, Debug)]
struct EvictionAnswer {
    allowed: bool,
    at: DateTime<Utc>,
}

/// Gangs for which no victims were found: the search is not made again before something has
/// changed.
#[derive(Debug, Default)]
pub(crate) struct NoVictimsCache {
    /// What was searched last.
    searched: Option<Searched>,
    /// Another number whenever something has changed since the search before.
    pub version: u64,
    /// By the UID of the pod group.
    pub gangs: HashMap<String, NoVictims>,
    /// Whether the last cycle left gangs for which it did not search: they come before those that
    /// were searched for.
    pub unfinished: bool,
}

/// A gang for which no victims were found.
#[derive(Debug)]
pub(crate) struct NoVictims {
    /// The version that was searched.
    pub version: u64,
    /// When work may be evicted that may not be yet.
    pub until: Option<DateTime<Utc>>,
    /// Why the gang waits.
    pub pending: Pending,
}

impl NoVictims {
    fn holds(&self, now: DateTime<Utc>) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// Everything that the result of a search for victims depends on, beside time.
#[derive(Debug, PartialEq)]
struct Searched {
    cluster: u64,
    budgets: Vec<Arc<Budget>>,
    /// The order of the queue follows from them.
    weights: Weights,
    gangs: Vec<GangState>,
}

impl NoVictimsCache {
    /// Takes note of what is about to be searched.
    pub fn note(&mut self, context: &Context<'_>, gangs: &[GangState]) {
        let now = Searched {
            cluster: context.cluster.version(),
            budgets: context.budgets.to_vec(),
            weights: context.weights.clone(),
            gangs: gangs.iter().map(GangState::as_searched).collect(),
        };
        if self.searched.as_ref() != Some(&now) {
            self.version += 1;
            self.searched = Some(now);
        }
    }

    /// What the last search for a gang found, while it holds.
    pub fn known(&self, uid: &str, now: DateTime<Utc>) -> Option<&Pending> {
        let known = self.gangs.get(uid).filter(|known| known.holds(now))?;
        Some(&known.pending)
    }

    /// Takes note of a search for a gang that found nobody; it holds `until` then at most. Returns why
    /// the gang waits.
    pub fn remember(
        &mut self,
        uid: &str,
        until: Option<DateTime<Utc>>,
        pending: Pending,
    ) -> Pending {
        let known = NoVictims {
            version: self.version,
            until,
            pending: pending.clone(),
        };
        self.gangs.insert(uid.to_owned(), known);
        pending
    }

    /// Forgets what may be different now.
    pub fn expire(&mut self, now: DateTime<Utc>) {
        let version = self.version;
        self.gangs
            .retain(|_, known| known.version == version && known.holds(now));
    }

    /// Forgets everything: no gang waits.
    pub fn clear(&mut self) {
        self.gangs.clear();
        self.searched = None;
        self.unfinished = false;
    }
}

impl Memory {
    /// Takes note of a pod group that we wrote.
    pub fn wrote(&mut self, key: Key, group: &PodGroup) {
        if let Some(group) = PodGroupInput::read(group, None) {
            self.written.insert(key, group);
        }
    }

    /// Whether a write of ours to this pod group is awaited from the watch.
    pub fn awaits(&self, key: &Key) -> bool {
        self.written.contains_key(key)
    }

    /// Takes note of what the API server says about evicting a pod.
    pub fn answered(&mut self, uid: String, allowed: bool, at: DateTime<Utc>) {
        let answer = EvictionAnswer { allowed, at };
        self.eviction_answers.insert(uid, answer);
    }

    /// Whether the pod may be evicted, as the API server has said no longer ago than this; `None`
    /// where it was not asked.
    pub(crate) fn may_evict(&self, uid: &str, since: DateTime<Utc>) -> Option<bool> {
        let answer = self.eviction_answers.get(uid)?;
        (answer.at >= since).then_some(answer.allowed)
    }

    /// Pods, by UID, of which the API server has said since then that they may not be evicted.
    pub(crate) fn may_not_evict(&self, since: DateTime<Utc>) -> BTreeSet<String> {
        let refused = self.eviction_answers.iter();
        refused
            .filter(|(_, answer)| !answer.allowed && answer.at >= since)
            .map(|(uid, _)| uid.clone())
            .collect()
    }

    /// Forgets answers that are older than this.
    pub(crate) fn expire_answers(&mut self, before: DateTime<Utc>) {
        self.eviction_answers
            .retain(|_, answer| answer.at >= before);
    }

    /// The gang as we know it: the watch may lag behind our own writes. Versions of one object are
    /// comparable numbers (KEP-5504); one that is not a number is never preferred.
    pub(crate) fn latest(&mut self, seen: &Arc<GangInput>) -> Arc<GangInput> {
        let version = |g: &PodGroupInput| g.resource_version.parse::<u64>().unwrap_or(0);
        match self.written.get(&seen.key) {
            Some(own) if own.uid == seen.group.uid && version(own) > version(&seen.group) => {
                Arc::new(GangInput {
                    group: own.clone(),
                    ..(**seen).clone()
                })
            }
            Some(_) => {
                self.written.remove(&seen.key);
                Arc::clone(seen)
            }
            None => Arc::clone(seen),
        }
    }

    /// Nodes that admit the pods of a group.
    pub(crate) fn eligible(
        &mut self,
        gang: &GangInput,
        template: &TemplateInput,
        cluster: &Snapshot,
    ) -> Arc<NodeSet> {
        match &template.nodes {
            TemplateNodes::Satisfying(constraints) => {
                // The template of a group changes only with the generation of its workload.
                let workload = &gang.workload;
                let key = format!(
                    "{}/{}/{}",
                    workload.uid, workload.generation, template.group
                );
                self.verdicts.eligible(&key, constraints, cluster)
            }
            TemplateNodes::Recorded(names) => Arc::new(
                names
                    .iter()
                    .filter_map(|name| cluster.ordinal(name))
                    .collect(),
            ),
        }
    }

    /// Forgets what a cycle did not come across: pod groups, pods that are refused, pods that are
    /// being evicted.
    pub(crate) fn retain(
        &mut self,
        gangs: &[GangState],
        refused: &HashSet<String>,
        evicting: impl Fn(&str) -> bool,
    ) {
        let uids: HashSet<&str> = gangs.iter().map(GangState::uid).collect();
        let keys: HashSet<&Key> = gangs.iter().map(|g| &g.input.key).collect();
        self.written.retain(|key, _| keys.contains(key));
        self.evicted_at.retain(|uid, _| evicting(uid));
        self.verdicts.retain_used();
        self.refused_since.retain(|uid, _| refused.contains(uid));
        self.claims.retain(|uid| uids.contains(uid));
        self.unknown.retain(|uid| uids.contains(uid));
        self.told.retain(|uid, _| uids.contains(uid.as_str()));
        self.no_victims
            .gangs
            .retain(|uid, _| uids.contains(uid.as_str()));
    }
}
