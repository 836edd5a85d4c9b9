use chrono::TimeDelta;
use lockstep_api::member::Member;
use lockstep_api::words::span;
use lockstep_api::workload::{CauseKind, IncidentStage};

use super::late::{given_up, missing};
use super::members::{all_up, awaits_nodes, restart_count, restarts_in_place};
use super::refund::take_back;
use super::scope::{Consequence, DomainScope};
use crate::facts::Facts;
use crate::gangs::PlacementView;
use crate::ledger::{DomainLedger, Ledger, OpenIncident};
use crate::view::{RefusedRequest, Target};
use crate::wake::Wake;

/// Without new failures.
pub(crate) fn advance(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    scope: &DomainScope<'_>,
    wake: &mut Wake,
) -> Option<Consequence> {
    if ledger.incident(scope.key()).is_some() {
        keep_returned_members(facts, ledger, scope);
        if let Some(domain) = ledger.domains.get_mut(scope.key()) {
            note_order(facts, scope, domain, wake);
            replace_late_members(facts, scope, domain, wake);
        }
        let consequence = replacement_timeout(facts, ledger, scope, wake);
        if consequence.is_some() {
            return consequence;
        }
        if let Some(domain) = ledger.domains.get_mut(scope.key()) {
            note_arrival(facts, scope, domain);
        }
    }
    note_recovery(facts, ledger, scope);
    None
}

fn note_order(
    facts: &Facts<'_>,
    scope: &DomainScope<'_>,
    domain: &mut DomainLedger,
    wake: &mut Wake,
) {
    let ordered = facts.is_ordered(scope.key(), domain.attempt);
    if let Some(incident) = &mut domain.incident
        && incident.stage == IncidentStage::Decided
        && ordered
        && incident
            .not_before
            .is_none_or(|t| facts.due(t).passed(wake))
    {
        incident.stage = IncidentStage::Ordered;
        incident.ordered_at = Some(facts.now);
    }
}

/// If a lost node returns before its members got other nodes, they restart in their pods. If no pod
/// remains to be replaced, the charge is refunded.
fn keep_returned_members(facts: &Facts<'_>, ledger: &mut Ledger, scope: &DomainScope<'_>) {
    let may_keep = |incident: &&OpenIncident| {
        incident.cause.kind == CauseKind::NodeLost
            && incident.stage == IncidentStage::Decided
            && !incident.action.replaces_pods()
            && !incident.affects_single_pods()
            && !facts.is_ordered(scope.key(), incident.attempt)
    };
    let incident = ledger.incident(scope.key()).filter(may_keep).cloned();
    let (Some(mut incident), Some(gang)) = (incident, ledger.gang(&scope.gang.key)) else {
        return;
    };
    let returned = |member: &Member| {
        let pod = facts.pods_of(member).last().copied();
        pod.is_some_and(|p| {
            restarts_in_place(facts, member, p)
                && p.node.as_deref().is_some_and(|n| facts.usable(gang, n))
        })
    };
    let replaced = incident.replace.iter();
    let (kept, replace) = replaced.cloned().partition::<Vec<_>, _>(returned);
    if kept.is_empty() {
        return;
    }
    for pod in kept.iter().flat_map(|m| facts.pods_of(m)) {
        incident.old_pods.remove(&pod.uid);
    }
    incident.replace = replace.into_iter().collect();
    if incident.replace.is_empty() {
        take_back(ledger, scope.key(), &mut incident);
    }
    if let Some(domain) = ledger.domains.get_mut(scope.key()) {
        domain.incident = Some(incident);
    }
}

fn replace_late_members(
    facts: &Facts<'_>,
    scope: &DomainScope<'_>,
    domain: &mut DomainLedger,
    wake: &mut Wake,
) {
    let late = given_up(facts, scope, domain, wake);
    if let Some(incident) = &mut domain.incident
        && !late.is_empty()
    {
        incident.replace_members(facts, late);
    }
}

