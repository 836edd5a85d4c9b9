//! Progress of an open incident: members arrive at the barrier, overdue members get new pods, and
//! the domain recovers.
//!
//! Missing reports alone replace no member: a slow control plane would lose running members, and
//! the replacements would delay reports further. A member is replaced only if its own node reports
//! it as overdue, and only after a time without any arrival in its domain. Only a share is replaced
//! at a time (docs/decisions/0034).

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::Reach;
use lockstep_api::ids::NodeName;
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::words::span;
use lockstep_api::workload::{CauseKind, IncidentStage};

use super::domain::{
    Consequence, DomainPass, DomainScope, awaits_node, awaits_nodes, continues_without, is_up,
    keeps_pod, left_down,
};
use super::restart_budget::refund;
use crate::domains::needs_barrier;
use crate::facts::Facts;
use crate::gangs::PlacementView;
use crate::ledger::{DomainLedger, OpenIncident};
use crate::messages::avoided_nodes;
use crate::pods::{ContainerView, PodView};
use crate::view::{RejectedRequest, Target};

/// One in this many members is replaced at a time, at least one. New pods load a slow control
/// plane, and the first ones show whether replacement helps.
const SHARE: usize = 10;

/// After this many deadlines without an arrival, a silent agent on a ready node counts as hanging.
/// Outages of the API server are rarely as long.
const SILENCE: i32 = 5;

