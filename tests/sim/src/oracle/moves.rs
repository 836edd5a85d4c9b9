//! A gang moves at most once for a signal of a node, and a checkpoint is requested before each
//! deadline (I18).

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::gangs::{Domain, Gang, gangs};
use lockstep_api::key::Key;
use lockstep_api::workload::{
    CheckpointOccasion, DomainStatus, GangStatus, NodeToLeave, Phase, TrainingWorkloadStatus,
};
use lockstep_api::{NodeHealthMode, PodGroup, TrainingWorkload};
use lockstep_manager::stepped::WatchedKind;

use super::rest::controller;
use crate::SimCluster;
use crate::gangs::assigned;
use crate::signals::{STANDING, deadline};

/// An announcement this long before its deadline leaves time for a request, and so long before it
/// nothing may hinder the manager or the gang.
const IN_TIME: TimeDelta = TimeDelta::minutes(5);
/// Longest time between two turns that is no pause.
const TURN: TimeDelta = TimeDelta::seconds(10);

/// UID of the workload, and key of the gang.
type OfGang = (String, String);
/// Name of the node, and name of its signal.
type OfNode = (String, String);

/// An announced maintenance, as the manager has received it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Announced {
    deadline: DateTime<Utc>,
    received_at: DateTime<Utc>,
}

#[derive(Default)]
pub(super) struct Moves {
    /// Signals of each gang's moves that have begun, while they stand.
    begun: BTreeSet<(OfGang, OfNode)>,
    /// Announcements by node.
    announced: BTreeMap<String, Announced>,
    /// Since when all members of a gang run on the same nodes.
    running: BTreeMap<OfGang, DateTime<Utc>>,
    /// The last request to each restart domain.
    requested: BTreeMap<OfGang, DateTime<Utc>>,
    /// When the manager was last hindered.
    hindered_at: DateTime<Utc>,
    looked_at: DateTime<Utc>,
    /// Number of deadlines for which a request was due.
    deadlines: usize,
    /// Number of begun moves.
    count: usize,
}

impl Moves {
    /// Checks a new status of a workload: each begun move is the first for its signals.
    pub fn begins(
        &mut self,
        before: &TrainingWorkloadStatus,
        workload: &TrainingWorkload,
        at: DateTime<Utc>,
    ) -> Vec<String> {
        let uid = workload.metadata.uid.clone().unwrap_or_default();
        let after = workload.status.clone().unwrap_or_default();
        self.follow(&uid, before, workload, at);
        let of_gang = |key: &str| before.gangs.iter().find(|g| g.key == *key);
        let mut broken = Vec::new();
        for gang in &after.gangs {
            let old = of_gang(&gang.key).and_then(begun);
            let Some((id, nodes)) = begun(gang).filter(|new| old.map(|o| o.0) != Some(new.0))
            else {
                continue;
            };
            self.count += 1;
            for left in nodes {
                let of_gang = (uid.clone(), gang.key.clone());
                let of_node = (left.node.clone(), left.signal.clone());
                if !self.begun.insert((of_gang, of_node)) {
                    let (key, NodeToLeave { node, signal, .. }) = (&gang.key, left);
                    broken.push(format!(
                        "move {id} of gang {key} is a second one for signal {signal} of {node}"
                    ));
                }
            }
        }
        broken
    }

    /// Notes requests, and since when gangs run.
    fn follow(
        &mut self,
        uid: &str,
        before: &TrainingWorkloadStatus,
        workload: &TrainingWorkload,
        at: DateTime<Utc>,
    ) {
        let after = workload.status.clone().unwrap_or_default();
        let of = |status: &TrainingWorkloadStatus, key: &str| {
            let domain = status.domains.iter().find(|d| d.key == *key);
            let request = domain.and_then(|d| d.checkpoint_request.as_ref());
            request.map(|r| (r.id.clone(), r.requested_at))
        };
        for domain in &after.domains {
            let new = of(&after, &domain.key);
            if new.is_some() && new != of(before, &domain.key) {
                let of_domain = (uid.to_owned(), domain.key.clone());
                self.requested.insert(of_domain, at);
            }
        }
        let runs = after.phase == Some(Phase::Running) && !workload.spec.suspend;
        let healthy = |domain: &Domain| {
            let mut all = after.domains.iter();
            let status = all.find(|d| d.key == *domain.key.as_str());
            status.is_some_and(is_healthy)
        };
        for gang in gangs(&workload.spec) {
            let of_gang = (uid.to_owned(), gang.key.as_str().to_owned());
            if runs && gang.domains.iter().all(healthy) {
                self.running.entry(of_gang).or_insert(at);
            } else {
                self.running.remove(&of_gang);
            }
        }
    }

    /// Notes a new placement, and that a gang is preempted.
    pub fn places(&mut self, old: Option<&PodGroup>, new: &PodGroup) {
        let placed = |g: &PodGroup| {
            let status = g.status.as_ref();
            status.map(|s| {
                (
                    assigned(s),
                    s.preemption.is_some(),
                    s.checkpoint_request.is_some(),
                )
            })
        };
        if old.and_then(placed) != placed(new)
            && let Some(uid) = controller(new)
        {
            let of_gang = (uid.to_owned(), new.spec.gang_key.clone());
            self.running.remove(&of_gang);
        }
    }

