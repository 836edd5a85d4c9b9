//! State between cycles, which can be lost: it saves work and writes, and limits repeated requests.
//! It decides about nodes, victims and gangs in one case only: after a refused dry-run eviction, a
//! pod is no candidate for one minute. How long a pod is refused or a node is unusable counts again
//! after a loss. Refusals by kube-scheduler and by budgets are in the status of the pod groups.

mod claims;
mod undecided;

pub(crate) mod backoff;
pub(crate) mod cached_cycle;
pub(crate) mod equivalence_class;
pub(crate) mod inadmissible;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use lockstep_api::PodGroup;
use lockstep_api::ids::Uid;
use lockstep_api::key::Key;
use lockstep_engine::NodeSet;
use lockstep_model::{Snapshot, Verdicts};

use self::cached_cycle::CachedCycle;
use self::claims::ClaimMemory;
use self::inadmissible::InadmissibleGangs;
use self::undecided::UndecidedGangs;
use crate::gang::member_pods::MemberPods;
use crate::gang::state::GangState;
use crate::input::{GangInput, PodGroupInput, TemplateInput, TemplateNodes};
use crate::pace::Evictions;

#[derive(Debug, Default)]
pub struct Memory {
    /// Pod groups as last written by the scheduler, until the watch has delivered the write.
    written: BTreeMap<Key, PodGroupInput>,
    /// Refused pods, by UID.
    pub(crate) refused: HashMap<String, RefusedPod>,
    /// Unbound pods since the cycle that first saw them, by UID.
    waiting_pods: HashMap<Uid, DateTime<Utc>>,
    /// Start of the time in which a decided node cannot take pods for another reason than silence,
    /// by UID of the pod group and name of the node.
    pub(crate) unusable_since: HashMap<(String, String), DateTime<Utc>>,
    /// Start of the time in which the pods of a gang are neither bound nor refused in time, by UID
    /// of its pod group.
    pub(crate) timed_out_since: HashMap<String, DateTime<Utc>>,
    /// Start of the time in which a gang with a node demand would fit without its required levels, by
    /// UID of its pod group.
    pub(crate) fits_without_levels_since: HashMap<String, DateTime<Utc>>,
    /// Last requested eviction of a single pod, by UID.
    pub(crate) evicted_at: HashMap<String, DateTime<Utc>>,
    pub(crate) evictions: Evictions,
    /// Last dry-run result for the eviction of a pod, by UID.
    dry_runs: HashMap<Uid, DryRun>,
    pub(crate) claims: ClaimMemory,
    pub(crate) undecided: UndecidedGangs,
    pub(crate) inadmissible: InadmissibleGangs,
    /// Last status write of a gang, by UID of its pod group.
    pub(crate) status_written_at: HashMap<String, DateTime<Utc>>,
    /// The last cycle, if it was idle.
    pub(crate) cached_cycle: Option<CachedCycle>,
    pub(crate) pods: MemberPods,
    /// Changes only with its verdicts, so readers of a cycle share it.
    verdicts: RefCell<Verdicts>,
}

/// How long a pod is no candidate after a refused eviction, because budgets change.
pub(crate) const REFUSAL_HOLDS: Duration = Duration::from_mins(1);

/// A pod that kube-scheduler refuses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RefusedPod {
    /// First cycle after the end of the refusal's known cause. `None` while the cause lasts.
    pub since: Option<DateTime<Utc>>,
    /// Time from which the refusal counts against the node: later than `since` while kube-scheduler
    /// binds pods that were waiting before.
    pub counts_from: Option<DateTime<Utc>>,
    /// True if the refusal may be older than the end of its cause.
    pub outdated: bool,
}

#[derive(Clone, Copy, Debug)]
struct DryRun {
    allowed: bool,
    at: DateTime<Utc>,
}

impl Memory {
    /// A memory that knows only since when kube-scheduler refuses pods and nodes are unusable.
    #[must_use]
    pub fn only_refusals(&self) -> Self {
        Self {
            refused: self.refused.clone(),
            waiting_pods: self.waiting_pods.clone(),
            unusable_since: self.unusable_since.clone(),
            ..Self::default()
        }
    }

    /// Notes pods that kube-scheduler has bound since the last cycle. While it binds pods that were
    /// waiting before a refusal could end, it has not tried the refused pod again.
    pub(crate) fn note_bindings(&mut self, gangs: &[GangState], now: DateTime<Utc>) {
        let before = std::mem::take(&mut self.waiting_pods);
        let unbound = gangs.iter().flat_map(|gang| gang.pods.unbound.iter());
        let waiting = unbound.filter(|pod| !pod.ended() && !pod.gated());
        self.waiting_pods = waiting
            .map(|pod| {
                (
                    pod.uid.clone(),
                    before.get(&pod.uid).copied().unwrap_or(now),
                )
            })
            .collect();
        if before.is_empty() || self.refused.is_empty() {
            return;
        }
        let bound = gangs.iter().flat_map(GangState::all_pods);
        let bound = bound.filter(|pod| pod.bound.is_some());
        let first = bound.filter_map(|pod| before.get(&pod.uid).copied()).min();
        for refused in self.refused.values_mut() {
            if refused
                .since
                .is_some_and(|since| first.is_some_and(|first| first <= since))
            {
                (refused.counts_from, refused.outdated) = (Some(now), true);
            }
        }
    }

