//! The changes of the ledger that stages have in common. They call nothing above, and each leaves
//! the ledger as a whole consistent.

mod accounting;
mod progress;

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use lockstep_api::gangs::{Domain, Gang};
use lockstep_api::ids::{DomainKey, GangKey, NodeName};
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::names::annotations;
use lockstep_api::workload::{
    Backoff, Cause, CauseKind, FailureAction, HistoryEntry, Phases, TrainingWorkloadSpec,
};

use crate::facts::{Facts, PlacementState};
use crate::ledger::{Avoidance, DomainLedger, End, Ledger, OpenIncident, Outcome};
use crate::settings::doubling;

/// Incidents that the history keeps.
const HISTORY: usize = 20;

/// Why a gang that releases its placement waits before it queues again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReleaseReason {
    /// Reason, from the table of condition reasons.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// Restarts in a row of a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tries {
    /// For failures that take budget.
    pub counted: i32,
    /// For failures that take none.
    pub uncounted: i32,
}

impl Tries {
    /// Both together.
    pub fn all(self) -> i32 {
        self.counted.saturating_add(self.uncounted)
    }
}

impl Ledger {
    /// Opens an incident in a restart domain; one that is open has been closed before.
    pub fn open_incident(&mut self, domain: &DomainKey, incident: OpenIncident, tries: Tries) {
        let Some(entry) = self.domains.get_mut(domain) else {
            return;
        };
        entry.attempt = incident.attempt;
        entry.tries = tries.counted;
        entry.uncounted_tries = tries.uncounted;
        entry.healthy_since = None;
        entry.incident = Some(incident);
        self.highest_attempt = self.highest_attempt.max(entry.attempt);
    }

    /// Notes that all pods of a domain will be replaced together.
    pub fn note_recreation(&mut self, domain: &DomainKey) {
        if let Some(entry) = self.domains.get_mut(domain) {
            entry.recreations = entry.recreations.saturating_add(1);
        }
    }

    /// Moves the open incident of a domain into the history. `recovered`: all members run again.
    pub fn close_incident(
        &mut self,
        facts: &Facts<'_>,
        domain: &DomainKey,
        recovered: bool,
    ) -> Option<OpenIncident> {
        let incident = self.domains.get_mut(domain)?.incident.take()?;
        let recreated = incident.replace.len() as i32;
        if recovered {
            self.budget.total += 1;
            self.budget.in_place += i64::from(recreated == 0);
        }
        self.budget.recreated += i64::from(recreated);
        let recovered_at = recovered.then_some(facts.now);
        let alone = incident.affects_single_pods().then_some(&incident.replace);
        let entry = HistoryEntry {
            domain: domain.to_string(),
            attempt: incident.attempt,
            cause: incident.cause.clone(),
            action: incident.action,
            counted: incident.counted,
            recreated,
            time: incident.cause.time,
            recovered_at,
            phases: phases(
                &incident,
                recovered_at,
                facts.is_past_barrier(domain, incident.attempt),
            ),
            lost_accelerator_seconds: self.count_lost(facts, domain, &incident.cause, alone),
        };
        self.push_history(entry);
        Some(incident)
    }

