//! Accelerator time: what the workload holds and has held, lost and waited for. Only its changes are
//! recorded, so that nothing is written because time passes.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use lockstep_api::gangs::Gang;
use lockstep_api::ids::GangKey;
use lockstep_api::scheduling::Placement;

use crate::facts::Facts;
use crate::ledger::Ledger;

impl Ledger {
    /// Accounts for the time up to now, if the workload holds or wants something else now, or
    /// something else is recorded.
    pub fn account(&mut self, facts: &Facts<'_>, recording: bool) {
        let holds = self.note_held(facts);
        let waits = facts.gangs.iter().any(|g| self.wants_capacity(facts, g));
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

    /// Takes note of since when each gang holds its nodes; how many accelerators all of them hold.
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
            assigned_accelerators(facts, gang)
        } else {
            0
        }
    }

    /// From when on a gang holds its nodes that is seen to hold them: from now on, unless it came to run
    /// before that was noted.
    fn held_from(&self, facts: &Facts<'_>, key: &GangKey) -> DateTime<Utc> {
        let runs = facts.gang(key).is_some_and(|g| self.is_under_way(g));
        let placement = facts.placement(self, key).filter(|_| runs);
        placement.map_or(facts.now, |p| p.decided_at)
    }

    /// Whether the nodes of a gang are its own: it is placed, and waits for nobody to leave them.
    fn holds_nodes(&self, facts: &Facts<'_>, key: &GangKey) -> bool {
        let gang = facts.gang(key);
        facts.placement(self, key).is_some_and(|placement| {
            gang.is_none_or(|gang| !self.awaits_victims(facts, gang, placement))
        })
    }

    /// Whether the nodes that a gang was placed on are others' until they have left. One that runs keeps
    /// its nodes while it preempts for more.
    pub(super) fn awaits_victims(
        &self,
        facts: &Facts<'_>,
        gang: &Gang,
        placement: &Placement,
    ) -> bool {
        facts.is_preempting(&gang.key, &placement.id) && !self.is_under_way(gang)
    }

    /// Nobody waits for capacity while suspended, when there is no start, or for another group.
    fn wants_capacity(&self, facts: &Facts<'_>, gang: &Gang) -> bool {
        self.ended.is_none()
            && self.started_at.is_some()
            && self.gang(&gang.key).is_some_and(|g| g.started)
            && !self.holds_nodes(facts, &gang.key)
            && !self.is_done(gang)
    }
}

/// Accelerators of the members that a gang has nodes for.
fn assigned_accelerators(facts: &Facts<'_>, gang: &GangKey) -> i64 {
    let mut members: BTreeMap<&str, i64> = BTreeMap::new();
    for member in facts.assigned_nodes(gang).keys() {
        *members.entry(&member.group).or_default() += 1;
    }
    let of_groups = members
        .into_iter()
        .map(|(group, members)| facts.accelerators(group).saturating_mul(members));
    of_groups.fold(0, i64::saturating_add)
}

/// Whole seconds between two times; clocks of two managers may differ.
fn seconds(from: DateTime<Utc>, to: DateTime<Utc>) -> i64 {
    (to.timestamp() - from.timestamp()).max(0)
}
