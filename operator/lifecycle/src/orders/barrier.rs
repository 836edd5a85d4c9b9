//! The barrier of a restart domain with supervised members: who has come to it, when they are let
//! go, and when they are done. All of it is read off what is there, so it needs no ledger: what was
//! said once stays in the order.

use std::collections::BTreeMap;

use lockstep_api::gangs::{Domain, Gang};
use lockstep_api::member::{Member, MemberSet, is_in_ranges};
use lockstep_api::membership::Membership;
use lockstep_api::node_agent::{Report, ReportKind};
use lockstep_api::restart_order::{CoordinatorAddress, DomainOrder, RestartsSeen};
use lockstep_api::workload::SuccessOperator;

use crate::facts::Facts;
use crate::failure::detect::reported_failure;
use crate::failure::respond::is_left_to_kubelet;
use crate::failure::restart_all::trigger_of;
use crate::ledger::{DomainLedger, Ledger};
use crate::meeting::{may_have_supervisors, meets_alone};
use crate::objects::env::port;
use crate::objects::supervise::supervisor_image;
use crate::pods::PodView;
use crate::wake::Wake;

/// Pods that an order says have been replaced, at most: 36 bytes each.
const MOST_REPLACED: usize = 1000;

/// A restart domain and those of its members that run together.
#[derive(Clone, Copy)]
pub(super) struct Meeting<'m> {
    pub gang: &'m Gang,
    pub domain: &'m Domain,
    pub entry: &'m DomainLedger,
    pub running: &'m [&'m Member],
}

impl Meeting<'_> {
    /// Members that restart in their pods.
    pub fn in_place(&self) -> MemberSet {
        let replace = self.entry.incident.as_ref().map(|i| &i.replace);
        let stays = |m: &&&Member| replace.is_none_or(|r| !r.contains(m));
        let members = self.running.iter().filter(stays);
        members.map(|m| (*m).clone()).collect()
    }
}

/// Whether members of the domain wait for a release: they have supervisors, or will get them.
pub(super) fn is_held(facts: &Facts<'_>, meeting: Meeting<'_>) -> bool {
    let mut groups = facts.spec().groups.iter();
    let settings = facts.view.settings();
    let members = &meeting.domain.members;
    let may_be = may_have_supervisors(meeting.gang)
        && groups.any(|g| {
            members.iter().any(|m| m.group == g.name)
                && supervisor_image(settings, facts.spec(), g).is_some()
        });
    may_be || is_supervised(facts, meeting)
}

/// Whether a pod of the members that run has a supervisor.
fn is_supervised(facts: &Facts<'_>, meeting: Meeting<'_>) -> bool {
    let mut pods = meeting
        .running
        .iter()
        .filter_map(|m| facts.current(meeting.entry, m));
    pods.any(PodView::is_supervised)
}

/// Whether each pod of the members that run has a supervisor, and there is one.
fn all_are_supervised(facts: &Facts<'_>, meeting: Meeting<'_>) -> bool {
    let mut pods = meeting
        .running
        .iter()
        .filter_map(|m| facts.current(meeting.entry, m));
    is_supervised(facts, meeting) && pods.all(PodView::is_supervised)
}

/// Whether nothing of the domain runs outside a barrier: an order stops its members, and starts
/// none.
pub(super) fn all_are_held(facts: &Facts<'_>, meeting: Meeting<'_>) -> bool {
    let pods = meeting.running.iter().flat_map(|m| facts.pods_of(m));
    is_held(facts, meeting) && pods.copied().all(PodView::is_supervised)
}

/// Brings the order for the present attempt up to date.
pub(super) fn follow(
    facts: &Facts<'_>,
    ledger: &Ledger,
    membership: &Membership<'_>,
    meeting: Meeting<'_>,
    order: &mut DomainOrder,
    wake: &mut Wake,
) {
    let attempt = meeting.entry.attempt;
    if order.attempt != attempt {
        return;
    }
    if !is_held(facts, meeting) {
        // Nobody waits any more, whatever was so when the order was written.
        order.released_attempt = attempt;
        return;
    }
    let expected = expected(facts, meeting);
    if expected.is_empty() {
        return;
    }
    let supervised = is_supervised(facts, meeting);
    order.replaced_pods = replaced_pods(facts, meeting, order);
    // Who has no supervisor meets where its pod's environment says, and so must the others.
    let has_moved = order.released_attempt == attempt && order.coordinator.is_some();
    let moves = (has_moved || all_are_supervised(facts, meeting))
        && meets_alone(facts.spec(), membership, meeting.domain);
    let place = moves.then(|| place(facts, ledger, membership, meeting, order));
    // Whoever went at once would meet at the place that the pods know.
    let known = !matches!(place, Some(Place::Unknown));
    let incident = meeting.entry.incident.as_ref();
    if order.released_attempt == attempt {
        if !order.peers.is_empty() {
            order.peers = ranges(&expected);
        }
    } else if known && may_start(facts, ledger, meeting, &expected, wake) {
        order.released_attempt = attempt;
        order.peers = ranges(&expected);
    } else if incident.is_some() && supervised {
        // Who gets a new pod after all does not start in the old one.
        order.members = meeting.in_place().to_ranges();
    }
    if !supervised {
        return;
    }
    if order.released_attempt == attempt {
        order.coordinator = place.and_then(Place::address);
        order.progress = facts.spec().failure_policy.progress;
    }
    order.alone = alone(facts, meeting, order);
    if order.completed_attempt < attempt
        && incident.is_none()
        && is_enough(facts, ledger, meeting, &expected)
    {
        order.completed_attempt = attempt;
    }
}

