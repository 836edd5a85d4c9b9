//! The incident history and the restart budget.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::names::annotations;
use lockstep_api::workload::{
    Cause, DomainStatus, FailureAction, HistoryEntry, Incident, Phases, RestartLimits, Restarts, TrainingWorkloadStatus,
};

use super::context::Ctx;
use super::members::replaced;
use crate::ranks::World;

/// Incidents that the history keeps.
const HISTORY: usize = 20;

/// Puts an entry in front.
pub(super) fn push(ledger: &mut TrainingWorkloadStatus, entry: HistoryEntry) {
    ledger.accounting.lost_accelerator_seconds =
        ledger.accounting.lost_accelerator_seconds.saturating_add(entry.lost_accelerator_seconds);
    ledger.history.insert(0, entry);
    ledger.history.truncate(HISTORY);
}

/// Something that happened and ended at once: no restart of the domain followed.
pub(super) fn entry(domain: &DomainStatus, cause: &Cause, action: FailureAction, counted: bool) -> HistoryEntry {
    HistoryEntry {
        domain: domain.key.clone(),
        epoch: domain.epoch,
        cause: cause.clone(),
        action,
        counted,
        recreated: 0,
        time: cause.time,
        recovered_at: None,
        phases: Phases::default(),
        lost_accelerator_seconds: 0,
    }
}

/// Something that ended the run of a domain, without an incident of its own.
pub(super) fn interrupted(
    ctx: &Ctx<'_>,
    ledger: &mut TrainingWorkloadStatus,
    domain: &DomainStatus,
    cause: &Cause,
    action: FailureAction,
) {
    let lost = lost_accelerator_seconds(ctx, ledger, domain, cause.time);
    push(ledger, HistoryEntry { lost_accelerator_seconds: lost, ..entry(domain, cause, action, false) });
}

/// Moves an incident into the history. `recovered`: all members run again.
pub(super) fn close(
    ctx: &Ctx<'_>,
    ledger: &mut TrainingWorkloadStatus,
    domain: &DomainStatus,
    incident: &Incident,
    recovered: bool,
) {
    let recreated = replaced(incident).len() as i32;
    if recovered {
        ledger.restarts.total += 1;
        ledger.restarts.in_place += i64::from(recreated == 0);
    }
    ledger.restarts.recreated += i64::from(recreated);
    let end = recovered.then_some(ctx.now);
    let lost = lost_accelerator_seconds(ctx, ledger, domain, incident.cause.time);
    push(
        ledger,
        HistoryEntry {
            epoch: incident.epoch,
            recreated,
            recovered_at: end,
            phases: phases(incident, end),
            lost_accelerator_seconds: lost,
            ..entry(domain, &incident.cause, incident.action, incident.counted)
        },
    );
}

/// Whether the incident took the place of one that was charged and had not brought all members back.
pub(super) fn follows_charged(ledger: &TrainingWorkloadStatus, domain: &str, incident: &Incident) -> bool {
    let before = ledger.history.iter().find(|h| h.domain == domain && h.epoch < incident.epoch);
    before.is_some_and(|h| h.counted && h.recovered_at.is_none() && h.epoch + 1 == incident.epoch)
}

fn phases(incident: &Incident, end: Option<DateTime<Utc>>) -> Phases {
    // Clocks of node and manager differ: a phase is never negative.
    let ms = |from: Option<DateTime<Utc>>, to: Option<DateTime<Utc>>| match (from, to) {
        (Some(from), Some(to)) => (to - from).num_milliseconds().max(0),
        _ => 0,
    };
    let detected = Some(incident.detected_at);
    Phases {
        detect_ms: ms(Some(incident.cause.time), detected),
        decide_ms: ms(detected, incident.ordered_at),
        stop_ms: ms(incident.ordered_at, incident.arrived_at),
        // Nothing holds members back between arrival and release.
        barrier_ms: 0,
        start_ms: ms(incident.arrived_at.or(incident.ordered_at), end),
    }
}

/// Work of the domain since the last checkpoint, or since it began to run, plus the time of the restart so far.
fn lost_accelerator_seconds(
    ctx: &Ctx<'_>,
    ledger: &TrainingWorkloadStatus,
    domain: &DomainStatus,
    failed_at: DateTime<Utc>,
) -> i64 {
    let Some((_, members)) = ctx.domain(&domain.key) else { return 0 };
    let world = World::of(ctx.view.spec(), ledger);
    let running = members.members.iter().filter(|m| world.contains(m));
    let accelerators: i64 = running.map(|m| ctx.accelerators(&m.group)).sum();
    let annotations = ctx.view.workload.metadata.annotations.as_ref();
    let checkpoint = annotations
        .and_then(|a| DateTime::parse_from_rfc3339(a.get(annotations::LAST_CHECKPOINT)?).ok())
        .map(|t| t.with_timezone(&Utc))
        .filter(|t| *t <= ctx.now);
    let restarted = ledger.history.iter().filter(|h| h.domain == domain.key).find_map(|h| h.recovered_at);
    let since = [checkpoint, restarted, ledger.start_time].into_iter().flatten().max().unwrap_or(failed_at);
    let idle_from = since.min(failed_at);
    accelerators.saturating_mul((ctx.now - idle_from).num_seconds().max(0))
}

/// Takes a unit of the budget; false when none is left in the window.
pub(super) fn charge(restarts: &mut Restarts, limits: &RestartLimits, now: DateTime<Utc>) -> bool {
    let window = TimeDelta::seconds(limits.window_seconds);
    restarts.counted_at.retain(|at| *at + window > now);
    if restarts.counted_at.len() >= limits.max_restarts.max(0) as usize {
        return false;
    }
    restarts.counted_at.push(now);
    restarts.counted += 1;
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_counts_in_a_sliding_window() {
        let at = |s| DateTime::from_timestamp(s, 0).unwrap();
        let limits = RestartLimits { max_restarts: 2, window_seconds: 100 };
        let mut r = Restarts::default();
        assert!(charge(&mut r, &limits, at(0)));
        assert!(charge(&mut r, &limits, at(50)));
        assert!(!charge(&mut r, &limits, at(99)), "two units within 100 s");
        assert!(charge(&mut r, &limits, at(100)), "the first has left the window");
        assert_eq!((r.counted, r.counted_at.len()), (3, 2));
    }

    #[test]
    fn a_budget_of_zero_allows_no_incident() {
        let limits = RestartLimits { max_restarts: 0, window_seconds: 100 };
        assert!(!charge(&mut Restarts::default(), &limits, DateTime::UNIX_EPOCH));
    }
}