    /// Number of begun moves, and of deadlines with requests.
    pub fn counts(&self) -> [(&'static str, usize); 2] {
        [("moves", self.count), ("deadlines", self.deadlines)]
    }

    /// Follows what the manager has received, and checks the deadlines that have passed.
    pub fn look(
        &mut self,
        cluster: &mut SimCluster,
        groups: &BTreeMap<String, PodGroup>,
        workloads: &BTreeMap<String, TrainingWorkload>,
    ) -> Vec<String> {
        let now = cluster.now();
        let acts = cluster.node_health() == NodeHealthMode::Act;
        if now - self.looked_at > TURN || !acts || !is_unhindered(cluster) {
            self.hindered_at = now;
        }
        self.looked_at = now;
        let passed: Vec<(String, Announced)> = self
            .announced
            .iter()
            .filter(|(_, a)| a.deadline <= now)
            .map(|(node, a)| (node.clone(), *a))
            .collect();
        let mut broken = Vec::new();
        for (node, announced) in passed {
            self.announced.remove(&node);
            let in_time = announced.received_at.max(self.hindered_at) + IN_TIME;
            if in_time > announced.deadline {
                continue;
            }
            for group in groups.values() {
                broken.extend(self.missed(&node, announced, group, workloads));
            }
        }
        self.receive(cluster);
        broken
    }

    /// A request that a gang has not got before a deadline.
    fn missed(
        &mut self,
        node: &str,
        announced: Announced,
        group: &PodGroup,
        workloads: &BTreeMap<String, TrainingWorkload>,
    ) -> Option<String> {
        let uid = controller(group)?;
        let workload = workloads.get(uid)?;
        let policy = &workload.spec.checkpoint.as_ref()?.on_request;
        let asks = policy.occasions.contains(&CheckpointOccasion::NodeLeaving);
        let of_gang = (uid.to_owned(), group.spec.gang_key.clone());
        let since = self.running.get(&of_gang).filter(|_| asks)?;
        if *since + IN_TIME > announced.deadline {
            return None;
        }
        let assigned = assigned(group.status.as_ref()?);
        let done = workload.spec.completed(workload.status.as_ref()?);
        let gang: Gang = gangs(&workload.spec)
            .into_iter()
            .find(|g| g.key == *group.spec.gang_key)?;
        let here = |domain: &&Domain| {
            let mut members = domain.members.iter().filter(|m| !done.contains(*m));
            members.any(|m| assigned.get(m).is_some_and(|at| at == node))
        };
        let domains: Vec<&Domain> = gang.domains.iter().filter(here).collect();
        self.deadlines += usize::from(!domains.is_empty());
        let is_requested = |domain: &&Domain| {
            let of_domain = (uid.to_owned(), domain.key.as_str().to_owned());
            let requested = self.requested.get(&of_domain);
            requested.is_some_and(|at| *at >= announced.received_at)
        };
        let missing = domains.into_iter().find(|d| !is_requested(d))?;
        Some(format!(
            "I18: the deadline {} of {node} has passed without a request to {uid} {}",
            announced.deadline, missing.key
        ))
    }

    /// Reads the signals that the manager has received and that still stand.
    fn receive(&mut self, cluster: &SimCluster) {
        let (now, wall) = (cluster.now(), cluster.manager_now());
        let is_read = cluster.node_health() != NodeHealthMode::Off;
        let store = cluster.store();
        let received = |node: &str| store.watches.told(WatchedKind::Node, &Key::new("", node));
        let stands = |node: &str, signal: &str| {
            let object = received(node)?;
            let found = STANDING.iter().find(|(name, _)| *name == signal)?;
            let over = signal == "GKEScheduledMaintenance"
                && deadline(object).is_some_and(|at| at <= wall);
            Some((found.1)(object) && !over)
        };
        self.begun
            .retain(|(_, (node, signal))| is_read && stands(node, signal).unwrap_or(true));
        for node in cluster.node_names() {
            let new = received(&node).and_then(|object| deadline(object));
            match new.filter(|at| *at > now && is_read) {
                Some(at) if self.announced.get(&node).is_none_or(|a| a.deadline != at) => {
                    let announced = Announced {
                        deadline: at,
                        received_at: now,
                    };
                    self.announced.insert(node, announced);
                }
                Some(_) => {}
                None => drop(self.announced.remove(&node)),
            }
        }
    }
}

/// Id and nodes of the gang's move, if its members were stopped for it.
fn begun(gang: &GangStatus) -> Option<(&str, &[NodeToLeave])> {
    let moving = gang.moving.as_ref().filter(|m| m.began_at.is_some())?;
    Some((&moving.id, &moving.nodes))
}

fn is_healthy(domain: &DomainStatus) -> bool {
    domain.healthy_since.is_some() && !domain.is_restarting()
}

/// True if the manager receives all changes, and the API server accepts its writes.
fn is_unhindered(cluster: &SimCluster) -> bool {
    let store = cluster.store();
    cluster.is_manager_well() && store.admission.rules.is_empty() && store.watches.are_prompt()
}
