//! Stage 00: requests for checkpoints before a stop, and their outcomes.
//!
//! A request is recorded before it is sent. Later stages do not stop a gang while a request to one
//! of its domains is open. When the occasion vanishes, the request is withdrawn.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::gangs::{Domain, Gang};
use lockstep_api::member::Member;
use lockstep_api::names::annotations;
use lockstep_api::workload::{
    CheckpointOccasion, CheckpointOutcome, CheckpointRequest, TrainingProgress,
};

use crate::checkpoints::{BEFORE_KILL, MemberReply, closed, occasion_id};
use crate::facts::Facts;
use crate::failure::domain::DomainScope;
use crate::ledger::{DomainLedger, Ledger};
use crate::wake::Wake;

/// Longest id of a request by a user, that of a UUID: the status has one for each restart domain.
const LONGEST_ID: usize = 36;
/// A gang without a step for so many usual steps hangs.
const HUNG_STEPS: i64 = 10;
/// And for this time, at least.
const HUNG_FOR: TimeDelta = TimeDelta::seconds(60);
/// Agents report steps once in this time, or once in a tenth of a second for each member.
const REPORTED_EVERY: TimeDelta = TimeDelta::seconds(60);

/// A reason to request a checkpoint from a domain now.
struct Occasion {
    reason: CheckpointOccasion,
    id: String,
    deadline: DateTime<Utc>,
    watch: bool,
}

/// A restart domain, and whether its gang gets other members.
#[derive(Clone, Copy)]
struct Asked<'a> {
    gang: &'a Gang,
    domain: &'a Domain,
    resized: bool,
}

pub(super) fn follow_requests(facts: &Facts<'_>, ledger: &mut Ledger) -> Wake {
    let mut wake = Wake::NEVER;
    let user = user_request(facts, ledger);
    for gang in &facts.gangs {
        let resized = facts.checkpoint_policy().is_some() && resizes(facts, ledger, gang);
        for domain in &gang.domains {
            let asked = Asked {
                gang,
                domain,
                resized,
            };
            let Some(entry) = ledger.domain(&domain.key) else {
                continue;
            };
            let occasion = occasion(facts, ledger, asked, &mut wake);
            let before = entry.request.as_ref();
            let after = match (entry.open_request(), occasion) {
                (Some(open), None) => {
                    let is_stopped = facts.preemptor(&gang.key).is_some();
                    let outcome = if is_stopped {
                        CheckpointOutcome::TimedOut
                    } else {
                        CheckpointOutcome::Withdrawn
                    };
                    Some(closed(facts, ledger, open, outcome, None))
                }
                (Some(open), Some(occasion)) => {
                    match outcome(facts, ledger, asked, open, &mut wake) {
                        // A later occasion joined the request.
                        Some((outcome, saved)) => Some(CheckpointRequest {
                            id: occasion.id,
                            reason: occasion.reason,
                            ..closed(facts, ledger, open, outcome, saved)
                        }),
                        None => joined(open, &occasion),
                    }
                }
                (None, Some(occasion)) if !is_settled(before, entry, &occasion) => {
                    Some(requested(facts, ledger, asked, occasion))
                }
                (None, _) => None,
            };
            if let (Some(request), Some(entry)) = (after, ledger.domains.get_mut(&domain.key)) {
                entry.request = Some(request);
            }
        }
    }
    let is_open = |d: &DomainLedger| {
        d.open_request()
            .is_some_and(|r| Some(&r.id) == user.as_ref())
    };
    if !ledger.domains.values().any(is_open) {
        ledger.user_request = user.or(ledger.user_request.take());
    }
    wake
}

/// Id of a request by a user that is not handled yet.
fn user_request(facts: &Facts<'_>, ledger: &Ledger) -> Option<String> {
    let id = facts.view.annotation(annotations::REQUEST_CHECKPOINT)?;
    // The process reads it as one word of a line.
    let word = |c: char| if c.is_ascii_graphic() { c } else { '-' };
    let id: String = id.chars().map(word).take(LONGEST_ID).collect();
    (!id.is_empty() && ledger.user_request.as_ref() != Some(&id)).then_some(id)
}

