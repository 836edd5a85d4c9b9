//! The stages that update the ledger, in order. Each reads what earlier stages have recorded. No
//! stage calls another stage or reads the summary.
//!
//! | stage | records |
//! | --- | --- |
//! | 00 [`kueue`] | quota from Kueue |
//! | 00 [`requests`], [`moves`] | requests for checkpoints before a stop; moves away from nodes with signals |
//! | 01 [`spec_changes`] | applied spec; suspension, edits, resizing, requested restarts |
//! | 02 [`completion`] | members that have succeeded; the end of the workload |
//! | 03 [`backoffs`] | ends of back-offs and of avoidances |
//! | 04 [`preemption`] | preempted gangs |
//! | 05 [`rejections`] | gangs with a pod that the API server rejected |
//! | 06 [`stuck_pods`] | nodes on which pods do not end |
//! | 07 [`starts`], [`partial_start`] | members that nodes did not start; gangs that never become complete |
//! | 08 [`failures`] | broken dependencies, failures, restarts, recovery |
//! | 09 [`membership`] | running members of elastic gangs |
//! | 10 [`moves`] | moves within a restart for another reason |

mod backoffs;
mod completion;
mod failures;
mod kueue;
mod membership;
mod moves;
mod partial_start;
mod preemption;
mod rejections;
mod requests;
mod spec_changes;
mod starts;
mod stuck_pods;

use crate::facts::Facts;
use crate::ledger::Ledger;
use crate::wake::Wake;

/// Returns the time of the next change of the ledger by time alone.
pub(crate) fn record(facts: &Facts<'_>, ledger: &mut Ledger) -> Wake {
    if ledger.ended.is_some() {
        return Wake::NEVER;
    }
    kueue::follow_quota(facts, ledger);
    let mut wake = requests::follow_requests(facts, ledger);
    wake = wake.min(moves::follow_moves(facts, ledger));
    spec_changes::follow_spec(facts, ledger);
    if ledger.applied.is_none() || ledger.is_suspended(facts.spec()) && !ledger.awaits_reply() {
        return wake;
    }
    wake = wake.min(completion::record_completions(facts, ledger));
    if ledger.ended.is_some() {
        return wake;
    }
    wake = wake.min(backoffs::end_waits(facts, ledger));
    preemption::release_preempted(facts, ledger);
    rejections::release_rejected(facts, ledger);
    stuck_pods::avoid_stuck_nodes(facts, ledger);
    wake = wake.min(starts::follow_starts(facts, ledger));
    wake = wake.min(partial_start::release_incomplete(facts, ledger));
    wake = wake.min(failures::follow_failures(facts, ledger));
    if ledger.ended.is_none() {
        membership::follow_placements(facts, ledger);
        moves::leave_with_restarts(facts, ledger);
    }
    wake
}
