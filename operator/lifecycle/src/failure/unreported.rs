//! Restarts that the kubelet made and no agent reported, found by their count.

use lockstep_api::member::Member;
use lockstep_api::workload::{Cause, FailureAction};

use super::detect::{
    RESTARTING_ALL, exit_failure, is_start_error, report_of, report_where, reported_failure,
};
use super::members::restart_count;
use super::policy::{Failure, verdict};
use super::restart_all::last_of as last_trigger;
use super::scope::DomainScope;
use crate::facts::Facts;
use crate::ledger::Ledger;
use crate::pods::{PodView, Termination};
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
    let (mut latest, mut awaited): (Option<Failure>, bool) = (None, false);
    for member in &scope.unfinished {
        let Some(pod) = facts.current(domain, member) else {
            continue;
        };
        match last_restart(facts, domain.attempt, member, pod, wake) {
            LastRestart::Nothing => {}
            LastRestart::Awaited => awaited = true,
            LastRestart::Ended(failure) => {
                let later = |l: &Failure| failure.cause.time >= l.cause.time;
                if !is_start_error(facts, &failure) && latest.as_ref().is_none_or(later) {
                    latest = Some(*failure);
                }
            }
        }
    }
    let Some(failure) = latest else {
        return Unreported::Nothing;
    };
    let verdict = verdict(facts.spec(), &failure);
    let is_task = is_end_of_task(facts, &failure);
    let ends_attempt = !is_task && !verdict.action.affects_single_pod();
    let ended_since = |since| failure.cause.time > since;
    if awaited && !(ends_attempt && domain.healthy_since.is_some_and(ended_since)) {
        // What is known may be an end that was counted long ago.
        return Unreported::Nothing;
    }
    domain.restarts_seen = count;
    if is_task {
        return Unreported::Nothing;
    }
    if ends_attempt {
        return Unreported::Failure(Box::new(failure));
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

/// What is known of the last restart of a member's training container.
enum LastRestart {
    /// It has none, or one that was answered with an older attempt.
    Nothing,
    /// Its report with the true code is on its way: the agent sees an end before the kubelet tells the
    /// API server.
    Awaited,
    /// It ended like this.
    Ended(Box<Failure>),
}

/// The last end of a training container that runs again. What is known to be an end of an older attempt
/// was answered with that.
fn last_restart(
    facts: &Facts<'_>,
    attempt: i64,
    member: &Member,
    pod: &PodView,
    wake: &mut Wake,
) -> LastRestart {
    let training = facts.training(&member.group);
    let Some(container) = pod.containers.get(training) else {
        return LastRestart::Nothing;
    };
    let Some(last) = &container.last else {
        return LastRestart::Nothing;
    };
    let trigger = last_trigger(facts, member, pod).filter(|_| last.reason == RESTARTING_ALL);
    // Of a container that was restarted with all of its pod the id is not shown.
    let known = trigger.or_else(|| match &last.id {
        Some(id) => report_of(facts, pod, training, Some(id)),
        None => report_where(facts, pod, training, |r| {
            r.restarts == container.restart_count - 1
        }),
    });
    if known.is_some_and(|r| r.attempt < attempt) {
        return LastRestart::Nothing;
    }
    if let Some(trigger) = trigger {
        return LastRestart::Ended(Box::new(reported_failure(facts, member, pod, trigger)));
    }
    // The kubelet shows no times of containers that it ended to restart all of a pod.
    let ended_by = last.finished_at.or(container.running_since());
    if known.is_none() && facts.is_reported(pod) {
        let grace = facts.view.settings().report_grace;
        // A clock that is far ahead says nothing about how long ago it was.
        let deadline = ended_by.filter(|at| *at < facts.now + grace);
        if deadline.is_some_and(|at| !facts.due(at + grace).passed(wake)) {
            return LastRestart::Awaited;
        }
    }
    let last = &Termination {
        finished_at: ended_by,
        ..last.clone()
    };
    LastRestart::Ended(Box::new(exit_failure(
        facts, member, pod, training, last, known,
    )))
}

/// Whether a task has ended and the next begins, by the user's own rule. Where all containers of the
/// pod restart for it and no agent has told the code, it cannot be told from a failure, and costs
/// nothing.
fn is_end_of_task(facts: &Facts<'_>, failure: &Failure) -> bool {
    let rule = facts.after_success(&failure.member.group);
    let hidden = failure.masked && rule.is_some_and(FailureAction::restarts_pod);
    failure.cause.exit_code == Some(0) || hidden
}