/// The first reason to request a checkpoint from a placed domain.
fn occasion(
    facts: &Facts<'_>,
    ledger: &Ledger,
    asked: Asked<'_>,
    wake: &mut Wake,
) -> Option<Occasion> {
    facts.placement(ledger, &asked.gang.key)?;
    let preemption = facts
        .gang_view(&asked.gang.key)?
        .checkpoint_request
        .as_ref();
    if let Some(request) = preemption {
        return Some(Occasion {
            reason: CheckpointOccasion::Preemption,
            id: request.id.clone(),
            deadline: request.deadline,
            watch: request.watch,
        });
    }
    let timeout = TimeDelta::seconds(facts.checkpoint_policy()?.timeout_seconds);
    let entry = ledger.domain(&asked.domain.key)?;
    // A deletion is not taken back, and the pod can be gone before the others have answered.
    let open = entry.open_request();
    if let Some(open) = open.filter(|r| r.reason == CheckpointOccasion::Eviction) {
        return Some(Occasion {
            reason: open.reason,
            id: open.id.clone(),
            deadline: open.deadline?,
            watch: false,
        });
    }
    let generation = facts.view.generation();
    let latest = facts.now + timeout;
    let evicted = evicted(facts, entry, asked.domain);
    let is_evicted = evicted.is_some();
    let of = |reason, key: String, deadline| (reason, key, deadline);
    let now = |reason, key: i64| of(reason, key.to_string(), latest);
    let spec = facts.spec();
    let stops = [
        evicted.map(|(pod, end)| of(CheckpointOccasion::Eviction, pod, end.min(latest))),
        (spec.suspend).then(|| now(CheckpointOccasion::Suspend, generation)),
        restarts(facts, ledger).then(|| now(CheckpointOccasion::Restart, spec.restart_nonce)),
        (asked.resized).then(|| now(CheckpointOccasion::Resize, generation)),
        deadline(facts, ledger, timeout, wake).map(|end| {
            of(
                CheckpointOccasion::Deadline,
                end.timestamp().to_string(),
                end,
            )
        }),
    ];
    let mut stops = stops.into_iter().flatten();
    if let Some((reason, key, deadline)) = stops.find(|stop| facts.asks_before(stop.0)) {
        return Some(Occasion {
            id: occasion_id(reason, &key),
            reason,
            deadline,
            watch: false,
        });
    }
    let asks = !is_evicted && facts.asks_before(CheckpointOccasion::User);
    Some(Occasion {
        reason: CheckpointOccasion::User,
        id: user_request(facts, ledger).filter(|_| asks)?,
        deadline: latest,
        watch: false,
    })
}

/// A pod of the running domain that somebody deletes, and the end of its grace period.
fn evicted(
    facts: &Facts<'_>,
    entry: &DomainLedger,
    domain: &Domain,
) -> Option<(String, DateTime<Utc>)> {
    let ran = entry.healthy_since.is_some() && !entry.is_restarting();
    let members = domain.members.iter().filter(|_| ran);
    let pods = members.filter_map(|m| facts.current(entry, m));
    let evicted = pods.filter(|p| p.terminating() && !p.terminal());
    let ends =
        evicted.filter_map(|p| Some((p.deletion_timestamp? - BEFORE_KILL, p.uid.to_string())));
    ends.min().map(|(end, pod)| (pod, end))
}

fn restarts(facts: &Facts<'_>, ledger: &Ledger) -> bool {
    let applied = ledger.applied.as_ref();
    applied.is_some_and(|a| a.restart_nonce != facts.spec().restart_nonce)
}

/// True if members of the gang are added or removed.
fn resizes(facts: &Facts<'_>, ledger: &Ledger, gang: &Gang) -> bool {
    let spec = facts.spec();
    let Some(applied) = &ledger.applied else {
        return false;
    };
    let counts = spec.groups.iter().zip(&applied.replicas);
    let mut changed = counts.filter(|(group, before)| spec.replicas_of(group) != **before);
    let is_of_gang = |name: &str| gang.members().any(|m| m.group == name);
    let membership = ledger.membership(spec);
    changed.any(|(group, _)| is_of_gang(&group.name))
        || !facts.changed_members(ledger, gang, &membership).is_empty()
}

/// The end of the workload by its deadline, if the request is due.
fn deadline(
    facts: &Facts<'_>,
    ledger: &Ledger,
    timeout: TimeDelta,
    wake: &mut Wake,
) -> Option<DateTime<Utc>> {
    let end = ledger.active_deadline(facts.spec())?;
    facts.due(end - timeout).passed(wake).then_some(end)
}

/// True if the last request was for this occasion.
fn is_settled(last: Option<&CheckpointRequest>, entry: &DomainLedger, occasion: &Occasion) -> bool {
    last.is_some_and(|last| {
        let is_same_stop = last.attempt == entry.attempt && last.reason == occasion.reason;
        match occasion.reason {
            CheckpointOccasion::Eviction => is_same_stop,
            CheckpointOccasion::User | CheckpointOccasion::Preemption => last.id == occasion.id,
            CheckpointOccasion::Suspend
            | CheckpointOccasion::Resize
            | CheckpointOccasion::Restart
            | CheckpointOccasion::Deadline
            | CheckpointOccasion::NodeLeaving
            | CheckpointOccasion::NodeFaulty => is_same_stop && last.id == occasion.id,
        }
    })
}

