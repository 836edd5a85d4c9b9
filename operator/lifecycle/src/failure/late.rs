//! Members that do not come to the attempt of their incident, and which of them are given up.
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

/// What is known of a member that has not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Another deadline than that of the restart is for it.
    Excused,
    /// Its node says that it does not come, or there is no pod that could.
    Stuck,
    /// Nothing has been heard of it since the order, and its node is ready.
    Unheard {
        /// Whether there is an agent that could have said something.
        agent: bool,
        /// Since when the node is ready, where that is known.
        answers: Option<DateTime<Utc>>,
    },
}

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
    let since = ordered_at.max(last_arrival(facts, scope, domain, incident));
    let limit = TimeDelta::seconds(facts.spec().failure_policy.in_place.deadline_seconds);
    let mut late = Vec::new();
    for member in missing(facts, scope, domain) {
        let deadline = match standing(facts, domain, incident, member) {
            Standing::Excused => continue,
            Standing::Stuck => since + limit,
            Standing::Unheard { agent, answers } => {
                let deadlines = if agent { SILENCE } else { 1 };
                answers.map_or(since, |at| since.max(at)) + limit * deadlines
            }
        };
        if facts.due(deadline).passed(wake) {
            late.push(member);
        }
    }
    let at_once = scope.unfinished.len().div_ceil(SHARE);
    let room = at_once.saturating_sub(under_way(facts, scope, domain, incident));
    late.into_iter().take(room).cloned().collect()
}

/// When news last came that a member has arrived in its pod.
fn last_arrival(
    facts: &Facts<'_>,
    scope: &DomainScope<'_>,
    domain: &DomainLedger,
    incident: &OpenIncident,
) -> DateTime<Utc> {
    let heard = |m| {
        facts
            .arrivals
            .heard_at(facts.current(domain, m)?, incident.attempt)
    };
    let last = in_place(scope, incident).filter_map(heard).max();
    last.unwrap_or(DateTime::UNIX_EPOCH)
}

/// How many members have no new pod that runs yet, of those that are to get one.
fn under_way(
    facts: &Facts<'_>,
    scope: &DomainScope<'_>,
    domain: &DomainLedger,
    incident: &OpenIncident,
) -> usize {
    let is_back = |member: &Member| {
        let pod = facts.current(domain, member);
        pod.is_some_and(|p| facts.running(member, p) || facts.succeeded(member, p))
    };
    let replaced = scope.unfinished.iter();
    let replaced = replaced.filter(|m| incident.replace.contains(m));
    replaced.filter(|m| !is_back(m)).count()
}

fn standing(
    facts: &Facts<'_>,
    domain: &DomainLedger,
    incident: &OpenIncident,
    member: &Member,
) -> Standing {
    let Some(pod) = facts.current(domain, member) else {
        // The API server itself says that there is none.
        return Standing::Stuck;
    };
    let Some(node) = pod.node.as_deref() else {
        return Standing::Excused;
    };
    let info = facts.view.nodes.get(node);
    let Some(info) = info.filter(|n| n.answers() && has_started(facts, member, pod)) else {
        return Standing::Excused;
    };
    if facts.arrivals.is_late(pod, incident.attempt) {
        return Standing::Stuck;
    }
    Standing::Unheard {
        agent: facts.agent(node).is_some(),
        answers: info.ready_since,
    }
}

fn has_started(facts: &Facts<'_>, member: &Member, pod: &PodView) -> bool {
    let trainer = facts.trainer(member, pod);
    trainer.is_none_or(ContainerView::started)
}
