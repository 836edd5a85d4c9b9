//! The working state of one pass.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::member::Member;
use lockstep_engine::{Amounts, Cluster, NodeIx};
use lockstep_model::{Budget, GangUnit, Pod, Resources, Running, Snapshot};

use super::Settings;
use super::case::{Case, Standing};
use super::decide::Step;
use super::memory::Memory;
use super::scene::Scene;

/// The working state of one pass.
pub(super) struct Pass<'a> {
    pub cluster: &'a Snapshot,
    pub budgets: Vec<Budget>,
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
    /// Nodes that kube-scheduler keeps free for pods, with their priority and what they hold.
    pub nominations: Vec<(NodeIx, i32, Amounts)>,
    /// Requests beside status writes.
    pub steps: Vec<Step>,
    /// Pods that kube-scheduler refuses, as seen in this pass.
    pub refused: HashSet<String>,
    wake: Option<DateTime<Utc>>,
}

impl<'a> Pass<'a> {
    /// Looks at everything once; decides nothing.
    pub fn new(scene: &'a Scene, memory: &'a mut Memory, settings: &'a Settings, now: DateTime<Utc>) -> Self {
        let cases = scene.gangs.iter().map(|objects| Case::new(objects, &scene.cluster, memory)).collect();
        let nominated = |node: NodeIx| {
            let pods = scene.cluster.pods_on(node).filter(|p| p.bound.is_none() && p.pinned.is_none());
            pods.map(move |p| (node, p.priority, scene.cluster.dims().amounts(&p.requests)))
        };
        Self {
            nominations: (0..scene.cluster.node_count()).flat_map(nominated).collect(),
            cluster: &scene.cluster,
            budgets: scene.budgets.iter().map(|b| (**b).clone()).collect(),
            settings,
            memory,
            now,
            cases,
            room: scene.cluster.room().clone(),
            targeted: BTreeSet::new(),
            marks: BTreeMap::new(),
            steps: Vec::new(),
            refused: HashSet::new(),
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
        let mut out = self.empty_seats(ix);
        out.extend(self.cases[ix].all_pods().filter_map(|pod| {
            let node = self.cluster.ordinal(pod.holds()?)?;
            Some(Running { node, requests: Arc::clone(&pod.requests), pod: Some(Arc::clone(pod)) })
        }));
        out
    }

    /// Seats whose pods do not take room yet. A gang that is over, or has given its room back, keeps none.
    fn empty_seats(&mut self, ix: usize) -> Vec<Running> {
        let case = &self.cases[ix];
        if case.standing == Standing::Over || case.released() {
            return Vec::new();
        }
        let empty: Vec<(Member, NodeIx)> = case
            .seated_members()
            .filter(|(member, node)| !case.done.contains(*member) && case.pod_at(member, node).is_none())
            .filter_map(|(member, node)| Some((member.clone(), self.cluster.ordinal(node)?)))
            .collect();
        let seat =
            |(member, node): (Member, NodeIx)| Some(Running { node, requests: self.requests(ix, &member)?, pod: None });
        empty.into_iter().filter_map(seat).collect()
    }

    /// A gang as a unit of disruption.
    pub fn unit(&mut self, ix: usize) -> GangUnit {
        let mut holds = self.holds(ix);
        let case = &self.cases[ix];
        // A pod that waits for a seat that it no longer has goes anyway.
        holds.retain(|h| h.pod.as_ref().is_none_or(|p| p.bound.is_some() || case.seated(p)));
        let cost = holds.iter().filter_map(|h| Some(self.loss(case, h.pod.as_ref()?))).fold(0, u64::saturating_add);
        GangUnit { number: ix, priority: case.priority(), preempts: case.preempts(), holds, cost }
    }

    /// Accelerator-seconds lost with one pod of a gang: the work since the gang's last checkpoint, incident or start.
    pub fn loss(&self, case: &Case, pod: &Pod) -> u64 {
        let annotations = case.workload.metadata.annotations.as_ref();
        let checkpoint = annotations
            .and_then(|a| a.get(lockstep_api::names::annotations::LAST_CHECKPOINT))
            .and_then(|text| lockstep_model::pod::checkpoint(text));
        self.settings.costs.loss_of_member(pod, checkpoint, case.resumed(), self.now)
    }

    /// Whether somebody on the node is about to end, so that its room is not what it will be.
    pub fn ending_on(&mut self, node: NodeIx) -> bool {
        let ends: Vec<DateTime<Utc>> = self.cluster.pods_on(node).filter_map(|p| p.terminating).collect();
        ends.into_iter().any(|end| !self.due(end, self.settings.overdue))
    }

    /// What takes room and is leaving: pods that are ending, and all that is held by gangs that are over, have given their
    /// room back or are being preempted, and by victims of intents in force.
    pub fn leaving(&mut self) -> Vec<(NodeIx, Amounts)> {
        let mut out = Vec::new();
        let mut counted: HashSet<String> = HashSet::new();
        for ix in 0..self.cases.len() {
            let case = &self.cases[ix];
            let leaves = case.standing == Standing::Over
                || case.released()
                || case.disrupted()
                || self.targeted.contains(&case.uid);
            if leaves {
                for held in self.holds(ix) {
                    out.push((held.node, self.amounts(&held.requests)));
                    counted.extend(held.pod.map(|p| p.uid.clone()));
                }
            }
        }
        let mut ending = Vec::new();
        for node in 0..self.cluster.node_count() {
            for pod in self.cluster.pods_on(node).filter(|p| !counted.contains(&p.uid)) {
                if self.targeted.contains(&pod.uid) {
                    out.push((node, self.amounts(&pod.requests)));
                } else if let Some(end) = pod.terminating {
                    ending.push((node, end, self.amounts(&pod.requests)));
                }
            }
        }
        for (node, end, amounts) in ending {
            // A pod that outlives its grace period holds its node for nobody knows how long.
            if !self.due(end, self.settings.overdue) {
                out.push((node, amounts));
            }
        }
        out
    }

    /// One amount per dimension.
    pub fn amounts(&self, requests: &Resources) -> Amounts {
        self.cluster.dims().amounts(requests)
    }
}
