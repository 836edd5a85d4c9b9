//! Placements that exist: given back, refused by kube-scheduler, or no longer possible on some node.

use std::collections::BTreeSet;
use std::sync::Arc;

use chrono::TimeDelta;
use lockstep_api::condition::{find, reasons, types, upsert};
use lockstep_api::member::Member;
use lockstep_model::gang::Standing;
use lockstep_model::pod::Stage;
use lockstep_model::{Pod, Seats};

use super::case::Case;
use super::messages;
use super::pass::Pass;

impl Pass<'_> {
    /// Takes away placements that were given back and seats that cannot be used. Runs before room is reserved.
    pub fn keep_up(&mut self) {
        for ix in 0..self.cases.len() {
            self.note_refusals(ix);
            let case = &self.cases[ix];
            if case.standing == Standing::Over {
                continue;
            }
            if case.seats.is_none() {
                self.adopt_running_pods(ix);
            } else if case.released() {
                self.clear_when_empty(ix);
            } else if !case.disrupted() {
                self.follow_bound_pods(ix);
                self.give_up_lost_seats(ix);
            }
        }
    }

    /// A member whose pod was bound just when its seat was moved keeps the node that the pod has: nobody would take the pod
    /// away, and its new seat would stay empty.
    fn follow_bound_pods(&mut self, ix: usize) {
        let case = &self.cases[ix];
        let (replaced, old) = case.replacing();
        let stays = |p: &&Arc<Pod>, member: &Member| {
            let goes = replaced.contains(member) && old.contains(p.uid.as_str());
            p.bound.is_some() && p.alive() && !p.disrupted && !goes
        };
        let moved: Vec<(Member, String)> = case
            .seated_members()
            .filter(|(member, node)| !case.done.contains(*member) && case.pod_at(member, node).is_none())
            .filter_map(|(member, _)| {
                let pod = case.pods.get(member)?.iter().find(|p| stays(p, member))?;
                Some((member.clone(), pod.bound.clone()?))
            })
            .collect();
        if let (false, Some(seats)) = (moved.is_empty(), &mut self.cases[ix].seats) {
            Arc::make_mut(seats).extend(moved);
        }
    }

    /// A placement that was given back goes once nothing of the gang is left, so that its room is promised to others only
    /// when it is free.
    fn clear_when_empty(&mut self, ix: usize) {
        let here: Vec<Arc<Pod>> = self.cases[ix].all_pods().filter(|p| !p.ended()).cloned().collect();
        if here.iter().any(|pod| !self.stranded(pod)) {
            return;
        }
        let (generation, now) = (self.cases[ix].generation(), self.now);
        let case = &mut self.cases[ix];
        let preempted = case.disrupted();
        case.seats = None;
        case.status.preemption = None;
        if preempted {
            let conditions = &mut case.status.conditions;
            let told = find(conditions, types::DISRUPTION_TARGET).map_or("preempted", |c| c.message.as_str());
            let text = messages::queued_again(told);
            upsert(conditions, types::DISRUPTION_TARGET, false, reasons::PREEMPTED, text, generation, now);
        } else {
            case.status.queued_at = None;
        }
    }

    /// Whether a pod is on a node that does not answer and should long have ended: nobody will tell us of its end.
    fn stranded(&mut self, pod: &Pod) -> bool {
        let Some(end) = pod.terminating else { return false };
        let Some(node) = pod.bound.as_deref() else { return false };
        let answers = self.cluster.ordinal(node).and_then(|n| self.cluster.node(n)).is_some_and(|n| n.ready);
        !answers && self.due(end, self.settings.rules.overdue)
    }

    /// Remembers nodes whose pinned pods kube-scheduler refuses for longer than it takes to make up its mind.
    fn note_refusals(&mut self, ix: usize) {
        let refused: Vec<Arc<Pod>> =
            self.cases[ix].all_pods().filter(|p| p.stage == Stage::Refused && p.alive()).cloned().collect();
        for pod in refused {
            let Some(node) = pod.pinned.as_deref() else { continue };
            self.refused.insert(pod.uid.clone());
            if self.cluster.ordinal(node).is_some_and(|n| self.ending_on(n)) {
                // What was refused while there was no room is tried again when there is: that takes a moment, too, and counts
                // from the first look at the room without them.
                self.memory.refused_since.remove(&pod.uid);
                continue;
            }
            let since = *self.memory.refused_since.entry(pod.uid.clone()).or_insert(self.now);
            if !self.due(since, self.settings.refused_after) {
                continue;
            }
            let until = self.now + TimeDelta::from_std(self.settings.avoid_refused).unwrap_or(TimeDelta::MAX);
            let uid = self.cases[ix].uid.clone();
            let nodes = self.memory.refusing_nodes.entry(uid).or_default();
            nodes.entry(node.to_owned()).or_insert(until);
        }
    }

    /// Nodes that a gang may not be put on now.
    pub fn excluded(&self, case: &Case) -> BTreeSet<String> {
        let refusing = self.memory.refusing_nodes.get(&case.uid).into_iter().flat_map(|nodes| nodes.keys().cloned());
        refusing.chain(case.view().avoided(self.now).map(str::to_owned)).collect()
    }

    /// A gang whose placement was lost has the seats that its pods run on: the pods are there, so is their room.
    fn adopt_running_pods(&mut self, ix: usize) {
        let case = &self.cases[ix];
        let running = case.all_pods().filter(|p| p.alive() && !p.disrupted);
        let seats: Seats = running.filter_map(|p| Some((p.member.clone()?, p.bound.clone()?))).collect();
        self.cases[ix].seats = Some(seats).filter(|s| !s.is_empty()).map(Arc::new);
    }

    /// Seats of members that the gang no longer has, and seats on nodes that their members cannot use (any more).
    fn give_up_lost_seats(&mut self, ix: usize) {
        let case = &self.cases[ix];
        let excluded = self.excluded(case);
        let members: BTreeSet<&Member> = case.gang.members().collect();
        let (replaced, old) = case.replacing();
        let mut lost: Vec<Member> = Vec::new();
        let mut unsure: Vec<(Member, String)> = Vec::new();
        for (member, node) in case.seated_members() {
            let goes = |p: &Pod| replaced.contains(member) && old.contains(p.uid.as_str());
            let pods = case.pods.get(member).into_iter().flatten();
            let stays = pods.filter(|p| p.bound.as_deref() == Some(node)).any(|p| p.alive() && !goes(p));
            if !members.contains(member) {
                lost.push(member.clone());
            } else if !stays && !case.done.contains(member) {
                if excluded.contains(node) {
                    lost.push(member.clone());
                } else {
                    unsure.push((member.clone(), node.clone()));
                }
            }
        }
        lost.extend(unsure.into_iter().filter(|(m, node)| !self.usable(ix, m, node)).map(|(m, _)| m));
        if lost.is_empty() {
            return;
        }
        let mut kept = self.cases[ix].seats.take().map(Arc::unwrap_or_clone).unwrap_or_default();
        kept.retain(|member, _| !lost.contains(member));
        // A gang of which nothing runs yet is placed anew as a whole: what it waits for it must not hold.
        let case = &self.cases[ix];
        let running = case.under_way() || kept.iter().any(|(m, n)| case.bound(m, n));
        self.cases[ix].seats = Some(kept).filter(|k| running && !k.is_empty()).map(Arc::new);
    }

    /// Whether a new pod of the member may go to the node, room aside.
    fn usable(&mut self, ix: usize, member: &Member, node: &str) -> bool {
        let Some(ordinal) = self.cluster.ordinal(node) else { return false };
        let workload = &self.cases[ix].workload;
        let Some(group) = workload.spec.groups.iter().find(|g| g.name == member.group) else { return false };
        self.memory.eligible(workload, group, self.cluster).contains(ordinal)
    }
}
