//! Incidents and replacements of pods: they open, and move to the history when they end.

use chrono::{DateTime, Utc};
use lockstep_api::ids::DomainKey;
use lockstep_api::member::Member;
use lockstep_api::workload::{Cause, FailureAction, HistoryEntry, Phases};

use super::{Failed, Tries};
use crate::facts::Facts;
use crate::ledger::{DomainLedger, Ledger, Loss, OpenIncident, OpenReplacement};

const HISTORY: usize = 20;

impl Ledger {
    /// The previous incident of the domain is closed.
    pub fn open_incident(&mut self, domain: &DomainKey, incident: OpenIncident, tries: Tries) {
        let Some(entry) = self.domains.get_mut(domain) else {
            return;
        };
        entry.attempt = incident.attempt;
        entry.count_from_start();
        entry.interrupt(tries);
        entry.incident = Some(incident);
        self.highest_attempt = self.highest_attempt.max(entry.attempt);
    }

    /// The previous replacement of the domain is closed.
    pub fn open_replacement(
        &mut self,
        domain: &DomainKey,
        replacement: OpenReplacement,
        tries: Tries,
    ) {
        if let Some(entry) = self.domains.get_mut(domain) {
            entry.interrupt(tries);
            entry.replacement = Some(replacement);
        }
    }

    /// Closes incident and replacement.
    pub fn close_open(&mut self, facts: &Facts<'_>, domain: &DomainKey, recovered: bool) {
        self.close_replacement(facts, domain, recovered);
        self.close_incident(facts, domain, recovered);
    }

    /// Moves the open incident to the history. `recovered`: all members run again.
    pub fn close_incident(
        &mut self,
        facts: &Facts<'_>,
        domain: &DomainKey,
        recovered: bool,
    ) -> Option<OpenIncident> {
        let incident = self.domains.get_mut(domain)?.incident.take()?;
        let recovered_at = recovered.then_some(facts.now);
        let past_barrier = facts.is_past_barrier(domain, incident.attempt);
        let entry = HistoryEntry {
            counted: incident.counted,
            recreated: incident.replace.len() as i32,
            recovered_at,
            phases: phases(&incident, recovered_at, past_barrier),
            ..history_entry(domain, incident.attempt, &incident.cause, incident.action)
        };
        let failed = Failed {
            domain,
            cause: &incident.cause,
            detected_at: incident.detected_at,
            alone: None,
        };
        self.close(facts, failed, entry);
        Some(incident)
    }

    /// Moves the open replacement to the history. `recovered`: its members run again.
    pub fn close_replacement(
        &mut self,
        facts: &Facts<'_>,
        domain: &DomainKey,
        recovered: bool,
    ) -> Option<OpenReplacement> {
        let entry = self.domains.get_mut(domain)?;
        let (replacement, attempt) = (entry.replacement.take()?, entry.attempt);
        let recovered_at = recovered.then_some(facts.now);
        let (cause, detected_at) = (&replacement.cause, replacement.detected_at);
        let begun = replacement.not_before.unwrap_or(detected_at);
        let entry = HistoryEntry {
            counted: replacement.counted,
            recreated: replacement.members.len() as i32,
            recovered_at,
            phases: Phases {
                detect_ms: milliseconds(Some(cause.time), Some(detected_at)),
                decide_ms: milliseconds(Some(detected_at), Some(begun)),
                start_ms: milliseconds(Some(begun), recovered_at),
                ..Phases::default()
            },
            ..history_entry(domain, attempt, cause, FailureAction::RestartPod)
        };
        let failed = Failed {
            domain,
            cause,
            detected_at,
            alone: Some(&replacement.members),
        };
        self.close(facts, failed, entry);
        Some(replacement)
    }

    fn close(&mut self, facts: &Facts<'_>, failed: Failed<'_>, entry: HistoryEntry) {
        if entry.recovered_at.is_some() {
            self.budget.total += 1;
            self.budget.in_place += i64::from(entry.recreated == 0);
        }
        self.budget.recreated += i64::from(entry.recreated);
        let loss = self.count_loss(facts, failed);
        self.push_history(HistoryEntry {
            lost_accelerator_seconds: loss.work,
            restart_accelerator_seconds: loss.restart,
            ..entry
        });
    }

