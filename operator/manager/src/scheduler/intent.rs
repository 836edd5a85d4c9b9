//! Intents to preempt: validated anew in every pass, then carried out step by step.
//!
//! The status of the preemptor's pod group holds the intent, and everything else is derived from what is there: victims
//! that are gone need nothing, victims that are no victims make the intent void, and nobody is evicted unless the
//! preemptor's pods exist, fit with the victims gone, and do not fit otherwise. So a new leader resumes an intent where the
//! last one left it, and one that somebody forged evicts nobody.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockstep_api::scheduling::{Preemption, Victim};
use lockstep_engine::{Amounts, NodeIx};
use lockstep_model::Pod;
use lockstep_model::gang::Standing;

use super::admit::intent_id;
use super::case::Case;
use super::decide::Step;
use super::messages;
use super::pass::Pass;

/// A victim as it is found.
struct Found {
    victim: Victim,
    state: State,
    /// What it holds.
    holds: Vec<(NodeIx, Amounts)>,
    /// The pod, for a single one.
    pod: Option<Arc<Pod>>,
}

/// How far a victim is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is there and has not been told.
    Here,
    /// It has been told and has not begun to leave.
    Told,
    /// It is on its way out.
    Leaving,
    /// It holds nothing any more, or what it holds now it got later.
    Gone,
}

