mod index;
mod members;
mod nodes;
mod rejections;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::gangs::{Assignments, Domain, Gang, gangs};
use lockstep_api::ids::{DomainKey, GangKey};
use lockstep_api::member::Member;
use lockstep_api::node_agent::Report;
use lockstep_api::restart_order::DomainOrder;
use lockstep_api::workload::TrainingWorkloadSpec;

use crate::arrivals::Arrivals;
use crate::gangs::{GangView, PlacementView};
use crate::ledger::{DomainLedger, GangLedger, Ledger};
use crate::nodes::{AgentInfo, NodeInfo};
use crate::observed::Observed;
use crate::pods::PodView;
use crate::view::{RejectedRequest, Target};
use crate::wake::{Due, Wake};
use index::{
    PodsByMember, is_lost, pods_of_ours, reports_by_pod, shows_readiness, training_containers,
};

pub(crate) use members::{MemberObservation, may_end};
pub(crate) use nodes::Standing;

/// For callers without nodes.
pub(crate) static NO_NODES: Assignments = Assignments::new();

pub(crate) struct Facts<'a> {
    pub view: Observed<'a>,
    pub now: DateTime<Utc>,
    pub gangs: Vec<Gang>,
    /// When time alone next changes what is read: a node is lost or should have an agent, a pod is
    /// stuck.
    pub wake: Wake,
    pods: PodsByMember<'a>,
    /// Pods whose labels name no member.
    strays: Vec<&'a PodView>,
    reports: BTreeMap<&'a str, Vec<(&'a str, &'a Report)>>,
    pub arrivals: Arrivals<'a>,
    training: BTreeMap<&'a str, &'a str>,
    lost: BTreeSet<&'a str>,
    /// Pods that do not end on nodes that answer.
    stuck: BTreeSet<&'a str>,
    /// Agents that are present, as far as known.
    agents: BTreeMap<&'a str, &'a AgentInfo>,
    gang_at: BTreeMap<GangKey, usize>,
    domain_at: BTreeMap<DomainKey, (usize, usize)>,
    orders: BTreeMap<&'a str, &'a DomainOrder>,
    rejections: BTreeMap<&'a Target, Vec<&'a RejectedRequest>>,
    /// Nodes of the workload that have signals, by name.
    pub nodes_with_signals: BTreeMap<&'a str, &'a NodeInfo>,
    /// Last step and last checkpoint that agents report of any member.
    last_reported: OnceCell<(Option<i64>, Option<i64>)>,
}

