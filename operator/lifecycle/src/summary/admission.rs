//! The condition `Admitted`: whether all gangs are placed, or what the first one waits for.

use chrono::TimeDelta;
use lockstep_api::condition::{find, reasons, types};
use lockstep_api::gangs::Gang;
use lockstep_api::member::Member;
use lockstep_api::scheduling::Preemption;
use lockstep_api::words::{count, time};

use super::value::{ConditionValue, condition};
use crate::facts::{Facts, PlacementState};
use crate::ledger::{GangLedger, Ledger};
use crate::waiting::{dependencies_met, scheduling_timed_out};
use crate::wake::Wake;
use crate::words::of_gang;

/// Reasons while a gang requests no capacity, which are outdated as soon as it does.
const NOT_REQUESTING: [&str; 2] = [reasons::SUSPENDED, reasons::BACKING_OFF];

/// How long members may take to be bound before a message mentions it.
const TO_BIND: TimeDelta = TimeDelta::minutes(1);

pub(super) struct Admission<'v, 'a> {
    pub facts: &'v Facts<'a>,
    pub ledger: &'v Ledger,
}

impl Admission<'_, '_> {
    pub fn condition(&self, wake: &mut Wake) -> ConditionValue {
        if self.facts.spec().suspend {
            return condition(false, reasons::SUSPENDED, "spec.suspend is true");
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
        let placed = gang.members();
        let placed = placed.filter(|m| assigned.contains_key(*m) || completed.contains(*m));
        gang.basic || placed.count() >= gang.min_count.max(0) as usize
    }

    /// `None` if the gang is placed.
    fn wait_of(&self, gang: &Gang, entry: &GangLedger, wake: &mut Wake) -> Option<ConditionValue> {
        let (facts, key) = (self.facts, &gang.key);
        let others = self.ledger.gangs.len() > 1;
        let group = facts.pod_group_status(key);
        if let PlacementState::Placed(placement) = facts.placement_state(key, entry) {
            // A gang that has run stays admitted until it releases its capacity. Ready and
            // Restarting show lost members.
            if self.ledger.is_under_way(gang) {
                return None;
            }
            let intent = group.and_then(|g| g.preemption.as_ref());
            if let Some(intent) = intent.filter(|p| p.placement == placement.id) {
                let unbound = self.unbound(gang, intent, wake).unwrap_or_default();
                let message = format!("preempting {}{unbound}", intent.explanation);
                let message = of_gang(key.as_str(), others, &message);
                return Some(condition(false, reasons::PREEMPTING, message));
            }
            if self.is_placed_whole(gang) {
                return None;
            }
        }
        if self.ledger.is_done(gang) {
            return None;
        }
        if !entry.started && !dependencies_met(facts, self.ledger, gang) {
            let message = of_gang(key.as_str(), others, "waiting for the groups in dependsOn");
            return Some(condition(false, reasons::WAITING_FOR_DEPENDENCY, message));
        }
        if let Some(backoff) = &entry.backoff {
            let failed = facts.failed(wake).map(|failed| failed.until);
            let retry_at = failed.map_or(backoff.until, |at| at.max(backoff.until));
            let message = format!("{}; retry at {}", backoff.message, time(retry_at));
            let message = of_gang(key.as_str(), others, &message);
            return Some(condition(false, &backoff.reason, message));
        }
        if let Some(by) = group
            .and_then(|s| find(&s.conditions, types::DISRUPTION_TARGET))
            .filter(|c| c.status == true.into())
        {
            let message = of_gang(key.as_str(), others, &by.message);
            return Some(condition(false, reasons::PREEMPTED, message));
        }
        let late = if scheduling_timed_out(facts, self.ledger, wake) {
            "; scheduling.timeoutSeconds has passed"
        } else {
            ""
        };
        let answer = group.and_then(|s| find(&s.conditions, types::POD_GROUP_INITIALLY_SCHEDULED));
        let part = if is_coming_up(facts, self.ledger, gang) {
            let (assigned, size) = (facts.assigned_nodes(key).len(), gang.size());
            format!("{assigned} of {size} members have a node; ")
        } else {
            String::new()
        };
        Some(match answer {
            Some(c) if c.status != true.into() && !NOT_REQUESTING.contains(&c.reason.as_str()) => {
                let message = of_gang(key.as_str(), others, &format!("{part}{}{late}", c.message));
                condition(false, &c.reason, message)
            }
            Some(_) | None => {
                let message = of_gang(
                    key.as_str(),
                    others,
                    &format!("waiting in the scheduling queue{late}"),
                );
                condition(false, reasons::QUEUED, message)
            }
        })
    }

    /// Members that are still unbound after the victims are gone. Mentions the scheduler only if
    /// all members wait for binding alone.
    fn unbound(&self, gang: &Gang, intent: &Preemption, wake: &mut Wake) -> Option<String> {
        let progress = intent.binding.as_ref()?;
        if !self.facts.due(progress.since + TO_BIND).passed(wake) {
            return None;
        }
        let assigned = self.facts.assigned_nodes(&gang.key);
        let mut pods = self.facts.current_pods(self.ledger, gang);
        let may_be_bound = pods.all(|(member, pod)| {
            !assigned.contains_key(member)
                || self.ledger.completed.contains(member)
                || pod.is_some_and(|p| !p.gated)
        });
        let question = if may_be_bound {
            ": is the scheduler in template.spec.schedulerName running?"
        } else {
            ""
        };
        Some(format!(
            "; its victims are gone and {} bound since {}{question}",
            count(progress.bound.max(0) as usize, "member"),
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
    !facts.is_preempting(&gang.key, &placement.id)
        && pods.any(|(_, pod)| pod.is_some_and(|p| p.node.is_some()))
}

/// Members that partially placed gangs lack.
pub(super) fn partial_gangs(facts: &Facts<'_>, ledger: &Ledger) -> Option<String> {
    let membership = ledger.membership(facts.spec());
    let mut out = Vec::new();
    for gang in &facts.gangs {
        let is_there = |m: &&Member| membership.contains(m) || ledger.completed.contains(*m);
        let running = gang.members().filter(is_there).count();
        let size = gang.size();
        if running < size {
            let text = format!(
                "placed with {running} of {size} members (minCount {})",
                gang.min_count
            );
            out.push(of_gang(gang.key.as_str(), facts.gangs.len() > 1, &text));
        }
    }
    (!out.is_empty()).then(|| out.join("; "))
}
