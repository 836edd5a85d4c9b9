//! Exits of other containers that are failures of the member: a rule names the container, or the
//! exit restarts the whole pod. Restart policies handle all other exits.

use lockstep_api::member::Member;
use lockstep_api::node_agent::ReportKind;

use super::detect::{exit_failure, reported_failure};
use super::policy::{Failure, Reach, verdict};
use super::restart_all::{may_have_ended, sets_off};
use crate::cause::looks_killed;
use crate::facts::Facts;
use crate::ledger::DomainLedger;
use crate::pods::{PodView, bare_id};

/// `restarting`: an incident restarts the pod in place.
pub(crate) fn beside_training(
    facts: &Facts<'_>,
    domain: &DomainLedger,
    member: &Member,
    pod: &PodView,
    restarting: bool,
) -> Vec<Failure> {
    let mut out = if facts.is_reported(pod) {
        reported(facts, domain, member, pod)
    } else if restarting {
        Vec::new()
    } else {
        shown(facts, domain, member, pod)
    };
    out.retain(|f| f.reach == Reach::Training || verdict(facts.spec(), f).rule.is_some());
    out
}

fn reach(facts: &Facts<'_>, member: &Member, container: &str, code: i32) -> Reach {
    if sets_off(facts, member, container, code) {
        Reach::Training
    } else {
        Reach::Itself
    }
}

/// Agents' reports contain the attempt, unlike pod status.
fn reported(
    facts: &Facts<'_>,
    domain: &DomainLedger,
    member: &Member,
    pod: &PodView,
) -> Vec<Failure> {
    let training = facts.training(&member.group);
    let others = facts.pod_reports(pod).filter(|r| r.container != training);
    others
        .filter(|r| r.attempt >= domain.attempt && r.kind == ReportKind::Exited)
        .filter(|r| r.exit_code != 0)
        .map(|r| Failure {
            reach: reach(facts, member, &r.container, r.exit_code),
            confirmed_by: None,
            ..reported_failure(facts, member, pod, r)
        })
        .collect()
}

/// From pod status, without agent. A restart of the gang then replaces the pod, so that its status
/// shows no older attempt.
fn shown(facts: &Facts<'_>, domain: &DomainLedger, member: &Member, pod: &PodView) -> Vec<Failure> {
    let training = facts.training(&member.group);
    let mut out = Vec::new();
    for (name, container) in pod.containers.iter().filter(|(name, _)| *name != training) {
        let Some(exit) = container.terminated().or(container.last.as_ref()) else {
            continue;
        };
        let reported = facts.pod_reports(pod).any(|r| {
            exit.id.as_deref().map(bare_id) == Some(&r.container_id) && r.attempt < domain.attempt
        });
        let ended = exit.exit_code == 0 && exit.reason != "OOMKilled";
        if reported || ended || looks_killed(exit.exit_code, &exit.reason) {
            continue;
        }
        out.push(Failure {
            reach: reach(facts, member, name, exit.exit_code),
            ..exit_failure(facts, member, pod, name, exit, None)
        });
    }
    out
}

/// True if the training container ended because another container restarted the whole pod.
pub(crate) fn follows(failure: &Failure, others: &[Failure]) -> bool {
    let own = failure.cause.exit_code.is_some() && failure.usable;
    let mut triggers = others.iter().filter(|f| f.reach == Reach::Training);
    own && triggers.any(|t| may_have_ended(t.cause.time, failure.cause.time))
}
