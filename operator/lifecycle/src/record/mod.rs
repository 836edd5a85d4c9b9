//! The stages that bring the ledger up to date, in their order. Each reads what the ones before it
//! have recorded; none calls another, and none sees a summary.
//!
//! | stage | records |
//! |---|---|
//! | 01 [`spec_changes`] | what pods are made from; suspension, edits, resizing, requested restarts |
//! | 02 [`completion`] | members that have succeeded; the end of the workload |
//! | 03 [`dependencies`] | gangs whose dependencies are met; waits that are over |
//! | 04 [`preemption`] | gangs that are preempted |
//! | 05 [`refusals`] | gangs of which the API server refused a pod |
//! | 06 [`stuck`] | nodes whose pods do not end |
//! | 07 [`starts`], [`never_whole`] | members that their nodes did not start; gangs that never get all of theirs |
//! | 08 [`failures`] | failures, restarts, recovery |
//! | 09 [`membership`] | which members of an elastic gang run together |

mod completion;
mod dependencies;
mod failures;
mod membership;
mod never_whole;
mod preemption;
mod refusals;
mod spec_changes;
mod starts;
mod stuck;

use crate::facts::Facts;
use crate::ledger::Ledger;
use crate::wake::Wake;

/// Brings the ledger up to date, and says when time alone will change it again.
pub(crate) fn record(facts: &Facts<'_>, ledger: &mut Ledger) -> Wake {
    if ledger.ended.is_some() {
        return Wake::NEVER;
    }
    spec_changes::follow_spec(facts, ledger);
    if ledger.applied.is_none() || facts.spec().suspend {
        return Wake::NEVER;
    }
    let mut wake = completion::record_completions(facts, ledger);
    if ledger.ended.is_some() {
        return wake;
    }
    wake = wake.min(dependencies::end_waits(facts, ledger));
    preemption::release_preempted(facts, ledger);
    refusals::release_refused(facts, ledger);
    wake = wake.min(stuck::avoid_stuck_nodes(facts, ledger));
    wake = wake.min(starts::follow_starts(facts, ledger));
    wake = wake.min(never_whole::release_incomplete(facts, ledger));
    wake = wake.min(failures::follow_failures(facts, ledger));
    if ledger.ended.is_none() {
        membership::follow_placements(facts, ledger);
    }
    wake
}
