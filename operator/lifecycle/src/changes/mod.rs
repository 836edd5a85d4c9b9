//! Ledger changes that several stages share. They call no stage and keep the ledger consistent.

mod accounting;
mod incident;
mod progress;

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use lockstep_api::gangs::{Domain, Gang};
use lockstep_api::ids::{DomainKey, GangKey, NodeName};
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::membership::completion_index;
use lockstep_api::time::doubling;
use lockstep_api::workload::{
    Backoff, Cause, CauseKind, CheckpointOutcome, Group, TrainingWorkloadSpec,
};

use crate::facts::{Facts, PlacementState};
use crate::ledger::{Avoidance, DomainLedger, End, Ledger, Loss, Outcome};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReleaseReason {
    pub reason: &'static str,
    pub message: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tries {
    pub counted: i32,
    pub uncounted: i32,
}

impl Tries {
    pub fn all(self) -> i32 {
        self.counted.saturating_add(self.uncounted)
    }
}

/// A failure of a domain whose loss is counted.
#[derive(Clone, Copy)]
struct Failed<'a> {
    domain: &'a DomainKey,
    cause: &'a Cause,
    /// Time of the failure if the clock of its node is wrong.
    detected_at: DateTime<Utc>,
    /// Members that failed without the rest of their domain.
    alone: Option<&'a MemberSet>,
}

/// Most nodes that the gangs of a workload avoid. If more nodes fail, the nodes are not the cause,
/// and their list would exceed the status.
const MOST_AVOIDED: usize = 300;
/// Most avoided nodes whose machine and boot are recorded.
const MOST_IDENTIFIED: usize = 64;

impl Ledger {
    pub fn note_recreation(&mut self, domain: &DomainKey) {
        if let Some(entry) = self.domains.get_mut(domain) {
            entry.recreations = entry.recreations.saturating_add(1);
        }
    }

    /// Sets the members of an elastic or resized group that run together.
    pub fn set_running(
        &mut self,
        spec: &TrainingWorkloadSpec,
        group: &Group,
        runs: impl Fn(&Member) -> bool,
    ) {
        let mut running = BTreeSet::new();
        for replica in 0..spec.replicas_of(group) {
            for index in 0..group.size {
                let member = Member::new(group.name.as_str(), replica, index);
                if runs(&member) {
                    running.insert(completion_index(group, &member));
                }
            }
        }
        if running.len() < spec.members_of(group).max(0) as usize {
            self.running.insert(group.name.clone(), running);
        } else {
            self.running.remove(&group.name);
        }
    }

    /// Loss that no history entry has counted. One failure can cause several entries.
    fn count_loss(&mut self, facts: &Facts<'_>, failed: Failed<'_>) -> Loss {
        let loss = self.loss(facts, failed);
        if let Some(entry) = self.domains.get_mut(failed.domain) {
            entry.lost_until = Some(facts.now);
        }
        loss
    }

    /// Work since the last checkpoint or the start, and the duration of the restart so far.
    fn loss(&self, facts: &Facts<'_>, failed: Failed<'_>) -> Loss {
        let Failed {
            domain,
            cause,
            detected_at,
            alone,
        } = failed;
        let Some(members) = facts.domain(domain).map(|d| &d.members) else {
            return Loss::default();
        };
        let membership = self.membership(facts.spec());
        let running = members
            .iter()
            .filter(|m| membership.contains(m))
            .filter(|m| alone.is_none_or(|alone| alone.contains(m)));
        let accelerators: i64 = running.map(|m| facts.accelerators(&m.group)).sum();
        let restarted = self
            .history
            .iter()
            .filter(|h| *domain == *h.domain)
            .find_map(|h| h.recovered_at);
        // Queued time is no work, and the node's clock can be wrong.
        let held_since = self.held_since(facts, failed).or(self.started_at);
        let failed_at = match held_since {
            Some(held) if cause.time < held => detected_at.max(held),
            _ => cause.time,
        };
        let saved = self.last_saved(facts);
        let since = saved.max(restarted).max(held_since).unwrap_or(failed_at);
        let counted = self.domain(domain).and_then(|d| d.lost_until);
        let not_counted = |from: DateTime<Utc>| counted.map_or(from, |counted| from.max(counted));
        // A gang works while all its members run.
        let together = alone.is_none() && !facts.gang_of(domain).is_some_and(|gang| gang.basic);
        let has_run = !together || counted.is_some() && counted >= held_since;
        let amount = |from: DateTime<Utc>, to: DateTime<Utc>| {
            accelerators.saturating_mul((to - not_counted(from)).num_seconds().max(0))
        };
        Loss {
            work: if has_run { amount(since, failed_at) } else { 0 },
            restart: amount(failed_at, facts.now),
        }
    }

