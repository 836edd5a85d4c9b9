//! A restart domain in one pass, and the states of its members.

use std::collections::BTreeSet;

use lockstep_api::Reach;
use lockstep_api::gangs::{Assignments, Domain, Gang};
use lockstep_api::ids::{DomainKey, NodeName};
use lockstep_api::member::Member;
use lockstep_api::membership::Membership;
use lockstep_api::tier::Tier;
use lockstep_api::workload::IncidentStage;

use crate::domains::{has_peers, may_keep_pods};
use crate::facts::{Facts, MemberObservation, NO_NODES, Standing};
use crate::ledger::{DomainLedger, GangLedger, Ledger, OpenIncident};
use crate::objects::restart::ignores_code;
use crate::objects::training::restart_by_rule;
use crate::pods::{ContainerView, PodView};
use crate::wake::Wake;

use super::policy::{Failure, verdict};

pub(crate) struct DomainPass<'p> {
    pub facts: &'p Facts<'p>,
    pub ledger: &'p mut Ledger,
    pub scope: DomainScope<'p>,
    pub wake: Wake,
}

/// A domain with its gang and the members that should run.
pub(crate) struct DomainScope<'s> {
    pub gang: &'s Gang,
    pub domain: &'s Domain,
    pub all: Vec<&'s Member>,
    pub unfinished: Vec<&'s Member>,
    pub assigned: &'s Assignments,
}

/// What a domain's failures require of the whole workload.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Consequence {
    ReleaseGang(&'static str, String),
    FailWorkload(&'static str, String),
}

impl<'p> DomainPass<'p> {
    /// `None` if the ledger has no entry of the domain, because its spec has not been applied.
    pub fn new(
        facts: &'p Facts<'p>,
        ledger: &'p mut Ledger,
        scope: DomainScope<'p>,
    ) -> Option<Self> {
        ledger.domain(scope.key())?;
        Some(Self {
            facts,
            ledger,
            scope,
            wake: Wake::NEVER,
        })
    }

    pub fn key(&self) -> &'p DomainKey {
        self.scope.key()
    }

    pub fn entry(&self) -> &DomainLedger {
        self.ledger.domain_or_empty(self.key())
    }

    pub fn entry_mut(&mut self) -> &mut DomainLedger {
        let domains = &mut self.ledger.domains;
        domains.entry(self.scope.key().clone()).or_default()
    }

    pub fn incident(&self) -> Option<&OpenIncident> {
        self.entry().incident.as_ref()
    }

    /// Each unfinished member, with its current pod.
    pub fn observe(&self) -> Vec<(&'p Member, Option<MemberObservation<'p>>)> {
        let entry = self.entry();
        let members = self.scope.unfinished.iter().copied();
        let observed = members.map(|member| {
            let pod = self.facts.current(entry, member);
            (member, pod.map(|pod| self.facts.observe(member, pod)))
        });
        observed.collect()
    }

    pub fn restart_count(&self) -> i64 {
        let entry = self.entry();
        let members = self.scope.domain.members.iter();
        let trainers = members.filter_map(|m| self.facts.trainer(m, self.facts.current(entry, m)?));
        trainers.map(|c| i64::from(c.restart_count)).sum()
    }
}

impl<'s> DomainScope<'s> {
    pub fn placed(
        facts: &'s Facts<'s>,
        ledger: &Ledger,
        membership: &Membership<'_>,
        gang: &'s Gang,
        domain: &'s Domain,
    ) -> Self {
        let assigned = facts.assigned_nodes(&gang.key);
        let mut all = Vec::new();
        for member in &domain.members {
            // Members of Basic groups run independently. A degrading gang continues without members
            // that have no capacity.
            let runs = if gang.basic || (gang.degrades() && membership.contains(member)) {
                assigned.contains_key(member)
            } else {
                membership.contains(member)
            };
            if runs {
                all.push(member);
            }
        }
        let unfinished = all
            .iter()
            .copied()
            .filter(|m| !ledger.completed.contains(*m))
            .collect();
        Self {
            gang,
            domain,
            all,
            unfinished,
            assigned,
        }
    }

    /// Members that run again after a restart of the domain, whatever their nodes.
    pub fn of_restart(
        facts: &'s Facts<'s>,
        ledger: &Ledger,
        membership: &Membership<'_>,
        gang: &'s Gang,
        domain: &'s Domain,
    ) -> Self {
        let done = ledger.done_members(facts.spec(), gang, domain);
        let mut all = Vec::new();
        for member in &domain.members {
            if membership.contains(member) && !done.contains(member) {
                all.push(member);
            }
        }
        Self {
            gang,
            domain,
            unfinished: all.clone(),
            all,
            assigned: &NO_NODES,
        }
    }

    pub fn key(&self) -> &'s DomainKey {
        &self.domain.key
    }
}

