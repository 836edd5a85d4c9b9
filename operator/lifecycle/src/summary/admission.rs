//! The condition `Admitted`: whether all gangs are placed, or what the first one waits for.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::reasons;
use lockstep_api::gangs::Gang;
use lockstep_api::member::Member;
use lockstep_api::words::{checkpoint_wait, count, placed_in_part, time};

use super::notes;
use super::value::{ConditionValue, condition};
use crate::facts::{Facts, PlacementState};
use crate::gangs::PlacementView;
use crate::ledger::{GangLedger, Ledger};
use crate::messages::of_gang;
use crate::view::Target;
use crate::waiting::{dependency_state, scheduling_timed_out};
use crate::wake::Wake;

/// Reasons while a gang requests no capacity. They are outdated as soon as it does.
const NOT_REQUESTING: [&str; 4] = [
    reasons::SUSPENDED,
    reasons::WAITING_FOR_QUOTA,
    reasons::BACKING_OFF,
    reasons::WAITING_FOR_DEPENDENCY,
];

/// How long members may take to be bound before a message reports it.
const TO_BIND: TimeDelta = TimeDelta::minutes(1);

/// False if all groups have 0 replicas.
pub(super) fn has_members(facts: &Facts<'_>) -> bool {
    facts.spec().replica_counts().iter().any(|n| *n > 0)
}

pub(super) struct Admission<'v, 'a> {
    pub facts: &'v Facts<'a>,
    pub ledger: &'v Ledger,
}

impl Admission<'_, '_> {
    pub fn condition(&self, wake: &mut Wake) -> ConditionValue {
        if self.facts.spec().suspend {
            return condition(false, reasons::SUSPENDED, "spec.suspend is true");
        }
        if !has_members(self.facts) {
            return condition(false, reasons::NO_MEMBERS, "all groups have 0 replicas");
        }
        if let Some(message) = notes::quota_wait(self.facts, self.ledger) {
            return condition(false, reasons::WAITING_FOR_QUOTA, message);
        }
        if self.ledger.applied.is_none() {
            return condition(false, reasons::QUEUED, "the workload is being validated");
        }
        let mut waiting = Vec::new();
        for gang in &self.facts.gangs {
            if let Some(entry) = self.ledger.gang(&gang.key) {
                waiting.extend(self.wait_of(gang, entry, wake));
            }
        }
        let total = self.ledger.gangs.len();
        let placed = total - waiting.len();
        match waiting.into_iter().next() {
            None => condition(
                true,
                reasons::SCHEDULED,
                partial_gangs(self.facts, self.ledger)
                    .unwrap_or_else(|| "all members have nodes".into()),
            ),
            Some(only) if total == 1 => only,
            Some(first) => condition(
                false,
                &first.reason,
                format!("{placed} of {total} gangs are placed; {}", first.message),
            ),
        }
    }

    /// Members of Basic groups are independent.
    fn is_placed_whole(&self, gang: &Gang) -> bool {
        let assigned = self.facts.assigned_nodes(&gang.key);
        let completed = &self.ledger.completed;
        let placed = gang
            .members()
            .filter(|m| assigned.contains_key(*m) || completed.contains(*m));
        gang.basic || placed.count() >= gang.min_count.max(0) as usize
    }

    /// `None` if the gang is placed.
    fn wait_of(&self, gang: &Gang, entry: &GangLedger, wake: &mut Wake) -> Option<ConditionValue> {
        let (facts, key) = (self.facts, &gang.key);
        let others = self.ledger.gangs.len() > 1;
        let view = facts.gang_view(key);
        let done = self.ledger.is_done(gang);
        if !entry.started && !done && !self.ledger.is_under_way(gang) {
            let state = dependency_state(facts, self.ledger, gang);
            if let Some(message) = state.message() {
                let message = of_gang(key.as_str(), others, message);
                return Some(condition(false, reasons::WAITING_FOR_DEPENDENCY, message));
            }
        }
        if let PlacementState::Placed(placement) = facts.placement_state(key, entry) {
            // A gang that has run stays admitted until it releases its capacity. Ready and
            // Restarting show lost members.
            if self.ledger.is_under_way(gang) {
                return None;
            }
            if let Some(preemption) = &placement.preempting {
                let unbound = self.unbound(gang, placement, wake).unwrap_or_default();
                let saving = preemption
                    .saving
                    .filter(|(_, end)| !facts.due(*end).passed(wake));
                let saving =
                    saving.map(|(gangs, end)| format!("; {}", checkpoint_wait(gangs, end)));
                let saving = saving.unwrap_or_default();
                let message = format!("preempting {}{saving}{unbound}", preemption.explanation);
                let message = of_gang(key.as_str(), others, &message);
                return Some(condition(false, reasons::PREEMPTING, message));
            }
            if self.is_placed_whole(gang) {
                return None;
            }
        }
        if done {
            return None;
        }
        if let Some(backoff) = &entry.backoff {
            let failed = facts.failed(wake).map(|failed| failed.until);
            let retry_at = failed.map_or(backoff.until, |at| at.max(backoff.until));
            let message = format!("{}; retry at {}", backoff.message, time(retry_at));
            let message = of_gang(key.as_str(), others, &message);
            return Some(condition(false, &backoff.reason, message));
        }
        if let Some(message) = view.and_then(|v| v.preempted_by.as_ref()) {
            let message = of_gang(key.as_str(), others, message);
            return Some(condition(false, reasons::PREEMPTED, message));
        }
        let late = if scheduling_timed_out(facts, self.ledger, wake) {
            "; scheduling.timeoutSeconds has passed"
        } else {
            ""
        };
        let waiting = view.and_then(|v| v.waiting.as_ref());
        let part = if is_coming_up(facts, self.ledger, gang) {
            let (assigned, size) = (facts.assigned_nodes(key).len(), gang.size());
            format!("{assigned} of {size} members have a node; ")
        } else {
            String::new()
        };
        Some(match waiting {
            Some(wait) if !NOT_REQUESTING.contains(&wait.reason.as_str()) => {
                let native = self.native_message(gang).unwrap_or_default();
                let message = format!("{part}{}{native}{late}", wait.message);
                condition(false, &wait.reason, of_gang(key.as_str(), others, &message))
            }
            Some(_) | None => {
                let ending = notes::still_ending(facts).unwrap_or_default();
                let message = format!("waiting in the scheduling queue{late}{ending}");
                let message = of_gang(key.as_str(), others, &message);
                condition(false, reasons::QUEUED, message)
            }
        })
    }