    /// When the gang of a domain obtained the capacity that it holds or has just released. Nodes of
    /// a preemption count from the end of their victims. A later placement keeps the time, because
    /// the earlier work is lost too. A resize resets it, because added members have done no work.
    /// So does a failure of single members, which may have moved.
    fn held_since(&self, facts: &Facts<'_>, failed: Failed<'_>) -> Option<DateTime<Utc>> {
        let gang = facts.gang_of(failed.domain)?;
        let placement = facts.any_placement(&gang.key)?;
        let moved = failed.alone.is_some() && placement.decided_at < failed.cause.time;
        let joined = failed.cause.kind == CauseKind::Resize || moved;
        Some(match self.gang(&gang.key)?.held_since {
            Some(since) if joined => since.max(placement.decided_at),
            Some(since) => since,
            None if self.awaits_victims(gang, placement) => facts.now,
            None => placement.decided_at,
        })
    }

    /// Releases the placement of a gang; its pods are deleted later. Incidents end. Members of
    /// unfinished groups run again, even after success. With a reason, the gang backs off.
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
            self.close_open(facts, &domain.key, false);
            self.forget_unfinished(facts.spec(), gang, domain, &domain.members);
            self.vacate_domain(facts, &domain.key);
            if ran {
                self.note_recreation(&domain.key);
            }
        }
    }

    /// Resets a domain without remaining members. Its incident is closed.
    pub fn vacate_domain(&mut self, facts: &Facts<'_>, key: &DomainKey) {
        let ended = self.ended.is_some();
        // The stop had another cause than the occasion of the request, or came at its deadline.
        if let Some(open) = self.domain(key).and_then(DomainLedger::open_request) {
            let is_late = open.deadline.is_some_and(|at| at <= facts.now);
            let outcome = if is_late {
                CheckpointOutcome::TimedOut
            } else {
                CheckpointOutcome::Ended
            };
            self.close_request(facts, key, outcome, None);
        }
        let Some(entry) = self.domains.get_mut(key) else {
            return;
        };
        // The barrier of this attempt is open, so later members need another attempt.
        let next = !ended && facts.is_barrier_open(key, entry.attempt);
        *entry = DomainLedger {
            attempt: entry.attempt.saturating_add(i64::from(next)),
            recreations: entry.recreations,
            request: entry.request.take(),
            ..DomainLedger::default()
        };
        self.highest_attempt = self.highest_attempt.max(entry.attempt);
    }

    pub fn release_all(&mut self, facts: &Facts<'_>) {
        let keys: Vec<_> = self.gangs.keys().cloned().collect();
        for key in keys {
            self.release_gang(facts, &key, None);
        }
    }

    /// Clears the completion of restarted members, except [done](Self::done_members) members.
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

    /// Members that do not run again when their domain restarts. All succeeded members count if the
    /// whole domain has succeeded or the gang is Basic. Otherwise, their whole group must have
    /// succeeded, and no unfinished member may share their coordinator. Any other member would be
    /// missing at the next rendezvous.
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

    /// Keeps the longer of two avoidances of a node. An avoidance for a signal is renewed, so it
    /// replaces others. Adds none beyond [`MOST_AVOIDED`] nodes.
    pub fn avoid_node(&mut self, gang: &GangKey, node: NodeName, avoidance: Avoidance) {
        let avoided: usize = self.gangs.values().map(|entry| entry.avoid.len()).sum();
        let all = self.gangs.values().flat_map(|entry| entry.avoid.values());
        let identified = all.filter(|a| a.is_for_signal()).count();
        let Some(entry) = self.gangs.get_mut(gang) else {
            return;
        };
        match entry.avoid.get(&node) {
            Some(old) if old.until >= avoidance.until && !avoidance.is_for_signal() => {}
            None if avoided >= MOST_AVOIDED => {}
            old => {
                let until = old.map_or(avoidance.until, |old| old.until.max(avoidance.until));
                let mut avoidance = Avoidance { until, ..avoidance };
                if identified >= MOST_IDENTIFIED {
                    (avoidance.machine, avoidance.boot) = (String::new(), String::new());
                }
                entry.avoid.insert(node, avoidance);
            }
        }
    }

    /// Ends the workload permanently.
    pub fn finish(
        &mut self,
        facts: &Facts<'_>,
        outcome: Outcome,
        reason: &str,
        message: impl Into<String>,
    ) {
        // No member runs again, so completed members stay recorded.
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