/// Survivors keep their nodes during the search for a replacement, up to a timeout.
fn replacement_timeout(
    facts: &Facts<'_>,
    ledger: &Ledger,
    scope: &DomainScope<'_>,
    wake: &mut Wake,
) -> Option<Consequence> {
    let domain = ledger.domain(scope.key())?;
    let gang = ledger.gang(&scope.gang.key)?;
    let incident = domain.incident.as_ref()?;
    let since = incident.ordered_at.or_else(|| {
        let members = scope.unfinished.iter().copied();
        let waits = awaits_nodes(facts, gang, scope.assigned, domain, members);
        waits.then_some(incident.decided_at)
    })?;
    let placement = facts.placement(ledger, &scope.gang.key)?;
    let prevented = facts.prevents_pods(wake);
    let mut unplaced: Vec<String> = Vec::new();
    for &member in &scope.unfinished {
        let node = scope.assigned.get(member);
        let placed = node.is_some_and(|n| facts.usable(gang, n.as_str()));
        let refusal = refused_on(facts, member, placement).map(|r| r.message.as_str());
        let refusal = refusal.or(prevented);
        if (!placed || refusal.is_some()) && facts.current(domain, member).is_none() {
            let why = refusal.map_or(String::new(), |words| format!(" ({words})"));
            unplaced.push(format!("{member}{why}"));
        }
    }
    let limit = facts.spec().failure_policy.replacement_timeout_seconds;
    let deadline = since + TimeDelta::seconds(limit);
    if unplaced.is_empty() || !facts.due(deadline).passed(wake) {
        return None;
    }
    let message = format!(
        "no replacement within {} (failurePolicy.replacementTimeoutSeconds) for {}",
        span(limit),
        unplaced.join(", ")
    );
    Some(Consequence::ReleaseGang(
        facts.release_reason(wake),
        message,
    ))
}

/// The last refusal of a member's pod of this placement. A success clears it.
fn refused_on<'a>(
    facts: &Facts<'a>,
    member: &Member,
    placement: &PlacementView,
) -> Option<&'a RefusedRequest> {
    let mut refusals = facts.refusals(&Target::Pod(member.clone())).iter();
    let found = refusals.find(|r| r.placement.as_ref() == Some(&placement.id));
    found.copied()
}

fn note_arrival(facts: &Facts<'_>, scope: &DomainScope<'_>, domain: &mut DomainLedger) {
    let all_here = missing(facts, scope, domain).is_empty();
    if let Some(incident) = &mut domain.incident
        && incident.stage == IncidentStage::Ordered
        && all_here
    {
        incident.stage = IncidentStage::Arrived;
        incident.arrived_at = Some(facts.now);
    }
}

/// Closes the incident, or records the first start, when all members run.
fn note_recovery(facts: &Facts<'_>, ledger: &mut Ledger, scope: &DomainScope<'_>) {
    let Some(domain) = ledger.domains.get_mut(scope.key()) else {
        return;
    };
    let begun = domain
        .incident
        .as_ref()
        .is_none_or(|i| i.stage == IncidentStage::Arrived);
    if domain.healthy_since.is_some() || !begun || scope.unfinished.is_empty() {
        return;
    }
    if !facts.is_released(scope.key(), domain.attempt) {
        return;
    }
    // All members were at the barrier, so whatever happens now is a failure.
    let begins = domain.incident.is_none() && facts.is_past_barrier(scope.key(), domain.attempt);
    if !begins && !all_up(facts, domain, &scope.unfinished) {
        return;
    }
    domain.restarts_seen = restart_count(facts, domain, &scope.domain.members);
    domain.healthy_since = Some(facts.now);
    ledger.close_incident(facts, scope.key(), true);
    if let Some(gang) = ledger.gangs.get_mut(scope.gang.key.as_str()) {
        gang.placement_tries = 0;
        gang.start_tries = 0;
    }
}
