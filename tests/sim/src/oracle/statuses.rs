//! Monotonic fields in the status of a workload, and the cost of an incident (I2, I6).

use chrono::{DateTime, Utc};
use lockstep_api::workload::{HistoryEntry, Phase, TrainingWorkloadStatus};

/// Violations between a status and the next.
pub fn check_order(a: &TrainingWorkloadStatus, b: &TrainingWorkloadStatus) -> Vec<String> {
    let ended =
        |s: &TrainingWorkloadStatus| matches!(s.phase, Some(Phase::Succeeded | Phase::Failed));
    let mut broken = Vec::new();
    let mut must = |holds: bool, what: &str| {
        if !holds {
            broken.push(what.to_owned());
        }
    };
    must(
        b.attempt >= a.attempt || a.applied.is_none(),
        "the attempt goes back",
    );
    for d in &b.domains {
        let old = a.domains.iter().find(|o| o.key == d.key);
        must(
            old.is_none_or(|o| d.attempt == o.attempt || d.attempt == o.attempt + 1),
            "an attempt does not rise by one",
        );
    }
    let (old, new) = (&a.restarts, &b.restarts);
    must(
        new.total >= old.total && new.counted >= old.counted - taken_back(a, b),
        "a counter of restarts goes back",
    );
    must(b.preemptions >= a.preemptions, "preemptions go back");
    must(
        b.observed_generation >= a.observed_generation,
        "the observed generation goes back",
    );
    must(!ended(a) || b.phase == a.phase, "an end is not final");
    let paid = new.counted - old.counted;
    let due = opened(a, b) + (new.total - old.total).max(0) + given_up(a, b);
    must(paid <= due, "more budget is taken than incidents began");
    broken
}

/// An open incident or replacement of pods.
#[derive(PartialEq)]
struct Open<'s> {
    domain: &'s str,
    attempt: i64,
    detected_at: DateTime<Utc>,
    counted: bool,
}

fn all_open(status: &TrainingWorkloadStatus) -> impl Iterator<Item = Open<'_>> {
    status.domains.iter().flat_map(|d| {
        let open = |attempt, detected_at, counted| Open {
            domain: &d.key,
            attempt,
            detected_at,
            counted,
        };
        let incident = d.incident.iter();
        let incident = incident.map(move |i| open(i.attempt, i.detected_at, i.counted));
        let alone = d.replacement.iter();
        incident.chain(alone.map(move |r| open(d.attempt, r.detected_at, r.counted)))
    })
}

/// Refunded incidents: an eviction or a shutdown ended the member, or a dependency has broken.
fn taken_back(a: &TrainingWorkloadStatus, b: &TrainingWorkloadStatus) -> i64 {
    let now = all_open(a).filter(|old| old.counted).filter(|old| {
        let same = |domain: &str, attempt, counted: bool| {
            domain == old.domain && attempt == old.attempt && !counted
        };
        let open = all_open(b).any(|new| same(new.domain, new.attempt, new.counted));
        let mut over = b.history.iter();
        open || over.any(|h| same(&h.domain, h.attempt, h.counted))
    });
    let over = a.history.iter().filter(|h| h.counted);
    let over = over.filter(|old| {
        let same = |h: &&HistoryEntry| {
            (&h.domain, h.attempt, h.time) == (&old.domain, old.attempt, old.time)
        };
        b.history.iter().find(same).is_some_and(|h| !h.counted)
    });
    (now.count() + over.count()) as i64
}

/// Counted incidents that only the later status has.
fn opened(a: &TrainingWorkloadStatus, b: &TrainingWorkloadStatus) -> i64 {
    let new = all_open(b).filter(|new| new.counted);
    new.filter(|new| all_open(a).all(|old| old != *new)).count() as i64
}

/// Incidents that ended between the two statuses without recovery.
fn given_up(a: &TrainingWorkloadStatus, b: &TrainingWorkloadStatus) -> i64 {
    let new = b.history.iter().filter(|h| !a.history.contains(h));
    new.filter(|h| h.recovered_at.is_none()).count() as i64
}
