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

use crate::checkpoints::{BEFORE_KILL, MemberReply, occasion_id};
use crate::facts::Facts;
use crate::failure::domain::DomainScope;
use crate::ledger::{DomainLedger, Ledger};
use crate::moves::{members_to_move, occasion as occasion_of, permitted};
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
    let mut withdrawn = Vec::new();
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
            let key = &domain.key;
            match (
                entry.open_request(),
                occasion(facts, ledger, asked, &mut wake),
            ) {
                (Some(open), None) => {
                    let is_stopped = facts.preemptor(&gang.key).is_some();
                    let outcome = if is_stopped {
                        CheckpointOutcome::TimedOut
                    } else {
                        withdrawn.push(open.reason);
                        CheckpointOutcome::Withdrawn
                    };
                    ledger.close_request(facts, key, outcome, None);
                }
                (Some(open), Some(occasion)) => {
                    let outcome = outcome(facts, ledger, asked, open, &mut wake);
                    let request = joined(open, occasion, outcome.is_some());
                    ledger.set_request(key, request);
                    if let Some((outcome, saved)) = outcome {
                        ledger.close_request(facts, key, outcome, saved);
                    }
                }
                (None, Some(occasion)) if !is_settled(entry, &occasion) => {
                    let request = requested(facts, entry, occasion);
                    let asks = is_supported(facts, ledger, asked, &request);
                    ledger.set_request(key, request);
                    if !asks {
                        let outcome = CheckpointOutcome::Unsupported;
                        ledger.close_request(facts, key, outcome, None);
                    }
                }
                (None, _) => {}
            }
        }
    }
    for entry in ledger.domains.values_mut() {
        let attempt = entry.attempt;
        // The domain answered before the stop was cancelled. Its next stop is another one.
        let cancelled = |r: &&mut CheckpointRequest| {
            let is_of_stop = is_by_spec(r.reason) && withdrawn.contains(&r.reason);
            is_of_stop && r.attempt == attempt && !r.is_open()
        };
        if let Some(request) = entry.request.as_mut().filter(cancelled) {
            request.outcome = Some(CheckpointOutcome::Withdrawn);
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
    let entry = ledger.domain(&asked.domain.key)?;
    let evicted = evicted(facts, entry, asked.domain);
    let eviction = evicted
        .clone()
        .filter(|_| facts.asks_before(CheckpointOccasion::Eviction));
    let preemption = facts
        .gang_view(&asked.gang.key)?
        .checkpoint_request
        .as_ref();
    if let Some(request) = preemption {
        let end = eviction.map(|(_, end)| end);
        return Some(Occasion {
            reason: end.map_or(CheckpointOccasion::Preemption, |_| {
                CheckpointOccasion::Eviction
            }),
            id: request.id.clone(),
            deadline: end.map_or(request.deadline, |end| end.min(request.deadline)),
            watch: request.watch,
        });
    }
    let timeout = TimeDelta::seconds(facts.checkpoint_policy()?.timeout_seconds);
    // A deletion is not taken back, and the pod can be gone before the others have answered.
    let open = entry.open_request();
    if let Some(open) = open.filter(|r| r.reason == CheckpointOccasion::Eviction) {
        let (pod, end) = eviction.unzip();
        return Some(Occasion {
            reason: open.reason,
            id: pod.map_or_else(|| open.id.clone(), |pod| occasion_id(open.reason, &pod)),
            deadline: open.deadline.into_iter().chain(end).min()?,
            watch: false,
        });
    }
    let generation = facts.view.generation();
    let latest = facts.now + timeout;
    let of = |reason, key: String, deadline| (reason, key, deadline);
    let now = |reason, key: i64| of(reason, key.to_string(), latest);
    let spec = facts.spec();
    let stops = [
        eviction.map(|(pod, end)| of(CheckpointOccasion::Eviction, pod, end.min(latest))),
        ledger
            .is_suspended(spec)
            .then(|| now(CheckpointOccasion::Suspend, generation)),
        restarts(facts, ledger).then(|| now(CheckpointOccasion::Restart, spec.restart_nonce)),
        (asked.resized).then(|| now(CheckpointOccasion::Resize, generation)),
        moves(facts, ledger, asked, wake)
            .map(|(reason, id, end)| of(reason, id, end.map_or(latest, |at| at.min(latest)))),
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
    let asks = evicted.is_none() && facts.asks_before(CheckpointOccasion::User);
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
    // The kubelet's last DELETE has no grace period, and a other timestamp.
    let evicted = pods.filter(|p| p.deletion_grace > 0 && !p.terminal());
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

/// The move of the domain that waits for a save, and the earliest deadline of its nodes. Before a
/// deadline, a save is requested even if no other node is free.
fn moves(
    facts: &Facts<'_>,
    ledger: &Ledger,
    asked: Asked<'_>,
    wake: &mut Wake,
) -> Option<(CheckpointOccasion, String, Option<DateTime<Utc>>)> {
    let moving = ledger.gang(&asked.gang.key)?.moving.as_ref();
    let moving = moving.filter(|m| m.is_awaited() && !m.with_restart)?;
    let is_late = (moving.begin_by).is_some_and(|at| facts.due(at).passed(wake));
    let members = permitted(facts, ledger, asked.gang, moving)
        .or_else(|| is_late.then(|| members_to_move(facts, ledger, asked.gang, moving)))?;
    let end = moving.nodes.iter().filter_map(|n| n.deadline).min();
    let mut own = asked.domain.members.iter();
    let moves = own.any(|m| members.contains(m));
    moves.then(|| (occasion_of(moving), moving.id.clone(), end))
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

/// True if the last request of a running domain was for this occasion.
fn is_settled(entry: &DomainLedger, occasion: &Occasion) -> bool {
    let Some(last) = &entry.request else {
        return false;
    };
    let (is_same, is_this_attempt) = (last.id == occasion.id, last.attempt == entry.attempt);
    let withdrawn = last.outcome == Some(CheckpointOutcome::Withdrawn);
    match occasion.reason {
        CheckpointOccasion::User | CheckpointOccasion::Preemption => is_same,
        // A later change of the spec asks no domain again that has answered.
        reason if is_by_spec(reason) => is_this_attempt && last.reason == reason && !withdrawn,
        // The target of a move can vanish and return.
        CheckpointOccasion::NodeLeaving | CheckpointOccasion::NodeFaulty => {
            is_this_attempt && is_same && !withdrawn
        }
        _ => is_this_attempt && is_same,
    }
}

/// True if a change of the spec is the reason, and ends the wait when it is reverted.
fn is_by_spec(reason: CheckpointOccasion) -> bool {
    matches!(
        reason,
        CheckpointOccasion::Suspend | CheckpointOccasion::Resize | CheckpointOccasion::Restart
    )
}

fn requested(facts: &Facts<'_>, entry: &DomainLedger, occasion: Occasion) -> CheckpointRequest {
    CheckpointRequest {
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
    }
}

/// True if the domain runs and a member can answer the request.
fn is_supported(
    facts: &Facts<'_>,
    ledger: &Ledger,
    asked: Asked<'_>,
    request: &CheckpointRequest,
) -> bool {
    let entry = ledger.domain_or_empty(&asked.domain.key);
    let can_be_asked = |m: &&Member| {
        let pod = facts.current(entry, m);
        pod.is_some_and(|p| facts.observe(m, p).can_be_asked())
    };
    let runs = entry.healthy_since.is_some() && !entry.is_restarting();
    let members = unfinished(facts, ledger, asked);
    runs && (request.watch || facts.checkpoint_policy().is_some())
        && request.deadline > Some(facts.now)
        && members.iter().any(can_be_asked)
        && !hangs(facts, ledger)
}

/// The open request with the deadline of an earlier stop. An eviction is its reason from then on,
/// and with an outcome the last occasion.
fn joined(open: &CheckpointRequest, occasion: Occasion, ends: bool) -> CheckpointRequest {
    let deadline = open.deadline.min(Some(occasion.deadline));
    let (id, reason) = match occasion.reason {
        reason if ends => (occasion.id, reason),
        CheckpointOccasion::Eviction => (open.id.clone(), occasion.reason),
        _ => (open.id.clone(), open.reason),
    };
    CheckpointRequest {
        id,
        reason,
        deadline,
        ..open.clone()
    }
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
