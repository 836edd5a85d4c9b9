//! Verdicts on waiting gangs. A gang is evaluated again only after an event that can change its
//! verdict.
//!
//! Gangs of one equivalence class share a verdict. Events are changes of the input since the last
//! cycle, and capacity that a gang gets or releases within a cycle.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_model::{Budget, RequestedAmounts, Snapshot, Weights};

use crate::context::Context;
use crate::gang::pending::Pending;
use crate::gang::state::GangState;
use crate::memory::equivalence_class::EquivalenceClass;
use crate::settings::SchedulerSettings;

#[derive(Debug, Default)]
pub(crate) struct InadmissibleGangs {
    /// Input of the last cycle. `None` after a cycle that has changed the capacity.
    last: Option<LastInput>,
    version: u64,
    verdicts: HashMap<EquivalenceClass, Verdict>,
    /// True if the last cycle left gangs without a search. They come before gangs with a result.
    pub unfinished: bool,
}

#[derive(Debug, Default)]
struct Verdict {
    /// Last victim search, if it had no result.
    search: Option<NoVictims>,
    wait: Option<Wait>,
    /// True if a gang read or wrote it in this cycle.
    used: Cell<bool>,
}

#[derive(Debug)]
struct NoVictims {
    version: u64,
    /// End of the guaranteed run time of further candidates.
    until: Option<DateTime<Utc>>,
    pending: Pending,
}

/// Why the gangs of a class wait, with the free capacity and reservations of that time.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    pub ahead: u64,
    pub pending: Pending,
    /// False if the cycle had no victim search left for the class.
    pub searched: bool,
    /// False if time alone can change it: it is valid in this cycle only.
    pub lasts: bool,
}

/// Input of a cycle, except time and gangs without capacity.
#[derive(Debug)]
struct LastInput {
    settings: SchedulerSettings,
    cluster: Snapshot,
    budgets: Vec<Arc<Budget>>,
    weights: Weights,
    holders: Vec<GangState>,
}

/// True if budgets permit and forbid the same evictions as before, or the settings ignore them.
pub(crate) fn permit_alike(
    settings: &SchedulerSettings,
    cluster: &Snapshot,
    before: &[Arc<Budget>],
    now: &[Arc<Budget>],
) -> bool {
    let rules = &settings.rules.victims;
    settings.delete_after.is_some() || lockstep_model::permit_alike(cluster, rules, before, now)
}

impl NoVictims {
    fn holds(&self, now: DateTime<Utc>) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

impl InadmissibleGangs {
    /// Compares the input with that of the last cycle. `requested`: amounts that all gangs request.
    pub fn note_input(
        &mut self,
        context: &Context<'_>,
        requested: &RequestedAmounts,
        gangs: &[GangState],
    ) {
        let holders: Vec<&GangState> = gangs.iter().filter(|g| g.holds_or_reserves()).collect();
        let unchanged = self.last.as_ref().is_some_and(|last| {
            last.settings == *context.settings
                && last.weights == *context.weights
                && self.found_alike(last, context, &holders)
                && requested.make_no_difference(&last.cluster, context.cluster)
        });
        if !unchanged {
            self.version += 1;
            self.drop_waits(|_| true);
            self.last = Some(LastInput {
                settings: context.settings.clone(),
                cluster: context.cluster.clone(),
                budgets: context.budgets.to_vec(),
                weights: context.weights.clone(),
                holders: holders.into_iter().cloned().collect(),
            });
        }
    }