    /// Records the end of a run without an incident.
    pub fn record_interruption(
        &mut self,
        facts: &Facts<'_>,
        domain: &DomainKey,
        cause: &Cause,
        action: FailureAction,
    ) {
        let Some(attempt) = self.domain(domain).map(|d| d.attempt) else {
            return;
        };
        let basic = facts.gang_of(domain).is_some_and(|gang| gang.basic);
        if let Some(entry) = self.domains.get_mut(domain).filter(|_| !basic) {
            entry.count_from_start();
        }
        let failed = Failed {
            domain,
            cause,
            detected_at: facts.now,
            alone: None,
        };
        let loss = self.count_loss(facts, failed);
        let entry = HistoryEntry {
            lost_accelerator_seconds: loss.work,
            restart_accelerator_seconds: loss.restart,
            ..history_entry(domain, attempt, cause, action)
        };
        self.push_history(entry);
    }

    /// Records restarts by the kubelet. `recovered_at` is set if the members continue to run.
    pub fn record_kubelet_restarts(
        &mut self,
        domain: &DomainKey,
        cause: &Cause,
        action: FailureAction,
        counted: bool,
        recovered_at: Option<DateTime<Utc>>,
    ) {
        let Some(attempt) = self.domain(domain).map(|d| d.attempt) else {
            return;
        };
        self.push_history(HistoryEntry {
            counted,
            recovered_at,
            ..history_entry(domain, attempt, cause, action)
        });
    }

    fn push_history(&mut self, entry: HistoryEntry) {
        self.spent.loss.add(Loss {
            work: entry.lost_accelerator_seconds,
            restart: entry.restart_accelerator_seconds,
        });
        self.history.insert(0, entry);
        self.history.truncate(HISTORY);
    }

    /// True if an incident superseded a charged one before all members had recovered.
    pub fn follows_charged(&self, domain: &DomainKey, incident: &OpenIncident) -> bool {
        let before = self
            .history
            .iter()
            .find(|h| *domain == *h.domain && h.attempt < incident.attempt);
        before.is_some_and(|h| {
            h.counted
                && h.recovered_at.is_none()
                && h.action.raises_attempt()
                && h.attempt + 1 == incident.attempt
        })
    }
}

impl DomainLedger {
    fn interrupt(&mut self, tries: Tries) {
        self.tries = tries.counted;
        self.uncounted_tries = tries.uncounted;
        self.healthy_since = None;
    }
}

impl OpenReplacement {
    pub fn replace_members(
        &mut self,
        facts: &Facts<'_>,
        members: impl IntoIterator<Item = Member>,
    ) {
        for member in members {
            let pods = facts.pods_of(&member).iter();
            self.old_pods.extend(pods.map(|pod| pod.uid.clone()));
            self.members.insert(member);
        }
    }
}

impl OpenIncident {
    pub fn replace_members(
        &mut self,
        facts: &Facts<'_>,
        members: impl IntoIterator<Item = Member>,
    ) {
        for member in members {
            for pod in facts.pods_of(&member) {
                if !self.identifies_by_attempt(pod) {
                    self.old_pods.insert(pod.uid.clone());
                }
            }
            self.replace.insert(member);
        }
    }
}

fn history_entry(
    domain: &DomainKey,
    attempt: i64,
    cause: &Cause,
    action: FailureAction,
) -> HistoryEntry {
    HistoryEntry {
        domain: domain.to_string(),
        attempt,
        cause: cause.clone(),
        action,
        counted: false,
        recreated: 0,
        time: cause.time,
        recovered_at: None,
        phases: Phases::default(),
        lost_accelerator_seconds: 0,
        restart_accelerator_seconds: 0,
        preemptor: None,
    }
}

/// `barrier`: the incident ends when the barrier opens.
fn phases(incident: &OpenIncident, end: Option<DateTime<Utc>>, barrier: bool) -> Phases {
    let detected = Some(incident.detected_at);
    let last = milliseconds(incident.arrived_at.or(incident.ordered_at), end);
    Phases {
        detect_ms: milliseconds(Some(incident.cause.time), detected),
        decide_ms: milliseconds(detected, incident.ordered_at),
        stop_ms: milliseconds(incident.ordered_at, incident.arrived_at),
        barrier_ms: if barrier { last } else { 0 },
        start_ms: if barrier { 0 } else { last },
    }
}

/// At least 0: clocks of node and manager differ.
fn milliseconds(from: Option<DateTime<Utc>>, to: Option<DateTime<Utc>>) -> i64 {
    match (from, to) {
        (Some(from), Some(to)) => (to - from).num_milliseconds().max(0),
        _ => 0,
    }
}
