//! Moves an open incident on, and notices when all members run.

use chrono::TimeDelta;
use lockstep_api::condition::reasons;
use lockstep_api::member::Member;
use lockstep_api::workload::{DomainStatus, IncidentStage, TrainingWorkloadStatus};

use super::context::{Ctx, Room};
use super::incident::{Demand, Scope};
use super::members::{all_up, replace, replaced, restart_count, solo};
use super::{history, orders, rooms};
use crate::pods::ContainerView;

/// One step of a domain that has no new failure.
pub(super) fn advance(
    ctx: &Ctx<'_>,
    ledger: &mut TrainingWorkloadStatus,
    scope: &Scope<'_>,
    status: &mut DomainStatus,
) -> Option<Demand> {
    if status.incident.is_some() {
        order(ctx, status);
        replace_late_members(ctx, scope, status);
        let demand = replacement_timeout(ctx, ledger, scope, status);
        if demand.is_some() {
            return demand;
        }
        arrive(ctx, scope, status);
    }
    settle(ctx, ledger, scope, status);
    None
}

/// Notices that the order is out.
fn order(ctx: &Ctx<'_>, status: &mut DomainStatus) {
    let told = orders::told(ctx, status);
    if let Some(incident) = &mut status.incident
        && incident.stage == IncidentStage::Decided
        && told
        && incident.not_before.is_none_or(|t| ctx.due(t))
    {
        incident.stage = IncidentStage::Ordered;
        incident.ordered_at = Some(ctx.now);
    }
}

/// Members of the domain that restart in place and have not arrived.
fn missing<'s>(ctx: &Ctx<'_>, scope: &Scope<'s>, status: &DomainStatus) -> Vec<&'s Member> {
    let Some(incident) = status.incident.as_ref().filter(|i| !solo(i)) else { return Vec::new() };
    let out = replaced(incident);
    let arrived = |m: &Member| ctx.current(status, m).is_some_and(|p| ctx.arrival(p, incident.epoch).is_some());
    scope.members.iter().copied().filter(|m| !out.contains(m) && !arrived(m)).collect()
}

/// A member that does not come back in time gets a new pod. One whose first start is still under way has its own, longer
/// deadline.
fn replace_late_members(ctx: &Ctx<'_>, scope: &Scope<'_>, status: &mut DomainStatus) {
    let late: Vec<Member> = missing(ctx, scope, status)
        .into_iter()
        .filter(|m| ctx.current(status, m).and_then(|p| ctx.trainer(m, p)).is_none_or(ContainerView::started))
        .cloned()
        .collect();
    let limit = TimeDelta::seconds(ctx.view.spec().failure_policy.in_place.deadline_seconds);
    let Some(incident) = &mut status.incident else { return };
    if !late.is_empty() && incident.ordered_at.is_some_and(|at| ctx.due(at + limit)) {
        replace(ctx, incident, late);
    }
}

/// While a replacement is sought the survivors hold their nodes, but not for ever.
fn replacement_timeout(
    ctx: &Ctx<'_>,
    ledger: &TrainingWorkloadStatus,
    scope: &Scope<'_>,
    status: &DomainStatus,
) -> Option<Demand> {
    let incident = status.incident.as_ref()?;
    let entry = ledger.gangs.iter().find(|g| g.key == scope.gang.key)?;
    let homeless = scope.members.iter().filter(|m| {
        let node = scope.placed.get(**m).copied();
        ctx.current(status, m).is_none() && node.is_none_or(|n| !rooms::usable(ctx, entry, n))
    });
    let homeless: Vec<String> = homeless.map(ToString::to_string).collect();
    let limit = ctx.view.spec().failure_policy.replacement_timeout_seconds;
    if homeless.is_empty() || !ctx.due(incident.ordered_at? + TimeDelta::seconds(limit)) {
        return None;
    }
    let message = format!("no node was found within {limit} s for {}", homeless.join(", "));
    Some(Demand::GiveBack(reasons::REPLACEMENT_TIMEOUT, message))
}

fn arrive(ctx: &Ctx<'_>, scope: &Scope<'_>, status: &mut DomainStatus) {
    let all_here = missing(ctx, scope, status).is_empty();
    if let Some(incident) = &mut status.incident
        && incident.stage == IncidentStage::Ordered
        && all_here
    {
        incident.stage = IncidentStage::Arrived;
        incident.arrived_at = Some(ctx.now);
    }
}

/// All members run: the incident is over, or the first start is.
fn settle(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus, scope: &Scope<'_>, status: &mut DomainStatus) {
    let begun = status.incident.as_ref().is_none_or(|i| i.stage == IncidentStage::Arrived);
    if status.healthy_since.is_some() || !begun || scope.members.is_empty() {
        return;
    }
    if !all_up(ctx, status, &scope.members) {
        return;
    }
    status.restarts_seen = restart_count(ctx, status, &scope.domain.members);
    if let Some(incident) = status.incident.take() {
        history::close(ctx, ledger, status, &incident, true);
    }
    status.healthy_since = Some(ctx.now);
    if let Some(gang) =
        ledger.gangs.iter_mut().find(|g| g.key == scope.gang.key && matches!(ctx.room(g), Room::Held(_)))
    {
        gang.attempts = 0;
    }
}
