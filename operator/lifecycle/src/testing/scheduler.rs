//! A scheduler loop that places members where slots are free, as far as the protocol with the
//! controller goes.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::{reasons, types, upsert};
use lockstep_api::member::{Member, MemberSet};
use lockstep_api::scheduling::{NodePlacement, Placement};
use lockstep_api::workload::{DomainStatus, GangStatus};

use super::World;
use lockstep_api::gangs::{Gang, gangs};
use lockstep_scheduler::growth::{MemberLedger, members_to_place};

/// How long a gang runs before it grows.
const GROW_AFTER: TimeDelta = TimeDelta::seconds(60);

impl World {
    /// One pass of the scheduler and the binder. Returns whether it did anything.
    pub fn schedule(&mut self) -> bool {
        let mut busy = false;
        for gang in gangs(&self.workload.spec) {
            busy |= self.place(&gang);
        }
        busy | self.bind()
    }

    fn place(&mut self, gang: &Gang) -> bool {
        let (status, key) = (self.status(), gang.key.as_str());
        let Some(entry) = status.gangs.iter().find(|g| g.key == key).cloned() else {
            return false;
        };
        let placement = self
            .groups
            .get(key)
            .and_then(|g| g.status.as_ref()?.placement.clone());
        let old = match placement {
            Some(p) if entry.released.as_ref() == Some(&p.id) => {
                let left = |p: &super::SimPod| {
                    let mine = p
                        .shown
                        .identity
                        .member
                        .as_ref()
                        .is_some_and(|m| gang.members().any(|g| g == m));
                    let lost = p
                        .shown
                        .node
                        .as_ref()
                        .is_some_and(|n| self.nodes.get(n).is_none_or(|n| !n.alive));
                    mine && !p.shown.terminal() && !lost
                };
                return !self.pods.iter().any(left) && self.clear(key);
            }
            Some(p) => Some(self.usable_seats(&p, &entry, gang)),
            None => {
                let idle = self.workload.spec.suspend || !entry.started || entry.backoff.is_some();
                if idle || status.completion_time.is_some() || !self.groups.contains_key(key) {
                    return false;
                }
                None
            }
        };
        let mut seats = old.clone().unwrap_or_default();
        let ledger = MemberLedger::read(gang, &self.workload.spec, Some(&status));
        let sought = members_to_place(gang, &ledger, old.as_ref(), self.now, GROW_AFTER);
        let avoid: Vec<String> = entry.avoid.iter().map(|a| a.node.clone()).collect();
        for m in gang.members().filter(|m| sought.contains(m)) {
            if let (false, Some(node)) = (seats.contains_key(m), self.free_node(&seats, &avoid)) {
                seats.insert(m.clone(), node);
            }
        }
        let enough = seats.len() >= gang.min_count as usize;
        let under_way = |d: &DomainStatus| {
            gang.domains.iter().any(|g| g.key == d.key)
                && (d.incident.is_some() || d.healthy_since.is_some())
        };
        match old {
            None if !enough => self.no_room(key),
            // What does not run yet is placed anew as a whole.
            Some(_) if !enough && !status.domains.iter().any(under_way) => self.clear(key),
            Some(old) if !enough && sought.growing => self.seat(key, &old),
            _ => self.seat(key, &seats),
        }
    }

    fn clear(&mut self, key: &str) -> bool {
        let group = self
            .groups
            .get_mut(key)
            .unwrap()
            .status
            .get_or_insert_default();
        group.placement = None;
        group.conditions.clear();
        true
    }

    /// Writes a placement that differs.
    fn seat(&mut self, key: &str, seats: &BTreeMap<Member, String>) -> bool {
        let placement = self
            .groups
            .get(key)
            .and_then(|g| g.status.as_ref()?.placement.as_ref());
        let differs = placement.is_none_or(|p| places(p) != *seats);
        if differs {
            self.set_placement(key, seats);
        }
        differs
    }

