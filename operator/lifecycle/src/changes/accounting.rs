//! Accelerator time that a workload has held, lost and waited for. Recorded only at changes.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use lockstep_api::gangs::Gang;
use lockstep_api::ids::GangKey;

use crate::facts::Facts;
use crate::gangs::PlacementView;
use crate::ledger::Ledger;

impl Ledger {
    /// Accounts for the time until now, if capacity has changed or another change is recorded.
    pub fn account(&mut self, facts: &Facts<'_>, recording: bool) {
        let holds = self.note_held(facts);
        let waits = facts.gangs.iter().any(|g| self.needs_capacity(facts, g));
        let spent = &mut self.spent;
        if spent.accelerators != holds || recording {
            let passed = spent.until.map_or(0, |from| seconds(from, facts.now));
            let held = spent.accelerators.saturating_mul(passed);
            spent.held = spent.held.saturating_add(held);
            spent.until = Some(facts.now);
            spent.accelerators = holds;
        }
        match (waits, spent.waiting_since) {
            (true, None) => spent.waiting_since = Some(facts.now),
            (false, Some(since)) => {
                spent.waited = spent.waited.saturating_add(seconds(since, facts.now));
                spent.waiting_since = None;
            }
            (true, Some(_)) | (false, None) => {}
        }
    }

    /// A workload is active while a gang holds its nodes: from its placement, or from the end of
    /// its victims, until the release.
    pub fn note_active(&mut self, facts: &Facts<'_>) {
        if self.ended.is_some() {
            return;
        }
        let mut gangs = facts.gangs.iter().filter(|gang| !self.is_done(gang));
        let active = gangs.any(|gang| self.holds_nodes(facts, &gang.key));
        match (active, self.started_at) {
            (true, None) => self.started_at = Some(facts.now),
            (false, Some(since)) => {
                self.active_seconds += seconds(since, facts.now);
                self.started_at = None;
            }
            (true, Some(_)) | (false, None) => {}
        }
    }

    fn note_held(&mut self, facts: &Facts<'_>) -> i64 {
        let keys: Vec<GangKey> = self.gangs.keys().cloned().collect();
        let mut all = 0_i64;
        for key in keys {
            let held = self.accelerators_held(facts, &key);
            let since = self.held_from(facts, &key);
            if let Some(entry) = self.gangs.get_mut(&key) {
                entry.held_since = (held > 0).then(|| entry.held_since.unwrap_or(since));
            }
            all = all.saturating_add(held);
        }
        all
    }

    fn accelerators_held(&self, facts: &Facts<'_>, gang: &GangKey) -> i64 {
        if self.ended.is_none() && self.holds_nodes(facts, gang) {
            self.accelerators_assigned(facts, gang)
        } else {
            0
        }
    }

    /// Members that have succeeded hold no accelerators.
    fn accelerators_assigned(&self, facts: &Facts<'_>, gang: &GangKey) -> i64 {
        let mut members: BTreeMap<&str, i64> = BTreeMap::new();
        let assigned = facts.assigned_nodes(gang).keys();
        for member in assigned.filter(|m| !self.completed.contains(*m)) {
            *members.entry(&member.group).or_default() += 1;
        }
        let of_groups = members
            .into_iter()
            .map(|(group, members)| facts.accelerators(group).saturating_mul(members));
        of_groups.fold(0, i64::saturating_add)
    }

    /// Since when a gang holds its nodes: since its placement if it already runs, else from now on.
    fn held_from(&self, facts: &Facts<'_>, key: &GangKey) -> DateTime<Utc> {
        let runs = facts.gang(key).is_some_and(|g| self.is_under_way(g));
        let placement = facts.placement(self, key).filter(|_| runs);
        placement.map_or(facts.now, |p| p.decided_at)
    }

    fn holds_nodes(&self, facts: &Facts<'_>, key: &GangKey) -> bool {
        let gang = facts.gang(key);
        facts
            .placement(self, key)
            .is_some_and(|placement| gang.is_none_or(|gang| !self.awaits_victims(gang, placement)))
    }

    /// True if victims occupy the nodes of a placement. A running gang that preempts for more
    /// members keeps its nodes.
    pub(super) fn awaits_victims(&self, gang: &Gang, placement: &PlacementView) -> bool {
        placement.preempting.is_some() && !self.is_under_way(gang)
    }

    /// False while suspended, before the start, or while the gang waits for another group.
    fn needs_capacity(&self, facts: &Facts<'_>, gang: &Gang) -> bool {
        self.ended.is_none()
            && !self.is_suspended(facts.spec())
            && self.gang(&gang.key).is_some_and(|g| g.started)
            && !self.holds_nodes(facts, &gang.key)
            && !self.is_done(gang)
    }
}

/// At least 0: clocks of two managers may differ.
fn seconds(from: DateTime<Utc>, to: DateTime<Utc>) -> i64 {
    (to.timestamp() - from.timestamp()).max(0)
}
