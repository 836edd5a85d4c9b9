//! The condition `RestartsInPlace`: how gangs restart, and why not in place.

use std::collections::BTreeMap;

use lockstep_api::condition::reasons;
use lockstep_api::gangs::Domain;
use lockstep_api::ids::NodeName;
use lockstep_api::words::count;
use lockstep_api::workload::SupervisorMode;

use super::notes;
use super::value::{ConditionValue, condition};
use crate::domains::{has_peers, may_have_supervisors, may_keep_pods};
use crate::facts::Facts;
use crate::ledger::Ledger;
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
        if let Some(rules) = notes::own_restart_rules(facts) {
            message = format!("{message}; {rules}");
        }
        return condition(true, reasons::SUPERVISED, message);
    };
    let policy = &facts.spec().failure_policy.in_place;
    let mut domains = facts.gangs.iter().flat_map(|gang| &gang.domains);
    let have_peers = domains.any(has_peers);
    if !may_keep_pods(policy, have_peers, false) {
        return condition(
            false,
            reasons::DENIED,
            format!(
                "training containers run without a supervisor: {why}; so RestartGang recreates their pods. \
                 failurePolicy.inPlace.withoutSupervisor: Allow restarts them in place"
            ),
        );
    }
    let allowed = if have_peers {
        "failurePolicy.inPlace.withoutSupervisor allows it"
    } else {
        "a member that restarts alone needs none"
    };
    let mut message = format!("training containers run without a supervisor: {why}; {allowed}");
    if let Some(hooks) = notes::hooks(facts) {
        message = format!("{message}. In a restart in place {hooks}");
    }
    condition(true, reasons::UNSUPERVISED, message)
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

/// Nodes whose agent cannot stop containers. True if all members there wait for the agent.
fn nodes_without_agent<'f>(
    facts: &'f Facts<'_>,
    ledger: &Ledger,
    wake: &mut Wake,
) -> BTreeMap<&'f str, bool> {
    let mut without: BTreeMap<&str, bool> = BTreeMap::new();
    let placed = facts
        .gangs
        .iter()
        .filter(|gang| facts.placement(ledger, &gang.key).is_some());
    for (gang, domain) in placed.flat_map(|g| g.domains.iter().map(move |d| (g, d))) {
        let assigned = facts.assigned_nodes(&gang.key);
        let entry = ledger
            .domain(&domain.key)
            .filter(|_| may_have_supervisors(gang));
        for member in &domain.members {
            let node = assigned.get(member).map(NodeName::as_str);
            let Some(node) = node.filter(|n| !facts.can_stop(n)) else {
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

/// `None` if all members of gangs have supervisors.
fn why_unsupervised(facts: &Facts<'_>, ledger: &Ledger) -> Option<String> {
    let spec = facts.spec();
    let (mut pods, mut first) = (0, None);
    for domain in supervisable(facts) {
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
    let settings = facts.view.settings();
    if settings.supervisor_image.is_none() {
        return Some("this installation has none (supervisor.image of the manager)".into());
    }
    if spec.failure_policy.in_place.supervisor == SupervisorMode::Never {
        return Some("failurePolicy.inPlace.supervisor is Never".into());
    }
    let groups = spec.groups.iter();
    let mut obstacles = groups.filter_map(|g| Some((g, obstacle(settings, g)?)));
    if let Some((group, why)) = obstacles.next() {
        return Some(format!(
            "the training container of group {} cannot have one, since {why}",
            group.name
        ));
    }
    if supervisable(facts).next().is_none() {
        return Some("members of policy Basic restart one by one".into());
    }
    let pod = first?;
    // kube-scheduler chooses the node after the pod was made.
    let agent = match pod.place() {
        Some(node) => format!("the agent of node {node} was not linked to supervisors"),
        None => "no agent was linked to supervisors".to_owned(),
    };
    Some(format!("when pod {} was made, {agent}", pod.name))
}

fn supervisable<'f>(facts: &'f Facts<'_>) -> impl Iterator<Item = &'f Domain> {
    let gangs = facts.gangs.iter().filter(|gang| may_have_supervisors(gang));
    gangs.flat_map(|gang| &gang.domains)
}