fn nodes_with_signals(view: Observed<'_>) -> BTreeMap<&str, &NodeInfo> {
    let nodes = view.nodes().iter().map(|(n, info)| (n.as_str(), &**info));
    nodes.filter(|(_, info)| !info.signals.is_empty()).collect()
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum PlacementState<'a> {
    Unplaced,
    Released,
    Placed(&'a PlacementView),
}

impl<'a> Facts<'a> {
    pub fn new(view: Observed<'a>, now: DateTime<Utc>) -> Self {
        let (pods, strays) = pods_of_ours(view);
        let mut wake = Wake::NEVER;
        let mut lost = BTreeSet::new();
        let limit = TimeDelta::seconds(view.spec().failure_policy.node_lost_seconds);
        for (name, node) in view.nodes() {
            if is_lost(node, limit, now, &mut wake) {
                lost.insert(name.as_str());
            }
        }
        let mut stuck = BTreeSet::new();
        for pod in pods.iter().chain(strays.iter().copied()) {
            let from = view.stuck_from(pod).filter(|_| !pod.terminal());
            if from.is_some_and(|from| Due::of(from, now).passed(&mut wake)) {
                stuck.insert(pod.uid.as_str());
            }
        }
        let mut agents = BTreeMap::new();
        for (name, agent) in view.agents() {
            let node = view.nodes().get(name);
            if agent.ready || node.is_some_and(|n| !shows_readiness(n, now, &mut wake)) {
                agents.insert(name.as_str(), agent.as_ref());
            }
        }
        let gangs = gangs(view.spec());
        let mut gang_at = BTreeMap::new();
        let mut domain_at = BTreeMap::new();
        for (g, gang) in gangs.iter().enumerate() {
            gang_at.insert(gang.key.clone(), g);
            for (d, domain) in gang.domains.iter().enumerate() {
                domain_at.insert(domain.key.clone(), (g, d));
            }
        }
        let mut rejections: BTreeMap<&Target, Vec<&RejectedRequest>> = BTreeMap::new();
        for rejection in view.rejections() {
            rejections
                .entry(&rejection.target)
                .or_default()
                .push(rejection);
        }
        let order = view.order().filter(|o| o.owned);
        let orders = order.into_iter().flat_map(|o| &o.content.domains);
        Self {
            view,
            now,
            gangs,
            gang_at,
            domain_at,
            orders: orders.map(|o| (o.key.as_str(), o)).collect(),
            rejections,
            wake,
            pods,
            strays,
            reports: reports_by_pod(view),
            arrivals: Arrivals::new(view),
            training: training_containers(view.spec()),
            lost,
            stuck,
            agents,
            nodes_with_signals: nodes_with_signals(view),
            last_reported: OnceCell::new(),
        }
    }

    pub fn spec(&self) -> &'a TrainingWorkloadSpec {
        self.view.spec()
    }

    pub fn due(&self, at: DateTime<Utc>) -> Due {
        Due::of(at, self.now)
    }

    /// Last step and last checkpoint that agents report of any member.
    pub fn last_reported(&self) -> (Option<i64>, Option<i64>) {
        *self.last_reported.get_or_init(|| {
            let reports = self.pods().filter_map(|p| self.progress_of(p));
            reports.fold((None, None), |(step, saved), p| {
                (step.max(Some(p.step)), saved.max(p.checkpoint_step))
            })
        })
    }

    /// All pods; pods without a member come last.
    pub fn pods(&self) -> impl Iterator<Item = &'a PodView> {
        self.pods.iter().chain(self.strays.iter().copied())
    }

    /// True if pods without a member remain. They are being deleted, and can occupy names of pods
    /// to create.
    pub fn has_strays(&self) -> bool {
        !self.strays.is_empty()
    }

    /// Oldest first.
    pub fn pods_of(&self, member: &Member) -> &[&'a PodView] {
        self.pods.of(member)
    }

    /// The last pod of a member without pods, if it was disrupted before its deletion.
    pub fn disrupted(&self, member: &Member) -> Option<&'a PodView> {
        self.view.disrupted().get(member).map(|pod| &**pod)
    }

    /// The newest pod of a member that is not being replaced. Before all members have run, a
    /// terminating pod counts as replaced too, because its deletion interrupts no work. An unbound
    /// one always does.
    pub fn current(&self, domain: &DomainLedger, member: &Member) -> Option<&'a PodView> {
        for pod in self.pods_of(member).iter().rev() {
            let replaced = if domain.is_restarting() {
                domain.replaces_pod(pod)
            } else {
                domain.healthy_since.is_none() && pod.terminating()
            };
            if !replaced && !pod.never_runs() {
                return Some(pod);
            }
        }
        None
    }

    pub fn current_pods<'f>(
        &'f self,
        ledger: &'f Ledger,
        gang: &'f Gang,
    ) -> impl Iterator<Item = (&'f Member, Option<&'a PodView>)> {
        gang.domains.iter().flat_map(move |domain| {
            let entry = ledger.domain(&domain.key);
            let members = domain.members.iter();
            members.map(move |m| (m, entry.and_then(|e| self.current(e, m))))
        })
    }

    pub fn gang(&self, key: &GangKey) -> Option<&Gang> {
        self.gangs.get(*self.gang_at.get(key)?)
    }

    pub fn gang_of(&self, domain: &DomainKey) -> Option<&Gang> {
        self.gangs.get(self.domain_at.get(domain)?.0)
    }

    pub fn order(&self, domain: &DomainKey) -> Option<&'a DomainOrder> {
        self.orders.get(domain.as_str()).copied()
    }

    pub fn is_ordered(&self, domain: &DomainKey, attempt: i64) -> bool {
        self.order(domain).is_some_and(|o| o.attempt >= attempt)
    }

    pub fn is_released(&self, domain: &DomainKey, attempt: i64) -> bool {
        self.order(domain)
            .is_some_and(|o| o.released_attempt >= attempt)
    }

    pub fn is_barrier_open(&self, domain: &DomainKey, attempt: i64) -> bool {
        let order = self.order(domain);
        order.is_some_and(|o| o.released_attempt == attempt && !o.peers.is_empty())
    }

    /// True if the attempt was released at a barrier and all pods of the domain are supervised.
    pub fn is_past_barrier(&self, domain: &DomainKey, attempt: i64) -> bool {
        let members = self.domain(domain).map_or(&[][..], |d| &d.members);
        let mut pods = members.iter().flat_map(|m| self.pods_of(m));
        self.is_barrier_open(domain, attempt) && pods.all(|p| p.is_supervised())
    }

    /// True if a pod is ready and, if supervised, the ordered attempt is released. Without a
    /// readiness probe, the kubelet reports ready as soon as the supervisor runs.
    pub fn is_ready(&self, domain: &DomainKey, pod: &PodView) -> bool {
        let begun = |o: &DomainOrder| o.released_attempt >= o.attempt.max(pod.identity.attempt);
        pod.ready() && (!pod.is_supervised() || self.order(domain).is_some_and(begun))
    }

    pub fn rejections(&self, target: &Target) -> &[&'a RejectedRequest] {
        self.rejections.get(target).map_or(&[], Vec::as_slice)
    }

    pub fn domain(&self, key: &DomainKey) -> Option<&Domain> {
        let (gang, at) = *self.domain_at.get(key)?;
        self.gangs.get(gang)?.domains.get(at)
    }

    pub fn gang_view(&self, key: &GangKey) -> Option<&'a GangView> {
        self.view.gangs().get(key)
    }

    /// Includes released placements.
    pub fn any_placement(&self, key: &GangKey) -> Option<&'a PlacementView> {
        self.gang_view(key)?.placement.as_ref()
    }

    pub fn placement_state(&self, key: &GangKey, gang: &GangLedger) -> PlacementState<'a> {
        match self.any_placement(key) {
            None => PlacementState::Unplaced,
            Some(p) if gang.released.as_ref() == Some(&p.id) => PlacementState::Released,
            Some(p) => PlacementState::Placed(p),
        }
    }

    pub fn placement(&self, ledger: &Ledger, key: &GangKey) -> Option<&'a PlacementView> {
        match self.placement_state(key, ledger.gang(key)?) {
            PlacementState::Placed(placement) => Some(placement),
            PlacementState::Unplaced | PlacementState::Released => None,
        }
    }

    /// Includes released placements.
    pub fn assigned_nodes(&self, key: &GangKey) -> &'a Assignments {
        self.any_placement(key).map_or(&NO_NODES, |p| &p.nodes)
    }

    pub fn preemptor(&self, key: &GangKey) -> Option<&'a str> {
        let gang = self.gang_view(key)?;
        gang.placement.as_ref()?;
        gang.preempted_by.as_deref()
    }
}