    /// Puts what ended the run of a domain into the history, where no incident of its own follows.
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
        let entry = HistoryEntry {
            lost_accelerator_seconds: self.count_lost(facts, domain, cause, None),
            ..history_entry(domain, attempt, cause, action)
        };
        self.push_history(entry);
    }

    /// Puts restarts that the kubelet made, and that are over, into the history. `within_budget`:
    /// the members run on.
    pub fn record_kubelet_restarts(
        &mut self,
        facts: &Facts<'_>,
        domain: &DomainKey,
        cause: &Cause,
        action: FailureAction,
        counted: bool,
        within_budget: bool,
    ) {
        let Some(attempt) = self.domain(domain).map(|d| d.attempt) else {
            return;
        };
        self.push_history(HistoryEntry {
            counted,
            recovered_at: within_budget.then_some(facts.now),
            ..history_entry(domain, attempt, cause, action)
        });
    }

    fn push_history(&mut self, entry: HistoryEntry) {
        let lost = &mut self.spent.lost;
        *lost = lost.saturating_add(entry.lost_accelerator_seconds);
        self.history.insert(0, entry);
        self.history.truncate(HISTORY);
    }

    /// Whether an incident superseded one that was charged and had not brought all members back.
    pub fn follows_charged(&self, domain: &DomainKey, incident: &OpenIncident) -> bool {
        let before = self
            .history
            .iter()
            .find(|h| *domain == *h.domain && h.attempt < incident.attempt);
        before.is_some_and(|h| {
            h.counted && h.recovered_at.is_none() && h.attempt + 1 == incident.attempt
        })
    }

    /// The accelerator time that a domain has lost and that no entry of the history has counted yet:
    /// one failure may end in several, when the next one overtakes its restart. `alone`: members that have
    /// failed without the others.
    fn count_lost(
        &mut self,
        facts: &Facts<'_>,
        domain: &DomainKey,
        cause: &Cause,
        alone: Option<&MemberSet>,
    ) -> i64 {
        let lost = self.lost_seconds(facts, domain, cause, alone);
        if let Some(entry) = self.domains.get_mut(domain) {
            entry.lost_until = Some(facts.now);
        }
        lost
    }

    /// Work of the domain since the last checkpoint, or since it began to run, plus the time of the
    /// restart so far, in accelerator-seconds.
    fn lost_seconds(
        &self,
        facts: &Facts<'_>,
        domain: &DomainKey,
        cause: &Cause,
        alone: Option<&MemberSet>,
    ) -> i64 {
        let Some(members) = facts.domain(domain).map(|d| &d.members) else {
            return 0;
        };
        let membership = self.membership(facts.spec());
        let running = members.iter().filter(|m| membership.contains(m));
        let running = running.filter(|m| alone.is_none_or(|alone| alone.contains(m)));
        let accelerators: i64 = running.map(|m| facts.accelerators(&m.group)).sum();
        let restarted = self
            .history
            .iter()
            .filter(|h| *domain == *h.domain)
            .find_map(|h| h.recovered_at);
        // Time in the queue is no work, and the clock of a node may be anywhere.
        let held_since = self.held_since(facts, domain, cause, alone.is_some());
        let held_since = held_since.or(self.started_at);
        let failed_at = held_since.map_or(cause.time, |held| cause.time.max(held));
        let noted = self.progress.as_ref().and_then(|p| p.checkpoint_time);
        let reported = self.last_saved(facts);
        let since = [
            last_checkpoint(facts),
            noted,
            reported,
            restarted,
            held_since,
        ]
        .into_iter()
        .flatten()
        .max()
        .unwrap_or(failed_at);
        let mut idle_from = since.min(failed_at);
        if let Some(counted) = self.domain(domain).and_then(|d| d.lost_until) {
            idle_from = idle_from.max(counted);
        }
        accelerators.saturating_mul((facts.now - idle_from).num_seconds().max(0))
    }

    /// Since when the gang of a domain holds the capacity that it has, or has just released. A preemption's
    /// nodes are others' until its victims have left them. A placement is decided anew when a member goes
    /// elsewhere, too, and what was done before is none the less lost; members that join have done nothing,
    /// and of those that fail alone nobody knows whether they were the last.
    fn held_since(
        &self,
        facts: &Facts<'_>,
        domain: &DomainKey,
        cause: &Cause,
        alone: bool,
    ) -> Option<DateTime<Utc>> {
        let gang = facts.gang_of(domain)?;
        let placement = facts.pod_group_status(&gang.key)?.placement.as_ref()?;
        let joined = cause.kind == CauseKind::Resize || alone && placement.decided_at < cause.time;
        Some(match self.gang(&gang.key)?.held_since {
            Some(since) if joined => since.max(placement.decided_at),
            Some(since) => since,
            None if self.awaits_victims(facts, gang, placement) => facts.now,
            None => placement.decided_at,
        })
    }

    /// Releases the placement of a gang: recorded first, its pods are deleted afterwards. Incidents
    /// end, and what single members have finished of an unfinished group is done again, since the
    /// gang starts over. With a reason the gang waits before it queues again.
    pub fn release_gang(&mut self, facts: &Facts<'_>, key: &GangKey, why: Option<ReleaseReason>) {
        let Some(entry) = self.gangs.get_mut(key) else {
            return;
        };
        let PlacementState::Placed(placement) = facts.placement_state(key, entry) else {
            return;
        };
        entry.released = Some(placement.id.clone());
        if let Some(ReleaseReason { reason, message }) = why {
            let settings = facts.view.settings();
            entry.placement_tries = entry.placement_tries.saturating_add(1);
            let wait = doubling(
                settings.placement_backoff,
                settings.placement_backoff_max,
                entry.placement_tries,
            );
            entry.backoff = Some(Backoff {
                reason: reason.into(),
                message,
                tries: entry.placement_tries,
                until: facts.now + wait,
            });
        }
        let Some(gang) = facts.gang(key) else { return };
        for domain in &gang.domains {
            let ran = self
                .domain(&domain.key)
                .is_some_and(DomainLedger::under_way);
            self.close_incident(facts, &domain.key, false);
            self.forget_unfinished(facts.spec(), gang, domain, &domain.members);
            self.vacate_domain(facts, &domain.key);
            if ran {
                self.note_recreation(&domain.key);
            }
        }
    }

    /// Forgets what has become of a restart domain all of whose members leave; its incident has been
    /// closed before.
    pub fn vacate_domain(&mut self, facts: &Facts<'_>, key: &DomainKey) {
        let ended = self.ended.is_some();
        let Some(entry) = self.domains.get_mut(key) else {
            return;
        };
        // The barrier of this attempt is open; who comes next needs one of their own.
        let next = !ended && facts.is_barrier_open(key, entry.attempt);
        *entry = DomainLedger {
            attempt: entry.attempt.saturating_add(i64::from(next)),
            recreations: entry.recreations,
            ..DomainLedger::default()
        };
        self.highest_attempt = self.highest_attempt.max(entry.attempt);
    }

    /// Releases every placement that is held.
    pub fn release_all(&mut self, facts: &Facts<'_>) {
        let keys: Vec<_> = self.gangs.keys().cloned().collect();
        for key in keys {
            self.release_gang(facts, &key, None);
        }
    }

    /// Members of a restart domain start over: what they have finished counts only where they are
    /// [done](Self::done_members).
    pub fn forget_unfinished<'m>(
        &mut self,
        spec: &TrainingWorkloadSpec,
        gang: &Gang,
        domain: &Domain,
        members: impl IntoIterator<Item = &'m Member>,
    ) {
        let done = self.done_members(spec, gang, domain);
        for member in members {
            if !done.contains(member) {
                self.completed.remove(member);
            }
        }
    }

    /// Members of a restart domain that do not run again when the domain restarts: the whole domain
    /// has succeeded, or their whole group and all members that meet where they do, or the gang is
    /// basic. Any other member that succeeded would be missing at the next rendezvous.
    pub fn done_members(
        &self,
        spec: &TrainingWorkloadSpec,
        gang: &Gang,
        domain: &Domain,
    ) -> BTreeSet<Member> {
        let is_done = |m: &&Member| self.completed.contains(*m);
        let mut done: BTreeSet<Member> = domain.members.iter().filter(is_done).cloned().collect();
        if done.is_empty() || gang.basic {
            return done;
        }
        let membership = self.membership(spec);
        let running = domain.members.iter().filter(|m| membership.contains(m));
        let unfinished = running.filter(|m| !is_done(m));
        let awaited: BTreeSet<Member> = unfinished.map(|m| membership.coordinator(m)).collect();
        if awaited.is_empty() {
            return done;
        }
        for group in &spec.groups {
            let is_complete = membership.complete(&group.name, &self.completed);
            done.retain(|m| {
                m.group != group.name
                    || is_complete && !awaited.contains(&membership.coordinator(m))
            });
        }
        done
    }

    /// Records that a gang stays away from a node; of two times the later counts.
    pub fn avoid_node(&mut self, gang: &GangKey, node: NodeName, avoidance: Avoidance) {
        let Some(entry) = self.gangs.get_mut(gang) else {
            return;
        };
        match entry.avoid.get(&node) {
            Some(old) if old.until >= avoidance.until => {}
            Some(_) | None => {
                entry.avoid.insert(node, avoidance);
            }
        }
    }

    /// Ends the workload, finally. Its placements are released.
    pub fn finish(
        &mut self,
        facts: &Facts<'_>,
        outcome: Outcome,
        reason: &str,
        message: impl Into<String>,
    ) {
        // Nothing starts over any more: what members have finished stays on record.
        let completed = self.completed.clone();
        self.ended = Some(End {
            outcome,
            reason: reason.into(),
            message: message.into(),
            observed_generation: facts.view.generation(),
            at: facts.now,
            completed_at: Some(facts.now),
        });
        self.release_all(facts);
        self.completed = completed;
        for gang in self.gangs.values_mut() {
            gang.backoff = None;
        }
    }
}

