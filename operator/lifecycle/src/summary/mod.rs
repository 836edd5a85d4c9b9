//! The part of a status for people and tools. It is computed after the decisions, which do not read
//! it.
//!
//! The previous summary is an input, because conditions keep the time of their last transition.

mod admission;
pub(crate) mod arrivals;
mod checkpoint;
mod conditions;
pub(crate) mod counts;
mod node_leaving;
mod notes;
mod supervision;
mod value;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use lockstep_api::condition::{Condition, find, is_true, reasons, types};
use lockstep_api::ids::DomainKey;
use lockstep_api::membership::Membership;
use lockstep_api::names::labels;
use lockstep_api::workload::{
    Backend, BarrierArrivals, Phase, PhaseChange, TrainingWorkloadStatus,
};

use crate::facts::Facts;
use crate::ledger::{Ledger, Outcome};
use crate::wake::Wake;
use admission::{has_members, is_coming_up};
use counts::Counts;

/// Number of changes of the phase that the status keeps.
const PHASES: usize = 20;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Summary {
    pub observed_generation: i64,
    pub phase: Phase,
    pub reason: String,
    pub message: String,
    /// Ready or succeeded members, such as `31/32`.
    pub ready: String,
    /// `None`: Lockstep.
    pub backend: Option<Backend>,
    /// Without the terminal conditions.
    pub conditions: Vec<Condition>,
    pub groups: BTreeMap<String, Counts>,
    /// Of open incidents with a closed barrier.
    pub arrivals: BTreeMap<DomainKey, BarrierArrivals>,
    /// Of the group that `spec.replicas` counts.
    pub selector: Option<String>,
    pub scheduled_time: Option<DateTime<Utc>>,
    pub phases: Vec<PhaseChange>,
}

/// The summary, and the time of its next change by time alone. `before`: the last read status.
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
    let phase = phase(facts, ledger, &membership, &conditions);
    let (reason, message) = why(phase, ledger, &conditions);
    let phases = changes(before, phase, &reason, facts.now);
    let summary = Summary {
        observed_generation: facts.view.generation(),
        phase,
        reason,
        message,
        ready,
        backend: Some(facts.view.backend()).filter(|b| *b != Backend::Lockstep),
        conditions,
        groups,
        arrivals: arrivals::arrivals(facts, ledger, before, &mut wake),
        selector: scale_selector(facts),
        scheduled_time: placed_at(facts, ledger).or(before.scheduled_time),
        phases,
    };
    (summary, wake)
}

/// The last changes of the phase, with this one if the phase differs.
fn changes(
    before: &TrainingWorkloadStatus,
    phase: Phase,
    reason: &str,
    now: DateTime<Utc>,
) -> Vec<PhaseChange> {
    let mut changes = before.phases.clone();
    if before.phase != Some(phase) {
        changes.push(PhaseChange {
            phase,
            reason: reason.to_owned(),
            since: now,
        });
        let surplus = changes.len().saturating_sub(PHASES);
        changes.drain(..surplus);
    }
    changes
}

fn ready(
    ledger: &Ledger,
    membership: &Membership<'_>,
    groups: &BTreeMap<String, Counts>,
) -> String {
    let (mut ready, mut desired) = (0, 0);
    for (name, counts) in groups {
        ready += counts.ready + counts.succeeded;
        desired += if membership.complete(name, &ledger.completed) {
            counts.succeeded
        } else {
            counts.desired
        };
    }
    format!("{ready}/{desired}")
}

/// As many pods as replicas: an autoscaler divides the total of the selected pods by their number.
fn scale_selector(facts: &Facts<'_>) -> Option<String> {
    let group = &facts.spec().scaled_group()?.name;
    Some(format!(
        "{}={},{}={group},{}=0",
        labels::WORKLOAD,
        facts.view.name(),
        labels::GROUP,
        labels::INDEX
    ))
}

fn placed_at(facts: &Facts<'_>, ledger: &Ledger) -> Option<DateTime<Utc>> {
    let gangs = ledger.gangs.keys();
    let placements = gangs.filter_map(|key| facts.placement(ledger, key));
    placements.map(|placement| placement.decided_at).max()
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
    } else if !has_members(facts)
        || !is_true(conditions, types::ADMITTED) && !all_come_up(facts, ledger)
    {
        Phase::Pending
    } else if all_run(facts, ledger, membership) {
        Phase::Running
    } else {
        Phase::Starting
    }
}

/// From the condition that determines the phase.
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
        Phase::Starting if !is_true(conditions, types::ADMITTED) => types::ADMITTED,
        Phase::Starting | Phase::Running => types::READY,
    };
    let failed = find(conditions, types::RECONCILING)
        .filter(|c| c.reason == reasons::API_SERVER_ERROR && type_ != types::STALLED);
    failed
        .or_else(|| find(conditions, type_))
        .map(|c| (c.reason.clone(), c.message.clone()))
        .unwrap_or_default()
}

/// True if every unfinished gang has members on nodes: the workload is not queued.
fn all_come_up(facts: &Facts<'_>, ledger: &Ledger) -> bool {
    let gangs = facts.gangs.iter();
    let mut waiting = gangs.filter(|g| ledger.gang(&g.key).is_some() && !ledger.is_done(g));
    !ledger.gangs.is_empty() && waiting.all(|g| is_coming_up(facts, ledger, g))
}

/// An elastic gang can have a whole replica without nodes.
fn all_run(facts: &Facts<'_>, ledger: &Ledger, membership: &Membership<'_>) -> bool {
    for (key, entry) in &ledger.domains {
        let in_use = facts.domain(key).is_none_or(|d| {
            let mut members = d.members.iter();
            members.any(|m| membership.contains(m) && !ledger.completed.contains(m))
        });
        if in_use && entry.healthy_since.is_none() {
            return false;
        }
    }
    true
}
