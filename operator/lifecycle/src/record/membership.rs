//! Stage 09: the running members of elastic gangs.
//!
//! The placed members run together if they are at least `minCount`.

use std::collections::BTreeMap;

use lockstep_api::gangs::Gang;
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
    for gang in facts.gangs.iter().filter(|g| !g.basic) {
        if facts.placement(ledger, &gang.key).is_some() {
            runs.extend(changed_members(facts, ledger, gang, &was));
        }
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

/// Empty if nothing changes, or if too few members are placed.
fn changed_members<'g>(
    facts: &Facts<'_>,
    ledger: &Ledger,
    gang: &'g Gang,
    was: &Membership<'_>,
) -> Vec<(&'g Member, bool)> {
    let assigned = facts.assigned_nodes(&gang.key);
    let mut out = Vec::new();
    let (mut count, mut differs) = (0_usize, false);
    for member in gang.members() {
        let finished = ledger.completed.contains(member) && was.contains(member);
        // A degrading gang keeps its ranks.
        let kept = gang.degrades() && ledger.is_under_way(gang) && was.contains(member);
        let runs = assigned.contains_key(member) || finished || kept;
        count += usize::from(runs);
        differs |= runs != was.contains(member);
        out.push((member, runs));
    }
    let enough = count >= gang.min_count.max(0) as usize;
    if enough && differs { out } else { Vec::new() }
}

fn total(spec: &TrainingWorkloadSpec, membership: &Membership<'_>) -> i32 {
    spec.groups
        .iter()
        .map(|g| membership.size_of(&g.name))
        .sum()
}
