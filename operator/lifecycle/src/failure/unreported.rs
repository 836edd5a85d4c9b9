//! Restarts that the kubelet made and no agent reported, found by their count.

use std::cmp::Reverse;

use lockstep_api::workload::{Cause, FailureAction};

use super::detect::{self, LastRestart};
use super::members::restart_count;
use super::policy::{Failure, verdict};
use super::scope::DomainScope;
use crate::facts::Facts;
use crate::ledger::Ledger;
use crate::wake::Wake;

/// What became of restarts that the kubelet made and no agent reported.
pub(crate) enum Unreported {
    /// There are none, or they are accounted for.
    Nothing,
    /// They took more budget than there was.
    OverBudget(Cause),
    /// The policy calls for more than the restart.
    Failure(Box<Failure>),
}

/// Counts the restarts that the policy leaves to the kubelet.
pub(crate) fn count_kubelet_restarts(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    scope: &DomainScope<'_>,
    wake: &mut Wake,
) -> Unreported {
    let Some(domain) = ledger.domains.get_mut(scope.key()) else {
        return Unreported::Nothing;
    };
    let count = restart_count(facts, domain, &scope.domain.members);
    let new = count - domain.restarts_seen;
    if new <= 0 {
        domain.restarts_seen = count;
        return Unreported::Nothing;
    }
    let mut ended: Vec<Failure> = Vec::new();
    for member in &scope.unfinished {
        let Some(pod) = facts.current(domain, member) else {
            continue;
        };
        match detect::last_restart(facts, domain.attempt, member, pod, wake) {
            LastRestart::Nothing => {}
            // Whose restarts are counted is known once its report is there.
            LastRestart::Awaited => return Unreported::Nothing,
            LastRestart::Ended(failure) => ended.push(*failure),
        }
    }
    ended.retain(|failure| !detect::is_start_error(facts, failure));
    if ended.is_empty() {
        return Unreported::Nothing;
    }
    domain.restarts_seen = count;
    // Only the last ones are new; those of other members were counted when they were.
    ended.sort_by_key(|failure| Reverse(failure.cause.time));
    ended.truncate(usize::try_from(new).unwrap_or(usize::MAX));
    let tasks = ended.len();
    ended.retain(|failure| !is_end_of_task(facts, failure));
    let new = new - (tasks - ended.len()) as i64;
    let severity = |failure: &&Failure| verdict(facts.spec(), failure).action.severity();
    let Some(failure) = ended.iter().max_by_key(severity) else {
        return Unreported::Nothing;
    };
    let verdict = verdict(facts.spec(), failure);
    if !verdict.action.affects_single_pod() {
        return Unreported::Failure(Box::new(failure.clone()));
    }
    ledger.budget.total += new;
    ledger.budget.in_place += new;
    let limits = &facts.spec().failure_policy.limits;
    let within_budget =
        !verdict.counted || (0..new).all(|_| ledger.budget.charge(limits, facts.now));
    let cause = Cause {
        rule: verdict.rule_name(),
        ..failure.cause.clone()
    };
    ledger.record_kubelet_restarts(
        facts,
        scope.key(),
        &cause,
        verdict.action,
        verdict.counted,
        within_budget,
    );
    if within_budget {
        Unreported::Nothing
    } else {
        Unreported::OverBudget(cause)
    }
}

/// Whether a task has ended and the next begins, by the user's own rule. Where all containers of the
/// pod restart for it and no agent has told the code, it cannot be told from a failure, and costs
/// nothing.
fn is_end_of_task(facts: &Facts<'_>, failure: &Failure) -> bool {
    let rule = facts.after_success(&failure.member.group);
    let hidden = failure.masked && rule.is_some_and(FailureAction::restarts_pod);
    failure.cause.exit_code == Some(0) || hidden
}