/// A new request: open, or at once without support.
fn requested(
    facts: &Facts<'_>,
    ledger: &Ledger,
    asked: Asked<'_>,
    occasion: Occasion,
) -> CheckpointRequest {
    let entry = ledger.domain_or_empty(&asked.domain.key);
    let request = CheckpointRequest {
        id: occasion.id,
        reason: occasion.reason,
        attempt: entry.attempt,
        requested_at: facts.now,
        deadline: Some(occasion.deadline),
        watch: occasion.watch,
        outcome: None,
        millis: None,
        saved_step: None,
        steps_lost: None,
    };
    let can_be_asked = |m: &&Member| {
        let pod = facts.current(entry, m);
        pod.is_some_and(|p| facts.observe(m, p).can_be_asked())
    };
    let runs = entry.healthy_since.is_some() && !entry.is_restarting();
    let members = unfinished(facts, ledger, asked);
    let asks = request.watch || facts.checkpoint_policy().is_some();
    if runs
        && asks
        && occasion.deadline > facts.now
        && members.iter().any(can_be_asked)
        && !hangs(facts, ledger)
    {
        request
    } else {
        closed(
            facts,
            ledger,
            &request,
            CheckpointOutcome::Unsupported,
            None,
        )
    }
}

/// The open request with the deadline of an earlier stop. An eviction is its reason from then on.
fn joined(open: &CheckpointRequest, occasion: &Occasion) -> Option<CheckpointRequest> {
    let reason = match occasion.reason {
        CheckpointOccasion::Eviction => occasion.reason,
        _ => open.reason,
    };
    let deadline = open.deadline.min(Some(occasion.deadline));
    ((reason, deadline) != (open.reason, open.deadline)).then(|| CheckpointRequest {
        reason,
        deadline,
        ..open.clone()
    })
}

fn unfinished<'d>(facts: &'d Facts<'_>, ledger: &Ledger, asked: Asked<'d>) -> Vec<&'d Member> {
    let membership = ledger.membership(facts.spec());
    DomainScope::placed(facts, ledger, &membership, asked.gang, asked.domain).unfinished
}

/// True if no step has come for long. The agents' reports can be as old as their interval.
fn hangs(facts: &Facts<'_>, ledger: &Ledger) -> bool {
    let usual = |p: &TrainingProgress| Some(3600 / p.steps_per_hour.filter(|rate| *rate > 0)?);
    let progress = ledger.progress.as_ref();
    progress
        .and_then(|p| Some((usual(p)?, p.step_time)))
        .is_some_and(|(usual, last)| {
            let spread = TimeDelta::milliseconds(100 * i64::from(facts.spec().members()));
            let steps = TimeDelta::seconds(usual.saturating_add(1).saturating_mul(HUNG_STEPS));
            facts.now - last > steps.max(HUNG_FOR) + REPORTED_EVERY.max(spread)
        })
}

/// The outcome of an open request, and the saved step.
fn outcome(
    facts: &Facts<'_>,
    ledger: &Ledger,
    asked: Asked<'_>,
    request: &CheckpointRequest,
    wake: &mut Wake,
) -> Option<(CheckpointOutcome, Option<i64>)> {
    let entry = ledger.domain(&asked.domain.key)?;
    // A failed member ends the processes of all.
    if entry.incident.is_some() || request.attempt != entry.attempt {
        return Some((CheckpointOutcome::Ended, None));
    }
    let members = unfinished(facts, ledger, asked);
    let replies = members.into_iter().map(|m| match facts.current(entry, m) {
        Some(pod) => facts.observe(m, pod).checkpoint_reply(entry, &request.id),
        None => MemberReply::Ended,
    });
    let replies: Vec<MemberReply> = replies.collect();
    let saved = replies.iter().filter_map(|reply| match reply {
        MemberReply::Saved(step) => Some(*step),
        MemberReply::Open | MemberReply::Ended | MemberReply::Unsupported => None,
    });
    if let Some(step) = saved.max() {
        return Some((CheckpointOutcome::Saved, Some(step)));
    }
    let all = |reply| replies.iter().all(|a| *a == reply);
    if all(MemberReply::Ended) {
        Some((CheckpointOutcome::Ended, None))
    } else if all(MemberReply::Unsupported) {
        Some((CheckpointOutcome::Unsupported, None))
    } else {
        let late = facts.due(request.deadline?).passed(wake);
        late.then_some((CheckpointOutcome::TimedOut, None))
    }
}
