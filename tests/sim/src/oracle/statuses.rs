//! Monotonic fields in the status of a workload, and the cost of an incident (I2, I6).

use lockstep_api::workload::{Incident, Phase, TrainingWorkloadStatus};

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

/// Refunded incidents: an eviction or a shutdown ended the member.
fn taken_back(a: &TrainingWorkloadStatus, b: &TrainingWorkloadStatus) -> i64 {
    let counted = a.domains.iter().filter_map(|d| {
        let incident = d.incident.as_ref().filter(|i| i.counted)?;
        Some((&d.key, incident))
    });
    let now = counted.filter(|(key, old)| {
        let mut open = b.domains.iter().filter(|d| d.key == **key);
        let same = |i: &Incident| i.attempt == old.attempt && !i.counted;
        let open = open.any(|d| d.incident.as_ref().is_some_and(same));
        let mut over = b.history.iter().filter(|h| h.domain == **key);
        open || over.any(|h| h.attempt == old.attempt && !h.counted)
    });
    now.count() as i64
}

/// Counted incidents that only the later status has.
fn opened(a: &TrainingWorkloadStatus, b: &TrainingWorkloadStatus) -> i64 {
    let before = |key: &str| {
        let old = a.domains.iter().find(|o| o.key == key);
        old.and_then(|o| o.incident.as_ref())
    };
    let same = |old: &Incident, new: &Incident| {
        (old.detected_at, old.attempt, old.counted) == (new.detected_at, new.attempt, true)
    };
    let open = b
        .domains
        .iter()
        .filter_map(|d| Some((&d.key, d.incident.as_ref()?)));
    let counted = open.filter(|(_, new)| new.counted);
    counted
        .filter(|(key, new)| before(key).is_none_or(|old| !same(old, new)))
        .count() as i64
}

/// Incidents that ended between the two statuses without recovery.
fn given_up(a: &TrainingWorkloadStatus, b: &TrainingWorkloadStatus) -> i64 {
    let new = b.history.iter().filter(|h| !a.history.contains(h));
    new.filter(|h| h.recovered_at.is_none()).count() as i64
}
