use chrono::{DateTime, Utc};
use lockstep_api::names::MANAGED_BY;

use crate::diff;
use crate::facts::Facts;
use crate::ledger::Ledger;
use crate::observed::Observed;
use crate::plan::{Pass, Plan};
use crate::record::record;
use crate::summary::summarize;
use crate::view::WorkloadView;
use crate::wake::Wake;

/// Decides the next step for a workload.
///
/// Stages that change the ledger run first, in a fixed order. If the ledger changes, the pass only
/// records it. Otherwise, differences from the observed objects become actions. Without actions,
/// the pass updates the summary.
pub fn decide(view: &WorkloadView, now: DateTime<Utc>) -> Pass {
    let before = view.status();
    if hands_off(view) {
        return Pass {
            plan: Plan::Idle(Box::new(before)),
            requeue_after: None,
        };
    }
    let facts = Facts::new(Observed::new(view), now);
    let recorded = Ledger::read(&before, view.spec());
    let mut ledger = recorded.clone();
    let wake = facts.wake.min(record(&facts, &mut ledger));
    ledger.note_active(&facts);
    let recording = ledger != recorded;
    ledger.note_progress(&facts, recording);
    ledger.account(&facts, recording);
    let changed = ledger != recorded;
    let (mut actions, diff_wake) = if changed {
        (Vec::new(), Wake::NEVER)
    } else {
        diff::actions(&facts, &ledger)
    };
    let mut wake = wake.min(diff_wake);
    if let Some(failed) = facts.failed(&mut wake) {
        actions.retain(|action| action.rank() < failed.rank);
    }
    if !actions.is_empty() {
        return Pass {
            plan: Plan::Act(actions),
            requeue_after: wake.after(now),
        };
    }
    let (summary, summary_wake) = summarize(&facts, &ledger, &before);
    let status = Box::new(ledger.into_status(view.spec(), &facts.gangs, summary));
    Pass {
        plan: if changed {
            Plan::Record(status)
        } else {
            Plan::Idle(status)
        },
        requeue_after: wake.min(summary_wake).after(now),
    }
}

/// The garbage collector deletes the objects of a deleted workload.
fn hands_off(view: &WorkloadView) -> bool {
    view.deleting() || view.spec().managed_by != MANAGED_BY
}
