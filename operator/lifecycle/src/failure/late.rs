//! Members that do not arrive at an attempt, and which of them get new pods.
//!
//! A deadline on missing reports would make a slow control plane expensive: it replaces running
//! members, which delays reports further. Therefore a member is replaced only if its own node
//! reports that it does not arrive, and only after a time without any arrival in its domain. Only a
//! share is replaced at a time (docs/decisions/0034).

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::member::Member;

use super::scope::DomainScope;
use crate::facts::Facts;
use crate::ledger::{DomainLedger, OpenIncident};
use crate::pods::{ContainerView, PodView};
use crate::wake::Wake;

/// One in this many members is replaced at a time, at least one. New pods load a slow control
/// plane, and the first of them show whether replacement helps.
const SHARE: usize = 10;

/// After this many deadlines without any arrival, a silent agent on a ready node counts as hanging.
/// Outages of the API server are rarely as long.
const SILENCE: i32 = 5;

/// Members that restart in place and have not arrived.
pub(super) fn missing<'s>(
    facts: &Facts<'_>,
    scope: &DomainScope<'s>,
    domain: &DomainLedger,
) -> Vec<&'s Member> {
    let Some(incident) = domain.domain_incident() else {
        return Vec::new();
    };
    let mut out = Vec::new();
    for member in in_place(scope, incident) {
        let arrived = facts
            .current(domain, member)
            .is_some_and(|p| facts.is_at(member, p, incident.attempt));
        if !arrived {
            out.push(member);
        }
    }
    out
}

fn in_place<'s>(
    scope: &DomainScope<'s>,
    incident: &OpenIncident,
) -> impl Iterator<Item = &'s Member> {
    let members = scope.unfinished.iter().copied();
    members.filter(|m| !incident.replace.contains(m))
}

/// A member whose first start is in progress has a separate, longer deadline.
pub(super) fn given_up(
    facts: &Facts<'_>,
    scope: &DomainScope<'_>,
    domain: &DomainLedger,
    wake: &mut Wake,
) -> Vec<Member> {
    let Some(incident) = domain.domain_incident() else {
        return Vec::new();
    };
    let Some(ordered_at) = incident.ordered_at else {
        return Vec::new();
    };
    let members = in_place(scope, incident);
    let last = last_arrival(facts, domain, members, incident.attempt);
    let since = ordered_at.max(last);
    let limit = TimeDelta::seconds(facts.spec().failure_policy.in_place.deadline_seconds);
    let mut late = Vec::new();
    for member in missing(facts, scope, domain) {
        let deadline = match facts.current(domain, member) {
            // The API server confirms that there is no pod.
            None => Some(since + limit),
            Some(pod) if !has_started(facts, member, pod) => None,
            Some(pod) => patience(facts, pod, incident.attempt).map(|p| p.deadline(since, limit)),
        };
        if deadline.is_some_and(|at| facts.due(at).passed(wake)) {
            late.push(member);
        }
    }
    let allowed = at_once(scope).saturating_sub(under_way(facts, scope, domain, incident));
    late.into_iter().take(allowed).cloned().collect()
}

/// How many members of a domain may be replaced at a time.
pub(crate) fn at_once(scope: &DomainScope<'_>) -> usize {
    scope.unfinished.len().div_ceil(SHARE)
}

/// How long to wait for a member whose container runs on a ready node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    /// Number of `inPlace.deadlineSeconds` after the last arrival in the domain.
    pub deadlines: i32,
    /// When the node became ready.
    not_before: Option<DateTime<Utc>>,
}

impl Patience {
    /// When the wait ends without arrivals after `since`.
    pub fn deadline(self, since: DateTime<Utc>, limit: TimeDelta) -> DateTime<Utc> {
        self.not_before.map_or(since, |at| since.max(at)) + limit * self.deadlines
    }
}

/// `None`: the node is not ready, so that another deadline applies.
pub(crate) fn patience(facts: &Facts<'_>, pod: &PodView, attempt: i64) -> Option<Patience> {
    let node = pod.node.as_deref()?;
    let info = facts.view.nodes().get(node).filter(|n| n.answers())?;
    Some(if facts.arrivals.is_late(pod, attempt) {
        Patience {
            deadlines: 1,
            not_before: None,
        }
    } else {
        // No report. A present agent could report, so wait longer.
        Patience {
            deadlines: facts.agent(node).map_or(1, |_| SILENCE),
            not_before: info.ready_since,
        }
    })
}

/// When the last of these members' arrivals was received.
pub(crate) fn last_arrival<'m>(
    facts: &Facts<'_>,
    domain: &DomainLedger,
    members: impl IntoIterator<Item = &'m Member>,
    attempt: i64,
) -> DateTime<Utc> {
    let heard = |m| facts.arrivals.heard_at(facts.current(domain, m)?, attempt);
    let last = members.into_iter().filter_map(heard).max();
    last.unwrap_or(DateTime::UNIX_EPOCH)
}

/// Replaced members whose new pod does not run yet.
fn under_way(
    facts: &Facts<'_>,
    scope: &DomainScope<'_>,
    domain: &DomainLedger,
    incident: &OpenIncident,
) -> usize {
    let replaced = scope.unfinished.iter();
    let replaced = replaced.filter(|m| incident.replace.contains(m));
    replaced.filter(|m| !is_back(facts, domain, m)).count()
}

fn is_back(facts: &Facts<'_>, domain: &DomainLedger, member: &Member) -> bool {
    let pod = facts.current(domain, member);
    pod.is_some_and(|p| facts.running(member, p) || facts.succeeded(member, p))
}

fn has_started(facts: &Facts<'_>, member: &Member, pod: &PodView) -> bool {
    let trainer = facts.trainer(member, pod);
    trainer.is_none_or(ContainerView::started)
}
