//! The barrier of a restart domain with supervised members, computed without the ledger: the order
//! keeps earlier states.

use std::collections::BTreeMap;

use lockstep_api::gangs::{Domain, Gang};
use lockstep_api::member::{Member, MemberSet, is_in_ranges};
use lockstep_api::membership::Membership;
use lockstep_api::node_agent::{Report, ReportKind};
use lockstep_api::restart_order::{
    CoordinatorAddress, DomainOrder, RestartsSeen, SavePolicyOrder, SaveRequestOrder,
};
use lockstep_api::template::grace_seconds;
use lockstep_api::workload::{CheckpointOccasion, SuccessOperator};

use crate::domains::{has_own_coordinator, may_have_supervisors};
use crate::facts::{Facts, MemberObservation};
use crate::failure::policy::is_left_to_kubelet;
use crate::ledger::{DomainLedger, Ledger};
use crate::objects::env::{first_port, port};
use crate::objects::supervise::supervisor_image;
use crate::pods::PodView;
use crate::wake::Wake;

/// Most replaced pods in an order, at 36 bytes each.
const MOST_REPLACED: usize = 1000;

/// How long before the end of the grace period a held stop signal is passed on, in seconds.
const BEFORE_KILL: i64 = 5;

/// Members of a domain that share a barrier.
pub(crate) struct BarrierGroup<'m> {
    pub facts: &'m Facts<'m>,
    pub ledger: &'m Ledger,
    pub membership: &'m Membership<'m>,
    pub gang: &'m Gang,
    pub domain: &'m Domain,
    pub entry: &'m DomainLedger,
    pub running: Vec<&'m Member>,
}

impl<'m> BarrierGroup<'m> {
    pub fn in_place(&self) -> MemberSet {
        let members = self.running.iter().filter(|m| !self.entry.replaces(m));
        members.map(|m| (*m).clone()).collect()
    }

    /// True if members have supervisors, or will get them, and wait for a release.
    pub fn is_held(&self) -> bool {
        let mut groups = self.facts.spec().groups.iter();
        let settings = self.facts.view.settings();
        let members = &self.domain.members;
        let may_be = may_have_supervisors(self.gang)
            && groups.any(|g| {
                members.iter().any(|m| m.group == g.name)
                    && supervisor_image(settings, self.facts.spec(), g).is_some()
            });
        may_be || self.is_supervised()
    }

    fn is_supervised(&self) -> bool {
        let mut pods = self
            .running
            .iter()
            .filter_map(|m| self.facts.current(self.entry, m));
        pods.any(PodView::is_supervised)
    }

    /// False without pods.
    fn all_are_supervised(&self) -> bool {
        let mut pods = self
            .running
            .iter()
            .filter_map(|m| self.facts.current(self.entry, m));
        self.is_supervised() && pods.all(PodView::is_supervised)
    }

    /// True if every process waits at barriers. An order then stops members and starts none.
    pub fn all_are_held(&self) -> bool {
        let pods = self.running.iter().flat_map(|m| self.facts.pods_of(m));
        self.is_held() && pods.copied().all(PodView::is_supervised)
    }

    pub fn follow(&self, order: &mut DomainOrder, wake: &mut Wake) {
        let attempt = self.entry.attempt;
        if order.attempt != attempt {
            return;
        }
        if !self.is_held() {
            order.released_attempt = attempt;
            return;
        }
        let expected = self.expected();
        if expected.is_empty() {
            return;
        }
        let supervised = self.is_supervised();
        order.replaced_pods = self.replaced_pods(order);
        // Unsupervised members use the coordinator of the pod's environment, so all members must.
        let has_moved = order.released_attempt == attempt && order.coordinator.is_some();
        let moves = (has_moved || self.all_are_supervised())
            && has_own_coordinator(self.facts.spec(), self.membership, self.domain);
        let place = moves.then(|| self.place(order));
        // A release without the address would send members to the environment's coordinator.
        let resolved = !matches!(place, Some(Place::Unresolved));
        let incident = self.entry.incident.as_ref();
        if order.released_attempt == attempt {
            if !order.peers.is_empty() {
                order.peers = ranges(&expected);
            }
        } else if resolved && self.may_start(&expected, wake) {
            order.released_attempt = attempt;
            order.peers = ranges(&expected);
            // Kept until the next start: ends of these processes are answers by this policy.
            order.checkpoint = self.save_policy().filter(|_| supervised);
        } else if self.entry.is_restarting() && supervised {
            // A member that gets a new pod must not start in the old one.
            order.members = self.in_place().to_ranges();
        }
        if !supervised {
            return;
        }
        if order.released_attempt == attempt {
            order.coordinator = place.and_then(Place::address);
            order.progress = self.facts.spec().failure_policy.progress;
        }
        order.alone = self.alone(order);
        if order.completed_attempt < attempt && incident.is_none() && self.is_enough(&expected) {
            order.completed_attempt = attempt;
        }
    }

