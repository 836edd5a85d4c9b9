//! From the view of a workload to what is done next.

mod act;
mod changes;
pub(crate) mod context;
mod failure;
mod finish;
mod history;
mod incident;
mod members;
mod orders;
mod progress;
mod respond;
mod rooms;
mod silent;
#[cfg(test)]
mod tests;
mod worlds;

use chrono::{DateTime, Utc};
use lockstep_api::condition::{is_true, types};
use lockstep_api::names::MANAGED_BY;
use lockstep_api::workload::TrainingWorkloadStatus;

pub(crate) use context::Ctx;
pub(crate) use finish::timed_out;
pub(crate) use respond::describe;
pub(crate) use rooms::{dependencies_met, preemptor, ready};

use crate::plan::{Pass, Plan};
use crate::summary::summarize;
use crate::view::WorkloadView;

/// Decides what to do about a workload.
///
/// The stages that change the ledger come first, in a fixed order; if any of them has something to record, that is all
/// this pass does. Otherwise the difference between what the ledger wants and what is there becomes actions.
pub fn decide(view: &WorkloadView, now: DateTime<Utc>) -> Pass {
    if hands_off(view) {
        return Pass { plan: Plan::Idle, requeue_after: None };
    }
    let ctx = Ctx::new(view, now);
    let before = view.status();
    let mut ledger = before.clone();
    record(&ctx, &mut ledger);
    let plan = if ledger == before {
        match act::actions(&ctx, &ledger) {
            actions if actions.is_empty() => Plan::Idle,
            actions => Plan::Act(actions),
        }
    } else {
        Plan::Record(Box::new(summarize(&ctx, ledger)))
    };
    Pass { plan, requeue_after: ctx.requeue_after() }
}

/// Whether the object is somebody else's, or on its way out: the garbage collector removes what is owned.
pub(crate) fn hands_off(view: &WorkloadView) -> bool {
    view.deleting() || view.spec().managed_by != MANAGED_BY
}

/// Whether the workload has ended. Terminal is final.
pub(crate) fn ended(status: &TrainingWorkloadStatus) -> bool {
    is_true(&status.conditions, types::COMPLETE) || is_true(&status.conditions, types::FAILED)
}

/// Brings the ledger up to date. Each stage reads what the ones before it have recorded.
fn record(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus) {
    if ended(ledger) {
        return;
    }
    changes::follow_spec(ctx, ledger);
    if ledger.applied.is_none() || ctx.view.spec().suspend {
        return;
    }
    finish::latch_completions(ctx, ledger);
    finish::conclude(ctx, ledger);
    if ended(ledger) {
        return;
    }
    rooms::latch_dependencies(ctx, ledger);
    rooms::expire(ctx, ledger);
    rooms::follow_preemption(ctx, ledger);
    rooms::follow_refusals(ctx, ledger);
    rooms::follow_placements(ctx, ledger);
    incident::follow_failures(ctx, ledger);
    if !ended(ledger) {
        worlds::follow_placements(ctx, ledger);
    }
}
