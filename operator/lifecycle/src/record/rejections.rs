//! Stage 05: a gang releases its placement if the API server rejects one of its pods, because an
//! incomplete gang is of no use. A running or Basic gang keeps its nodes during retries. A gang that
//! degrades starts without the rejected members if `minCount` others are placed.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_api::condition::reasons;
use lockstep_api::gangs::Gang;
use lockstep_api::member::Member;
use lockstep_api::names::SUPERVISOR_PROGRAM;

use crate::changes::ReleaseReason;
use crate::facts::Facts;
use crate::failure::detect::start_failure;
use crate::failure::incident::place_elsewhere;
use crate::gangs::PlacementView;
use crate::ledger::Ledger;
use crate::view::{RejectedRequest, RejectionKind, Target};

pub(super) fn release_rejected(facts: &Facts<'_>, ledger: &mut Ledger) {
    for gang in &facts.gangs {
        let Some(placement) = facts.placement(ledger, &gang.key) else {
            continue;
        };
        let rejected = rejected_members(facts, ledger, gang, placement);
        let Some(rejection) = rejected.values().next().filter(|_| !gang.basic) else {
            continue;
        };
        let placed = placement.nodes.keys();
        let left = placed.filter(|m| !rejected.contains_key(*m)).count();
        let enough = left >= gang.min_count.max(0) as usize;
        if gang.degrades() && enough {
            start_without(facts, ledger, gang, &rejected);
        } else if !ledger.is_under_way(gang) {
            let reason = reason(rejection);
            let message = format!(
                "{}{}",
                rejection.message,
                supervisor_advice(facts, rejection)
            );
            ledger.release_gang(facts, &gang.key, Some(ReleaseReason { reason, message }));
        }
    }
}

/// What to do about a policy that forbids the container that Lockstep adds.
fn supervisor_advice(facts: &Facts<'_>, rejection: &RejectedRequest) -> String {
    let image = facts.view.settings().supervisor_image.as_deref();
    let named = |image: &&str| {
        rejection.kind == RejectionKind::Forbidden
            && [*image, SUPERVISOR_PROGRAM]
                .iter()
                .any(|name| rejection.message.contains(name))
    };
    image.filter(named).map_or(String::new(), |image| {
        format!(
            "; Lockstep adds this container: permit image {image}, or set failurePolicy.inPlace.supervisor to Never"
        )
    })
}

fn reason(rejection: &RejectedRequest) -> &'static str {
    match rejection.kind {
        RejectionKind::QuotaExceeded => reasons::QUOTA_EXCEEDED,
        RejectionKind::Forbidden => reasons::FORBIDDEN,
        RejectionKind::Invalid => reasons::INVALID_TEMPLATE,
        RejectionKind::NameTaken => reasons::NAME_CONFLICT,
        RejectionKind::Altered => reasons::POD_ALTERED,
    }
}

/// Records the rejected members of domains that have not run as members that get new pods. The
/// barrier then opens without them.
fn start_without(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    gang: &Gang,
    rejected: &BTreeMap<&Member, &RejectedRequest>,
) {
    let mut failures = Vec::new();
    for domain in &gang.domains {
        let entry = ledger.domain(&domain.key);
        let starts = |m: &&Member| {
            entry.is_some_and(|e| {
                e.healthy_since.is_none() && e.incident.is_none() && !e.replaces(m)
            })
        };
        for member in domain.members.iter().filter(starts) {
            if let Some(rejection) = rejected.get(member) {
                let message = &rejection.message;
                failures.push(start_failure(
                    member,
                    "",
                    reason(rejection),
                    message,
                    facts.now,
                ));
            }
        }
    }
    place_elsewhere(facts, ledger, gang, failures);
}

/// Members without a pod, with the rejection. Ignores rejections of earlier placements. Compares
/// ids, because clocks differ.
fn rejected_members<'a>(
    facts: &Facts<'a>,
    ledger: &Ledger,
    gang: &Gang,
    placement: &PlacementView,
) -> BTreeMap<&'a Member, &'a RejectedRequest> {
    let mut of_placement = BTreeMap::new();
    for rejection in facts.view.rejections() {
        if let Target::Pod(member) = &rejection.target
            && rejection.placement.as_ref() == Some(&placement.id)
        {
            of_placement.entry(member).or_insert(rejection);
        }
    }
    if of_placement.is_empty() {
        return of_placement;
    }
    let pods = facts.current_pods(ledger, gang);
    let missing: BTreeSet<&Member> = pods
        .filter(|(_, pod)| pod.is_none())
        .map(|(m, _)| m)
        .collect();
    of_placement.retain(|member, _| missing.contains(member));
    of_placement
}
