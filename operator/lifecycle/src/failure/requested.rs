//! Incidents without failures: requested restarts, and members that move to other nodes.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_api::gangs::{Domain, Gang};
use lockstep_api::member::Member;
use lockstep_api::workload::{Cause, FailureAction};

use super::incident::open_uncounted;
use super::policy::Failure;
use super::scope::DomainScope;
use crate::facts::Facts;
use crate::ledger::{DomainLedger, Ledger};

pub(crate) fn restart_on_request(facts: &Facts<'_>, ledger: &mut Ledger, cause: &Cause) {
    let membership = ledger.membership(facts.spec());
    for gang in &facts.gangs {
        if facts.placement(ledger, &gang.key).is_none() {
            continue;
        }
        for domain in &gang.domains {
            let scope = DomainScope::of_restart(facts, ledger, &membership, gang, domain);
            // All requests of one pass share one restart.
            let opened = ledger
                .domain(scope.key())
                .and_then(DomainLedger::domain_incident)
                .is_some_and(|i| i.detected_at == facts.now);
            let has_pods = scope.all.iter().any(|m| !facts.pods_of(m).is_empty());
            if has_pods && !opened {
                let action = FailureAction::RestartGang;
                open_uncounted(
                    facts,
                    ledger,
                    &scope,
                    action,
                    cause.clone(),
                    BTreeSet::new(),
                );
            }
        }
    }
}

/// Moves members that their nodes did not start. The other members keep their nodes.
pub(crate) fn place_elsewhere(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    gang: &Gang,
    failures: Vec<Failure>,
) {
    let membership = ledger.membership(facts.spec());
    let domains = gang.domains.iter();
    let domain_of: BTreeMap<&Member, &Domain> = domains
        .flat_map(|d| d.members.iter().map(move |m| (m, d)))
        .collect();
    for Failure { member, cause, .. } in failures {
        let Some(&domain) = domain_of.get(&member) else {
            continue;
        };
        let Some(entry) = ledger.domains.get_mut(domain.key.as_str()) else {
            continue;
        };
        if let Some(incident) = &mut entry.incident {
            incident.replace_members(facts, [member]);
            continue;
        }
        let scope = DomainScope::of_restart(facts, ledger, &membership, gang, domain);
        let action = FailureAction::RestartPod;
        open_uncounted(
            facts,
            ledger,
            &scope,
            action,
            cause,
            BTreeSet::from([member]),
        );
    }
}