    /// True if searches among these gangs would have the results of the last ones.
    fn found_alike(&self, last: &LastInput, context: &Context<'_>, now: &[&GangState]) -> bool {
        let budgets = context.budgets;
        // Their numbers and checkpoints matter to searches only if guarded pods would have freed
        // enough. Reservations depend on whether they permit an eviction.
        let mut searches = self.verdicts.values().filter_map(|v| v.search.as_ref());
        let guarded = searches
            .any(|search| matches!(search.pending, Pending::NoVictims { guarded: 1.., .. }));
        let checkpoint = |gang: &GangState| gang.input.workload.checkpoint;
        let alike = if guarded {
            last.budgets == budgets
        } else {
            permit_alike(context.settings, context.cluster, &last.budgets, budgets)
        };
        alike
            && last.holders.len() == now.len()
            && last.holders.iter().zip(now).all(|(then, now)| {
                then.holds_alike(now) && (!guarded || checkpoint(then) == checkpoint(now))
            })
    }

    /// A gang has got or will release capacity. Results of victim searches stay valid until the
    /// next cycle reads the change.
    pub fn capacity_changed(&mut self) {
        self.drop_waits(|_| true);
        self.last = None;
    }

    /// Valid result of the last victim search for the class.
    pub fn searched(&self, class: &EquivalenceClass, now: DateTime<Utc>) -> Option<&Pending> {
        let verdict = self.verdicts.get(class)?;
        let search = verdict.search.as_ref().filter(|s| s.holds(now))?;
        verdict.used.set(true);
        Some(&search.pending)
    }

    /// Records a search without result, valid until `until`.
    pub fn note_search(
        &mut self,
        class: EquivalenceClass,
        until: Option<DateTime<Utc>>,
        pending: Pending,
    ) {
        let search = Some(NoVictims {
            version: self.version,
            until,
            pending,
        });
        let verdict = Verdict {
            search,
            wait: None,
            used: Cell::new(true),
        };
        self.verdicts.insert(class, verdict);
    }

    /// Why the class waits behind these reservations, if nothing has changed since.
    pub fn wait(&self, class: &EquivalenceClass, ahead: u64, now: DateTime<Utc>) -> Option<&Wait> {
        let verdict = self.verdicts.get(class)?;
        let in_time = verdict.search.as_ref().is_none_or(|s| s.holds(now));
        let wait = verdict
            .wait
            .as_ref()
            .filter(|w| in_time && w.ahead == ahead)?;
        verdict.used.set(true);
        Some(wait)
    }

    pub fn note_wait(&mut self, class: EquivalenceClass, mut wait: Wait) {
        let verdict = self.verdicts.entry(class).or_default();
        if !wait.searched {
            verdict.search = None;
        }
        let mut search = verdict.search.iter();
        wait.lasts &= search.all(|search| search.version == self.version);
        verdict.wait = Some(wait);
        verdict.used.set(true);
    }

    /// Ends a cycle. Drops unused verdicts, for example of deleted gangs.
    pub fn finish(&mut self, unfinished: bool) {
        self.unfinished = unfinished;
        self.verdicts.retain(|_, verdict| verdict.used.take());
        self.drop_waits(|wait| !wait.lasts);
    }

    /// Drops outdated searches, and waits that depend on them.
    pub fn expire(&mut self, now: DateTime<Utc>) {
        let outdated = |s: &NoVictims| s.version != self.version || !s.holds(now);
        for verdict in self.verdicts.values_mut() {
            if verdict.search.as_ref().is_some_and(outdated) {
                (verdict.search, verdict.wait) = (None, None);
            }
        }
    }

    pub fn outdated(&self) -> bool {
        let mut searches = self.verdicts.values().filter_map(|v| v.search.as_ref());
        searches.any(|search| search.version != self.version)
    }

    /// Times at which searches become outdated without a change.
    pub fn ends(&self) -> impl Iterator<Item = DateTime<Utc>> {
        let searches = self.verdicts.values().filter_map(|v| v.search.as_ref());
        searches.filter_map(|search| search.until)
    }

    fn drop_waits(&mut self, drop: impl Fn(&Wait) -> bool) {
        for verdict in self.verdicts.values_mut() {
            verdict.wait = verdict.wait.take().filter(|wait| !drop(wait));
        }
    }
}