impl OpenIncident {
    /// Adds members to those that the incident replaces, with the pods that they have now.
    pub fn replace_members(
        &mut self,
        facts: &Facts<'_>,
        members: impl IntoIterator<Item = Member>,
    ) {
        for member in members {
            for pod in facts.pods_of(&member) {
                if !self.knows_by_attempt(pod) {
                    self.old_pods.insert(pod.uid.clone());
                }
            }
            self.replace.insert(member);
        }
    }
}

/// An entry for what happened and ended at once.
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
    }
}

/// `barrier`: the members waited at one, and the incident is over when it opens.
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

/// Clocks of node and manager differ: a phase is never negative.
fn milliseconds(from: Option<DateTime<Utc>>, to: Option<DateTime<Utc>>) -> i64 {
    match (from, to) {
        (Some(from), Some(to)) => (to - from).num_milliseconds().max(0),
        _ => 0,
    }
}

/// The time of the last checkpoint that an annotation tells.
fn last_checkpoint(facts: &Facts<'_>) -> Option<DateTime<Utc>> {
    let text = facts.view.annotation(annotations::LAST_CHECKPOINT)?;
    let at = DateTime::parse_from_rfc3339(text).ok()?.with_timezone(&Utc);
    (at <= facts.now).then_some(at)
}