impl DomainPass<'_> {
    /// Advances an incident and a replacement without new failures.
    pub fn advance(&mut self) -> Option<Consequence> {
        self.keep_returned_members();
        self.keep_returned_pods();
        self.note_order();
        self.replace_overdue_members();
        let consequence = self.replacement_timeout();
        if consequence.is_some() {
            return consequence;
        }
        self.note_arrival();
        self.note_recovery();
        None
    }

    fn note_order(&mut self) {
        let (facts, key) = (self.facts, self.key());
        let ordered = facts.is_ordered(key, self.entry().attempt);
        let domain = self.ledger.domains.get_mut(key);
        if let Some(incident) = domain.and_then(|d| d.incident.as_mut())
            && incident.stage == IncidentStage::Decided
            && ordered
            && incident
                .not_before
                .is_none_or(|t| facts.due(t).passed(&mut self.wake))
        {
            incident.stage = IncidentStage::Ordered;
            incident.ordered_at = Some(facts.now);
        }
    }

    /// If a lost node returns before its members got other nodes, they restart in their pods. If no
    /// pod remains to be replaced, the charge is refunded.
    fn keep_returned_members(&mut self) {
        let (facts, key) = (self.facts, self.key());
        let may_keep = |incident: &&OpenIncident| {
            incident.cause.kind == CauseKind::NodeLost
                && incident.stage == IncidentStage::Decided
                && !incident.action.replaces_pods()
                && !facts.is_ordered(key, incident.attempt)
        };
        let incident = self.incident().filter(may_keep).cloned();
        let gang = self.ledger.gang(&self.scope.gang.key);
        let (Some(mut incident), Some(gang)) = (incident, gang) else {
            return;
        };
        let returned = |member: &Member| {
            let pod = facts.pods_of(member).last().copied();
            pod.is_some_and(|p| {
                keeps_pod(facts, self.scope.domain, member, p)
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
            refund(self.ledger, key, &mut incident);
        }
        self.entry_mut().incident = Some(incident);
    }

    fn replace_overdue_members(&mut self) {
        let facts = self.facts;
        let overdue = self.overdue_members();
        if let Some(incident) = &mut self.entry_mut().incident
            && !overdue.is_empty()
        {
            incident.replace_members(facts, overdue);
        }
    }

    /// A member at its first start has a separate, longer deadline.
    fn overdue_members(&mut self) -> Vec<Member> {
        let (facts, scope) = (self.facts, &self.scope);
        let domain = self.ledger.domain_or_empty(scope.key());
        let incident = domain.incident.as_ref();
        let Some((incident, ordered_at)) = incident.and_then(|i| Some((i, i.ordered_at?))) else {
            return Vec::new();
        };
        let members = in_place(scope, domain);
        let last = last_arrival(facts, domain, members, incident.attempt);
        let since = ordered_at.max(last);
        let limit = TimeDelta::seconds(facts.spec().failure_policy.in_place.deadline_seconds);
        let mut overdue = Vec::new();
        for member in missing(facts, scope, domain) {
            let deadline = match facts.current(domain, member) {
                // The API server confirms that the pod is missing.
                None => Some(since + limit),
                Some(pod) if !has_started(facts, member, pod) => None,
                Some(pod) => {
                    arrival_deadline(facts, pod, incident.attempt).map(|d| d.at(since, limit))
                }
            };
            if deadline.is_some_and(|at| facts.due(at).passed(&mut self.wake)) {
                overdue.push(member);
            }
        }
        let replaced = scope.unfinished.iter().filter(|m| domain.replaces(m));
        let under_way = replaced.filter(|m| !is_back(facts, domain, m) && !self.waits_for_all(m));
        let allowed = at_once(scope).saturating_sub(under_way.count());
        overdue.into_iter().take(allowed).cloned().collect()
    }

    /// True if the new pod of a replaced member will have no supervisor. It is created once all
    /// members have stopped, so the replacement of overdue members does not wait for it.
    fn waits_for_all(&self, member: &Member) -> bool {
        let (facts, scope) = (self.facts, &self.scope);
        let policy = &facts.spec().failure_policy.in_place;
        let node = scope.assigned.get(member).map(NodeName::as_str);
        needs_barrier(policy, scope.domain)
            && facts.current(self.entry(), member).is_none()
            && (node.is_some() || facts.view.kube_scheduler_places())
            && facts.delivery(node).is_none()
    }

    /// Survivors keep their nodes during the search for a replacement, up to a timeout. Members
    /// that the others do not need are searched for without limit.
    fn replacement_timeout(&mut self) -> Option<Consequence> {
        let (facts, scope) = (self.facts, &self.scope);
        let domain = self.ledger.domain_or_empty(scope.key());
        // A gang that waits for a dependency requests no nodes.
        let gang = self.ledger.gang(&scope.gang.key).filter(|g| g.started)?;
        let since = if let Some(incident) = &domain.incident {
            incident.ordered_at.or_else(|| {
                let members = scope.unfinished.iter().copied();
                let waits = awaits_nodes(facts, gang, scope.assigned, domain, members);
                waits.then_some(incident.decided_at)
            })
        } else {
            let alone = domain.replacement.as_ref();
            alone.map(|r| r.not_before.unwrap_or(r.detected_at))
        }?;
        // Members that leave nodes with signals within this restart are sought from then on.
        let left = gang.moving.as_ref().filter(|m| m.is_open());
        let since = left
            .and_then(|m| m.began_at)
            .map_or(since, |at| since.max(at));
        let placement = facts.placement(self.ledger, &scope.gang.key)?;
        let prevented = facts.prevents_pods(&mut self.wake);
        let (mut unplaced, mut words) = (BTreeSet::new(), Vec::new());
        for &member in &scope.unfinished {
            let node = scope.assigned.get(member);
            let placed = node.is_some_and(|n| facts.usable(gang, n.as_str()));
            let rejection = rejected_on(facts, member, placement)
                .map(|r| r.message.as_str())
                .or(prevented);
            let pod = facts.current(domain, member);
            // kube-scheduler chooses the node of a pod that is not pinned.
            let unbound = pod.is_some_and(|p| p.place().is_none());
            if (!placed || rejection.is_some()) && pod.is_none() || unbound {
                let why = rejection.map_or(String::new(), |words| format!(" ({words})"));
                words.push(format!("{member}{why}"));
                unplaced.insert(member.clone());
            }
        }
        let limit = facts.spec().failure_policy.replacement_timeout_seconds;
        let deadline = since + TimeDelta::seconds(limit);
        if unplaced.is_empty() || !facts.due(deadline).passed(&mut self.wake) {
            return None;
        }
        let avoided = avoided_nodes(gang);
        if continues_without(facts, self.ledger, scope.gang, &unplaced) {
            self.continue_without(unplaced);
            return None;
        }
        let message = format!(
            "no replacement within {} (failurePolicy.replacementTimeoutSeconds) for {}{}",
            span(limit),
            words.join(", "),
            avoided
        );
        Some(Consequence::ReleaseGang(
            facts.release_reason(&mut self.wake),
            message,
        ))
    }

    fn note_arrival(&mut self) {
        let facts = self.facts;
        let all_arrived = missing(facts, &self.scope, self.entry()).is_empty();
        if let Some(incident) = &mut self.entry_mut().incident
            && incident.stage == IncidentStage::Ordered
            && all_arrived
        {
            incident.stage = IncidentStage::Arrived;
            incident.arrived_at = Some(facts.now);
        }
    }

    /// Closes the incident, or records the first start, when all members run.
    fn note_recovery(&mut self) {
        let (facts, key, domain) = (self.facts, self.key(), self.entry());
        let incident = domain.incident.as_ref();
        let alone = domain.replacement.as_ref().map(|r| &r.members);
        // Without capacity, a member keeps its pod on a silent node, and remains replaced.
        let scope = &self.scope;
        let entry = self.ledger.gang(&scope.gang.key);
        let keeps_pod = |m: &&Member| {
            let mut pods = facts.pods_of(m).iter();
            entry.is_some_and(|e| pods.any(|pod| awaits_node(facts, e, scope.assigned, m, pod)))
        };
        let replaced = alone
            .into_iter()
            .flat_map(MemberSet::iter)
            .filter(keeps_pod);
        let begun = incident.is_none_or(|i| i.stage == IncidentStage::Arrived);
        let unfinished = &self.scope.unfinished;
        if domain.healthy_since.is_some()
            || !begun
            || unfinished.is_empty() && alone.is_none()
            || !facts.is_released(key, domain.attempt)
        {
            return;
        }
        // All members were at the barrier, so every later exit is a failure.
        let begins = !domain.is_restarting() && facts.is_past_barrier(key, domain.attempt);
        let is_left_down = |m: &Member| {
            let pod = facts.current(domain, m);
            pod.is_some_and(|p| left_down(&facts.observe(m, p), domain).is_some())
        };
        let is_down = |m: &&Member| !begins && !is_up(facts, domain, m) && !is_left_down(m);
        let awaited = unfinished.iter().copied().chain(replaced);
        let down: Vec<&Member> = awaited.filter(is_down).collect();
        let is_owed = |m: &&Member| incident.is_some_and(|i| i.replace.contains(m));
        let (all, owed) = (down.is_empty(), down.iter().any(is_owed));
        // The incident does not wait for pods that are replaced beside it.
        let continues = down.iter().all(|m| alone.is_some_and(|a| a.contains(m)));
        if !(all || incident.is_some() && continues) {
            return;
        }
        // A replacement hides no restart of the other members.
        let counts = incident.is_some() || alone.is_none();
        let restarts = self.restart_count();
        let domain = self.entry_mut();
        if counts {
            domain.restarts_seen = restarts;
        }
        domain.healthy_since = all.then_some(facts.now);
        if !all {
            self.ledger.close_incident(facts, key, !owed);
            return;
        }
        self.ledger.close_open(facts, key, true);
        if let Some(gang) = self.ledger.gangs.get_mut(self.scope.gang.key.as_str()) {
            gang.placement_tries = 0;
            gang.start_tries = 0;
        }
    }
}

/// Members that restart in place and have not arrived.
fn missing<'s>(
    facts: &Facts<'_>,
    scope: &DomainScope<'s>,
    domain: &DomainLedger,
) -> Vec<&'s Member> {
    let Some(incident) = &domain.incident else {
        return Vec::new();
    };
    let has_arrived = |member: &&Member| {
        let pod = facts.current(domain, member);
        pod.is_some_and(|p| facts.observe(member, p).is_at(incident.attempt))
    };
    let members = in_place(scope, domain);
    members.filter(|m| !has_arrived(m)).collect()
}