    fn no_room(&mut self, key: &str) -> bool {
        let now = self.now;
        let group = self
            .groups
            .get_mut(key)
            .unwrap()
            .status
            .get_or_insert_default();
        let before = group.clone();
        group.queued_at.get_or_insert(now);
        let type_ = types::POD_GROUP_INITIALLY_SCHEDULED;
        upsert(
            &mut group.conditions,
            type_,
            false,
            reasons::UNSCHEDULABLE,
            "no room",
            1,
            now,
        );
        *group != before
    }

    /// The seats without those of members that are gone, and without those on nodes that are of no
    /// use to members that are being replaced or have not come to them.
    fn usable_seats(
        &self,
        placement: &Placement,
        entry: &GangStatus,
        gang: &Gang,
    ) -> BTreeMap<Member, String> {
        let status = self.status();
        let replaced: Vec<MemberSet> = status
            .domains
            .iter()
            .filter_map(|d| MemberSet::parse(&d.incident.as_ref()?.replace).ok())
            .collect();
        let bad = |node: &String| {
            entry.avoid.iter().any(|a| a.node == *node)
                || self.nodes.get(node).is_none_or(|n| !n.alive)
        };
        let settled = |m: &Member| {
            let mine = |p: &&super::SimPod| p.shown.identity.member.as_ref() == Some(m);
            self.pods
                .iter()
                .filter(mine)
                .any(|p| p.shown.node.is_some() && !p.shown.terminating())
        };
        let mut seats = places(placement);
        seats.retain(|m, node| {
            let goes = bad(node) && (replaced.iter().any(|r| r.contains(m)) || !settled(m));
            gang.members().any(|g| g == m) && !goes
        });
        seats
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
        let nodes = nodes
            .into_iter()
            .map(|(node, m)| NodePlacement {
                node,
                members: m.to_ranges(),
            })
            .collect();
        let group = self
            .groups
            .get_mut(key)
            .unwrap()
            .status
            .get_or_insert_default();
        group.placement = Some(Placement {
            id,
            decided_at: now,
            members: places.len() as i32,
            nodes,
        });
        let type_ = types::POD_GROUP_INITIALLY_SCHEDULED;
        upsert(
            &mut group.conditions,
            type_,
            true,
            reasons::SCHEDULED,
            "",
            1,
            now,
        );
    }

    /// kube-scheduler: binds what is pinned and not gated.
    fn bind(&mut self) -> bool {
        let mut busy = false;
        for p in &mut self.pods {
            let alive = p
                .shown
                .pinned
                .as_ref()
                .is_some_and(|n| self.nodes.get(n).is_some_and(|n| n.alive));
            if p.shown.node.is_none() && !p.shown.gated && !p.shown.terminating() && alive {
                p.shown.node = p.shown.pinned.clone();
                busy = true;
            }
        }
        let before = self.pods.len();
        self.pods
            .retain(|p| p.shown.node.is_some() || !p.shown.terminating());
        busy || self.pods.len() != before
    }

    /// The preemption of a gang by a more important one, as the scheduler loop announces it.
    pub fn preempt(&mut self, key: &str, at: DateTime<Utc>) {
        let group = self
            .groups
            .get_mut(key)
            .unwrap()
            .status
            .get_or_insert_default();
        let (type_, reason) = (types::DISRUPTION_TARGET, reasons::PREEMPTION_BY_SCHEDULER);
        upsert(
            &mut group.conditions,
            type_,
            true,
            reason,
            "preempted by ns/boss",
            1,
            at,
        );
    }
}

fn places(placement: &Placement) -> BTreeMap<Member, String> {
    let of = |n: &NodePlacement| {
        let node = n.node.clone();
        MemberSet::parse(&n.members)
            .unwrap()
            .into_iter()
            .map(move |m| (m, node.clone()))
            .collect::<Vec<_>>()
    };
    placement.nodes.iter().flat_map(of).collect()
}