    /// Why kube-scheduler has not placed the pods of an unplaced gang, or why they do not exist.
    fn native_message(&self, gang: &Gang) -> Option<String> {
        if !self.facts.view.kube_scheduler_places() {
            return None;
        }
        let mut targets = gang.members().map(|m| Target::Pod(m.clone()));
        let rejected = targets.find_map(|t| self.facts.rejections(&t).first().copied());
        let groups = &self.facts.view.native().pod_groups;
        let mut pods = self.facts.current_pods(self.ledger, gang);
        let group = pods.find_map(|(_, pod)| groups.get(pod?.identity.native_group.as_ref()?));
        let waits = group.and_then(|held| held.content.unschedulable.as_ref());
        let why = rejected.map(|r| &r.message).or(waits)?;
        Some(format!(": {why}"))
    }

    /// Members that are unbound although no victim holds their nodes. Mentions the scheduler only if
    /// all members wait for binding alone.
    fn unbound(&self, gang: &Gang, placement: &PlacementView, wake: &mut Wake) -> Option<String> {
        let progress = placement.preempting.as_ref()?.binding?;
        if !self.facts.due(progress.since + TO_BIND).passed(wake) {
            return None;
        }
        let mut pods = self.facts.current_pods(self.ledger, gang);
        let may_be_bound = pods.all(|(member, pod)| {
            !placement.nodes.contains_key(member)
                || self.ledger.completed.contains(member)
                || pod.is_some_and(|p| !p.gated)
        });
        let question = if may_be_bound {
            ": is the scheduler in template.spec.schedulerName running?"
        } else {
            ""
        };
        Some(format!(
            "; its nodes are free of victims and {} bound since {}{question}",
            count(progress.bound, "member"),
            time(progress.since)
        ))
    }
}

/// True if a placed gang without victims has members on nodes. A briefly unready node loses its
/// unbound members.
pub(super) fn is_coming_up(facts: &Facts<'_>, ledger: &Ledger, gang: &Gang) -> bool {
    let Some(placement) = facts.placement(ledger, &gang.key) else {
        return false;
    };
    let mut pods = facts.current_pods(ledger, gang);
    placement.preempting.is_none() && pods.any(|(_, pod)| pod.is_some_and(|p| p.node.is_some()))
}

pub(super) fn partial_gangs(facts: &Facts<'_>, ledger: &Ledger) -> Option<String> {
    let membership = ledger.membership(facts.spec());
    let mut out = Vec::new();
    for gang in &facts.gangs {
        let is_running = |m: &&Member| membership.contains(m) || ledger.completed.contains(*m);
        let running = gang.members().filter(is_running).count();
        let size = gang.size();
        if running < size {
            let min_count = gang.min_count;
            let mut text =
                format!("placed with {running} of {size} members (minCount {min_count})");
            let view = facts.gang_view(&gang.key);
            if let Some(pending) = view.and_then(|v| v.other_members_pending.as_ref()) {
                text = placed_in_part(&text, pending);
            }
            if let Some(at) = grows_from(facts, ledger, gang) {
                text = format!("{text}; grows from {} if capacity is free", time(at));
            }
            out.push(of_gang(gang.key.as_str(), facts.gangs.len() > 1, &text));
        }
    }
    (!out.is_empty()).then(|| out.join("; "))
}

/// When the scheduler lets the gang grow. `None` during an incident, for a gang that has completed
/// members, and for a gang below its minimum, which does not wait.
fn grows_from(facts: &Facts<'_>, ledger: &Ledger, gang: &Gang) -> Option<DateTime<Utc>> {
    let membership = ledger.membership(facts.spec());
    let running = gang.members().filter(|m| membership.contains(m)).count();
    let waits = running >= gang.min_count.max(0) as usize;
    if !waits || gang.members().any(|m| ledger.completed.contains(m)) {
        return None;
    }
    let in_use = gang
        .domains
        .iter()
        .filter(|d| d.members.iter().any(|m| membership.contains(m)));
    let healthy: Option<Vec<DateTime<Utc>>> = in_use
        .filter_map(|d| ledger.domain(&d.key))
        .map(|d| d.healthy_since.filter(|_| d.incident.is_none()))
        .collect();
    Some(healthy?.into_iter().max()? + facts.view.settings().grow_after)
}
