//! The content of the `RestartOrder`: which members restart in place, and when the barrier opens.

pub(crate) mod barrier;

use std::collections::BTreeMap;

use chrono::SubsecRound;
use lockstep_api::RestartOrderSpec;
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::membership::Membership;
use lockstep_api::node_agent::ReportKind;
use lockstep_api::restart_order::{DomainOrder, RestartsSeen};
use lockstep_api::workload::{Cause, CauseKind};

use crate::facts::Facts;
use crate::failure::detect::RESTARTING_ALL;
use crate::failure::domain::awaits_nodes;
use crate::failure::policy::verdict;
use crate::ledger::{DomainLedger, Ledger};
use crate::pods::{ContainerState, ContainerView, PodView, Termination};
use crate::wake::Wake;
use barrier::{BarrierGroup, listed};

/// Count of a container that has not started.
const NONE: i32 = -1;

pub(crate) fn desired(
    facts: &Facts<'_>,
    ledger: &Ledger,
    membership: &Membership<'_>,
    wake: &mut Wake,
) -> RestartOrderSpec {
    let mut domains = Vec::new();
    for group in barrier_groups(facts, ledger, membership) {
        let key = &group.domain.key;
        let mut order = if group.awaits_nodes() {
            facts.order(key).cloned()
        } else {
            group.order(wake)
        };
        if let Some(order) = &mut order {
            group.follow(order, wake);
            group.request(order);
        }
        domains.extend(order);
    }
    RestartOrderSpec {
        workload_uid: facts.view.uid().to_owned(),
        domains,
    }
}

/// The members of each domain of the ledger that run together.
pub(crate) fn barrier_groups<'m>(
    facts: &'m Facts<'m>,
    ledger: &'m Ledger,
    membership: &'m Membership<'m>,
) -> impl Iterator<Item = BarrierGroup<'m>> {
    let gangs = facts.gangs.iter();
    let domains = gangs.flat_map(|g| g.domains.iter().map(move |d| (g, d)));
    domains.filter_map(move |(gang, domain)| {
        let members = domain.members.iter();
        Some(BarrierGroup {
            facts,
            ledger,
            membership,
            gang,
            domain,
            entry: ledger.domain(&domain.key)?,
            running: members.filter(|m| membership.contains(m)).collect(),
        })
    })
}

impl BarrierGroup<'_> {
    fn awaits_nodes(&self) -> bool {
        let (facts, assigned) = (self.facts, self.facts.assigned_nodes(&self.gang.key));
        let members = self.running.iter().copied();
        let gang = self.ledger.gang(&self.gang.key).filter(|g| g.started);
        gang.is_some_and(|gang| awaits_nodes(facts, gang, assigned, self.entry, members))
    }

    /// An order for the current attempt and membership stays unchanged, so closing an incident
    /// causes no write. An order for a later attempt stays too: after a change of leader, this
    /// ledger can be outdated, and attempts must not decrease. An order for a new attempt is
    /// written after the back-off of its incident.
    fn order(&self, wake: &mut Wake) -> Option<DomainOrder> {
        let domain = self.entry;
        let world = self.running.len() as i32;
        let present = self.facts.order(&self.domain.key);
        let same = |o: &DomainOrder| o.attempt == domain.attempt && o.world == world;
        if present.is_some_and(|o| o.attempt > domain.attempt || same(o)) {
            return present.cloned();
        }
        // Supervised members stop at once; only their release waits.
        let incident = domain.incident.as_ref();
        let not_before = incident
            .and_then(|i| i.not_before)
            .filter(|_| !self.all_are_held());
        if not_before.is_some_and(|t| !self.facts.due(t).passed(wake)) {
            return present.cloned();
        }
        match present {
            // The running members have changed without a restart.
            Some(o) if o.attempt == domain.attempt && self.is_held() => {
                let mut order = o.clone();
                order.world = world;
                Some(order)
            }
            _ => Some(self.new_order(present)),
        }
    }

    fn new_order(&self, present: Option<&DomainOrder>) -> DomainOrder {
        let domain = self.entry;
        let incident = domain.incident.as_ref();
        // Without an incident, only new pods take part in a later attempt.
        let only_new = incident.is_none() && present.is_some_and(|o| o.attempt < domain.attempt);
        let members = if only_new {
            MemberSet::default()
        } else {
            self.in_place()
        };
        let policy = &self.facts.spec().failure_policy;
        let held = self.is_held();
        let (restarts_seen, exceptions) = restarts_by_number(self.facts, domain, &members);
        DomainOrder {
            key: self.domain.key.to_string(),
            attempt: domain.attempt,
            members: members.to_ranges(),
            world: self.running.len() as i32,
            released_attempt: if held {
                present.map_or(0, |o| o.released_attempt)
            } else {
                domain.attempt
            },
            completed_attempt: 0,
            peers: Vec::new(),
            progress: None,
            checkpoint: None,
            request: None,
            stopping: false,
            alone: Vec::new(),
            restarts_seen,
            exceptions,
            // Survivors of a lost node run until the loss is detected.
            since: incident.map(|i| match i.cause.kind {
                CauseKind::NodeLost => i.detected_at,
                _ => i.cause.time,
            }),
            coordinator: None,
            replaced_pods: Vec::new(),
            deadline_seconds: match incident {
                Some(_) => Some(policy.in_place.deadline_seconds),
                None => held.then_some(policy.start_deadline_seconds),
            },
        }
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
        let count = restarts_seen(facts, domain, member);
        by_number.entry(count).or_default().insert(member.clone());
    }
    let most = by_number.iter().max_by_key(|(_, members)| members.len());
    let usual = most.map_or(0, |(number, _)| *number);
    by_number.remove(&usual);
    (usual, listed(by_number))
}

