//! The working state of one pass.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::member::Member;
use lockstep_engine::{Amounts, Cluster, NodeIx, NodeSet};
use lockstep_model::gang::Standing;
use lockstep_model::occupancy::{Disruption, Leaving, Nomination, empty_seats, ignore_lesser, nominations};
use lockstep_model::{Budget, Occupancy, Pod, Resources, Running, Snapshot, Tenant};

use super::Settings;
use super::case::Case;
use super::decide::Step;
use super::memory::Memory;
use super::scene::Scene;

/// The working state of one pass.
pub(super) struct Pass<'a> {
    pub cluster: &'a Snapshot,
    pub budgets: &'a [Arc<Budget>],
    pub settings: &'a Settings,
    pub memory: &'a mut Memory,
    pub now: DateTime<Utc>,
    /// All gangs, in the order of their keys.
    pub cases: Vec<Case>,
    /// What is free: pods count where they hold room, seats where their pods do not exist yet.
    pub room: Cluster,
    /// Pods and pod groups (by UID) that an intent in force names as victims.
    pub targeted: BTreeSet<String>,
    /// Pod groups (by UID) to be told that they are preempted, and the words.
    pub marks: BTreeMap<String, String>,
    /// Room that kube-scheduler keeps for pods; looked up when somebody asks for room.
    nominations: Option<Vec<Nomination>>,
    /// Requests beside status writes.
    pub steps: Vec<Step>,
    /// Pods that kube-scheduler refuses, as seen in this pass.
    pub refused: HashSet<String>,
    /// Gangs that ask for room.
    pub asking: usize,
    /// Searches for victims that were made.
    pub searches: usize,
    wake: Option<DateTime<Utc>>,
}

impl<'a> Pass<'a> {
    /// Looks at everything once; decides nothing.
    pub fn new(scene: &'a Scene, memory: &'a mut Memory, settings: &'a Settings, now: DateTime<Utc>) -> Self {
        let cases = scene.gangs.iter().map(|objects| Case::new(objects, &scene.cluster, memory)).collect();
        Self {
            nominations: None,
            cluster: &scene.cluster,
            budgets: &scene.budgets,
            settings,
            memory,
            now,
            cases,
            room: scene.cluster.room().clone(),
            targeted: BTreeSet::new(),
            marks: BTreeMap::new(),
            steps: Vec::new(),
            refused: HashSet::new(),
            asking: 0,
            searches: 0,
            wake: None,
        }
    }

    /// Asks for another pass at that time at the latest.
    pub fn wake_at(&mut self, at: DateTime<Utc>) {
        self.wake = Some(self.wake.map_or(at, |w| w.min(at)));
    }

    /// Whether a moment has come; if not, there is another pass then.
    pub fn due(&mut self, since: DateTime<Utc>, wait: Duration) -> bool {
        let at = since + TimeDelta::from_std(wait).unwrap_or(TimeDelta::MAX);
        if self.now >= at {
            return true;
        }
        self.wake_at(at);
        false
    }

    /// Time until the next pass that was asked for.
    pub fn wake_after(&self) -> Option<Duration> {
        self.wake.map(|at| (at - self.now).to_std().unwrap_or_default())
    }

    /// Number of the case of a pod group.
    pub fn case_of(&self, group_uid: &str) -> Option<usize> {
        self.cases.iter().position(|c| c.uid == group_uid)
    }

    /// Number of the case that a pod belongs to.
    pub fn case_of_pod(&self, pod: &Pod) -> Option<usize> {
        self.cases.iter().position(|c| c.all_pods().any(|p| p.uid == pod.uid))
    }

    /// What one pod of a member's group holds; `None` when the template cannot be read.
    pub fn requests(&mut self, ix: usize, member: &Member) -> Option<Arc<Resources>> {
        let workload = &self.cases[ix].workload;
        let group = workload.spec.groups.iter().find(|g| g.name == member.group)?;
        self.memory.requests(workload, group).ok()
    }

    /// Keeps the room of every seat whose pod does not hold it yet.
    pub fn reserve(&mut self) {
        for ix in 0..self.cases.len() {
            for held in self.empty_seats(ix) {
                self.room.add_pod(held.node, &self.amounts(&held.requests));
            }
        }
    }

