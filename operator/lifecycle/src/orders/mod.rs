//! The content of the `RestartOrder`: which members restart in place, and when the barrier opens.

pub(crate) mod barrier;

use std::collections::BTreeMap;

use lockstep_api::RestartOrderSpec;
use lockstep_api::gangs::Domain;
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::membership::Membership;
use lockstep_api::restart_order::{DomainOrder, RestartsSeen};

use crate::facts::Facts;
use crate::failure::members::awaits_nodes;
use crate::failure::seen::restarts_seen;
use crate::ledger::{DomainLedger, Ledger};
use crate::wake::Wake;
use barrier::{Meeting, all_are_held, is_held, listed};

pub(crate) fn wanted(
    facts: &Facts<'_>,
    ledger: &Ledger,
    membership: &Membership<'_>,
    wake: &mut Wake,
) -> RestartOrderSpec {
    let mut domains = Vec::new();
    let gangs = facts.gangs.iter();
    for (gang, domain) in gangs.flat_map(|g| g.domains.iter().map(move |d| (g, d))) {
        let Some(entry) = ledger.domain(&domain.key) else {
            continue;
        };
        let members = domain.members.iter();
        let running: Vec<&Member> = members.filter(|m| membership.contains(m)).collect();
        let meeting = Meeting {
            gang,
            domain,
            entry,
            running: &running,
        };
        let nodes = facts.assigned_nodes(&gang.key);
        let waits = ledger
            .gang(&gang.key)
            .is_some_and(|held| awaits_nodes(facts, held, nodes, entry, running.iter().copied()));
        let mut order = if waits {
            facts.order(&domain.key).cloned()
        } else {
            domain_order(facts, meeting, wake)
        };
        if let Some(order) = &mut order {
            barrier::follow(facts, ledger, membership, meeting, order, wake);
        }
        domains.extend(order);
    }
    RestartOrderSpec {
        workload_uid: facts.view.uid().to_owned(),
        domains,
    }
}

/// An order for the current attempt and membership stays unchanged, so that closing an incident
/// causes no write. So does an order for a later attempt: after a change of leader, this ledger may
/// be outdated, and attempts must not decrease. The next incident exceeds it. An order for a new
/// attempt is written after the back-off of its incident.
fn domain_order(facts: &Facts<'_>, meeting: Meeting<'_>, wake: &mut Wake) -> Option<DomainOrder> {
    let domain = meeting.entry;
    let world = meeting.running.len() as i32;
    let present = facts.order(&meeting.domain.key);
    let same = |o: &DomainOrder| o.attempt == domain.attempt && o.world == world;
    if present.is_some_and(|o| o.attempt > domain.attempt || same(o)) {
        return present.cloned();
    }
    // Supervised members stop at once; only their release waits.
    let incident = domain.incident.as_ref();
    let not_before = incident
        .and_then(|i| i.not_before)
        .filter(|_| !all_are_held(facts, meeting));
    if not_before.is_some_and(|t| !facts.due(t).passed(wake)) {
        return present.cloned();
    }
    match present {
        // The running members have changed without a restart.
        Some(o) if o.attempt == domain.attempt && is_held(facts, meeting) => {
            let mut order = o.clone();
            order.world = world;
            Some(order)
        }
        _ => Some(new_order(facts, meeting, present)),
    }
}

fn new_order(
    facts: &Facts<'_>,
    meeting: Meeting<'_>,
    present: Option<&DomainOrder>,
) -> DomainOrder {
    let Meeting {
        domain: Domain { key, .. },
        entry: domain,
        running,
        ..
    } = meeting;
    let incident = domain.incident.as_ref();
    // Without an incident, only new pods take part in a later attempt.
    let anew = incident.is_none() && present.is_some_and(|o| o.attempt < domain.attempt);
    let members = if anew {
        MemberSet::default()
    } else {
        meeting.in_place()
    };
    let policy = &facts.spec().failure_policy;
    let held = is_held(facts, meeting);
    let (restarts_seen, exceptions) = restarts_by_number(facts, domain, &members);
    DomainOrder {
        key: key.to_string(),
        attempt: domain.attempt,
        members: members.to_ranges(),
        world: running.len() as i32,
        released_attempt: if held {
            present.map_or(0, |o| o.released_attempt)
        } else {
            domain.attempt
        },
        completed_attempt: 0,
        peers: Vec::new(),
        progress: None,
        alone: Vec::new(),
        restarts_seen,
        exceptions,
        since: incident.map(|i| i.cause.time),
        coordinator: None,
        replaced_pods: Vec::new(),
        deadline_seconds: match incident {
            Some(_) => Some(policy.in_place.deadline_seconds),
            None => held.then_some(policy.start_deadline_seconds),
        },
    }
}

/// The most common restart count, and the members with other counts.
fn restarts_by_number(
    facts: &Facts<'_>,
    domain: &DomainLedger,
    members: &MemberSet,
) -> (i32, Vec<RestartsSeen>) {
    let mut by_number: BTreeMap<i32, MemberSet> = BTreeMap::new();
    for member in members.iter() {
        let seen = restarts_seen(facts, domain, member);
        by_number.entry(seen).or_default().insert(member.clone());
    }
    let most = by_number.iter().max_by_key(|(_, members)| members.len());
    let usual = most.map_or(0, |(number, _)| *number);
    by_number.remove(&usual);
    (usual, listed(by_number))
}
