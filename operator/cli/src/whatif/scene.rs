//! A snapshot as the engine's problem.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use lockstep_api::member::{Member, MemberSet};
use lockstep_engine::{Amounts, Cluster, Names, NodeIx, PreemptionPolicy};
use lockstep_model::occupancy::{Disruption, Nomination, empty_seats, ignore_lesser, nominations};
use lockstep_model::snapshot::{GangRecord, Standing};
use lockstep_model::{
    Budget, Cohort, Occupancy, Pod, Request, Resources, Rules, Running, Snapshot, SnapshotFile, Source, Tenant,
    UnitTable,
};

use super::answer::{OnNode, Victim};

/// A snapshot as the engine's problem.
pub(super) struct Scene<'a> {
    file: &'a SnapshotFile,
    rules: &'a Rules,
    budgets: Vec<Arc<Budget>>,
    nominations: Vec<Nomination>,
    /// Seats of each gang whose pods do not take room yet.
    empty: Vec<Vec<Running>>,
    /// Nodes and pods.
    pub cluster: Snapshot,
    /// What is free: pods count where they hold room, seats where their pods do not exist yet.
    pub room: Cluster,
    /// UIDs of pods and pod groups that are about to leave because somebody takes their room.
    pub leaving: BTreeSet<String>,
}

