//! Cache of victim searches without result. They are repeated only after a relevant change.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::member::Member;
use lockstep_model::{AskedAmounts, Budget, Snapshot, Weights};

use crate::context::Context;
use crate::gang::pending::Pending;
use crate::gang::state::GangState;
use crate::memory::equivalence_class::EquivalenceClass;
use crate::settings::SchedulerSettings;

#[derive(Debug, Default)]
pub(crate) struct NoVictimsCache {
    /// Input of the last search.
    searched: Option<Searched>,
    /// Incremented after each relevant change.
    version: u64,
    found: SearchCache<NoVictims>,
    /// Verdicts on gangs that got no search since the last change.
    unsearched: SearchCache<KnownWait>,
    /// Members that a gang requests if its quota permits only a part, by UID of the pod group.
    kept_to_quota: HashMap<String, BTreeSet<Member>>,
    /// True if the last cycle left gangs without a search. They are searched before gangs with a
    /// result.
    pub unfinished: bool,
}

/// The gang or class of gangs that a search is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SearchKey<'a> {
    /// A gang with a history, by UID of its pod group.
    Gang(&'a str),
    /// All gangs with equal requests.
    Class(&'a EquivalenceClass),
}

impl<'a> SearchKey<'a> {
    /// The class of gangs with these requests; a single gang if it has a history.
    pub fn of(class: Option<&'a EquivalenceClass>, uid: &'a str) -> Self {
        class.map_or(Self::Gang(uid), Self::Class)
    }
}

#[derive(Debug)]
struct SearchCache<T> {
    /// Gangs with a history, by UID of the pod group.
    gangs: HashMap<String, T>,
    /// All other gangs: one entry per class of equal requests.
    classes: Vec<(EquivalenceClass, T)>,
}

impl<T> Default for SearchCache<T> {
    fn default() -> Self {
        Self {
            gangs: HashMap::new(),
            classes: Vec::new(),
        }
    }
}

impl<T> SearchCache<T> {
    fn insert(&mut self, key: SearchKey<'_>, new: T) {
        match key {
            SearchKey::Gang(uid) => drop(self.gangs.insert(uid.to_owned(), new)),
            SearchKey::Class(new_class) => {
                self.classes.retain(|(class, _)| class != new_class);
                self.classes.push((new_class.clone(), new));
            }
        }
    }

    fn get(&self, key: SearchKey<'_>) -> Option<&T> {
        match key {
            SearchKey::Gang(uid) => self.gangs.get(uid),
            SearchKey::Class(wanted) => {
                let mut classes = self.classes.iter();
                let class = classes.find(|(class, _)| class == wanted);
                class.map(|(_, of_class)| of_class)
            }
        }
    }

    fn get_mut(&mut self, key: SearchKey<'_>) -> Option<&mut T> {
        match key {
            SearchKey::Gang(uid) => self.gangs.get_mut(uid),
            SearchKey::Class(wanted) => {
                let mut classes = self.classes.iter_mut();
                let class = classes.find(|(class, _)| class == wanted);
                class.map(|(_, of_class)| of_class)
            }
        }
    }

    fn values(&self) -> impl Iterator<Item = &T> {
        let classes = self.classes.iter().map(|(_, of_class)| of_class);
        self.gangs.values().chain(classes)
    }
}

#[derive(Debug)]
struct NoVictims {
    /// Version of the searched input.
    version: u64,
    /// End of the guaranteed run time of further candidates.
    until: Option<DateTime<Utc>>,
    pending: Pending,
    /// True if the result was used since the last cycle.
    used: bool,
    /// Final verdict for the gangs that share this search.
    verdict: Option<KnownWait>,
}

/// Verdict on waiting gangs, including free capacity and reservations.
#[derive(Debug)]
struct KnownWait {
    /// UIDs of the pod groups with reservations ahead.
    behind: Vec<String>,
    pending: Pending,
}

impl NoVictims {
    fn holds(&self, now: DateTime<Utc>) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

impl KnownWait {
    fn new<'u>(behind: impl Iterator<Item = &'u str>, pending: &Pending) -> Self {
        Self {
            behind: behind.map(str::to_owned).collect(),
            pending: pending.clone(),
        }
    }

    fn is_behind<'u>(&self, mut these: impl Iterator<Item = &'u str>) -> bool {
        let mut then = self.behind.iter();
        then.all(|uid| these.next() == Some(uid)) && these.next().is_none()
    }
}

/// Input of a victim search, except time and the gang.
#[derive(Debug)]
struct Searched {
    settings: SchedulerSettings,
    cluster: Snapshot,
    budgets: Vec<Arc<Budget>>,
    /// Weights decide the order of the queue.
    weights: Weights,
    /// Gangs with placements or reservations, and gangs with a history.
    gangs: Vec<GangState>,
}

impl NoVictimsCache {
    /// Compares the input with that of the last search. `asked`: amounts that all gangs request.
    /// `alone`: gangs that share no search.
    pub fn note(
        &mut self,
        context: &Context<'_>,
        asked: &AskedAmounts,
        gangs: &[GangState],
        alone: impl Fn(&GangState) -> bool,
    ) {
        let counts = |gang: &&GangState| !gang.only_waits() || gang.status.reservation.is_some();
        let counting: Vec<&GangState> = gangs.iter().filter(|g| counts(g) || alone(g)).collect();
        let unchanged = self.searched.as_ref().is_some_and(|last| {
            last.settings == *context.settings
                && last.weights == *context.weights
                && self.found_alike(last, context.budgets, &counting)
                && asked.make_no_difference(&last.cluster, context.cluster)
        });
        if !unchanged {
            self.version += 1;
            self.unsearched = SearchCache::default();
            self.searched = Some(Searched {
                settings: context.settings.clone(),
                cluster: context.cluster.clone(),
                budgets: context.budgets.to_vec(),
                weights: context.weights.clone(),
                gangs: counting.into_iter().cloned().collect(),
            });
        }
    }

