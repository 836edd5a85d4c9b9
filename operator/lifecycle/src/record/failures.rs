//! Stage 08: failures of placed gangs and their incidents.

use lockstep_api::ids::NodeName;

use crate::changes::ReleaseReason;
use crate::facts::Facts;
use crate::failure::incident::{join, open, over_budget};
use crate::failure::others::{beside_training, follows};
use crate::failure::policy::{Failure, Reach, verdict};
use crate::failure::refund::take_charge_back;
use crate::failure::respond::respond;
use crate::failure::scope::{Consequence, DomainScope};
use crate::failure::unreported::{Unreported, count_kubelet_restarts};
use crate::failure::{detect, progress};
use crate::ledger::{DomainLedger, Ledger, Outcome};
use crate::wake::Wake;

pub(super) fn follow_failures(facts: &Facts<'_>, ledger: &mut Ledger) -> Wake {
    let mut wake = Wake::NEVER;
    let membership = ledger.membership(facts.spec());
    for gang in &facts.gangs {
        if facts.placement(ledger, &gang.key).is_none() {
            continue;
        }
        for domain in &gang.domains {
            let scope = DomainScope::placed(facts, ledger, &membership, gang, domain);
            match step(facts, ledger, &scope, &mut wake) {
                Some(Consequence::FailWorkload(reason, message)) => {
                    ledger.finish(facts, Outcome::Failed, reason, message);
                    return wake;
                }
                Some(Consequence::ReleaseGang(reason, message)) => {
                    let why = ReleaseReason { reason, message };
                    ledger.release_gang(facts, &gang.key, Some(why));
                    break;
                }
                None => {}
            }
        }
    }
    wake
}

fn step(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    scope: &DomainScope<'_>,
    wake: &mut Wake,
) -> Option<Consequence> {
    take_charge_back(facts, ledger, scope);
    let (mut late, mut new) = failures(facts, scope, ledger.domain(scope.key())?);
    // Handled by the previous stage.
    late.retain(|f| !detect::is_start_error(facts, f));
    new.retain(|f| !detect::is_start_error(facts, f));
    degrade(facts, ledger, scope, &mut new);
    let before = late.len() + new.len();
    late.retain(|f| !waits_for_status(facts, ledger, f, wake));
    new.retain(|f| !waits_for_status(facts, ledger, f, wake));
    let limits = &facts.spec().failure_policy.limits;
    if before > late.len() + new.len() && !ledger.budget.has_unit_left(limits, facts.now) {
        // Other failures may be consequences of the unclear one.
        return None;
    }
    if !late.is_empty() {
        let consequence = join(facts, ledger, scope, &late);
        if consequence.is_some() {
            return consequence;
        }
    }
    if let Some(response) = respond(facts, &new) {
        return open(facts, ledger, scope, response);
    }
    if ledger.incident(scope.key()).is_none() {
        match count_kubelet_restarts(facts, ledger, scope, wake) {
            Unreported::Nothing => {}
            Unreported::OverBudget(cause) => {
                return Some(over_budget(facts, ledger, &cause));
            }
            Unreported::Failure(failure) => {
                if let Some(response) = respond(facts, &[*failure]) {
                    return open(facts, ledger, scope, response);
                }
            }
        }
    }
    progress::advance(facts, ledger, scope, wake)
}

/// Marks losses that a degrading gang survives.
fn degrade(facts: &Facts<'_>, ledger: &Ledger, scope: &DomainScope<'_>, new: &mut [Failure]) {
    if !scope.gang.degrades() {
        return;
    }
    let mut left = 0;
    for domain in &scope.gang.domains {
        let Some(entry) = ledger.domain(&domain.key) else {
            continue;
        };
        for member in &domain.members {
            let pod = facts.current(entry, member);
            let stays = pod.is_some_and(|p| !p.terminating() && !p.terminal() && p.node.is_some());
            let fails = new.iter().any(|f| f.member == *member);
            left += i32::from(stays && !fails);
        }
    }
    if left >= scope.gang.min_count {
        for failure in new.iter_mut().filter(|f| f.is_loss()) {
            failure.reach = Reach::Member;
        }
    }
}

/// True if the response is irreversible, and pod status may still attribute the failure to the
/// node, which is not charged.
fn waits_for_status(
    facts: &Facts<'_>,
    ledger: &Ledger,
    failure: &Failure,
    wake: &mut Wake,
) -> bool {
    let Some(by) = failure.confirmed_by else {
        return false;
    };
    let verdict = verdict(facts.spec(), failure);
    let limits = &facts.spec().failure_policy.limits;
    let spent = verdict.counted && !ledger.budget.has_unit_left(limits, facts.now);
    let action = verdict.action;
    (action.ends_workload() || action.replaces_pods() || spent) && !facts.due(by).passed(wake)
}

/// Failures of the open incident, and of the current attempt.
fn failures(
    facts: &Facts<'_>,
    scope: &DomainScope<'_>,
    domain: &DomainLedger,
) -> (Vec<Failure>, Vec<Failure>) {
    let (mut late, mut new) = (Vec::new(), Vec::new());
    for &member in &scope.unfinished {
        let Some(pod) = facts.current(domain, member) else {
            // Basic members end independently. In a gang that ran, a missing pod ended unobserved.
            let ran = domain.healthy_since.is_some() && domain.incident.is_none();
            let released = domain
                .domain_incident()
                .is_some_and(|i| facts.is_past_barrier(scope.key(), i.attempt));
            if (ran || released) && !scope.gang.basic {
                let node = scope.assigned.get(member).map_or("", NodeName::as_str);
                new.push(detect::vanished(member, node, facts.now));
            }
            continue;
        };
        let restarting = domain
            .domain_incident()
            .filter(|i| !i.replace.contains(member));
        let in_place = restarting.is_some();
        let mut others = Vec::new();
        if !pod.terminal() && !pod.terminating() {
            others = beside_training(facts, domain, member, pod, in_place);
        }
        let Some(incident) = restarting else {
            let own = detect::failure_of(facts, domain, member, pod);
            new.extend(own.filter(|f| !follows(f, &others)));
            new.extend(others);
            continue;
        };
        let exit = detect::exit_at_attempt(facts, domain, member, pod);
        if let Some(exit) = exit.filter(|f| !follows(f, &others)) {
            new.push(exit);
            new.extend(others);
        } else if !others.is_empty() {
            new.extend(others);
        } else if let Some(dead) = detect::pod_failure(facts, member, pod) {
            // The other members run without it.
            if pod.is_supervised() && facts.is_released(scope.key(), incident.attempt) {
                new.push(dead);
            } else {
                late.push(dead);
            }
        } else {
            late.extend(detect::late_exit(facts, incident.attempt, member, pod));
        }
    }
    (late, new)
}