    pub fn wrote(&mut self, key: Key, group: &PodGroup) {
        self.cached_cycle = None;
        if let Some(group) = PodGroupInput::read(group, None) {
            self.written.insert(key, group);
        }
    }

    pub fn written(&self, key: &Key) -> Option<&PodGroupInput> {
        self.written.get(key)
    }

    pub fn note_dry_run(&mut self, uid: Uid, allowed: bool, at: DateTime<Utc>) {
        self.cached_cycle = None;
        let dry_run = DryRun { allowed, at };
        self.dry_runs.insert(uid, dry_run);
    }

    /// Whether the API server permits the eviction. `None` without a dry run since `since`.
    pub fn may_evict(&self, uid: &str, since: DateTime<Utc>) -> Option<bool> {
        let dry_run = self.dry_runs.get(uid)?;
        (dry_run.at >= since).then_some(dry_run.allowed)
    }

    /// UIDs of pods whose eviction the API server has refused since then.
    pub(crate) fn may_not_evict(&self, since: DateTime<Utc>) -> BTreeSet<String> {
        let refused = self.dry_runs.iter();
        refused
            .filter(|(_, dry_run)| !dry_run.allowed && dry_run.at >= since)
            .map(|(uid, _)| uid.to_string())
            .collect()
    }

    pub(crate) fn expire_dry_runs(&mut self, before: DateTime<Utc>) {
        self.dry_runs.retain(|_, dry_run| dry_run.at >= before);
    }

    /// The newer of the watched and the written gang. Resource versions of one object are
    /// comparable numbers (KEP-5504). A version that is no number is never preferred.
    pub(crate) fn latest(&mut self, watched: &Arc<GangInput>) -> Arc<GangInput> {
        match self.written(&watched.key) {
            Some(own)
                if own.uid == watched.group.uid
                    && own.version_number() > watched.group.version_number() =>
            {
                Arc::new(GangInput {
                    group: own.clone(),
                    ..(**watched).clone()
                })
            }
            Some(_) => {
                self.written.remove(&watched.key);
                Arc::clone(watched)
            }
            None => Arc::clone(watched),
        }
    }

    pub(crate) fn eligible(
        &self,
        gang: &GangInput,
        template: &TemplateInput,
        cluster: &Snapshot,
    ) -> Arc<NodeSet> {
        match &template.nodes {
            TemplateNodes::Satisfying(constraints) => {
                // A template changes with the generation of its workload; its admitted pods change
                // with the dry run.
                let workload = &gang.workload;
                let key = format!(
                    "{}/{}/{}/{}",
                    workload.uid, workload.generation, workload.admitted, template.group
                );
                self.verdicts
                    .borrow_mut()
                    .eligible(&key, constraints, cluster)
            }
            TemplateNodes::Recorded(names) => Arc::new(
                names
                    .iter()
                    .filter_map(|name| cluster.ordinal(name))
                    .collect(),
            ),
        }
    }

    /// Drops entries for gangs and pods that the cycle did not visit.
    pub(crate) fn retain(&mut self, gangs: &[GangState], evicting: impl Fn(&str) -> bool) {
        let uids: HashSet<&str> = gangs.iter().map(GangState::uid).collect();
        let keys: HashSet<&Key> = gangs.iter().map(|g| &g.input.key).collect();
        self.written.retain(|key, _| keys.contains(key));
        self.evicted_at.retain(|uid, _| evicting(uid));
        self.verdicts.get_mut().retain_used();
        let pursue = |gang: &&GangState| gang.status.preemption.is_some();
        let pursue: HashSet<&str> = gangs.iter().filter(pursue).map(GangState::uid).collect();
        self.timed_out_since
            .retain(|uid, _| pursue.contains(uid.as_str()));
        self.unusable_since
            .retain(|(uid, _), _| uids.contains(uid.as_str()));
        self.fits_without_levels_since
            .retain(|uid, _| uids.contains(uid.as_str()));
        self.claims.retain(|uid| uids.contains(uid));
        self.undecided.retain(|uid| uids.contains(uid));
        self.status_written_at
            .retain(|uid, _| uids.contains(uid.as_str()));
        self.pods.retain(|uid| uids.contains(uid));
    }
}
