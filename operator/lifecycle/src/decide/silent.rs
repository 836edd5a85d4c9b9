//! Restarts that the kubelet made and nobody reported, found by their count.

use lockstep_api::workload::{Cause, DomainStatus, FailureAction, TrainingWorkloadStatus};

use super::context::Ctx;
use super::failure::{self, Failure, verdict};
use super::history;
use super::incident::Scope;
use super::members::restart_count;

/// What became of restarts that the kubelet made and nobody reported.
pub(super) enum Silent {
    /// There are none, or they are accounted for.
    Nothing,
    /// They took more budget than there was.
    OverBudget,
    /// The policy calls for more than the restart.
    Failure(Box<Failure>),
}

/// Counts the restarts that the policy leaves to the kubelet.
pub(super) fn silent_restarts(
    ctx: &Ctx<'_>,
    ledger: &mut TrainingWorkloadStatus,
    scope: &Scope<'_>,
    status: &mut DomainStatus,
) -> Silent {
    let count = restart_count(ctx, status, &scope.domain.members);
    let new = count - std::mem::replace(&mut status.restarts_seen, count);
    if new <= 0 {
        return Silent::Nothing;
    }
    let restarted = scope.members.iter().filter_map(|m| failure::silent_restart(ctx, m, ctx.current(status, m)?));
    let Some(failure) = restarted.max_by_key(|f| f.cause.time) else {
        // The report with the true exit code is still on its way.
        status.restarts_seen = count - new;
        return Silent::Nothing;
    };
    let v = verdict(ctx.view.spec(), &failure);
    if v.action > FailureAction::RestartPod {
        return Silent::Failure(Box::new(failure));
    }
    ledger.restarts.total += new;
    ledger.restarts.in_place += new;
    let cause = Cause { rule: v.rule.map(|r| r.name.clone()).unwrap_or_default(), ..failure.cause };
    let limits = &ctx.view.spec().failure_policy.limits;
    let within = !v.counted || (0..new).all(|_| history::charge(&mut ledger.restarts, limits, ctx.now));
    let mut entry = history::entry(status, &cause, v.action, v.counted);
    entry.recovered_at = within.then_some(ctx.now);
    history::push(ledger, entry);
    if within { Silent::Nothing } else { Silent::OverBudget }
}
