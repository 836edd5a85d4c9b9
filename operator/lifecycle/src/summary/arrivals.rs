//! Members at the barriers of open incidents, for people. Most restarts in place are over before the
//! first numbers are due, and write none.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta};
use lockstep_api::ids::DomainKey;
use lockstep_api::workload::{BarrierArrivals, IncidentStage, TrainingWorkloadStatus};

use crate::facts::Facts;
use crate::ledger::Ledger;
use crate::orders::barrier_groups;
use crate::wake::Wake;

/// How long a barrier has waited before its numbers are written.
const AFTER: TimeDelta = TimeDelta::seconds(5);
/// Least time between writes of these numbers, over all incidents of the workload.
const WRITTEN_EVERY: TimeDelta = TimeDelta::seconds(10);
/// Most incidents of a workload with numbers. With all of 500 incidents, the status would be too
/// large.
pub(crate) const INCIDENTS: usize = 8;

/// The numbers of each closed barrier: those of the last status until they are due.
pub(super) fn arrivals(
    facts: &Facts<'_>,
    ledger: &Ledger,
    before: &TrainingWorkloadStatus,
    wake: &mut Wake,
) -> BTreeMap<DomainKey, BarrierArrivals> {
    if ledger.domains.values().all(|d| d.incident.is_none()) {
        return BTreeMap::new();
    }
    let incidents = before.domains.iter().filter_map(|d| {
        let incident = d.incident.as_ref()?;
        let key = (d.key.as_str(), incident.attempt);
        Some((key, incident.arrivals.as_ref()?))
    });
    let written: BTreeMap<(&str, i64), &BarrierArrivals> = incidents.collect();
    let times = written.values().map(|a| a.arrivals_time);
    // The clock of an earlier leader can be ahead.
    let last = times.filter(|time| *time <= facts.now).max();
    let next = last.map_or(DateTime::UNIX_EPOCH, |last| last + WRITTEN_EVERY);
    let membership = ledger.membership(facts.spec());
    let groups = barrier_groups(facts, ledger, &membership);
    let ordered = groups.filter_map(|group| {
        let incident = group.entry.incident.as_ref()?;
        Some((incident, incident.ordered_at?, group))
    });
    let numbers = ordered
        .take(INCIDENTS)
        .filter_map(|(incident, ordered_at, group)| {
            let key = &group.domain.key;
            let old = written.get(&(key.as_str(), incident.attempt)).copied();
            let due = next.max(ordered_at + AFTER);
            let numbers = if facts.due(due).passed(wake) {
                let closed = incident.stage != IncidentStage::Arrived
                    || !facts.is_released(key, incident.attempt);
                closed.then(|| {
                    let time = old.map_or(facts.now, |old| old.arrivals_time);
                    let mut new = membership.arrivals(group.arrivals(), time);
                    if old != Some(&new) {
                        new.arrivals_time = facts.now;
                    }
                    new
                })
            } else {
                old.cloned()
            };
            Some((key.clone(), numbers?))
        });
    numbers.collect()
}