    /// What a gang holds: its pods where they take room, and its seats without pods.
    pub fn holds(&mut self, ix: usize) -> Vec<Running> {
        let empty = self.empty_seats(ix);
        self.tenant(ix, empty, None).holds(self.cluster)
    }

    /// Priority of a gang when others want its room.
    pub fn standing(&self, ix: usize) -> i32 {
        self.tenant(ix, Vec::new(), None).standing()
    }

    /// All gangs with what they hold.
    pub fn occupancy(&mut self) -> Occupancy<'_> {
        let follow = self.settings.rules.follow_on_depth > 0;
        let held: Vec<(Vec<Running>, Option<Arc<NodeSet>>)> = (0..self.cases.len())
            .map(|ix| (self.empty_seats(ix), if follow { self.could_run(ix) } else { None }))
            .collect();
        let tenants = held.into_iter().enumerate().map(|(ix, (empty, eligible))| self.tenant(ix, empty, eligible));
        Occupancy {
            cluster: self.cluster,
            budgets: self.budgets,
            rules: &self.settings.rules,
            now: self.now,
            targeted: &self.targeted,
            tenants: tenants.collect(),
        }
    }

    fn tenant(&self, ix: usize, empty: Vec<Running>, eligible: Option<Arc<NodeSet>>) -> Tenant<'_> {
        let case = &self.cases[ix];
        let stray = case.all_pods().filter(|p| p.bound.is_none() && !case.seated(p)).map(|p| p.uid.as_str());
        Tenant {
            uid: &case.uid,
            workload_uid: case.workload.metadata.uid.as_deref().unwrap_or_default(),
            priority: case.priority(),
            preemption_priority: case.preemption_priority,
            preempts: case.preempts(),
            disruption: Disruption::of(case.whole(), case.gang.basic),
            leaves: case.standing == Standing::Over || case.released() || case.disrupted(),
            checkpoint: case.view().checkpoint(),
            resumed: case.resumed(),
            pods: case.all_pods().collect(),
            stray: stray.collect(),
            empty,
            eligible,
        }
    }

    /// Nodes where a gang of one template could run.
    fn could_run(&mut self, ix: usize) -> Option<Arc<NodeSet>> {
        let workload = &self.cases[ix].workload;
        let [group] = workload.spec.groups.as_slice() else { return None };
        Some(self.memory.eligible(workload, group, self.cluster))
    }

    /// Seats whose pods do not take room yet. A gang that is over, or has given its room back, keeps none.
    fn empty_seats(&mut self, ix: usize) -> Vec<Running> {
        let Self { cases, memory, cluster, .. } = self;
        let case = &cases[ix];
        if case.standing == Standing::Over || case.released() {
            return Vec::new();
        }
        let wanted = case.seated_members().filter(|(m, _)| !case.done.contains(*m)).map(|(m, n)| (m, n.as_str()));
        let taken = |member: &Member, node: &str| case.pod_at(member, node).is_some();
        empty_seats(cluster, wanted, taken, |member| {
            let group = case.workload.spec.groups.iter().find(|g| g.name == member.group)?;
            memory.requests(&case.workload, group).ok()
        })
    }

    /// The room as a gang of this priority sees it, its own claims aside.
    pub fn room_above(&mut self, priority: i32) -> Cluster {
        let cluster = self.cluster;
        let mut room = self.room.clone();
        let nominations = self.nominations.get_or_insert_with(|| nominations(cluster));
        ignore_lesser(&mut room, nominations, priority);
        room
    }

    /// Whether somebody on the node is about to end, so that its room is not what it will be.
    pub fn ending_on(&mut self, node: NodeIx) -> bool {
        let ends: Vec<DateTime<Utc>> = self.cluster.pods_on(node).filter_map(|p| p.terminating).collect();
        ends.into_iter().any(|end| !self.due(end, self.settings.rules.overdue))
    }

    /// What takes room and is leaving.
    pub fn leaving(&mut self) -> Vec<(NodeIx, Amounts)> {
        let Leaving { held, until } = self.occupancy().leaving();
        if let Some(until) = until {
            self.wake_at(until);
        }
        held
    }

    /// One amount per dimension.
    pub fn amounts(&self, requests: &Resources) -> Amounts {
        self.cluster.dims().amounts(requests)
    }
}
