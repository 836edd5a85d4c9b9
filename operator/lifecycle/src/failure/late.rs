//! Members that do not come to an attempt, and which of them are given up.
//!
//! A deadline that runs on what has not been heard turns a slow control plane into the most expensive
//! restart there is: news are late, members that run are replaced, and that makes the news later. So
//! a member is given up for what its own node says of it, while nobody of its domain arrives any
//! more, and only some at a time (docs/decisions/0034).

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::member::Member;

use super::scope::DomainScope;
use crate::facts::Facts;
use crate::ledger::{DomainLedger, OpenIncident};
use crate::pods::{ContainerView, PodView};
use crate::wake::Wake;

/// One member in so many is replaced at a time, and one at least. New pods cost the control plane
/// most where it has least to give, and the first that come up show whether it helps.
const SHARE: usize = 10;

/// After so many deadlines without news of anybody, silence on a node that is ready counts as well:
/// the agent there may hang. An outage of the API server is seldom as long.
const SILENCE: i32 = 5;

/// Members of the domain that restart in place and have not arrived.
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

/// Members that get a new pod now because they do not come back. One whose first start is still under
/// way has its own, longer deadline.
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
            // The API server itself says that there is none.
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

/// Members of a domain that are replaced at a time because they do not come.
pub(crate) fn at_once(scope: &DomainScope<'_>) -> usize {
    scope.unfinished.len().div_ceil(SHARE)
}

/// How long is waited for a member whose container runs on a node that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience {
    /// Deadlines until it is given up, beginning with the last arrival of another.
    pub deadlines: i32,
    /// Nor does its time begin before that of its node, which is ready since.
    not_before: Option<DateTime<Utc>>,
}

impl Patience {
    /// When it is over, if nobody arrives after `since`.
    pub fn deadline(self, since: DateTime<Utc>, limit: TimeDelta) -> DateTime<Utc> {
        self.not_before.map_or(since, |at| since.max(at)) + limit * self.deadlines
    }
}

/// How long is waited for a pod that has not been heard to come to an attempt. None: its node is not
/// ready, and another deadline than that of the restart is for it.
pub(crate) fn patience(facts: &Facts<'_>, pod: &PodView, attempt: i64) -> Option<Patience> {
    let node = pod.node.as_deref()?;
    let info = facts.view.nodes().get(node).filter(|n| n.answers())?;
    Some(if facts.arrivals.is_late(pod, attempt) {
        // Its node says that it does not come.
        Patience {
            deadlines: 1,
            not_before: None,
        }
    } else {
        // Nothing has been heard of it. Is there an agent that could have said something?
        Patience {
            deadlines: facts.agent(node).map_or(1, |_| SILENCE),
            not_before: info.ready_since,
        }
    })
}

/// When news last came that one of these members has come to an attempt in its pod.
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

/// How many members have no new pod that runs yet, of those that are to get one.
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

/// Whether the pod that a member has now runs, or has ended with success.
fn is_back(facts: &Facts<'_>, domain: &DomainLedger, member: &Member) -> bool {
    let pod = facts.current(domain, member);
    pod.is_some_and(|p| facts.running(member, p) || facts.succeeded(member, p))
}

fn has_started(facts: &Facts<'_>, member: &Member, pod: &PodView) -> bool {
    let trainer = facts.trainer(member, pod);
    trainer.is_none_or(ContainerView::started)
}
