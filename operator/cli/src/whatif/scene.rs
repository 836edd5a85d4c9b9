//! A snapshot as the engine's problem.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockstep_api::member::{Member, MemberSet};
use lockstep_engine::{Cluster, Names, NodeIx, PreemptionPolicy};
use lockstep_model::snapshot::{BudgetRecord, GangRecord, Standing};
use lockstep_model::units::UnitsBuilder;
use lockstep_model::{
    Budget, Cohort, CostModel, GangUnit, Pod, Request, Resources, Running, Snapshot, SnapshotFile, Source, UnitTable,
};

use super::answer::{OnNode, Victim};

/// A snapshot as the engine's problem.
pub(super) struct Scene<'a> {
    file: &'a SnapshotFile,
    costs: &'a CostModel,
    budgets: Vec<Budget>,
    /// Nodes and pods.
    pub cluster: Snapshot,
    /// What is free: pods count where they hold room, seats where their pods do not exist yet.
    pub room: Cluster,
    /// UIDs of pods and pod groups that are about to leave because somebody takes their room.
    pub leaving: BTreeSet<String>,
}

impl<'a> Scene<'a> {
    /// The scene of a snapshot in which these topology keys matter beside those of its gangs.
    pub fn new<'k>(file: &'a SnapshotFile, keys: impl IntoIterator<Item = &'k str>, costs: &'a CostModel) -> Self {
        let cluster = file.model(keys.into_iter().collect::<Vec<_>>()).snapshot();
        let room = cluster.room().clone();
        let intents = file.gangs.iter().filter(|g| g.standing == Standing::Active);
        let leaving = intents.flat_map(|g| g.victims.iter().cloned()).collect();
        let budgets = file.budgets.iter().map(BudgetRecord::to_budget).collect();
        let mut scene = Self { file, costs, budgets, cluster, room, leaving };
        for gang in &file.gangs {
            for seat in scene.holds(gang).into_iter().filter(|held| held.pod.is_none()) {
                scene.room.add_pod(seat.node, &scene.cluster.dims().amounts(&seat.requests));
            }
        }
        scene
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

    /// The room as a gang of this priority sees it: what kube-scheduler nominated for less important pods does not bind it.
    pub fn room_for(&self, priority: i32) -> Cluster {
        let mut room = self.room.clone();
        for (node, pod) in self.pods() {
            if pod.bound.is_none() && pod.pinned.is_none() && pod.priority < priority {
                room.remove_pod(node, &self.cluster.dims().amounts(&pod.requests));
            }
        }
        room
    }

    /// Gives back what is leaving: pods that are ending, gangs that give their room back, victims.
    pub fn let_leave(&self, room: &mut Cluster) {
        let leaves = |g: &&GangRecord| g.standing == Standing::Leaving || self.leaving.contains(&g.uid);
        let mut counted: BTreeSet<String> = BTreeSet::new();
        for held in self.file.gangs.iter().filter(leaves).flat_map(|g| self.holds(g)) {
            room.remove_pod(held.node, &self.cluster.dims().amounts(&held.requests));
            counted.extend(held.pod.map(|p| p.uid.clone()));
        }
        for (node, pod) in self.pods().filter(|(_, p)| !counted.contains(&p.uid)) {
            if self.leaving.contains(&pod.uid) || pod.terminating.is_some() {
                room.remove_pod(node, &self.cluster.dims().amounts(&pod.requests));
            }
        }
    }

    /// Everything that may be evicted for a gang of this priority.
    pub fn units(&self, priority: i32) -> UnitTable {
        let mut builder = UnitsBuilder::new(&self.cluster, &self.budgets, self.file.taken_at);
        let stays = |g: &GangRecord| g.standing != Standing::Leaving && !self.leaving.contains(&g.uid);
        let gangs = self.file.gangs.iter().enumerate().filter(|(_, g)| g.priority < priority && stays(g));
        let (whole, single): (Vec<_>, Vec<_>) = gangs.partition(|(_, g)| g.whole);
        for unit in whole.into_iter().map(|(number, gang)| self.unit(number, gang)).filter(|u| !u.holds.is_empty()) {
            builder.add_gang(&unit);
        }
        for (_, gang) in single {
            let running: Vec<&Arc<Pod>> = self.pods_of(gang).filter(|p| self.evictable(p)).collect();
            // Members of a gang restart together, whichever is evicted; pods of a basic group are on their own.
            let loss = running.iter().map(|p| self.loss(gang, p)).fold(0, u64::saturating_add);
            let cascade = (!gang.basic).then(|| builder.cascade(loss));
            for pod in running {
                builder.add_pod(pod, gang.priority, self.loss(gang, pod), cascade);
            }
        }
        let managed: BTreeSet<&str> = self.file.gangs.iter().map(|g| g.workload_uid.as_str()).collect();
        for (_, pod) in self.pods() {
            let foreign = pod.owner.as_deref().is_none_or(|o| !managed.contains(o));
            if foreign && pod.priority < priority && self.evictable(pod) {
                builder.add_pod(pod, pod.priority, self.costs.loss_of_pod(pod, self.file.taken_at), None);
            }
        }
        builder.build()
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

    fn unit(&self, number: usize, gang: &GangRecord) -> GangUnit {
        let seats = gang.seats();
        let seated = |p: &Pod| p.member.as_ref().and_then(|m| seats.get(m).copied()) == p.holds();
        let mut holds = self.holds(gang);
        // A pod that waits for a seat that it no longer has goes anyway.
        holds.retain(|h| h.pod.as_ref().is_none_or(|p| p.bound.is_some() || seated(p)));
        let losses = holds.iter().filter_map(|h| Some(self.loss(gang, h.pod.as_ref()?)));
        let cost = losses.fold(0, u64::saturating_add);
        GangUnit { number, priority: gang.priority, preempts: gang.preempts, holds, cost }
    }

    /// What a gang holds: its pods where they take room, and its seats without pods unless it gives them back.
    fn holds(&self, gang: &GangRecord) -> Vec<Running> {
        let mut taken: BTreeSet<(&Member, &str)> = BTreeSet::new();
        let mut out = Vec::new();
        for pod in self.pods_of(gang) {
            let Some(name) = pod.holds() else { continue };
            taken.extend(pod.member.as_ref().map(|m| (m, name)));
            if let Some(node) = self.cluster.ordinal(name) {
                out.push(Running { node, requests: Arc::clone(&pod.requests), pod: Some(Arc::clone(pod)) });
            }
        }
        if gang.keeps_seats() && !gang.seats.is_empty() {
            let requests = self.requests(gang);
            for (member, name) in gang.seats() {
                let place = self.cluster.ordinal(name).zip(requests.get(&member));
                if let Some((node, requests)) = place.filter(|_| !taken.contains(&(&member, name))) {
                    out.push(Running { node, requests: Arc::clone(requests), pod: None });
                }
            }
        }
        out
    }

    fn requests(&self, gang: &GangRecord) -> BTreeMap<Member, Arc<Resources>> {
        let cohorts = gang.cohorts.iter().map(|c| c.to_cohort(self.file, &self.cluster));
        cohorts.flat_map(|c| c.members.into_iter().map(move |m| (m, Arc::clone(&c.requests)))).collect()
    }

    fn loss(&self, gang: &GangRecord, pod: &Pod) -> u64 {
        self.costs.loss_of_member(pod, gang.last_checkpoint, gang.resumed, self.file.taken_at)
    }

    fn evictable(&self, pod: &Pod) -> bool {
        pod.bound.is_some() && pod.alive() && !pod.protected && !self.leaving.contains(&pod.uid)
    }

    fn pods(&self) -> impl Iterator<Item = (NodeIx, &Arc<Pod>)> {
        (0..self.cluster.node_count()).flat_map(|node| self.cluster.pods_on(node).map(move |pod| (node, pod)))
    }

    fn pods_of(&self, gang: &GangRecord) -> impl Iterator<Item = &Arc<Pod>> {
        let ours = |p: &&Arc<Pod>| p.pod_group.as_ref() == Some(&gang.name) && p.namespace == gang.namespace;
        self.cluster.pods_of(&gang.workload_uid).iter().filter(ours).collect::<Vec<_>>().into_iter()
    }
}