    /// True if searches among these gangs would have the same results as the last ones.
    fn found_alike(&self, last: &Searched, budgets: &[Arc<Budget>], now: &[&GangState]) -> bool {
        // Budgets and checkpoints matter only if guarded pods would have freed enough.
        let mut found = self.found.values();
        let guarded = found.any(|f| matches!(f.pending, Pending::NoVictims { guarded: 1.., .. }));
        let checkpoint = |gang: &GangState| gang.input.workload.checkpoint;
        (!guarded || last.budgets == budgets)
            && last.gangs.len() == now.len()
            && last.gangs.iter().zip(now).all(|(then, now)| {
                then.searched_alike(now) && (!guarded || checkpoint(then) == checkpoint(now))
            })
    }

    /// Records the members that a gang's quota permits (`None`: all). A change drops the gang's
    /// results.
    pub fn note_quota(&mut self, uid: &str, members: Option<&BTreeSet<Member>>) {
        if self.kept_to_quota.get(uid) == members {
            return;
        }
        self.found.gangs.remove(uid);
        self.unsearched.gangs.remove(uid);
        self.kept_to_quota.remove(uid);
        if let Some(members) = members {
            self.kept_to_quota.insert(uid.to_owned(), members.clone());
        }
    }

    /// Valid result of the last search for the gang or its class.
    pub fn known(&self, key: SearchKey<'_>, now: DateTime<Utc>) -> Option<&Pending> {
        let known = self.found.get(key);
        known.filter(|k| k.holds(now)).map(|k| &k.pending)
    }

    /// Keeps the result of a class for the next cycle.
    pub fn mark_used(&mut self, key: SearchKey<'_>) {
        if let Some(found) = self.found.get_mut(key) {
            found.used = true;
        }
    }

    /// Records a search without result, valid until `until`.
    pub fn remember(&mut self, key: SearchKey<'_>, until: Option<DateTime<Utc>>, pending: Pending) {
        let found = NoVictims {
            version: self.version,
            until,
            pending,
            used: true,
            verdict: None,
        };
        self.found.insert(key, found);
    }

    /// Verdict behind these reservations, if the last search is current and found no victims.
    pub fn record_verdict<'u>(
        &mut self,
        key: SearchKey<'_>,
        behind: impl Iterator<Item = &'u str>,
        pending: &Pending,
    ) {
        let version = self.version;
        let found = self.found.get_mut(key).filter(|found| {
            found.version == version && matches!(found.pending, Pending::NoVictims { .. })
        });
        if let Some(found) = found {
            found.verdict = Some(KnownWait::new(behind, pending));
        }
    }

    /// Verdict behind these reservations, while no relevant input has changed.
    pub fn verdict<'u>(
        &self,
        key: SearchKey<'_>,
        behind: impl Iterator<Item = &'u str>,
        now: DateTime<Utc>,
    ) -> Option<&Pending> {
        let found = self.found.get(key)?;
        let current = found.version == self.version && found.holds(now);
        let verdict = found.verdict.as_ref().filter(|_| current)?;
        verdict.is_behind(behind).then_some(&verdict.pending)
    }

    /// Records the verdict on gangs that got no search, behind these reservations.
    pub fn record_unsearched<'u>(
        &mut self,
        key: SearchKey<'_>,
        behind: impl Iterator<Item = &'u str>,
        pending: &Pending,
    ) {
        self.unsearched.insert(key, KnownWait::new(behind, pending));
    }

    /// Verdict behind these reservations if the gang gets no search again. `None` if a search has
    /// run since.
    pub fn unsearched<'u>(
        &self,
        key: SearchKey<'_>,
        behind: impl Iterator<Item = &'u str>,
        now: DateTime<Utc>,
    ) -> Option<&Pending> {
        if self.found.get(key).is_some_and(|found| found.holds(now)) {
            return None;
        }
        let verdict = self.unsearched.get(key)?;
        verdict.is_behind(behind).then_some(&verdict.pending)
    }

    pub fn finish(&mut self, unfinished: bool) {
        self.unfinished = unfinished;
        if !unfinished {
            self.unsearched = SearchCache::default();
        }
    }

    /// Drops outdated results.
    pub fn expire(&mut self, now: DateTime<Utc>) {
        let version = self.version;
        let holds = |known: &NoVictims| known.version == version && known.holds(now);
        self.found.gangs.retain(|_, known| holds(known));
        self.found.classes.retain(|(_, known)| holds(known));
    }

    pub fn outdated(&self) -> bool {
        self.found
            .values()
            .any(|known| known.version != self.version)
    }

    /// Times at which results become outdated without a change.
    pub fn ends(&self) -> impl Iterator<Item = DateTime<Utc>> {
        self.found.values().filter_map(|known| known.until)
    }

    /// Drops everything, because no gang waits.
    pub fn clear(&mut self) {
        self.found = SearchCache::default();
        self.kept_to_quota.clear();
        self.searched = None;
        self.finish(false);
    }

    /// Drops deleted gangs, and classes without use since the last call.
    pub fn retain(&mut self, there: impl Fn(&str) -> bool) {
        self.found.gangs.retain(|uid, _| there(uid));
        self.kept_to_quota.retain(|uid, _| there(uid));
        let classes = &mut self.found.classes;
        classes.retain_mut(|(_, known)| std::mem::take(&mut known.used));
    }
}
