//! Gangs for which no victims were found: the search is not made again before something has changed
//! that could make a difference.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::member::Member;
use lockstep_model::{AskedAmounts, Budget, Snapshot, Weights};

use crate::asks::Asks;
use crate::context::Context;
use crate::pending::Pending;
use crate::settings::SchedulerSettings;
use crate::state::GangState;

/// Searches for victims that found none.
#[derive(Debug, Default)]
pub(crate) struct NoVictimsCache {
    /// What was searched last.
    searched: Option<Searched>,
    /// Another number whenever something has changed since the search before.
    version: u64,
    /// What was found.
    found: BySearcher<NoVictims>,
    /// Why those wait who were left without a search since the last change.
    left_out: BySearcher<KnownWait>,
    /// Gangs of which a quota allows a part: the members that they ask for, by the UID of the pod group.
    kept_to_quota: HashMap<String, BTreeSet<Member>>,
    /// Whether the last cycle left gangs for which it did not search: they come before those that
    /// were searched for.
    pub unfinished: bool,
}

/// For whom victims are searched.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Searcher<'a> {
    /// A gang with a history of its own, by the UID of its pod group.
    Alone(&'a str),
    /// All gangs that ask for this.
    OneOf(&'a Asks),
}

impl<'a> Searcher<'a> {
    /// Those that ask for this, or the pod group of this UID where it has a history of its own.
    pub fn of(asks: Option<&'a Asks>, uid: &'a str) -> Self {
        asks.map_or(Self::Alone(uid), Self::OneOf)
    }
}

/// Something for each of those for whom victims are searched.
#[derive(Debug)]
struct BySearcher<T> {
    /// For gangs with a history of their own, by the UID of the pod group.
    gangs: HashMap<String, T>,
    /// For all others: one for those that ask for the same.
    classes: Vec<(Asks, T)>,
}

impl<T> Default for BySearcher<T> {
    fn default() -> Self {
        Self {
            gangs: HashMap::new(),
            classes: Vec::new(),
        }
    }
}

impl<T> BySearcher<T> {
    fn insert(&mut self, who: Searcher<'_>, new: T) {
        match who {
            Searcher::Alone(uid) => drop(self.gangs.insert(uid.to_owned(), new)),
            Searcher::OneOf(asks) => {
                self.classes.retain(|(class, _)| class != asks);
                self.classes.push((asks.clone(), new));
            }
        }
    }

    fn get_mut(&mut self, who: Searcher<'_>) -> Option<&mut T> {
        match who {
            Searcher::Alone(uid) => self.gangs.get_mut(uid),
            Searcher::OneOf(asks) => {
                let mut classes = self.classes.iter_mut();
                let class = classes.find(|(class, _)| class == asks);
                class.map(|(_, of_class)| of_class)
            }
        }
    }

    fn values(&self) -> impl Iterator<Item = &T> {
        let classes = self.classes.iter().map(|(_, of_class)| of_class);
        self.gangs.values().chain(classes)
    }
}

/// A search that found no victims.
#[derive(Debug)]
struct NoVictims {
    /// The version that was searched.
    version: u64,
    /// When work may be evicted that may not be yet.
    until: Option<DateTime<Utc>>,
    /// Why the gang waits.
    pending: Pending,
    /// Whether anybody has asked since the last cycle.
    used: bool,
    /// What came of it for those for whom was searched.
    verdict: Option<KnownWait>,
}

/// Why they wait, free capacity and reservations looked at, too.
#[derive(Debug)]
struct KnownWait {
    /// UIDs of the pod groups whose reservations are ahead of them.
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

/// Everything that the result of a search for victims depends on, beside time and who asks.
#[derive(Debug)]
struct Searched {
    settings: SchedulerSettings,
    cluster: Snapshot,
    budgets: Vec<Arc<Budget>>,
    /// The order of the queue follows from them.
    weights: Weights,
    /// Gangs that others find in their way, and those with a history of their own.
    gangs: Vec<GangState>,
}

impl NoVictimsCache {
    /// Takes note of what is about to be searched. `asked` is what all gangs ask for; `alone` says
    /// which of them share no search with others.
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
            self.left_out = BySearcher::default();
            self.searched = Some(Searched {
                settings: context.settings.clone(),
                cluster: context.cluster.clone(),
                budgets: context.budgets.to_vec(),
                weights: context.weights.clone(),
                gangs: counting.into_iter().cloned().collect(),
            });
        }
    }

    /// Whether searches among these gangs find what they found last.
    fn found_alike(&self, last: &Searched, budgets: &[Arc<Budget>], now: &[&GangState]) -> bool {
        // Where even what budgets guard would not be enough, it does not matter what they allow. Where
        // it would be, that matters, and so does who is chosen, and what is lost then.
        let mut found = self.found.values();
        let guarded = found.any(|f| matches!(f.pending, Pending::NoVictims { guarded: 1.., .. }));
        let checkpoint = |gang: &GangState| gang.input.workload.checkpoint;
        (!guarded || last.budgets == budgets)
            && last.gangs.len() == now.len()
            && last.gangs.iter().zip(now).all(|(then, now)| {
                then.searched_alike(now) && (!guarded || checkpoint(then) == checkpoint(now))
            })
    }

    /// Takes note of the members that a gang's quota allows; None: all that are wanted. What was found for
    /// others of them is forgotten.
    pub fn note_quota(&mut self, uid: &str, members: Option<&BTreeSet<Member>>) {
        if self.kept_to_quota.get(uid) == members {
            return;
        }
        self.found.gangs.remove(uid);
        self.left_out.gangs.remove(uid);
        self.kept_to_quota.remove(uid);
        if let Some(members) = members {
            self.kept_to_quota.insert(uid.to_owned(), members.clone());
        }
    }

    /// What the last search for a gang found, or for one that asks for the same, while it holds.
    pub fn known(&mut self, who: Searcher<'_>, now: DateTime<Utc>) -> Option<&Pending> {
        let known = self.found.get_mut(who);
        let known = known.filter(|known| known.holds(now))?;
        known.used = true;
        Some(&known.pending)
    }

    /// Takes note of a search that found nobody; it holds `until` then at most. Returns why the gang
    /// waits.
    pub fn remember(
        &mut self,
        who: Searcher<'_>,
        until: Option<DateTime<Utc>>,
        pending: Pending,
    ) -> Pending {
        let found = NoVictims {
            version: self.version,
            until,
            pending: pending.clone(),
            used: true,
            verdict: None,
        };
        self.found.insert(who, found);
        pending
    }

    /// Takes note of why they wait behind the reservations of these, where the last search found no victims
    /// as things are now.
    pub fn judged<'u>(
        &mut self,
        who: Searcher<'_>,
        behind: impl Iterator<Item = &'u str>,
        pending: &Pending,
    ) {
        let version = self.version;
        let found = self.found.get_mut(who).filter(|found| {
            found.version == version && matches!(found.pending, Pending::NoVictims { .. })
        });
        if let Some(found) = found {
            found.verdict = Some(KnownWait::new(behind, pending));
        }
    }

    /// Why they wait behind the reservations of these, as long as nothing has changed that makes a
    /// difference.
    pub fn verdict<'u>(
        &mut self,
        who: Searcher<'_>,
        behind: impl Iterator<Item = &'u str>,
        now: DateTime<Utc>,
    ) -> Option<&Pending> {
        let version = self.version;
        let found = self.found.get_mut(who)?;
        let current = found.version == version && found.holds(now);
        let verdict = found.verdict.as_ref().filter(|_| current)?;
        if !verdict.is_behind(behind) {
            return None;
        }
        found.used = true;
        Some(&verdict.pending)
    }

    /// Takes note of why they wait behind the reservations of these, for whom no search was left.
    pub fn leave_out<'u>(
        &mut self,
        who: Searcher<'_>,
        behind: impl Iterator<Item = &'u str>,
        pending: &Pending,
    ) {
        self.left_out.insert(who, KnownWait::new(behind, pending));
    }

    /// Why they wait behind the reservations of these if no search is left for them again. Not where
    /// they were searched for meanwhile.
    pub fn left_out<'u>(
        &mut self,
        who: Searcher<'_>,
        behind: impl Iterator<Item = &'u str>,
        now: DateTime<Utc>,
    ) -> Option<&Pending> {
        if self
            .found
            .get_mut(who)
            .is_some_and(|found| found.holds(now))
        {
            return None;
        }
        let verdict = self.left_out.get_mut(who)?;
        verdict.is_behind(behind).then_some(&verdict.pending)
    }

    /// Takes note of whether gangs were left for which there was no search.
    pub fn finish(&mut self, unfinished: bool) {
        self.unfinished = unfinished;
        if !unfinished {
            self.left_out = BySearcher::default();
        }
    }

    /// Forgets what may be different now.
    pub fn expire(&mut self, now: DateTime<Utc>) {
        let version = self.version;
        let holds = |known: &NoVictims| known.version == version && known.holds(now);
        self.found.gangs.retain(|_, known| holds(known));
        self.found.classes.retain(|(_, known)| holds(known));
    }

    /// Whether there are searches to be made again.
    pub fn outdated(&self) -> bool {
        self.found
            .values()
            .any(|known| known.version != self.version)
    }

    /// When searches are to be made again although nothing changes.
    pub fn ends(&self) -> impl Iterator<Item = DateTime<Utc>> {
        self.found.values().filter_map(|known| known.until)
    }

    /// Forgets everything: no gang waits.
    pub fn clear(&mut self) {
        self.found = BySearcher::default();
        self.kept_to_quota.clear();
        self.searched = None;
        self.finish(false);
    }

    /// Forgets gangs that are gone, and what nobody has asked for since the last call.
    pub fn retain(&mut self, there: impl Fn(&str) -> bool) {
        self.found.gangs.retain(|uid, _| there(uid));
        self.kept_to_quota.retain(|uid, _| there(uid));
        let classes = &mut self.found.classes;
        classes.retain_mut(|(_, known)| std::mem::take(&mut known.used));
    }
}