impl<'a> Scene<'a> {
    /// The scene of a snapshot in which these topology keys matter beside those of its gangs.
    pub fn new<'k>(file: &'a SnapshotFile, keys: impl IntoIterator<Item = &'k str>, rules: &'a Rules) -> Self {
        let cluster = file.model(keys.into_iter().collect::<Vec<_>>()).snapshot();
        let mut room = cluster.room().clone();
        let empty: Vec<Vec<Running>> = file.gangs.iter().map(|gang| empty_seats_of(file, &cluster, gang)).collect();
        for seat in empty.iter().flatten() {
            room.add_pod(seat.node, &cluster.dims().amounts(&seat.requests));
        }
        let intents = file.gangs.iter().filter(|g| g.standing == Standing::Active);
        Self {
            leaving: intents.flat_map(|g| g.victims.iter().cloned()).collect(),
            budgets: file.budgets.iter().map(|b| Arc::new(b.to_budget())).collect(),
            nominations: nominations(&cluster),
            file,
            rules,
            empty,
            cluster,
            room,
        }
    }

    /// What a gang asks for.
    pub fn request(&self, gang: &GangRecord) -> Request {
        let cohorts: Vec<Cohort> = gang.cohorts.iter().map(|c| c.to_cohort(self.file, &self.cluster)).collect();
        let node = |name: &str| self.cluster.ordinal(name);
        Request {
            min_count: gang.min_count,
            cohorts,
            priority: gang.priority,
            preemption: if gang.preempts { PreemptionPolicy::LowerPriority } else { PreemptionPolicy::Never },
            topology: gang.topology.clone(),
            fixed: gang.seats().into_iter().filter_map(|(member, at)| Some((member, node(at)?))).collect(),
            excluded: gang.avoid.iter().filter_map(|name| node(name)).collect(),
        }
    }

    /// Gangs without room whose turn comes before that of a gang that asks now, in the order of the queue.
    pub fn waiting_before(&self, asked: &GangRecord) -> Vec<&'a GangRecord> {
        let same = |g: &GangRecord| (&g.namespace, &g.workload) == (&asked.namespace, &asked.workload);
        let waits = |g: &GangRecord| g.standing == Standing::Active && g.seats.is_empty() && g.victims.is_empty();
        let ahead = |g: &&GangRecord| waits(g) && !same(g) && g.priority >= asked.priority;
        let mut queue: Vec<&GangRecord> = self.file.gangs.iter().filter(ahead).collect();
        queue.sort_by_key(|g| (Reverse(g.priority), g.queued_at, &g.uid));
        queue
    }

    /// The room as a gang of this priority sees it.
    pub fn room_for(&self, priority: i32) -> Cluster {
        let mut room = self.room.clone();
        ignore_lesser(&mut room, &self.nominations, priority);
        room
    }

    /// What is about to become free.
    pub fn leaving(&self) -> Vec<(NodeIx, Amounts)> {
        self.occupancy().leaving().held
    }

    /// Everything that may be evicted for a gang of this priority.
    pub fn units(&self, priority: i32) -> UnitTable {
        self.occupancy().units(None, priority)
    }

    fn occupancy(&self) -> Occupancy<'_> {
        Occupancy {
            cluster: &self.cluster,
            budgets: &self.budgets,
            rules: self.rules,
            now: self.file.taken_at,
            targeted: &self.leaving,
            tenants: self.file.gangs.iter().zip(&self.empty).map(|(gang, empty)| self.tenant(gang, empty)).collect(),
        }
    }

    fn tenant<'s>(&'s self, gang: &'s GangRecord, empty: &[Running]) -> Tenant<'s> {
        let seats = gang.seats();
        let seated = |p: &Pod| p.member.as_ref().and_then(|m| seats.get(m).copied()) == p.holds();
        let pods: Vec<&Arc<Pod>> = pods_of(&self.cluster, gang).collect();
        let stray = pods.iter().filter(|p| p.bound.is_none() && !seated(p)).map(|p| p.uid.as_str()).collect();
        let one = match gang.cohorts.as_slice() {
            [cohort] => Some(cohort.to_cohort(self.file, &self.cluster).eligible),
            _ => None,
        };
        Tenant {
            uid: &gang.uid,
            workload_uid: &gang.workload_uid,
            priority: gang.priority,
            preemption_priority: gang.preemption_priority,
            preempts: gang.preempts,
            disruption: Disruption::of(gang.whole, gang.basic),
            leaves: gang.standing == Standing::Leaving,
            checkpoint: gang.last_checkpoint,
            resumed: gang.resumed,
            pods,
            stray,
            empty: empty.to_vec(),
            eligible: one,
        }
    }

    /// A unit of [`Scene::units`], for people.
    pub fn victim(&self, table: &UnitTable, unit: usize, nodes: &[NodeIx]) -> Option<Victim> {
        let (source, of) = (table.sources.get(unit)?, table.units.units.get(unit)?);
        let (kind, namespace, name, uid) = match source {
            Source::Gang(number) => {
                let gang = self.file.gangs.get(*number)?;
                ("podgroup", &gang.namespace, &gang.name, &gang.uid)
            }
            Source::Pod(pod) => ("pod", &pod.namespace, &pod.name, &pod.uid),
        };
        Some(Victim {
            kind,
            namespace: namespace.clone(),
            name: name.clone(),
            uid: uid.clone(),
            priority: of.priority,
            pods: of.pod_count(),
            lost: of.cost,
            nodes: nodes.iter().map(|&n| self.cluster.node_name(n).to_owned()).collect(),
        })
    }

    /// Members by node, in the order of topology domain and name.
    pub fn on_nodes(&self, request: &Request, nodes: &BTreeMap<Member, NodeIx>) -> Vec<OnNode> {
        let key = request.topology.as_ref().and_then(|t| self.cluster.dims().key(&t.key));
        let domain = |node| key.and_then(|k| Some((k, self.cluster.room().domain(node, k)?)));
        let mut by_node: BTreeMap<(Option<String>, &str), MemberSet> = BTreeMap::new();
        for (member, &node) in nodes {
            let domain = domain(node).map(|(k, d)| self.cluster.dims().domain(k, d));
            by_node.entry((domain, self.cluster.node_name(node))).or_default().insert(member.clone());
        }
        let on = |((domain, node), members): ((_, &str), MemberSet)| OnNode {
            node: node.to_owned(),
            domain,
            members: members.to_ranges(),
        };
        by_node.into_iter().map(on).collect()
    }
}

fn pods_of<'s>(cluster: &'s Snapshot, gang: &'s GangRecord) -> impl Iterator<Item = &'s Arc<Pod>> {
    let ours = |p: &&Arc<Pod>| p.pod_group.as_ref() == Some(&gang.name) && p.namespace == gang.namespace;
    cluster.pods_of(&gang.workload_uid).iter().filter(ours)
}

fn empty_seats_of(file: &SnapshotFile, cluster: &Snapshot, gang: &GangRecord) -> Vec<Running> {
    if gang.seats.is_empty() {
        return Vec::new();
    }
    let held = pods_of(cluster, gang).filter_map(|p| Some((p.member.as_ref()?, p.holds()?)));
    let held: HashSet<(&Member, &str)> = held.collect();
    let cohorts = gang.cohorts.iter().map(|c| c.to_cohort(file, cluster));
    let requests: BTreeMap<Member, Arc<Resources>> =
        cohorts.flat_map(|c| c.members.into_iter().map(move |m| (m, Arc::clone(&c.requests)))).collect();
    let seats = gang.seats();
    let taken = |member: &Member, node: &str| held.contains(&(member, node));
    empty_seats(cluster, seats.iter().map(|(m, n)| (m, *n)), taken, |member| requests.get(member).cloned())
}
