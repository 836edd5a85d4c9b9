//! A scheduler loop that places members where slots are free, as far as the protocol with the controller goes.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use lockstep_api::condition::{reasons, types, upsert};
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::scheduling::{NodePlacement, Placement};

use super::World;
use crate::decide::ended;
use crate::gangs::gangs;

impl World {
    /// One pass of the scheduler and the binder. Returns whether it did anything.
    pub fn schedule(&mut self) -> bool {
        let mut busy = false;
        for gang in gangs(&self.workload.spec) {
            busy |= self.place(&gang.key, gang.members().cloned().collect());
        }
        busy | self.bind()
    }

    fn place(&mut self, key: &str, members: Vec<Member>) -> bool {
        let status = self.status();
        let Some(entry) = status.gangs.iter().find(|g| g.key == key).cloned() else { return false };
        let placement = self.groups.get(key).and_then(|g| g.status.as_ref()?.placement.clone());
        match placement {
            Some(p) if entry.released.as_ref() == Some(&p.id) => {
                let left = |p: &super::SimPod| {
                    let mine = p.shown.identity.member.as_ref().is_some_and(|m| members.contains(m));
                    let lost = p.shown.node.as_ref().is_some_and(|n| self.nodes.get(n).is_none_or(|n| !n.alive));
                    mine && !p.shown.terminal() && !lost
                };
                if self.pods.iter().any(left) {
                    return false;
                }
                let group = self.groups.get_mut(key).unwrap().status.get_or_insert_default();
                group.placement = None;
                group.conditions.clear();
                true
            }
            Some(p) => {
                let moved = self.replan(&p, &entry, &members);
                let changed = moved.is_some();
                if let Some(places) = moved {
                    self.set_placement(key, &places);
                }
                changed
            }
            None => {
                let idle = self.workload.spec.suspend || !entry.started || entry.backoff.is_some();
                if idle || ended(&status) || !self.groups.contains_key(key) {
                    return false;
                }
                let avoid: Vec<String> = entry.avoid.iter().map(|a| a.node.clone()).collect();
                let mut places = BTreeMap::new();
                for m in members {
                    let Some(node) = self.free_node(&places, &avoid) else { return self.no_room(key) };
                    places.insert(m, node);
                }
                self.set_placement(key, &places);
                true
            }
        }
    }

    fn no_room(&mut self, key: &str) -> bool {
        let now = self.now;
        let group = self.groups.get_mut(key).unwrap().status.get_or_insert_default();
        let before = group.clone();
        group.queued_at.get_or_insert(now);
        let type_ = types::POD_GROUP_INITIALLY_SCHEDULED;
        upsert(&mut group.conditions, type_, false, reasons::UNSCHEDULABLE, "no room", 1, now);
        *group != before
    }

    /// Members that are being replaced and whose node is of no use, and members that the placement does not have.
    fn replan(
        &self,
        placement: &Placement,
        entry: &lockstep_api::workload::GangStatus,
        members: &[Member],
    ) -> Option<BTreeMap<Member, String>> {
        let status = self.status();
        let replaced: Vec<MemberSet> =
            status.domains.iter().filter_map(|d| MemberSet::parse(&d.incident.as_ref()?.replace).ok()).collect();
        let avoid: Vec<String> = entry.avoid.iter().map(|a| a.node.clone()).collect();
        let mut places = places(placement);
        places.retain(|m, _| members.contains(m));
        let bad = |node: &String| avoid.contains(node) || self.nodes.get(node).is_none_or(|n| !n.alive);
        // A pin that kube-scheduler refuses is planned anew, and so is one that no pod has come to.
        let settled = |m: &Member| {
            let mine = |p: &&super::SimPod| p.shown.identity.member.as_ref() == Some(m);
            self.pods.iter().filter(mine).any(|p| p.shown.node.is_some() && !p.shown.terminating())
        };
        for m in members {
            let asked = replaced.iter().any(|r| r.contains(m)) || !settled(m);
            if places.get(m).is_none_or(|node| bad(node) && asked) {
                places.remove(m);
                let node = self.free_node(&places, &avoid)?;
                places.insert(m.clone(), node);
            }
        }
        (places != self::places(placement)).then_some(places)
    }

    fn free_node(&self, places: &BTreeMap<Member, String>, avoid: &[String]) -> Option<String> {
        let used = |node: &String| places.values().filter(|n| *n == node).count();
        self.nodes
            .iter()
            .find(|(name, n)| n.alive && !avoid.contains(name) && used(name) < n.slots)
            .map(|(name, _)| name.clone())
    }

    pub fn set_placement(&mut self, key: &str, places: &BTreeMap<Member, String>) {
        let id = self.id("placement");
        let now = self.now;
        let mut nodes: BTreeMap<String, MemberSet> = BTreeMap::new();
        for (m, node) in places {
            nodes.entry(node.clone()).or_default().insert(m.clone());
        }
        let nodes = nodes.into_iter().map(|(node, m)| NodePlacement { node, members: m.to_ranges() }).collect();
        let group = self.groups.get_mut(key).unwrap().status.get_or_insert_default();
        group.placement = Some(Placement { id, decided_at: now, members: places.len() as i32, nodes });
        let type_ = types::POD_GROUP_INITIALLY_SCHEDULED;
        upsert(&mut group.conditions, type_, true, reasons::SCHEDULED, "", 1, now);
    }

    /// kube-scheduler: binds what is pinned and not gated.
    fn bind(&mut self) -> bool {
        let mut busy = false;
        for p in &mut self.pods {
            let alive = p.shown.pinned.as_ref().is_some_and(|n| self.nodes.get(n).is_some_and(|n| n.alive));
            if p.shown.node.is_none() && !p.shown.gated && !p.shown.terminating() && alive {
                p.shown.node = p.shown.pinned.clone();
                busy = true;
            }
        }
        let before = self.pods.len();
        self.pods.retain(|p| p.shown.node.is_some() || !p.shown.terminating());
        busy || self.pods.len() != before
    }

    /// The preemption of a gang by a more important one, as the scheduler loop announces it.
    pub fn preempt(&mut self, key: &str, at: DateTime<Utc>) {
        let group = self.groups.get_mut(key).unwrap().status.get_or_insert_default();
        let (type_, reason) = (types::DISRUPTION_TARGET, reasons::PREEMPTION_BY_SCHEDULER);
        upsert(&mut group.conditions, type_, true, reason, "preempted by ns/boss", 1, at);
    }
}

fn places(placement: &Placement) -> BTreeMap<Member, String> {
    let of = |n: &NodePlacement| {
        let node = n.node.clone();
        MemberSet::parse(&n.members).unwrap().into_iter().map(move |m| (m, node.clone())).collect::<Vec<_>>()
    };
    placement.nodes.iter().flat_map(of).collect()
}
