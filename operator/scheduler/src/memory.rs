//! What the scheduler remembers between cycles. All of it may be lost: it saves work and writes,
//! and paces what is repeated. Which nodes, victims and gangs are chosen does not depend on it, but
//! for a minute after the API server has refused an eviction that was only asked for: what
//! kube-scheduler and the budgets refused is in the status of the pod groups.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use lockstep_api::PodGroup;
use lockstep_api::ids::Uid;
use lockstep_api::key::Key;
use lockstep_engine::NodeSet;
use lockstep_model::{Snapshot, Verdicts};

use crate::claims::ClaimMemory;
use crate::input::{GangInput, PodGroupInput, TemplateInput, TemplateNodes};
use crate::member_pods::MemberPods;
use crate::no_victims::NoVictimsCache;
use crate::pace::Evictions;
use crate::rest::Rest;
use crate::state::GangState;
use crate::unknown::UnknownGangs;

/// What the scheduler remembers.
#[derive(Debug, Default)]
pub struct Memory {
    /// Pod groups as our own writes left them, until the watch has caught up.
    written: BTreeMap<Key, PodGroupInput>,
    /// Since when kube-scheduler refuses a pod, by UID.
    pub(crate) refused_since: HashMap<String, DateTime<Utc>>,
    /// Since when nobody has bound or refused pods of a gang for too long, by the UID of its pod group.
    pub(crate) unanswered_since: HashMap<String, DateTime<Utc>>,
    /// When the eviction of a single pod was requested last, by UID.
    pub(crate) evicted_at: HashMap<String, DateTime<Utc>>,
    /// Evictions of the last minute.
    pub(crate) evictions: Evictions,
    /// What the API server last said about evicting a pod, by UID.
    eviction_answers: HashMap<Uid, EvictionAnswer>,
    /// Claims for volumes that ended a refusal.
    pub(crate) claims: ClaimMemory,
    /// Gangs of which a search could not say whether they fit.
    pub(crate) unknown: UnknownGangs,
    /// Searches for victims that found none.
    pub(crate) no_victims: NoVictimsCache,
    /// When the status of a gang was last written, by the UID of its pod group.
    pub(crate) status_written_at: HashMap<String, DateTime<Utc>>,
    /// The last cycle, if it left nothing to do.
    pub(crate) rest: Option<Rest>,
    pub(crate) pods: MemberPods,
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

impl Memory {
    /// Takes note of a pod group that we wrote.
    pub fn wrote(&mut self, key: Key, group: &PodGroup) {
        self.rest = None;
        if let Some(group) = PodGroupInput::read(group, None) {
            self.written.insert(key, group);
        }
    }

    /// The pod group as our last write left it, while that is awaited from the watch.
    pub fn written(&self, key: &Key) -> Option<&PodGroupInput> {
        self.written.get(key)
    }

    /// Takes note of what the API server says about evicting a pod.
    pub fn answered(&mut self, uid: Uid, allowed: bool, at: DateTime<Utc>) {
        self.rest = None;
        let answer = EvictionAnswer { allowed, at };
        self.eviction_answers.insert(uid, answer);
    }

    /// Whether the pod may be evicted, as the API server has said no longer ago than this; `None`
    /// where it was not asked.
    pub fn may_evict(&self, uid: &str, since: DateTime<Utc>) -> Option<bool> {
        let answer = self.eviction_answers.get(uid)?;
        (answer.at >= since).then_some(answer.allowed)
    }

    /// Pods, by UID, of which the API server has said since then that they may not be evicted.
    pub(crate) fn may_not_evict(&self, since: DateTime<Utc>) -> BTreeSet<String> {
        let refused = self.eviction_answers.iter();
        refused
            .filter(|(_, answer)| !answer.allowed && answer.at >= since)
            .map(|(uid, _)| uid.to_string())
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
        match self.written(&seen.key) {
            Some(own)
                if own.uid == seen.group.uid
                    && own.version_number() > seen.group.version_number() =>
            {
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
                // The template of a group changes only with the generation of its workload, and what
                // is made of it with the answer to a dry run.
                let workload = &gang.workload;
                let key = format!(
                    "{}/{}/{}/{}",
                    workload.uid, workload.generation, workload.admitted, template.group
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
        let pursue = |gang: &&GangState| gang.status.preemption.is_some();
        let pursue = gangs.iter().filter(pursue).map(GangState::uid);
        let pursue: HashSet<&str> = pursue.collect();
        self.unanswered_since
            .retain(|uid, _| pursue.contains(uid.as_str()));
        self.claims.retain(|uid| uids.contains(uid));
        self.unknown.retain(|uid| uids.contains(uid));
        self.status_written_at
            .retain(|uid, _| uids.contains(uid.as_str()));
        self.no_victims.retain(|uid| uids.contains(uid));
        self.pods.retain(|uid| uids.contains(uid));
    }
}