/// Pods that an agent would take for those of their members, for all that it knows itself: they were
/// made for the attempt, or restart in place, and others stand for their members now. Their nodes may
/// hear of the attempt before their kubelets hear of the deletion. What was said before stays: a pod
/// that is deleted by force may run on.
fn replaced_pods(facts: &Facts<'_>, meeting: Meeting<'_>, order: &DomainOrder) -> Vec<String> {
    let mut all = order.replaced_pods.clone();
    let in_place = |member| is_in_ranges(&order.members, member).unwrap_or(false);
    for &member in meeting.running {
        let current = facts.current(meeting.entry, member).map(|p| &p.uid);
        let others = facts.pods_of(member).iter();
        for pod in others.filter(|p| Some(&p.uid) != current && !p.terminal()) {
            let comes = pod.identity.attempt == order.attempt || in_place(member);
            if comes && pod.is_supervised() && all.iter().all(|uid| pod.uid != **uid) {
                all.push(pod.uid.to_string());
            }
        }
    }
    let excess = all.len().saturating_sub(MOST_REPLACED);
    all.drain(..excess);
    all
}

fn ranges(members: &[&Member]) -> Vec<String> {
    let members = members.iter().map(|m| (*m).clone());
    members.collect::<MemberSet>().to_ranges()
}

/// Whether the attempt may begin: the back-off of its incident is over, and all are here. What is
/// left of a gang that gives its nodes back opens the barrier for nobody: those who come next would
/// not wait for each other.
fn may_start(
    facts: &Facts<'_>,
    ledger: &Ledger,
    meeting: Meeting<'_>,
    expected: &[&Member],
    wake: &mut Wake,
) -> bool {
    let incident = meeting.entry.incident.as_ref();
    let waits = incident.and_then(|i| i.not_before);
    facts.placement(ledger, &meeting.gang.key).is_some()
        && waits.is_none_or(|t| facts.due(t).passed(wake))
        && expected.iter().all(|m| is_here(facts, ledger, meeting, m))
}

/// True if the members that the success policy waits for have exited 0. Members of groups that
/// `successPolicy` does not select may be servers that never end. If the policy selects no group of
/// the domain, all members of the domain must have exited 0.
fn is_enough(
    facts: &Facts<'_>,
    ledger: &Ledger,
    meeting: Meeting<'_>,
    expected: &[&Member],
) -> bool {
    let policy = &facts.spec().success_policy;
    let is_selected = |m: &Member| policy.groups.is_empty() || policy.groups.contains(&m.group);
    let selects_none = !expected.iter().any(|m| is_selected(m));
    let mut groups: BTreeMap<&str, bool> = BTreeMap::new();
    for member in expected.iter().filter(|m| selects_none || is_selected(m)) {
        let done = groups.entry(&member.group).or_insert(true);
        *done = *done && is_done(facts, ledger, meeting, member);
    }
    match policy.operator {
        SuccessOperator::Any if !selects_none => groups.values().any(|done| *done),
        SuccessOperator::Any | SuccessOperator::All => groups.values().all(|done| *done),
    }
}

/// Members that the attempt is not without: a gang that degrades goes on without those that have no
/// capacity.
fn expected<'m>(facts: &Facts<'_>, meeting: Meeting<'m>) -> Vec<&'m Member> {
    let assigned = facts.assigned_nodes(&meeting.gang.key);
    let runs = |m: &&&Member| !meeting.gang.degrades() || assigned.contains_key(**m);
    meeting.running.iter().filter(runs).copied().collect()
}

/// Whether a member is where the attempt begins, by its own identity: a number of arrivals could be
/// that of others.
fn is_here(facts: &Facts<'_>, ledger: &Ledger, meeting: Meeting<'_>, member: &Member) -> bool {
    let entry = meeting.entry;
    if ledger.completed.contains(member) {
        return true;
    }
    let Some(pod) = facts.current(entry, member) else {
        return false;
    };
    let restarts = entry.domain_incident();
    let in_place = restarts.is_some_and(|i| !i.replace.contains(member));
    if pod.is_supervised() || in_place {
        // An end with 0 may be that of the attempt before.
        let over = !in_place && facts.succeeded(member, pod);
        over || facts.is_at(member, pod, entry.attempt)
    } else {
        facts.running(member, pod) || facts.succeeded(member, pod)
    }
}

