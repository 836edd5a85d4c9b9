//! Elastic gangs: who of the members runs together, and what becomes of the others when that changes.
//!
//! The scheduler loop decides who has a seat; from `minCount` on, those that have one are the world. Its number and ranks are
//! in the environment of the pods, which cannot change in place, so that a world that changes costs one uncounted restart
//! with new pods on the same nodes. Where an incident is open already, its restart is that restart.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_api::member::Member;
use lockstep_api::workload::{CauseKind, DomainStatus, FailureAction, Group, TrainingWorkloadStatus};

use super::changes::asked;
use super::context::{Ctx, entry, indexes, nodes};
use super::history;
use super::incident::{Demand, Scope, open, with_domain};
use super::members::{replace, solo};
use super::respond::Response;
use crate::gangs::Gang;
use crate::ranks::{Place, World};

/// Lets the members that have seats be the world of their gang, once they are enough.
pub(super) fn follow_placements(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus) {
    let spec = ctx.view.spec();
    let was = World::of(spec, ledger);
    let done = ledger.completed(&spec.groups);
    // What each member of a gang with another world is from now on.
    let mut joins: BTreeMap<&Member, bool> = BTreeMap::new();
    for gang in ctx.gangs.iter().filter(|g| !g.basic) {
        let Some(placement) = ctx.placement(ledger, gang) else { continue };
        let seats = nodes(placement);
        // Who has succeeded needs no seat any more.
        let runs = |m: &Member| seats.contains_key(m) || (done.contains(m) && was.contains(m));
        let enough = gang.members().filter(|m| runs(m)).count() >= gang.min_count.max(0) as usize;
        if enough && gang.members().any(|m| runs(m) != was.contains(m)) {
            joins.extend(gang.members().map(|m| (m, runs(m))));
        }
    }
    if joins.is_empty() {
        return;
    }
    for group in spec.groups.iter().filter(|g| joins.keys().any(|m| m.group == g.name)) {
        set(ledger, group, |m| joins.get(m).copied().unwrap_or_else(|| was.contains(m)));
    }
    let is = World::of(spec, ledger);
    let size = |world: &World<'_>| spec.groups.iter().map(|g| world.size_of(&g.name)).sum::<i32>();
    restart(ctx, ledger, &was, &is, &format!("goes on with {} members instead of {}", size(&is), size(&was)));
}

/// Follows a change of `replicas`. Members that are new join when they have seats; until then the others go on. Without
/// members that are gone the others start over at once.
pub(super) fn resize(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus, before: &[i32]) {
    let spec = ctx.view.spec();
    let was = World::with_replicas(spec, before, ledger);
    let waits: BTreeSet<&str> = ctx
        .gangs
        .iter()
        .filter(|g| !g.basic && ctx.placement(ledger, g).is_some())
        .flat_map(Gang::members)
        .map(|m| m.group.as_str())
        .collect();
    for (group, before) in spec.groups.iter().zip(before) {
        let known = ledger.groups.iter().any(|g| g.name == group.name && g.world_indexes.is_some());
        let joins_later = group.replicas > *before && waits.contains(group.name.as_str());
        if known || joins_later {
            set(ledger, group, |m| was.contains(m));
        }
    }
    let is = World::of(spec, ledger);
    restart(ctx, ledger, &was, &is, "replicas changed");
}

/// Restarts, with new pods, the domains of which members have joined or whose members have another place in the world.
fn restart(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus, was: &World<'_>, is: &World<'_>, message: &str) {
    let nowhere = BTreeMap::new();
    for gang in &ctx.gangs {
        let held = ctx.placement(ledger, gang).is_some();
        for domain in gang.domains.iter().filter(|_| held) {
            let scope = Scope::of_restart(gang, domain, is, &nowhere);
            let begun = domain.members.iter().any(|m| was.contains(m));
            // Uncounted and not a failure: it asks nothing of the workload.
            let _: Option<Demand> = with_domain(ledger, &domain.key, |ledger, status| {
                if scope.all.is_empty() {
                    leave(ctx, ledger, status);
                } else if begun && scope.all.iter().any(|m| seat(was, m) != seat(is, m)) {
                    return restart_domain(ctx, ledger, &scope, status, message);
                }
                None
            });
        }
    }
}

fn restart_domain(
    ctx: &Ctx<'_>,
    ledger: &mut TrainingWorkloadStatus,
    scope: &Scope<'_>,
    status: &mut DomainStatus,
    message: &str,
) -> Option<Demand> {
    let all = || scope.all.iter().map(|m| (*m).clone());
    if let Some(incident) = status.incident.as_mut().filter(|i| !solo(i)) {
        incident.action = incident.action.max(FailureAction::RecreateGang);
        replace(ctx, incident, all());
        return None;
    }
    if all().all(|m| ctx.current(status, &m).is_none()) {
        return None;
    }
    let response = Response::uncounted(FailureAction::RecreateGang, asked(ctx, CauseKind::Resize, message));
    open(ctx, ledger, scope, status, response)
}

/// Nobody of the domain runs any more.
fn leave(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus, status: &mut DomainStatus) {
    if let Some(open) = status.incident.take() {
        history::close(ctx, ledger, status, &open, false);
    }
    *status = DomainStatus { key: std::mem::take(&mut status.key), epoch: status.epoch, ..DomainStatus::default() };
}

/// Place and meeting point of a member; None while it does not run.
fn seat(world: &World<'_>, member: &Member) -> Option<(Place, Member)> {
    Some((world.place(member)?, world.coordinator(member)))
}

/// Records who of a group runs.
fn set(ledger: &mut TrainingWorkloadStatus, group: &Group, runs: impl Fn(&Member) -> bool) {
    let numbered = (0..group.replicas).flat_map(|r| (0..group.size).map(move |i| (r, i)));
    let all: Vec<Member> = numbered.map(|(r, i)| Member::new(group.name.as_str(), r, i)).collect();
    let some: Vec<&Member> = all.iter().filter(|m| runs(m)).collect();
    let text = (some.len() < all.len()).then(|| indexes(group, some.into_iter()));
    if text.is_some() || ledger.groups.iter().any(|g| g.name == group.name) {
        entry(ledger, &group.name).world_indexes = text;
    }
}
