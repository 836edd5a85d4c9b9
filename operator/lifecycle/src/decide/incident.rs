//! Incidents: opening, joining and superseding them.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use lockstep_api::condition::{reasons, types};
use lockstep_api::member::Member;
use lockstep_api::workload::{
    Cause, CauseKind, DomainStatus, FailureAction, Incident, IncidentStage, TrainingWorkloadStatus, Unfenced,
};

use super::context::{Ctx, nodes};
use super::failure::{self, Failure};
use super::members::{replace, replaced, restarts_in_place, solo};
use super::respond::{Response, describe, respond};
use super::silent::{Silent, silent_restarts};
use super::{finish, history, progress, rooms};
use crate::gangs::{Domain, Gang};
use crate::ranks::World;
use crate::settings::doubling;
use crate::tier::Tier;

/// What one domain asks of the workload as a whole.
pub(super) enum Demand {
    /// Give the gang's room back and queue again.
    GiveBack(&'static str, String),
    /// Fail.
    Fail(&'static str, String),
}

/// Looks for failures in every domain that has room, and moves its incident on.
pub(super) fn follow_failures(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus) {
    let done = ledger.completed(&ctx.view.spec().groups);
    let world = World::of(ctx.view.spec(), ledger);
    for gang in &ctx.gangs {
        let Some(placement) = ctx.placement(ledger, gang) else { continue };
        let placed = nodes(placement);
        for domain in &gang.domains {
            let all = running(gang, domain, &world, &placed);
            let members = all.iter().copied().filter(|m| !done.contains(*m)).collect();
            let scope = Scope { gang, domain, all, members, placed: &placed };
            let demand = with_domain(ledger, &domain.key, |ledger, status| step(ctx, ledger, &scope, status));
            match demand {
                Some(Demand::Fail(reason, message)) => {
                    finish::end(ctx, ledger, types::FAILED, reason, message);
                    return;
                }
                Some(Demand::GiveBack(reason, message)) => {
                    rooms::give_back(ctx, ledger, &gang.key, Some((reason, message)));
                    break;
                }
                None => {}
            }
        }
    }
}

/// A domain with its gang and the members that are to run.
pub(super) struct Scope<'s> {
    pub gang: &'s Gang,
    pub domain: &'s Domain,
    /// The members that run together.
    pub all: Vec<&'s Member>,
    /// Those of them that have not succeeded.
    pub members: Vec<&'s Member>,
    pub placed: &'s BTreeMap<Member, &'s str>,
}

impl<'s> Scope<'s> {
    /// The scope of a restart that has nothing to do with where members run.
    pub fn of_restart(
        gang: &'s Gang,
        domain: &'s Domain,
        world: &World<'_>,
        nowhere: &'s BTreeMap<Member, &'s str>,
    ) -> Self {
        let all: Vec<&Member> = domain.members.iter().filter(|m| world.contains(m)).collect();
        Self { gang, domain, members: all.clone(), all, placed: nowhere }
    }
}

/// The members of a domain that run together. Those of a basic group run each by itself, whoever has room.
fn running<'s>(gang: &Gang, domain: &'s Domain, world: &World<'_>, placed: &BTreeMap<Member, &str>) -> Vec<&'s Member> {
    let runs = |m: &&Member| if gang.basic { placed.contains_key(*m) } else { world.contains(m) };
    domain.members.iter().filter(runs).collect()
}

/// Lends the ledger entry of a domain to a step that changes the rest of the ledger as well.
pub(super) fn with_domain<T>(
    ledger: &mut TrainingWorkloadStatus,
    key: &str,
    step: impl FnOnce(&mut TrainingWorkloadStatus, &mut DomainStatus) -> Option<T>,
) -> Option<T> {
    let mut domains = std::mem::take(&mut ledger.domains);
    let out = domains.iter_mut().find(|d| d.key == key).and_then(|d| step(ledger, d));
    ledger.domains = domains;
    out
}

fn step(
    ctx: &Ctx<'_>,
    ledger: &mut TrainingWorkloadStatus,
    scope: &Scope<'_>,
    status: &mut DomainStatus,
) -> Option<Demand> {
    let (late, new) = failures(ctx, scope, status);
    if !late.is_empty() {
        let demand = join(ctx, ledger, scope, status, &late);
        if demand.is_some() {
            return demand;
        }
    }
    if let Some(response) = respond(ctx, &new) {
        return open(ctx, ledger, scope, status, response);
    }
    if status.incident.is_none() {
        match silent_restarts(ctx, ledger, scope, status) {
            Silent::Nothing => {}
            Silent::OverBudget => return Some(over_budget(ctx)),
            Silent::Failure(failure) => {
                if let Some(response) = respond(ctx, &[*failure]) {
                    return open(ctx, ledger, scope, status, response);
                }
            }
        }
    }
    progress::advance(ctx, ledger, scope, status)
}

/// The failures of a domain: those that belong to its open incident, and those of its present epoch.
fn failures(ctx: &Ctx<'_>, scope: &Scope<'_>, status: &DomainStatus) -> (Vec<Failure>, Vec<Failure>) {
    let (mut late, mut new) = (Vec::new(), Vec::new());
    let incident = status.incident.as_ref();
    let out = incident.map(replaced).unwrap_or_default();
    for &member in &scope.members {
        let Some(pod) = ctx.current(status, member) else {
            // Basic members come and go one by one; a gang that ran has lost a pod that nobody saw leave.
            if !scope.gang.basic && status.healthy_since.is_some() && incident.is_none() {
                let node = scope.placed.get(member).copied().unwrap_or_default();
                new.push(failure::vanished(member, node, ctx.now));
            }
            continue;
        };
        match incident {
            Some(i) if !solo(i) && !out.contains(member) => {
                let late_exit = failure::late_exit(ctx, i.epoch, member, pod);
                if let Some(exit) = failure::exit_at_epoch(ctx, status, member, pod) {
                    new.push(exit);
                } else if let Some(dead) = failure::pod_failure(ctx, member, pod) {
                    late.push(dead);
                } else {
                    late.extend(late_exit);
                }
            }
            _ => new.extend(failure::failure_of(ctx, status, member, pod)),
        }
    }
    (late, new)
}

/// Failures of the epoch that the open incident ends: they join it.
fn join(
    ctx: &Ctx<'_>,
    ledger: &mut TrainingWorkloadStatus,
    scope: &Scope<'_>,
    status: &mut DomainStatus,
    failures: &[Failure],
) -> Option<Demand> {
    let response = respond(ctx, failures)?;
    let incident = status.incident.as_mut()?;
    if response.action == FailureAction::FailWorkload {
        return Some(Demand::Fail(reasons::FAILURE_POLICY, describe(&response.cause)));
    }
    // A restart that was asked for stays that: members that lose their peers to it may fail on their own.
    let asked = matches!(incident.cause.kind, CauseKind::Requested | CauseKind::Resize);
    // An agent's report knows the true exit code where pod status showed a masked one.
    let same = (&response.cause.pod, response.cause.kind) == (&incident.cause.pod, incident.cause.kind);
    let corrected = same && response.cause.exit_code != incident.cause.exit_code;
    if !asked && (response.cause.time < incident.cause.time || corrected) {
        incident.cause = response.cause;
        if response.counted && !incident.counted && !history::follows_charged(ledger, &status.key, incident) {
            incident.counted = true;
            if !history::charge(&mut ledger.restarts, &ctx.view.spec().failure_policy.limits, ctx.now) {
                return Some(over_budget(ctx));
            }
        }
    }
    for node in response.avoid {
        rooms::avoid(ledger, &scope.gang.key, node);
    }
    let mut members = response.replace;
    if response.action > incident.action {
        incident.action = response.action;
        if incident.action == FailureAction::RecreateGang {
            members.extend(scope.members.iter().map(|m| (*m).clone()));
        }
    }
    let known = replaced(incident);
    let fresh: Vec<Member> = members.into_iter().filter(|m| !known.contains(m)).collect();
    if !fresh.is_empty() {
        replace(ctx, incident, fresh);
    }
    None
}

/// Opens an incident; one that is still open is superseded.
pub(super) fn open(
    ctx: &Ctx<'_>,
    ledger: &mut TrainingWorkloadStatus,
    scope: &Scope<'_>,
    status: &mut DomainStatus,
    response: Response,
) -> Option<Demand> {
    let policy = &ctx.view.spec().failure_policy;
    let healthy = status.healthy_since.is_some_and(|since| since + ctx.view.settings.healthy_reset <= ctx.now);
    let attempts = if healthy { 0 } else { status.in_place_attempts };
    let owed = owed(ctx, scope, status);
    let superseded = status.incident.take();
    if let Some(open) = &superseded {
        history::close(ctx, ledger, status, open, false);
    }
    if response.action == FailureAction::FailWorkload {
        history::interrupted(ctx, ledger, status, &response.cause, response.action);
        return Some(Demand::Fail(reasons::FAILURE_POLICY, describe(&response.cause)));
    }
    // Its restart has not brought all members back: that is not a second misfortune yet.
    let charged = response.counted && !superseded.as_ref().is_some_and(|open| open.counted && !solo(open));
    if charged && !history::charge(&mut ledger.restarts, &policy.limits, ctx.now) {
        history::interrupted(ctx, ledger, status, &response.cause, response.action);
        return Some(over_budget(ctx));
    }
    let single = response.action <= FailureAction::RestartPod;
    if !single && response.counted && attempts >= policy.in_place.attempts + ctx.view.settings.recreate_attempts {
        history::interrupted(ctx, ledger, status, &response.cause, response.action);
        let message = format!("{attempts} restarts in a row have failed; {}", describe(&response.cause));
        return Some(Demand::GiveBack(reasons::RESTARTS_EXHAUSTED, message));
    }
    for node in &response.avoid {
        rooms::avoid(ledger, &scope.gang.key, node.clone());
    }
    let action = escalate(ctx, scope, status, response.action, attempts);
    let mut out = response.replace;
    out.extend(owed);
    match action {
        FailureAction::RecreateGang => out.extend(scope.all.iter().map(|m| (*m).clone())),
        FailureAction::RestartGang => {
            let stays = |m: &Member| ctx.current(status, m).is_some_and(|p| restarts_in_place(ctx, m, p));
            out.extend(scope.all.iter().filter(|m| !stays(m)).map(|m| (*m).clone()));
        }
        _ => {}
    }
    status.epoch += i64::from(!single);
    let wait = doubling(ctx.view.settings.incident_backoff, ctx.view.settings.incident_backoff_max, attempts);
    let mut incident = Incident {
        epoch: status.epoch,
        cause: response.cause,
        action,
        counted: charged,
        stage: IncidentStage::Decided,
        replace: Vec::new(),
        old_pods: Vec::new(),
        not_before: (response.counted && !wait.is_zero()).then(|| ctx.now + wait),
        detected_at: ctx.now,
        decided_at: ctx.now,
        ordered_at: None,
        arrived_at: None,
    };
    if let Some(open) = superseded.filter(solo).filter(|_| single) {
        // Replacements of single pods do not wait for each other.
        out.extend(replaced(&open));
        incident.old_pods = open.old_pods;
    }
    replace(ctx, &mut incident, out);
    status.incident = Some(incident);
    status.in_place_attempts = attempts.saturating_add(i32::from(response.counted));
    status.healthy_since = None;
    if !single {
        finish::forget_unfinished(ctx, ledger, scope.all.iter().copied());
    }
    None
}

/// Members that the open incident replaces and that have no new pod yet: whatever supersedes it owes them one.
fn owed(ctx: &Ctx<'_>, scope: &Scope<'_>, status: &DomainStatus) -> Vec<Member> {
    let out = status.incident.as_ref().filter(|i| !solo(i)).map(replaced).unwrap_or_default();
    let owed = |m: &&&Member| out.contains(m) && ctx.current(status, m).is_none();
    scope.all.iter().filter(owed).map(|m| (*m).clone()).collect()
}

/// From restarts in place to new pods: where nothing keeps epochs apart and that is not allowed, where in-place attempts
/// are used up, and where the kubelet's own back-off, which doubles from 10 s to 5 min like ours, would hold the container
/// longer than a new pod takes. (Restarting all containers removes them, and with them that back-off.)
fn escalate(
    ctx: &Ctx<'_>,
    scope: &Scope<'_>,
    status: &DomainStatus,
    action: FailureAction,
    attempts: i32,
) -> FailureAction {
    let settings = &ctx.view.settings;
    let in_place = &ctx.view.spec().failure_policy.in_place;
    let held_back = doubling(TimeDelta::seconds(10), TimeDelta::minutes(5), attempts) > settings.recreate_takes;
    let backs_off = |m: &&Member| ctx.current(status, m).is_some_and(|p| p.identity.tier != Some(Tier::RestartAll));
    let slow = held_back && scope.members.iter().any(backs_off);
    if action == FailureAction::RestartGang
        && (in_place.unfenced == Unfenced::Deny || attempts >= in_place.attempts || slow)
    {
        return FailureAction::RecreateGang;
    }
    action
}

/// An uncounted restart that somebody has asked for.
pub(super) fn request(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus, cause: &Cause) {
    let world = World::of(ctx.view.spec(), ledger);
    let nowhere = BTreeMap::new();
    for gang in &ctx.gangs {
        let held = ctx.placement(ledger, gang).is_some();
        for domain in gang.domains.iter().filter(|_| held) {
            let scope = Scope::of_restart(gang, domain, &world, &nowhere);
            if scope.all.iter().all(|m| ctx.pods_of(m).is_empty()) {
                continue;
            }
            let response = Response::uncounted(FailureAction::RestartGang, cause.clone());
            // Uncounted and not a failure: it asks nothing of the workload.
            let _: Option<Demand> = with_domain(ledger, &domain.key, |ledger, status| {
                // One restart serves all requests of one pass.
                let opened = status.incident.as_ref().is_some_and(|i| i.detected_at == ctx.now && !solo(i));
                if opened { None } else { open(ctx, ledger, &scope, status, response) }
            });
        }
    }
}

/// Members that their nodes did not start are placed elsewhere while the others keep their places.
pub(super) fn place_elsewhere(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus, gang: &Gang, failures: Vec<Failure>) {
    let world = World::of(ctx.view.spec(), ledger);
    let nowhere = BTreeMap::new();
    for failure in failures {
        let Some(domain) = gang.domains.iter().find(|d| d.members.contains(&failure.member)) else { continue };
        let scope = Scope::of_restart(gang, domain, &world, &nowhere);
        let _: Option<Demand> = with_domain(ledger, &domain.key, |ledger, status| {
            if let Some(incident) = &mut status.incident {
                replace(ctx, incident, [failure.member]);
                return None;
            }
            let mut response = Response::uncounted(FailureAction::RestartPod, failure.cause);
            response.replace.insert(failure.member);
            open(ctx, ledger, &scope, status, response)
        });
    }
}

fn over_budget(ctx: &Ctx<'_>) -> Demand {
    Demand::Fail(reasons::RESTART_LIMIT_EXCEEDED, budget_message(ctx))
}

fn budget_message(ctx: &Ctx<'_>) -> String {
    let limits = &ctx.view.spec().failure_policy.limits;
    format!("more than {} counted incidents within {} s", limits.max_restarts, limits.window_seconds)
}