/// Where members meet.
enum Place {
    /// Where the pods' environment says.
    OfPods,
    /// At a pod whose address is not known yet.
    Unknown,
    /// Here.
    At(CoordinatorAddress),
}

impl Place {
    fn address(self) -> Option<CoordinatorAddress> {
        match self {
            Self::At(address) => Some(address),
            Self::OfPods | Self::Unknown => None,
        }
    }
}

/// Where all members meet, if that is one place. A member that comes to the attempt later, in a new
/// pod, must not be sent to a pod that is gone.
fn place(
    facts: &Facts<'_>,
    ledger: &Ledger,
    membership: &Membership<'_>,
    meeting: Meeting<'_>,
    order: &DomainOrder,
) -> Place {
    let mut places = meeting.running.iter().map(|m| membership.coordinator(m));
    let Some(first) = places.next() else {
        return Place::OfPods;
    };
    if places.any(|other| other != first) {
        return Place::OfPods;
    }
    let Some(pod) = facts.current(meeting.entry, &first) else {
        let kept = order.coordinator.clone();
        let kept = kept.filter(|_| ledger.completed.contains(&first));
        return kept.map_or(Place::OfPods, Place::At);
    };
    match &pod.pod_ip {
        Some(ip) if !ip.is_empty() => Place::At(CoordinatorAddress {
            pod_ip: ip.clone(),
            port: port(facts.spec().network.port, meeting.entry.attempt - 1),
        }),
        _ => Place::Unknown,
    }
}

/// Reports of the present attempt about the training container of a supervised member.
fn reports<'a>(
    facts: &'a Facts<'_>,
    meeting: Meeting<'_>,
    member: &'a Member,
) -> impl Iterator<Item = (&'a PodView, &'a Report)> {
    let attempt = meeting.entry.attempt;
    let pod = facts.current(meeting.entry, member);
    let pod = pod.filter(|p| p.is_supervised());
    pod.into_iter().flat_map(move |pod| {
        let reports = facts.reports(member, pod);
        reports
            .filter(move |r| r.attempt == attempt && r.kind == ReportKind::Exited)
            .map(move |r| (pod, r))
    })
}

/// Who goes on alone, and from which container.
fn alone(facts: &Facts<'_>, meeting: Meeting<'_>, order: &DomainOrder) -> Vec<RestartsSeen> {
    // No process has run on the way to the attempt; a container may have ended all the same.
    let released = order.released_attempt == meeting.entry.attempt;
    let ends = meeting.running.iter().filter_map(|&member| {
        let ends = reports(facts, meeting, member)
            .filter(|(_, report)| released || !report.supervised)
            .filter(|(pod, report)| goes_on_alone(facts, member, pod, report));
        Some((member, ends.map(|(_, report)| report.restarts).max()?))
    });
    with_alone(order, ends)
}

/// Members that go on alone, with further ones. What was said before stays where nothing newer is
/// known: reports are forgotten in time.
pub(super) fn with_alone<'m>(
    order: &DomainOrder,
    ends: impl IntoIterator<Item = (&'m Member, i32)>,
) -> Vec<RestartsSeen> {
    let mut by_member: BTreeMap<Member, i32> = BTreeMap::new();
    for entry in &order.alone {
        for member in MemberSet::parse(&entry.members).unwrap_or_default() {
            by_member.insert(member, entry.restarts);
        }
    }
    for (member, restarts) in ends {
        by_member.insert(member.clone(), restarts);
    }
    let mut by_restarts: BTreeMap<i32, MemberSet> = BTreeMap::new();
    for (member, restarts) in by_member {
        by_restarts.entry(restarts).or_default().insert(member);
    }
    listed(by_restarts)
}

/// Members by number of restarts, as an order lists them.
pub(super) fn listed(by_restarts: BTreeMap<i32, MemberSet>) -> Vec<RestartsSeen> {
    by_restarts
        .into_iter()
        .map(|(restarts, members)| RestartsSeen {
            restarts,
            members: members.to_ranges(),
        })
        .collect()
}

/// Whether the end that a report tells of is answered by the kubelet, for its pod alone. What ended
/// because another container restarts the whole pod is judged by that one.
fn goes_on_alone(facts: &Facts<'_>, member: &Member, pod: &PodView, report: &Report) -> bool {
    let trigger = trigger_of(facts, member, pod, report);
    let swept = trigger.is_some();
    let failure = reported_failure(facts, member, pod, trigger.unwrap_or(report));
    (swept || report.exit_code != 0) && is_left_to_kubelet(facts, &failure)
}

/// Whether a member has exited 0 at the attempt. While one has not, a crash in its teardown can
/// still restart all.
fn is_done(facts: &Facts<'_>, ledger: &Ledger, meeting: Meeting<'_>, member: &Member) -> bool {
    let mut reported = reports(facts, meeting, member);
    ledger.completed.contains(member)
        || facts
            .current(meeting.entry, member)
            .is_some_and(|p| facts.succeeded(member, p))
        || reported.any(|(_, r)| r.supervised && r.exit_code == 0)
}
