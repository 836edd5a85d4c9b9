//! Stage 01: first application of the spec, suspension, edits, resizing and requested restarts.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_api::gangs::{Domain, Gang};
use lockstep_api::workload::{AppliedSpec, Cause, CauseKind};

use crate::facts::Facts;
use crate::failure::incident::{restart_changed, restart_on_request};
use crate::ledger::{DomainLedger, Ledger};
use crate::objects::hash::{names_other_spec, spec_hash};
use crate::view::Priority;
use crate::waiting::has_dependencies;

pub(super) fn follow_spec(facts: &Facts<'_>, ledger: &mut Ledger) {
    if ledger.is_suspended(facts.spec()) {
        if !ledger.awaits_reply() {
            suspend(facts, ledger);
        }
        return;
    }
    let Some(applied) = ledger.applied.clone() else {
        if is_valid(facts) {
            apply(facts, ledger);
        }
        return;
    };
    let desired = desired(facts);
    if names_other_spec(&applied.spec_hash, &desired.spec_hash) {
        if is_valid(facts) {
            ledger.release_all(facts);
            apply(facts, ledger);
            // Other processes can answer otherwise.
            for domain in ledger.domains.values_mut() {
                domain.request = None;
            }
        }
        return;
    }
    if applied == desired || ledger.awaits_reply() {
        return;
    }
    let resized = applied.replicas != desired.replicas;
    let restart_requested = applied.restart_nonce != desired.restart_nonce;
    ledger.applied = Some(desired);
    align_entries(facts, ledger);
    if resized {
        follow_replicas(facts, ledger, &applied.replicas);
    }
    if restart_requested {
        let cause = Cause::requested(
            CauseKind::Requested,
            facts.now,
            "spec.restartNonce was changed",
        );
        restart_on_request(facts, ledger, &cause);
    }
}

fn is_valid(facts: &Facts<'_>) -> bool {
    let hash = spec_hash(facts.spec());
    let accepted = facts.view.dry_run().is_some_and(|d| {
        d.spec_hash == hash && d.invalid.is_none() && !d.failed && facts.now < d.until
    });
    accepted && *facts.view.priority() != Priority::ClassMissing
}

fn desired(facts: &Facts<'_>) -> AppliedSpec {
    let spec = facts.spec();
    AppliedSpec {
        spec_hash: spec_hash(spec),
        restart_nonce: spec.restart_nonce,
        replicas: spec.replica_counts(),
    }
}

fn apply(facts: &Facts<'_>, ledger: &mut Ledger) {
    ledger.applied = Some(desired(facts));
    align_entries(facts, ledger);
}

/// A new domain starts at the highest attempt, so that the workload's attempt never decreases. If the
/// status was lost, the domain continues at the attempt of its members.
fn align_entries(facts: &Facts<'_>, ledger: &mut Ledger) {
    let highest = ledger.highest_attempt.max(1);
    let mut gangs = BTreeMap::new();
    let mut domains = BTreeMap::new();
    for gang in &facts.gangs {
        let existing = ledger.gangs.remove(&gang.key);
        gangs.insert(gang.key.clone(), existing.unwrap_or_default());
        for domain in &gang.domains {
            let existing = ledger.domains.remove(&domain.key);
            let entry = existing.unwrap_or_else(|| DomainLedger {
                attempt: highest.max(observed_attempt(facts, domain)),
                ..DomainLedger::default()
            });
            ledger.highest_attempt = ledger.highest_attempt.max(entry.attempt);
            domains.insert(domain.key.clone(), entry);
        }
    }
    ledger.gangs = gangs;
    ledger.domains = domains;
}

/// The highest attempt of which the restart order, a pod or an agent of its node knows.
fn observed_attempt(facts: &Facts<'_>, domain: &Domain) -> i64 {
    let ordered = facts.order(&domain.key).map(|order| order.attempt);
    let pods = domain.members.iter().flat_map(|member| {
        let pods = facts.pods_of(member).iter();
        pods.map(move |pod| facts.observe(member, pod).highest_attempt())
    });
    pods.chain(ordered).max().unwrap_or_default()
}

/// Added members join once they are placed. If members are removed, the remaining members restart
/// at once.
fn follow_replicas(facts: &Facts<'_>, ledger: &mut Ledger, counts_before: &[i32]) {
    let spec = facts.spec();
    let before = ledger.membership_before(spec, counts_before);
    let placed: BTreeSet<&str> = facts
        .gangs
        .iter()
        .filter(|g| !g.basic && facts.placement(ledger, &g.key).is_some())
        .flat_map(Gang::members)
        .map(|m| m.group.as_str())
        .collect();
    for (group, count_before) in spec.groups.iter().zip(counts_before) {
        let joins_later =
            spec.replicas_of(group) > *count_before && placed.contains(group.name.as_str());
        if joins_later || ledger.running.contains_key(&group.name) {
            ledger.set_running(spec, group, |m| before.contains(m));
        }
    }
    let after = ledger.membership(spec);
    restart_changed(facts, ledger, &before, &after, "replicas changed");
}

fn suspend(facts: &Facts<'_>, ledger: &mut Ledger) {
    ledger.release_all(facts);
    for (key, gang) in &mut ledger.gangs {
        // The scheduler must not place a dependent again before the next pass.
        gang.started &= !facts.gang(key).is_some_and(|g| has_dependencies(facts, g));
        gang.backoff = None;
        gang.placement_tries = 0;
        gang.start_tries = 0;
    }
}
