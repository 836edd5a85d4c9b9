//! Restarts by the kubelet without an agent's report, detected by restart counts.

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

pub(crate) enum Unreported {
    /// None, or all are accounted for.
    Nothing,
    /// They exceed the restart budget.
    OverBudget(Cause),
    /// The policy requires more than the restart.
    Failure(Box<Failure>),
}

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
        // The known exit may have been counted before.
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

/// The last restart of a member's training container.
enum LastRestart {
    /// None, or of an older attempt.
    Nothing,
    /// The report is expected: the agent observes an exit before the kubelet publishes it.
    Awaited,
    Ended(Box<Failure>),
}

/// Exits of older attempts were handled then.
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
    // The kubelet shows no id after a restart of the whole pod.
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
    // The kubelet shows no times after a restart of the whole pod.
    let ended_by = last.finished_at.or(container.running_since());
    if known.is_none() && facts.is_reported(pod) {
        let grace = facts.view.settings().report_grace;
        // With a clock far ahead, the time of the exit is unknown.
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

/// True if the exit ended one task and the user's rule starts the next. If the rule restarts all
/// containers and the code is unknown, the exit may be a failure, but is not charged.
fn is_end_of_task(facts: &Facts<'_>, failure: &Failure) -> bool {
    let rule = facts.after_success(&failure.member.group);
    let hidden = failure.masked && rule.is_some_and(FailureAction::restarts_pod);
    failure.cause.exit_code == Some(0) || hidden
}
