//! Stage 09: the running members of elastic gangs.
//!
//! The placed members run together if they are at least `minCount`.

use std::collections::BTreeMap;

use lockstep_api::member::Member;
use lockstep_api::membership::Membership;
use lockstep_api::workload::TrainingWorkloadSpec;

use crate::facts::Facts;
use crate::failure::incident::restart_changed;
use crate::ledger::Ledger;

pub(super) fn follow_placements(facts: &Facts<'_>, ledger: &mut Ledger) {
    let spec = facts.spec();
    let was = ledger.membership(spec);
    let mut runs: BTreeMap<&Member, bool> = BTreeMap::new();
    for gang in facts.gangs.iter().filter(|g| !ledger.awaits_reply_of(g)) {
        runs.extend(facts.changed_members(ledger, gang, &was));
    }
    if runs.is_empty() {
        return;
    }
    for group in &spec.groups {
        if runs.keys().any(|m| m.group == group.name) {
            ledger.set_running(spec, group, |m| {
                runs.get(m).copied().unwrap_or_else(|| was.contains(m))
            });
        }
    }
    let is = ledger.membership(spec);
    let message = format!(
        "continues with {} members instead of {}",
        total(spec, &is),
        total(spec, &was)
    );
    restart_changed(facts, ledger, &was, &is, &message);
}

fn total(spec: &TrainingWorkloadSpec, membership: &Membership<'_>) -> i32 {
    spec.groups
        .iter()
        .map(|g| membership.size_of(&g.name))
        .sum()
}
