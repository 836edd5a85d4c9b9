//! The part of a status that is for people and tools, computed after the decisions from the ledger
//! and from what is there. No decision can read it: it comes into being when they have been made.
//!
//! Only the summary before it is an input besides, because a condition keeps the time of its last
//! transition.

mod admission;
mod conditions;
pub(crate) mod counts;
mod notes;
mod supervision;
mod value;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use lockstep_api::condition::{Condition, find, is_true, types};
use lockstep_api::membership::Membership;
use lockstep_api::workload::{Phase, TrainingWorkloadStatus};

use crate::facts::Facts;
use crate::ledger::{Ledger, Outcome};
use crate::wake::Wake;
use counts::Counts;

/// What a status says besides the ledger.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Summary {
    /// Generation of the spec.
    pub observed_generation: i64,
    /// One word.
    pub phase: Phase,
    /// Reason of the condition that gives the phase.
    pub reason: String,
    /// Message of that condition.
    pub message: String,
    /// Members that are ready or have succeeded, of those that should run.
    pub ready: String,
    /// All conditions but the terminal ones, which belong to the ledger.
    pub conditions: Vec<Condition>,
    /// Counts by group.
    pub groups: BTreeMap<String, Counts>,
    /// When a gang was last placed.
    pub scheduled_time: Option<DateTime<Utc>>,
    /// Accelerators that are held.
    pub accelerators: i64,
}

/// Computes the summary, and says when time alone will change it. `before`: the status as it was
/// read.
pub(crate) fn summarize(
    facts: &Facts<'_>,
    ledger: &Ledger,
    before: &TrainingWorkloadStatus,
) -> (Summary, Wake) {
    let membership = ledger.membership(facts.spec());
    let groups = counts::count_groups(facts, ledger);
    let ready = ready(ledger, &membership, &groups);
    let mut wake = Wake::NEVER;
    let conditions = conditions::all(facts, ledger, &groups, &ready, before, &mut wake);
    let held = held_capacity(facts, ledger);
    let phase = phase(facts, ledger, &membership, &conditions);
    let (reason, message) = why(phase, ledger, &conditions);
    let summary = Summary {
        observed_generation: facts.view.generation(),
        phase,
        reason,
        message,
        ready,
        conditions,
        groups,
        scheduled_time: held.since.or(before.scheduled_time),
        accelerators: held.accelerators,
    };
    (summary, wake)
}

/// Members that are ready or have succeeded, of those that should run, such as `31/32`.
fn ready(
    ledger: &Ledger,
    membership: &Membership<'_>,
    groups: &BTreeMap<String, Counts>,
) -> String {
    let (mut ready, mut wanted) = (0, 0);
    for (name, counts) in groups {
        ready += counts.ready + counts.succeeded;
        // Of an elastic group that is complete nobody else is awaited.
        wanted += if membership.complete(name, &ledger.completed) {
            counts.succeeded
        } else {
            counts.desired
        };
    }
    format!("{ready}/{wanted}")
}

/// What the workload holds.
struct HeldCapacity {
    /// When the last placement was decided; None without placement.
    since: Option<DateTime<Utc>>,
    /// Accelerators.
    accelerators: i64,
}

fn held_capacity(facts: &Facts<'_>, ledger: &Ledger) -> HeldCapacity {
    let mut held = HeldCapacity {
        since: None,
        accelerators: 0,
    };
    let mut per_member: BTreeMap<&str, i64> = BTreeMap::new();
    for key in ledger.gangs.keys() {
        let Some(placement) = facts.placement(ledger, key.as_str()) else {
            continue;
        };
        held.since = held.since.max(Some(placement.decided_at));
        for member in facts.assigned_nodes(key.as_str()).keys() {
            let each = *per_member
                .entry(&member.group)
                .or_insert_with_key(|group| facts.accelerators(group));
            held.accelerators = held.accelerators.saturating_add(each);
        }
    }
    held
}

fn phase(
    facts: &Facts<'_>,
    ledger: &Ledger,
    membership: &Membership<'_>,
    conditions: &[Condition],
) -> Phase {
    match ledger.ended.as_ref().map(|e| e.outcome) {
        Some(Outcome::Complete) => return Phase::Succeeded,
        Some(Outcome::Failed) => return Phase::Failed,
        None => {}
    }
    if facts.spec().suspend {
        Phase::Suspended
    } else if is_true(conditions, types::STALLED) {
        Phase::Stalled
    } else if is_true(conditions, types::DISRUPTION_TARGET) {
        Phase::Preempting
    } else if is_true(conditions, types::RESTARTING) {
        Phase::Restarting
    } else if !is_true(conditions, types::ADMITTED) {
        Phase::Pending
    } else if all_run(facts, ledger, membership) {
        Phase::Running
    } else {
        Phase::Starting
    }
}

/// Reason and message of the condition that gives a phase.
fn why(phase: Phase, ledger: &Ledger, conditions: &[Condition]) -> (String, String) {
    let type_ = match phase {
        Phase::Succeeded | Phase::Failed => {
            let end = ledger.ended.as_ref();
            return end
                .map(|e| (e.reason.clone(), e.message.clone()))
                .unwrap_or_default();
        }
        Phase::Suspended => types::SUSPENDED,
        Phase::Stalled => types::STALLED,
        Phase::Preempting => types::DISRUPTION_TARGET,
        Phase::Restarting => types::RESTARTING,
        Phase::Pending => types::ADMITTED,
        Phase::Starting | Phase::Running => types::READY,
    };
    find(conditions, type_)
        .map(|c| (c.reason.clone(), c.message.clone()))
        .unwrap_or_default()
}

/// Whether all unfinished members of every domain run. Of an elastic gang a whole replica may be
/// unplaced.
fn all_run(facts: &Facts<'_>, ledger: &Ledger, membership: &Membership<'_>) -> bool {
    for (key, entry) in &ledger.domains {
        let in_use = facts.domain(key.as_str()).is_none_or(|d| {
            let mut members = d.members.iter();
            members.any(|m| membership.contains(m) && !ledger.completed.contains(m))
        });
        if in_use && entry.healthy_since.is_none() {
            return false;
        }
    }
    true
}
