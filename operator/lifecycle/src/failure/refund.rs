//! Refunds of charges, after pod status has shown the true cause.

use super::detect::killed_for_node;
use super::scope::DomainScope;
use crate::facts::Facts;
use crate::ledger::{Ledger, OpenIncident};
use lockstep_api::ids::DomainKey;

/// If pod status shows that the node or an eviction ended the pod.
pub(crate) fn take_charge_back(facts: &Facts<'_>, ledger: &mut Ledger, scope: &DomainScope<'_>) {
    let Some(mut incident) = ledger.incident(scope.key()).cloned() else {
        return;
    };
    let Some(cause) = killed_for_node(facts, &scope.domain.members, &incident.cause) else {
        return;
    };
    incident.cause = cause;
    take_back(ledger, scope.key(), &mut incident);
    if let Some(domain) = ledger.domains.get_mut(scope.key()) {
        domain.incident = Some(incident);
    }
}

pub(super) fn take_back(ledger: &mut Ledger, domain: &DomainKey, incident: &mut OpenIncident) {
    if !std::mem::take(&mut incident.counted) {
        return;
    }
    if let Some(domain) = ledger.domains.get_mut(domain) {
        domain.tries = (domain.tries - 1).max(0);
        domain.uncounted_tries = domain.uncounted_tries.saturating_add(1);
    }
    ledger.budget.take_back(incident.detected_at);
}