/// True if the other members do not need these: a Basic group if another member has a pod, a gang
/// that degrades if `minCount` members have one.
pub(crate) fn continues_without(
    facts: &Facts<'_>,
    ledger: &Ledger,
    gang: &Gang,
    without: &BTreeSet<Member>,
) -> bool {
    let needed = if gang.basic { 1 } else { gang.min_count };
    let mut left = 0;
    for (member, pod) in facts.current_pods(ledger, gang) {
        let stays = pod.is_some_and(|p| p.is_live() && p.node.is_some());
        left += i32::from(stays && !without.contains(member));
    }
    (gang.basic || gang.degrades()) && left >= needed
}

/// True if the training container can be stopped and its kubelet then starts it again.
fn restarts_in_place(facts: &Facts<'_>, member: &Member, pod: &PodView) -> bool {
    let Some(node) = pod.place() else {
        return false;
    };
    let finished = facts
        .trainer(member, pod)
        .and_then(ContainerView::terminated)
        .is_some_and(|t| t.exit_code == 0);
    let runs = pod.is_live() && !finished;
    runs && !facts.lost(node) && (facts.can_stop(node) || facts.can_stop_soon(node))
}

/// True if the member keeps its pod in a restart of all members: its training container restarts in
/// place, after the barrier or without peers, unless the policy permits overlapping attempts.
pub(crate) fn keeps_pod(
    facts: &Facts<'_>,
    domain: &Domain,
    member: &Member,
    pod: &PodView,
) -> bool {
    let policy = &facts.spec().failure_policy.in_place;
    restarts_in_place(facts, member, pod)
        && may_keep_pods(policy, has_peers(domain), pod.is_supervised())
}

/// True if a pod on a silent node is kept: its member has no other node yet, while other members
/// have. The node may return before a replacement exists.
pub(crate) fn awaits_node(
    facts: &Facts<'_>,
    gang: &GangLedger,
    assigned: &Assignments,
    member: &Member,
    pod: &PodView,
) -> bool {
    let silent = |node: &str| matches!(facts.node_state(node).reach, Reach::Silent { .. });
    let usable = |node: &NodeName| facts.usable(gang, node.as_str());
    facts.standing(pod) == Standing::Lost
        && pod.node.as_deref().is_some_and(silent)
        && !pod.terminating()
        && !assigned.get(member).is_some_and(usable)
        && assigned.values().any(usable)
}

/// True if the incident waits until members on silent nodes get other nodes or the nodes return.
/// The other members run until then.
pub(crate) fn awaits_nodes<'m>(
    facts: &Facts<'_>,
    gang: &GangLedger,
    assigned: &Assignments,
    domain: &DomainLedger,
    members: impl IntoIterator<Item = &'m Member>,
) -> bool {
    let Some(incident) = &domain.incident else {
        return false;
    };
    let mut replaced = members.into_iter().filter(|m| incident.replace.contains(m));
    incident.stage == IncidentStage::Decided
        && replaced.any(|member| {
            let mut pods = facts.pods_of(member).iter();
            pods.any(|pod| awaits_node(facts, gang, assigned, member, pod))
        })
}

/// True if the member runs at the current attempt, or has succeeded.
pub(super) fn is_up(facts: &Facts<'_>, domain: &DomainLedger, member: &Member) -> bool {
    let Some(pod) = facts.current(domain, member) else {
        return false;
    };
    if !facts.running(member, pod) && !facts.succeeded(member, pod) {
        return false;
    }
    let Some(incident) = domain.restart_in_place(member) else {
        return true;
    };
    let shown = facts.trainer(member, pod);
    shown.is_some_and(|c| {
        facts
            .observe(member, pod)
            .is_container_at(incident.attempt, c)
    })
}

/// The failure of a member after which its training stays down, because a rule ignores it.
pub(crate) fn left_down(
    observed: &MemberObservation<'_>,
    domain: &DomainLedger,
) -> Option<Failure> {
    let failure = match domain.restart_in_place(observed.member) {
        Some(_) => observed.exit_at_attempt(domain),
        None => observed.failure(domain),
    }?;
    let action = verdict(observed.facts.spec(), &failure).action;
    (action.leaves_container() && stays_down(observed, &failure)).then_some(failure)
}

/// True if training does not start again after an ignored failure. Another container can keep the
/// pod running.
fn stays_down(observed: &MemberObservation<'_>, failure: &Failure) -> bool {
    let (spec, group) = (observed.facts.spec(), &observed.member.group);
    let training = observed.training();
    let by_rules = || {
        let code = failure.cause.exit_code.filter(|_| !failure.masked);
        let template = observed.facts.template(group);
        code.zip(template).is_some_and(|(code, template)| {
            restart_by_rule(template, training, code).is_none()
                && ignores_code(&spec.failure_policy, group, training, code)
        })
    };
    let process = !failure.is_loss();
    observed.pod.terminal()
        || match observed.pod.identity.tier {
            // A supervisor starts a process only for an order.
            Some(Tier::Supervised) => process,
            Some(Tier::RestartAll | Tier::RestartRules) => process && by_rules(),
            // The kubelet restarts every failed container.
            Some(Tier::Plain) | None => false,
        }
}