    /// The open request, and whether the members are being stopped.
    pub fn request(&self, order: &mut DomainOrder) {
        let open = self.entry.open_request();
        let open = open.filter(|r| r.attempt == order.attempt);
        order.request = open.and_then(|r| {
            Some(SaveRequestOrder {
                id: r.id.clone(),
                reason: r.reason.as_str().to_owned(),
                deadline: r.deadline?,
                watch: r.watch,
            })
        });
        let is_released = self.facts.placement(self.ledger, &self.gang.key).is_none();
        order.stopping = order.checkpoint.is_some() && is_released;
    }

    fn save_policy(&self) -> Option<SavePolicyOrder> {
        let policy = self.facts.checkpoint_policy()?;
        let templates = self
            .running
            .iter()
            .filter_map(|m| self.facts.template(&m.group));
        let graces = templates.map(grace_seconds);
        let held = graces
            .min()
            .map(|grace| grace - BEFORE_KILL)
            .filter(|s| *s > 0);
        Some(SavePolicyOrder {
            signal: policy.signal,
            timeout_seconds: policy.timeout_seconds,
            hold_stop_seconds: held
                .filter(|_| self.facts.asks_before(CheckpointOccasion::Eviction)),
        })
    }

    /// Replaced pods that an agent would take for current pods: they restart in place or were
    /// created for the attempt. Their nodes can receive the order before the deletion. Entries
    /// stay, because a pod deleted by force may still run.
    fn replaced_pods(&self, order: &DomainOrder) -> Vec<String> {
        let mut all = order.replaced_pods.clone();
        let in_place = |member| is_in_ranges(&order.members, member).unwrap_or(false);
        for &member in &self.running {
            let current = self.facts.current(self.entry, member).map(|p| &p.uid);
            let others = self.facts.pods_of(member).iter();
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

    /// True if the dependencies are met, the back-off is over and all members have arrived. While the
    /// gang releases its nodes, the barrier stays closed, because later members would not wait for
    /// each other.
    fn may_start(&self, expected: &[&Member], wake: &mut Wake) -> bool {
        let incident = self.entry.incident.as_ref();
        let waits = incident.and_then(|i| i.not_before);
        self.facts.placement(self.ledger, &self.gang.key).is_some()
            && self.ledger.gang(&self.gang.key).is_some_and(|g| g.started)
            && waits.is_none_or(|t| self.facts.due(t).passed(wake))
            && expected.iter().all(|m| self.is_at_barrier(m))
    }

    /// True if the members of the success policy have exited 0. Members of other groups can be
    /// servers that never end. If the policy selects no group of the domain, all members of the
    /// domain must have exited 0.
    fn is_enough(&self, expected: &[&'m Member]) -> bool {
        let policy = &self.facts.spec().success_policy;
        let is_selected = |m: &Member| policy.groups.is_empty() || policy.groups.contains(&m.group);
        let selects_none = !expected.iter().any(|m| is_selected(m));
        let mut groups: BTreeMap<&str, bool> = BTreeMap::new();
        for member in expected.iter().filter(|m| selects_none || is_selected(m)) {
            let done = groups.entry(&member.group).or_insert(true);
            *done = *done && self.is_done(member);
        }
        match policy.operator {
            SuccessOperator::Any if !selects_none => groups.values().any(|done| *done),
            SuccessOperator::Any | SuccessOperator::All => groups.values().all(|done| *done),
        }
    }

    /// A degrading gang continues without members that have no capacity, and without pods that are
    /// replaced beside it.
    fn expected(&self) -> Vec<&'m Member> {
        let assigned = self.facts.assigned_nodes(&self.gang.key);
        let replaced = self.entry.replacement.as_ref().map(|r| &r.members);
        let lacks_pod = |m: &Member| {
            replaced.is_some_and(|r| r.contains(m)) && self.facts.current(self.entry, m).is_none()
        };
        let runs =
            |m: &&&Member| !self.gang.degrades() || assigned.contains_key(**m) && !lacks_pod(m);
        self.running.iter().filter(runs).copied().collect()
    }

    /// Members that have to arrive before the barrier opens, and whether each has.
    pub fn arrivals(&self) -> impl Iterator<Item = (&'m Member, bool)> {
        let expected = self.expected().into_iter();
        let unfinished = expected.filter(|m| !self.ledger.completed.contains(*m));
        unfinished.map(|m| (m, self.is_at_barrier(m)))
    }

    /// By the member's own identity: a count of arrivals could include other members.
    fn is_at_barrier(&self, member: &Member) -> bool {
        let entry = self.entry;
        if self.ledger.completed.contains(member) {
            return true;
        }
        let Some(pod) = self.facts.current(entry, member) else {
            return false;
        };
        let in_place = entry.restart_in_place(member).is_some();
        if pod.is_supervised() || in_place {
            // An exit with 0 can belong to the previous attempt.
            let over = !in_place && self.facts.succeeded(member, pod);
            over || self.facts.observe(member, pod).is_at(entry.attempt)
        } else {
            self.facts.running(member, pod) || self.facts.succeeded(member, pod)
        }
    }

    /// `OfPods` without one common coordinator. Later members must not connect to a pod that no
    /// longer exists.
    fn place(&self, order: &DomainOrder) -> Place {
        let mut places = self.running.iter().map(|m| self.membership.coordinator(m));
        let Some(first) = places.next() else {
            return Place::OfPods;
        };
        if places.any(|other| other != first) {
            return Place::OfPods;
        }
        let Some(pod) = self.facts.current(self.entry, &first) else {
            let kept = order
                .coordinator
                .clone()
                .filter(|_| self.ledger.completed.contains(&first));
            return kept.map_or(Place::OfPods, Place::At);
        };
        match &pod.pod_ip {
            Some(ip) if !ip.is_empty() => Place::At(CoordinatorAddress {
                pod_ip: ip.clone(),
                port: port(first_port(self.facts.view, &first), self.entry.attempt - 1),
            }),
            _ => Place::Unresolved,
        }
    }

    fn supervised(&self, member: &'m Member) -> Option<MemberObservation<'m>> {
        let pod = self
            .facts
            .current(self.entry, member)
            .filter(|p| p.is_supervised())?;
        Some(self.facts.observe(member, pod))
    }

    /// Members that the kubelet restarts alone, with the restart counts of the failed containers.
    /// Earlier entries stay, because reports are removed over time.
    fn alone(&self, order: &DomainOrder) -> Vec<RestartsSeen> {
        let mut by_member: BTreeMap<Member, i32> = BTreeMap::new();
        for entry in &order.alone {
            for member in MemberSet::parse(&entry.members).unwrap_or_default() {
                by_member.insert(member, entry.restarts);
            }
        }
        // No process has run before the release, but containers can have ended.
        let attempt = self.entry.attempt;
        let released = order.released_attempt == attempt;
        for &member in &self.running {
            let Some(observed) = self.supervised(member) else {
                continue;
            };
            let ends = exits(&observed, attempt)
                .filter(|report| released || !report.supervised)
                .filter(|report| restarts_alone(&observed, report));
            if let Some(restarts) = ends.map(|report| report.restarts).max() {
                by_member.insert(member.clone(), restarts);
            }
        }
        let mut by_restarts: BTreeMap<i32, MemberSet> = BTreeMap::new();
        for (member, restarts) in by_member {
            by_restarts.entry(restarts).or_default().insert(member);
        }
        listed(by_restarts)
    }

    /// True if a member has exited with 0 at the attempt. Until all have, a crash during shutdown
    /// can still restart all.
    fn is_done(&self, member: &'m Member) -> bool {
        let reported = || {
            let observed = self.supervised(member);
            let exits_with_0 = |r: &Report| r.supervised && r.exit_code == 0;
            observed.is_some_and(|o| exits(&o, self.entry.attempt).any(exits_with_0))
        };
        self.ledger.completed.contains(member)
            || self
                .facts
                .current(self.entry, member)
                .is_some_and(|p| self.facts.succeeded(member, p))
            || reported()
    }
}

fn ranges(members: &[&Member]) -> Vec<String> {
    let members = members.iter().map(|m| (*m).clone());
    members.collect::<MemberSet>().to_ranges()
}

enum Place {
    OfPods,
    Unresolved,
    At(CoordinatorAddress),
}

impl Place {
    fn address(self) -> Option<CoordinatorAddress> {
        match self {
            Self::At(address) => Some(address),
            Self::OfPods | Self::Unresolved => None,
        }
    }
}

fn exits<'o>(observed: &MemberObservation<'o>, attempt: i64) -> impl Iterator<Item = &'o Report> {
    let reports = observed.training_reports();
    reports.filter(move |r| r.attempt == attempt && r.kind == ReportKind::Exited)
}

/// By restart count, as in an order.
pub(super) fn listed(by_restarts: BTreeMap<i32, MemberSet>) -> Vec<RestartsSeen> {
    by_restarts
        .into_iter()
        .map(|(restarts, members)| RestartsSeen {
            restarts,
            members: members.to_ranges(),
        })
        .collect()
}

/// True if the kubelet handles the exit for its pod alone. If another container restarted the whole
/// pod, the exit of that container decides.
fn restarts_alone(observed: &MemberObservation<'_>, report: &Report) -> bool {
    let pod_restart = observed.pod_restart_before(report);
    let failure = observed.reported_failure(pod_restart.unwrap_or(report));
    (pod_restart.is_some() || report.exit_code != 0) && is_left_to_kubelet(observed.facts, &failure)
}