/// The restart count of a member's last container of an older attempt. Containers with a higher
/// count belong to the new attempt.
///
/// If a container's failure restarts the domain, it is the count of that container. Otherwise, it
/// is the highest count from any source. A count that is too high causes one more restart of the
/// member. A count that is too low leaves the member in the old attempt.
fn restarts_seen(facts: &Facts<'_>, domain: &DomainLedger, member: &Member) -> i32 {
    let Some(pod) = facts.current(domain, member) else {
        return NONE;
    };
    let observed = facts.observe(member, pod);
    let trainer = observed.trainer();
    let mut highest = trainer.map_or(NONE, shown);
    let arrival = observed.arrival;
    let attempt = arrival.map_or(pod.identity.attempt, |a| a.attempt);
    let arrived = arrival.map_or(NONE, |a| a.restarts);
    highest = highest.max(arrived);
    let mut failed = trainer.and_then(|container| recorded(domain, pod, container));
    for report in observed.training_reports() {
        let failure = observed.reported_failure(report);
        let alone = verdict(facts.spec(), &failure).action.affects_single_pod();
        let exited = report.kind == ReportKind::Exited && report.exit_code != 0;
        if exited && alone {
            // The kubelet starts the next container by itself.
            highest = highest.max(report.restarts.saturating_add(1));
        } else {
            highest = highest.max(report.restarts);
        }
        let since = report.attempt >= attempt && report.restarts >= arrived;
        if exited && !alone && since {
            failed = failed.max(Some(report.restarts));
        }
    }
    failed.unwrap_or(highest)
}

/// From pod status, because the agent's report can arrive after the order.
fn recorded(domain: &DomainLedger, pod: &PodView, container: &ContainerView) -> Option<i32> {
    let cause = &domain.incident.as_ref()?.cause;
    if cause.kind != CauseKind::ContainerExit || cause.pod != pod.name {
        return None;
    }
    let newest = shown(container);
    if container.terminated().is_some_and(|t| is_cause(t, cause)) {
        return Some(newest);
    }
    let last = container.last.as_ref()?;
    if let ContainerState::Waiting { .. } = container.state {
        return is_cause(last, cause).then_some(newest);
    }
    // A container removed by a restart of the whole pod has lost its code and time. By the node's
    // clock, its successor started after the failure, in whole seconds.
    let failed_at = cause.time.trunc_subsecs(0);
    let began_after = container.running_since().is_some_and(|at| at >= failed_at);
    let removed = last.reason == RESTARTING_ALL && began_after;
    (removed || is_cause(last, cause)).then_some(newest - 1)
}

fn is_cause(end: &Termination, cause: &Cause) -> bool {
    end.finished_at == Some(cause.time) && Some(end.exit_code) == cause.exit_code
}

fn shown(container: &ContainerView) -> i32 {
    match &container.state {
        _ if !container.started() => NONE,
        // The kubelet increments the count before it creates the container.
        ContainerState::Waiting { reason, .. } if reason == RESTARTING_ALL => {
            container.restart_count - 1
        }
        _ => container.restart_count,
    }
}
