use chrono::TimeDelta;
use lockstep_api::gangs::Gang;
use lockstep_api::membership::Membership;
use lockstep_api::workload::{DependencyCondition, Group};

use crate::facts::Facts;
use crate::ledger::Ledger;
use crate::wake::Wake;

/// A gang of the whole workload has no dependencies.
pub(crate) fn dependencies_met(facts: &Facts<'_>, ledger: &Ledger, gang: &Gang) -> bool {
    let groups = &facts.spec().groups;
    let Some(group) = groups.iter().find(|g| g.name == gang.template) else {
        return true;
    };
    if group.depends_on.is_empty() {
        return true;
    }
    let membership = ledger.membership(facts.spec());
    for dependency in &group.depends_on {
        let Some(other) = groups.iter().find(|g| g.name == dependency.group) else {
            continue;
        };
        let met = match dependency.condition {
            DependencyCondition::Succeeded => membership.complete(&other.name, &ledger.completed),
            DependencyCondition::Ready => is_ready(facts, ledger, other, &membership),
        };
        if !met {
            return false;
        }
    }
    true
}

/// During a restart no member counts, because running members will be stopped.
fn is_ready(
    facts: &Facts<'_>,
    ledger: &Ledger,
    group: &Group,
    membership: &Membership<'_>,
) -> bool {
    let mut domains = facts.gangs.iter().flat_map(|g| &g.domains);
    domains.all(|domain| {
        let entry = ledger.domain(&domain.key);
        let restarts = entry.is_some_and(|e| e.incident.is_some());
        let members = domain.members.iter().filter(|m| m.group == group.name);
        let mut running = members.filter(|m| membership.contains(m));
        running.all(|member| {
            let mut pods = facts.pods_of(member).iter();
            let ready = !restarts && pods.any(|p| facts.is_ready(&domain.key, p));
            ready || ledger.completed.contains(member)
        })
    })
}

pub(crate) fn scheduling_timed_out(facts: &Facts<'_>, ledger: &Ledger, wake: &mut Wake) -> bool {
    let limit = facts.spec().scheduling.timeout_seconds;
    if limit <= 0 {
        return false;
    }
    for key in ledger.gangs.keys() {
        let queued_at = facts.gang_view(key).and_then(|g| g.queued_at);
        let Some(queued_at) = queued_at else { continue };
        if facts.placement(ledger, key).is_none()
            && facts
                .due(queued_at + TimeDelta::seconds(limit))
                .passed(wake)
        {
            return true;
        }
    }
    false
}
