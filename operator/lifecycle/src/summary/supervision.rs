//! The condition `RestartsInPlace`: how a restart of a gang goes about, and why not otherwise.

use std::collections::BTreeMap;

use lockstep_api::condition::reasons;
use lockstep_api::gangs::{Domain, Gang};
use lockstep_api::words::count;
use lockstep_api::workload::{SupervisorMode, WithoutSupervisor};

use super::notes;
use super::value::{ConditionValue, condition};
use crate::facts::Facts;
use crate::ledger::Ledger;
use crate::meeting::meets;
use crate::objects::supervise::obstacle;
use crate::wake::Wake;

pub(super) fn restarts_in_place(
    facts: &Facts<'_>,
    ledger: &Ledger,
    wake: &mut Wake,
) -> ConditionValue {
    if let Some(message) = agents_missing(facts, ledger, wake) {
        return condition(false, reasons::AGENT_MISSING, message);
    }
    let Some(why) = why_unsupervised(facts, ledger) else {
        let mut message = "training processes restart inside their containers; \
             a supervisor holds each back until all have stopped"
            .to_owned();
        if let Some(hooks) = notes::training_hooks(facts) {
            message = format!("{message}. In such a restart {hooks}");
        }
        return condition(true, reasons::SUPERVISED, message);
    };
    match facts.spec().failure_policy.in_place.without_supervisor {
        WithoutSupervisor::Allow => {
            let mut message = format!(
                "training containers run without a supervisor: {why}; \
                 failurePolicy.inPlace.withoutSupervisor allows it"
            );
            if let Some(hooks) = notes::hooks(facts) {
                message = format!("{message}. In a restart in place {hooks}");
            }
            condition(true, reasons::UNSUPERVISED, message)
        }
        WithoutSupervisor::Deny => condition(
            false,
            reasons::DENIED,
            format!(
                "training containers run without a supervisor: {why}; so RestartGang recreates pods. \
                 failurePolicy.inPlace.withoutSupervisor: Allow restarts them in place"
            ),
        ),
    }
}

fn agents_missing(facts: &Facts<'_>, ledger: &Ledger, wake: &mut Wake) -> Option<String> {
    let without = nodes_without_agent(facts, ledger, wake);
    let (first, _) = without.first_key_value()?;
    let then = if without.values().all(|waits| *waits) {
        "wait a moment for it to start"
    } else {
        "are recreated instead of restarted in place"
    };
    Some(format!(
        "{} without a ready Lockstep agent, for example {first}: pods there {then}",
        count(without.len(), "node")
    ))
}

/// Nodes that members are placed on and whose agent cannot stop containers, each with whether all
/// members there wait for it.
fn nodes_without_agent<'f>(
    facts: &'f Facts<'_>,
    ledger: &Ledger,
    wake: &mut Wake,
) -> BTreeMap<&'f str, bool> {
    let mut without: BTreeMap<&str, bool> = BTreeMap::new();
    let placed = facts.gangs.iter();
    let placed = placed.filter(|gang| facts.placement(ledger, &gang.key).is_some());
    for (gang, domain) in placed.flat_map(|g| g.domains.iter().map(move |d| (g, d))) {
        let assigned = facts.assigned_nodes(&gang.key);
        let entry = ledger.domain(&domain.key).filter(|_| meets(gang, domain));
        for member in &domain.members {
            let Some(node) = assigned.get(member).filter(|n| !facts.can_stop(n)) else {
                continue;
            };
            let missing = entry.is_some_and(|e| facts.current(e, member).is_none());
            let due = facts.agent_due(member, node).filter(|_| missing);
            let waits = due.is_some_and(|due| !due.passed(wake));
            *without.entry(node).or_insert(true) &= waits;
        }
    }
    without
}

/// Why members run, or will run, without a supervisor. None: all that meet others have one.
fn why_unsupervised(facts: &Facts<'_>, ledger: &Ledger) -> Option<String> {
    let spec = facts.spec();
    let (mut pods, mut first) = (0, None);
    for domain in meetings(facts) {
        let Some(entry) = ledger.domain(&domain.key) else {
            continue;
        };
        let members = domain.members.iter();
        for pod in members.filter_map(|m| facts.current(entry, m)) {
            pods += 1;
            if !pod.is_supervised() {
                first = first.or(Some(pod));
            }
        }
    }
    if pods > 0 && first.is_none() {
        return None;
    }
    if facts.view.settings().supervisor_image.is_none() {
        return Some("this installation has none (supervisor.image of the manager)".into());
    }
    if spec.failure_policy.in_place.supervisor == SupervisorMode::Never {
        return Some("failurePolicy.inPlace.supervisor is Never".into());
    }
    let mut obstacles = spec.groups.iter().filter_map(|g| Some((g, obstacle(g)?)));
    if let Some((group, why)) = obstacles.next() {
        return Some(format!(
            "the training container of group {} cannot have one, since {why}",
            group.name
        ));
    }
    if meetings(facts).next().is_none() {
        return Some("its members restart one by one".into());
    }
    let pod = first?;
    let node = pod.place();
    Some(format!(
        "when pod {} was made, the agent of node {} was not linked to supervisors",
        pod.name,
        node.unwrap_or_default()
    ))
}

/// Restart domains whose members start and stop together.
fn meetings<'f>(facts: &'f Facts<'_>) -> impl Iterator<Item = &'f Domain> {
    let domains = |gang: &'f Gang| gang.domains.iter().filter(move |d| meets(gang, d));
    facts.gangs.iter().flat_map(domains)
}
