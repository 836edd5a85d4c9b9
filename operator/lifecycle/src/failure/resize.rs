//! Restarts of domains whose running members change: `replicas` has changed, or an elastic gang
//! grows or shrinks.
//!
//! The number of members and their ranks are environment variables, which cannot change in place.
//! Therefore a change costs one uncounted restart with new pods on the same nodes. An open
//! incident's restart serves as that restart.

use std::collections::BTreeSet;

use lockstep_api::gangs::Gang;
use lockstep_api::member::Member;
use lockstep_api::membership::{Membership, Rank, completion_index};
use lockstep_api::workload::{Cause, CauseKind, FailureAction, Group};

use super::incident::open_uncounted;
use super::scope::DomainScope;
use crate::facts::Facts;
use crate::ledger::Ledger;

/// Added members join once they are placed. If members are removed, the remaining members restart
/// at once.
pub(crate) fn follow_replicas(facts: &Facts<'_>, ledger: &mut Ledger, before: &[i32]) {
    let spec = facts.spec();
    let was = ledger.membership_before(spec, before);
    let placed: BTreeSet<&str> = facts
        .gangs
        .iter()
        .filter(|g| !g.basic && facts.placement(ledger, &g.key).is_some())
        .flat_map(Gang::members)
        .map(|m| m.group.as_str())
        .collect();
    for (group, before) in spec.groups.iter().zip(before) {
        let joins_later = group.replicas > *before && placed.contains(group.name.as_str());
        if joins_later || ledger.running.contains_key(&group.name) {
            set_running(ledger, group, |m| was.contains(m));
        }
    }
    let is = ledger.membership(spec);
    restart_changed(facts, ledger, &was, &is, "replicas changed");
}

pub(crate) fn set_running(ledger: &mut Ledger, group: &Group, runs: impl Fn(&Member) -> bool) {
    let mut running = BTreeSet::new();
    for replica in 0..group.replicas {
        for index in 0..group.size {
            let member = Member::new(group.name.as_str(), replica, index);
            if runs(&member) {
                running.insert(completion_index(group, &member));
            }
        }
    }
    if running.len() < group.members().max(0) as usize {
        ledger.running.insert(group.name.clone(), running);
    } else {
        ledger.running.remove(&group.name);
    }
}

/// Restarts, with new pods, domains with added members or changed ranks or coordinators.
pub(crate) fn restart_changed(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    was: &Membership<'_>,
    is: &Membership<'_>,
    message: &str,
) {
    for gang in &facts.gangs {
        if facts.placement(ledger, &gang.key).is_none() {
            continue;
        }
        for domain in &gang.domains {
            let scope = DomainScope::of_restart(facts, ledger, is, gang, domain);
            // Pods may be left from before a resize that was not handled yet.
            let entry = ledger.domain(scope.key());
            let has_pod = |m: &Member| entry.is_some_and(|e| facts.current(e, m).is_some());
            let begun = domain.members.iter().any(|m| was.contains(m) || has_pod(m));
            let moved = scope
                .all
                .iter()
                .any(|m| position(was, m) != position(is, m));
            let over = domain.members.iter().all(|m| !is.contains(m));
            if over {
                ledger.close_incident(facts, scope.key(), false);
                ledger.vacate_domain(facts, scope.key());
            } else if begun && moved && !gang.basic {
                recreate(facts, ledger, &scope, message);
            }
        }
    }
}

fn recreate(facts: &Facts<'_>, ledger: &mut Ledger, scope: &DomainScope<'_>, message: &str) {
    let Some(domain) = ledger.domains.get_mut(scope.key()) else {
        return;
    };
    let members: BTreeSet<Member> = scope.all.iter().map(|m| (*m).clone()).collect();
    if let Some(incident) = &mut domain.incident
        && !incident.affects_single_pods()
    {
        incident.action = incident.action.or_more_severe(FailureAction::RecreateGang);
        incident.replace_members(facts, members);
        ledger.note_recreation(scope.key());
        return;
    }
    if members.iter().any(|m| facts.current(domain, m).is_some()) {
        let cause = Cause::requested(CauseKind::Resize, facts.now, message);
        let action = FailureAction::RecreateGang;
        open_uncounted(facts, ledger, scope, action, cause, BTreeSet::new());
    }
}

/// `None` while a member does not run.
fn position(membership: &Membership<'_>, member: &Member) -> Option<(Rank, Member)> {
    Some((membership.place(member)?, membership.coordinator(member)))
}