impl Pass<'_> {
    /// Drops intents that are void on their face.
    pub fn drop_void_intents(&mut self) {
        for ix in 0..self.cases.len() {
            let case = &self.cases[ix];
            let Some(intent) = &case.status.preemption else { continue };
            if case.standing == Standing::Over || case.released() {
                self.cases[ix].status.preemption = None;
            } else if case.standing != Standing::Active || !genuine(case, intent) {
                self.withdraw(ix);
            }
        }
    }

    /// Carries intents on. Runs after room is reserved.
    pub fn pursue_intents(&mut self) {
        let intents: Vec<(usize, Preemption)> =
            self.cases.iter().enumerate().filter_map(|(ix, c)| Some((ix, c.status.preemption.clone()?))).collect();
        let mut valid = Vec::new();
        for (ix, intent) in intents {
            match self.find_victims(ix, &intent) {
                Some(found) => {
                    self.targeted.extend(found.iter().filter(|f| f.state != State::Gone).map(|f| f.victim.uid.clone()));
                    valid.push((ix, intent, found));
                }
                None => self.withdraw(ix),
            }
        }
        for (ix, intent, found) in &valid {
            self.pursue(*ix, intent, found);
        }
        // Who was only going to be told, for an intent that has just been dropped or shortened, stays: to count its room
        // as leaving would make the next intent one victim short, and so on for ever.
        for (ix, _, found) in &valid {
            let intent = self.cases[*ix].status.preemption.as_ref();
            let meant = |f: &Found| intent.is_some_and(|i| i.victims.iter().any(|v| v.uid == f.victim.uid));
            for stays in found.iter().filter(|f| f.state == State::Here && !meant(f)) {
                self.targeted.remove(&stays.victim.uid);
            }
        }
    }

    fn pursue(&mut self, ix: usize, intent: &Preemption, found: &[Found]) {
        let case = &self.cases[ix];
        let open = case.open_seats();
        if open.is_empty() {
            self.cases[ix].status.preemption = None;
            return;
        }
        let pods: Option<Vec<(Arc<Pod>, String)>> =
            open.iter().map(|(m, n)| Some((Arc::clone(case.waiting_pod(m, n)?), n.clone()))).collect();
        // Not all pods are there: the workload is still creating them, or a quota refuses them. Nobody leaves for nothing.
        let Some(pods) = pods else { return };
        let here: Vec<&Found> = found.iter().filter(|f| f.state == State::Here).collect();
        if here.is_empty() {
            // While a victim runs, kube-scheduler would preempt by itself for pods that it sees.
            if found.iter().all(|f| f.state != State::Told) {
                self.nominate(&pods);
            }
            return;
        }
        let nodes: BTreeSet<NodeIx> = open.values().filter_map(|n| self.cluster.ordinal(n)).collect();
        let mut after = self.room_after(&nodes);
        let fits = |after: &BTreeMap<NodeIx, Amounts>| after.values().flatten().all(|&free| free >= 0);
        if !fits(&after) {
            self.withdraw(ix);
            return;
        }
        let begun = found.iter().any(|f| f.state != State::Here);
        if !begun && self.fits_elsewhere(ix) {
            return;
        }
        // The most important first: whoever can stay, stays.
        let mut by_importance = here.clone();
        by_importance.sort_by_key(|f| (Reverse(f.victim.priority), Reverse(f.victim.cost), f.victim.uid.clone()));
        let mut spared: BTreeSet<&str> = BTreeSet::new();
        for candidate in by_importance {
            let mut with = after.clone();
            hold(&mut with, &candidate.holds);
            if fits(&with) {
                after = with;
                spared.insert(&candidate.victim.uid);
            }
        }
        if spared.is_empty() {
            for victim in here {
                self.evict(ix, intent, victim);
            }
        } else {
            let left: Vec<Victim> =
                intent.victims.iter().filter(|v| !spared.contains(v.uid.as_str())).cloned().collect();
            self.reduce(ix, intent.clone(), left);
        }
    }

    /// Writes the intent without victims that can stay; the next pass goes on with it.
    fn reduce(&mut self, ix: usize, mut intent: Preemption, victims: Vec<Victim>) {
        intent.cost = victims.iter().map(|v| v.cost).fold(0, i64::saturating_add);
        intent.explanation = messages::reduced(&victims, intent.cost);
        // What was proven was proven of another question.
        (intent.proven, intent.at_least, intent.next_best) = (false, 0, None);
        intent.victims = victims;
        intent.id = intent_id(&intent);
        self.cases[ix].status.preemption = Some(intent);
    }

    /// Whether the gang has found room without evicting anybody; then it moves there.
    fn fits_elsewhere(&mut self, ix: usize) -> bool {
        let seats = self.cases[ix].seats.clone();
        self.vacate(ix);
        if self.seek_free(ix) {
            self.cases[ix].status.preemption = None;
            return true;
        }
        self.take(ix, seats.map(Arc::unwrap_or_clone).unwrap_or_default());
        false
    }

    /// Finds the victims; `None` when the intent names one that may not be a victim.
    fn find_victims(&mut self, ix: usize, intent: &Preemption) -> Option<Vec<Found>> {
        intent.victims.iter().map(|v| self.find(ix, intent, v)).collect()
    }

    fn find(&mut self, preemptor: usize, intent: &Preemption, victim: &Victim) -> Option<Found> {
        let gone = Found { victim: victim.clone(), state: State::Gone, holds: Vec::new(), pod: None };
        let priority = self.cases[preemptor].priority();
        match victim.kind.as_str() {
            "PodGroup" => {
                let Some(ix) = self.case_of(&victim.uid) else { return Some(gone) };
                let (held, standing) = (self.holds(ix), self.standing(ix));
                let case = &self.cases[ix];
                if ix == preemptor || !case.whole() || standing >= priority {
                    return None;
                }
                let since = case.placement().map(|p| p.decided_at);
                if held.is_empty() || since.is_some_and(|since| since > intent.decided_at) {
                    return Some(gone);
                }
                let told = case.released() || case.standing == Standing::Over || case.disrupted();
                let ending = held.iter().all(|h| h.pod.as_ref().is_some_and(|p| p.terminating.is_some()));
                let state = match (ending, told) {
                    (true, _) => State::Leaving,
                    (false, true) => State::Told,
                    (false, false) => State::Here,
                };
                let holds = held.iter().map(|h| (h.node, self.amounts(&h.requests))).collect();
                Some(Found { state, holds, ..gone })
            }
            "Pod" => {
                let Some((node, pod)) = self.placed_pod(preemptor, &victim.uid) else { return Some(gone) };
                let ours = self.case_of_pod(&pod);
                let standing = ours.map_or(pod.priority, |ix| self.standing(ix));
                if pod.protected || standing >= priority || ours.is_some_and(|ix| self.cases[ix].whole()) {
                    return None;
                }
                let state = if pod.terminating.is_some() { State::Leaving } else { State::Here };
                let holds = vec![(node, self.amounts(&pod.requests))];
                Some(Found { state, holds, pod: Some(pod), ..gone })
            }
            _ => None,
        }
    }

    /// A bound pod on a node of the gang's seats.
    fn placed_pod(&self, ix: usize, uid: &str) -> Option<(NodeIx, Arc<Pod>)> {
        let nodes: BTreeSet<NodeIx> =
            self.cases[ix].seated_members().filter_map(|(_, n)| self.cluster.ordinal(n)).collect();
        nodes.into_iter().find_map(|node| {
            let pod = self.cluster.pods_on(node).find(|p| p.uid == uid && p.bound.is_some())?;
            Some((node, Arc::clone(pod)))
        })
    }

    /// What is free on these nodes once everybody who is leaving has left.
    fn room_after(&mut self, nodes: &BTreeSet<NodeIx>) -> BTreeMap<NodeIx, Amounts> {
        let mut after: BTreeMap<NodeIx, Amounts> =
            nodes.iter().map(|&n| (n, self.room.free(n).iter().copied().collect())).collect();
        for (node, amounts) in self.leaving() {
            if let Some(free) = after.get_mut(&node) {
                for (f, a) in free.iter_mut().zip(amounts) {
                    *f += a;
                }
            }
        }
        after
    }

    fn evict(&mut self, ix: usize, intent: &Preemption, found: &Found) {
        let text = messages::preempted_by(&self.cases[ix], intent, found.victim.cost);
        let Victim { namespace, name, uid, .. } = found.victim.clone();
        let Some(pod) = &found.pod else {
            self.marks.insert(uid, text);
            return;
        };
        self.unseat(pod);
        if !pod.disrupted {
            self.steps.push(Step::MarkPod {
                namespace: namespace.clone(),
                name: name.clone(),
                uid: uid.clone(),
                message: text,
            });
        }
        let attempts = self.memory.evictions.get(&uid).copied();
        if attempts.is_some_and(|(_, last)| !self.due(last, self.settings.retry)) {
            return;
        }
        let first = attempts.map_or(self.now, |(first, _)| first);
        self.memory.evictions.insert(uid.clone(), (first, self.now));
        let by_force = self.settings.delete_after.is_some_and(|wait| self.due(first, wait));
        self.steps.push(Step::Evict { namespace, name, uid, by_force });
    }

    /// A member that is evicted by itself has no seat any more. (A gang that goes whole gives its seats back itself.)
    fn unseat(&mut self, pod: &Pod) {
        if let (Some(ix), Some(member)) = (self.case_of_pod(pod), &pod.member)
            && let Some(seats) = &mut self.cases[ix].seats
        {
            Arc::make_mut(seats).remove(member);
        }
    }

    fn nominate(&mut self, pods: &[(Arc<Pod>, String)]) {
        let missing = pods.iter().filter(|(pod, node)| pod.nominated.as_ref() != Some(node));
        self.steps.extend(missing.map(|(pod, node)| Step::Nominate {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            node: node.clone(),
        }));
    }

    /// Gives up an intent and the seats that it was to make room for.
    fn withdraw(&mut self, ix: usize) {
        self.cases[ix].status.preemption = None;
        self.vacate(ix);
    }
}

/// Whether an intent is this gang's own, unchanged, and for the placement that it has.
fn genuine(case: &Case, intent: &Preemption) -> bool {
    intent.preemptor_uid == case.uid
        && intent.id == intent_id(intent)
        && case.placement().is_some_and(|p| p.id == intent.placement)
        && case.unmoved()
}

fn hold(room: &mut BTreeMap<NodeIx, Amounts>, holds: &[(NodeIx, Amounts)]) {
    for (node, amounts) in holds {
        if let Some(free) = room.get_mut(node) {
            for (f, a) in free.iter_mut().zip(amounts) {
                *f -= a;
            }
        }
    }
}