fn in_place<'s>(
    scope: &DomainScope<'s>,
    domain: &DomainLedger,
) -> impl Iterator<Item = &'s Member> {
    let members = scope.unfinished.iter().copied();
    members.filter(|m| !domain.replaces(m))
}

/// How many members of a domain may be replaced at a time.
pub(crate) fn at_once(scope: &DomainScope<'_>) -> usize {
    scope.unfinished.len().div_ceil(SHARE)
}

/// Deadline of a member's arrival, if its container runs on a ready node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArrivalDeadline {
    /// Number of `inPlace.deadlineSeconds` since the last arrival in the domain.
    pub deadlines: i32,
    not_before: Option<DateTime<Utc>>,
}

impl ArrivalDeadline {
    /// When the deadline passes without arrivals after `since`.
    pub fn at(self, since: DateTime<Utc>, limit: TimeDelta) -> DateTime<Utc> {
        self.not_before.map_or(since, |at| since.max(at)) + limit * self.deadlines
    }
}

/// `None`: the node is not ready, so another deadline applies.
pub(crate) fn arrival_deadline(
    facts: &Facts<'_>,
    pod: &PodView,
    attempt: i64,
) -> Option<ArrivalDeadline> {
    let node = pod.node.as_deref()?;
    let info = facts
        .view
        .nodes()
        .get(node)
        .filter(|n| n.state.reach == Reach::Responding)?;
    Some(if facts.arrivals.is_late(pod, attempt) {
        ArrivalDeadline {
            deadlines: 1,
            not_before: None,
        }
    } else {
        // No report. A present agent could report, so wait longer.
        ArrivalDeadline {
            deadlines: facts.agent(node).map_or(1, |_| SILENCE),
            not_before: info.ready_since,
        }
    })
}

pub(crate) fn last_arrival<'m>(
    facts: &Facts<'_>,
    domain: &DomainLedger,
    members: impl IntoIterator<Item = &'m Member>,
    attempt: i64,
) -> DateTime<Utc> {
    let received_at = |m| {
        facts
            .arrivals
            .received_at(facts.current(domain, m)?, attempt)
    };
    let last = members.into_iter().filter_map(received_at).max();
    last.unwrap_or(DateTime::UNIX_EPOCH)
}

/// The last rejection of a pod of this placement. A success clears it.
fn rejected_on<'a>(
    facts: &Facts<'a>,
    member: &Member,
    placement: &PlacementView,
) -> Option<&'a RejectedRequest> {
    let mut rejections = facts.rejections(&Target::Pod(member.clone())).iter();
    let found = rejections.find(|r| r.placement.as_ref() == Some(&placement.id));
    found.copied()
}

fn is_back(facts: &Facts<'_>, domain: &DomainLedger, member: &Member) -> bool {
    let pod = facts.current(domain, member);
    pod.is_some_and(|p| facts.running(member, p) || facts.succeeded(member, p))
}

fn has_started(facts: &Facts<'_>, member: &Member, pod: &PodView) -> bool {
    let trainer = facts.trainer(member, pod);
    trainer.is_none_or(ContainerView::started)
}
