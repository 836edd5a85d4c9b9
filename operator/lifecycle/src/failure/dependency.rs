//! Dependents: gangs that stop while a group in their `dependsOn` is broken, and start again after
//! it. Stopped gangs are not started in the ledger, so their barriers stay closed and they get no
//! pods.

use std::collections::BTreeSet;

use lockstep_api::gangs::{Domain, Gang};
use lockstep_api::member::Member;
use lockstep_api::workload::{Cause, CauseKind, FailureAction};

use super::domain::{DomainPass, DomainScope};
use super::restart_budget::refund_earlier;
use crate::facts::{Facts, PlacementState};
use crate::ledger::Ledger;
use crate::pods::PodView;
use crate::waiting::{BrokenDependency, DependencyState};

/// Starts or stops a gang by the state of its dependencies.
pub(crate) fn follow_dependencies(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    gang: &Gang,
    state: &DependencyState,
) {
    if ledger.is_done(gang) {
        return;
    }
    match state {
        DependencyState::Met => start(facts, ledger, gang),
        DependencyState::Unmet(_) => {}
        DependencyState::Broken(broken) => stop(facts, ledger, gang, broken),
    }
}

fn start(facts: &Facts<'_>, ledger: &mut Ledger, gang: &Gang) {
    let Some(entry) = ledger.gangs.get_mut(&gang.key) else {
        return;
    };
    // The scheduler keeps the queue time of a gang that has not started when it clears the
    // placement.
    let released = matches!(
        facts.placement_state(&gang.key, entry),
        PlacementState::Released
    );
    if entry.started || released {
        return;
    }
    entry.started = true;
    for domain in &gang.domains {
        let entry = ledger.domains.get_mut(domain.key.as_str());
        // Deadlines of the restart count from now.
        if let Some(incident) = entry.and_then(|e| e.incident.as_mut())
            && incident.ordered_at.is_some()
        {
            incident.ordered_at = Some(facts.now);
        }
    }
}

/// A gang with accelerators releases its nodes if its dependency has no placement: the dependency
/// may need them. Otherwise, its members stop on their nodes.
fn stop(facts: &Facts<'_>, ledger: &mut Ledger, gang: &Gang, broken: &BrokenDependency) {
    let Some(entry) = ledger.gangs.get_mut(&gang.key) else {
        return;
    };
    let stops = std::mem::replace(&mut entry.started, false);
    let kind = CauseKind::DependencyBroken;
    let cause = Cause::requested(kind, facts.now, broken.message.as_str());
    if facts.placement(ledger, &gang.key).is_none() {
        return;
    }
    let releases = broken.unplaced && gang.members().any(|m| facts.accelerators(&m.group) > 0);
    for domain in &gang.domains {
        if stops {
            refund_earlier(ledger, &domain.key, broken.since, &broken.message);
        }
        let entry = ledger.domain(&domain.key);
        let runs = entry.is_some_and(|e| e.incident.is_none() && e.healthy_since.is_some());
        if !releases {
            stop_domain(facts, ledger, gang, domain, &cause);
        } else if runs {
            let action = FailureAction::RecreateGang;
            ledger.record_interruption(facts, &domain.key, &cause, action);
        }
    }
    if releases {
        ledger.release_gang(facts, &gang.key, None);
    }
}

/// Supervised members restart in place, and wait at the barrier. Other members get new pods, because
/// their kubelets would restart them at once.
fn stop_domain(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    gang: &Gang,
    domain: &Domain,
    cause: &Cause,
) {
    let membership = ledger.membership(facts.spec());
    let scope = DomainScope::of_restart(facts, ledger, &membership, gang, domain);
    let Some(mut pass) = DomainPass::new(facts, ledger, scope) else {
        return;
    };
    let entry = pass.entry();
    let current = |m: &Member| facts.current(entry, m);
    let all = || pass.scope.all.iter().copied();
    let starts_alone = |m: &&Member| current(m).is_some_and(|p: &PodView| !p.is_supervised());
    let replace: BTreeSet<Member> = all().filter(starts_alone).cloned().collect();
    let has_pods = all().any(|m| current(m).is_some());
    let open = entry.incident.as_ref();
    let is_stopped = open.is_some_and(|i| {
        i.cause.kind == cause.kind && !facts.is_barrier_open(&domain.key, i.attempt)
    });
    if is_stopped && replace.is_empty() {
        return;
    }
    let open = open.filter(|i| !facts.is_ordered(&domain.key, i.attempt));
    if let Some(mut incident) = open.cloned() {
        if incident.cause.kind != cause.kind {
            incident.cause = cause.clone();
        }
        incident.replace_members(facts, replace);
        pass.entry_mut().incident = Some(incident);
    } else if has_pods {
        pass.open_uncounted(FailureAction::RestartGang, cause.clone(), replace);
    }
}
