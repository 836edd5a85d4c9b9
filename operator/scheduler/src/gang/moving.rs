//! The open move of a gang: whether nodes are sought for it, and which members follow its target.

use std::collections::BTreeSet;

use lockstep_api::gangs::Assignments;
use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;
use lockstep_api::workload::GangMove;

use crate::gang::state::{GangState, by_node};
use crate::input::hold::GangPhase;

impl GangState {
    /// The open move of the gang, if it is placed.
    pub(crate) fn open_move(&self) -> Option<&GangMove> {
        let placed = self.assigned.is_some() && !self.input.released() && !self.disrupted();
        let open = self.input.workload.moving.as_ref().filter(|m| m.is_open());
        open.filter(|_| placed && self.phase() != &GangPhase::Finished)
    }

    /// True if the last cycle permitted the open move.
    pub(crate) fn was_permitted(&self) -> bool {
        let target = self.input.group.status.move_target.as_ref();
        self.open_move()
            .is_some_and(|open| target.is_some_and(|t| t.permits(&open.id)))
    }

    /// True if the gang leaves the node by its open move.
    pub(crate) fn leaves(&self, node: &NodeName) -> bool {
        let open = self.open_move().into_iter();
        open.flat_map(|m| &m.nodes).any(|left| *node == *left.node)
    }

    /// True if nodes are sought for the open move: no incident replaces its members yet.
    pub(crate) fn seeks_nodes(&self) -> bool {
        let active = self.phase() == &GangPhase::Active && self.status.preemption.is_none();
        if !active || self.open_move().is_none() {
            return false;
        }
        let members = self.unfinished_assigned();
        let mut to_move = members.filter(|(_, n)| self.leaves(n)).peekable();
        let begun = |m: &Member| self.is_being_replaced(m);
        to_move.peek().is_some()
            && !to_move.any(|(m, _)| begun(m))
            && !self.target.keys().any(begun)
    }

    /// Drops the target of a move that is no longer open.
    pub(crate) fn drop_void_target(&mut self) {
        let id = self.open_move().map(|open| open.id.clone());
        let target = self.status.move_target.as_ref();
        if target.is_some_and(|t| Some(&t.id) != id.as_ref()) {
            self.status_mut().move_target = None;
            self.target.clear();
        }
    }

    /// Drops the target of a move that has not begun, if other members lack nodes. They come first,
    /// because the gang does not run without them. `lost`: members that are about to lose their nodes.
    pub(crate) fn yield_target(&mut self, lost: &BTreeSet<Member>) {
        let awaited = self.open_move().is_some_and(GangMove::is_awaited);
        let absent = &self.input.workload.members.absent;
        let placed = |m: &Member| self.assigned.as_ref().is_some_and(|a| a.contains_key(m));
        let lacks = |m: &&Member| lost.contains(*m) || !placed(m) && !absent.contains(*m);
        let others = |m: &&Member| !self.target.contains_key(*m);
        let yields = self.unfinished().filter(others).any(|m| lacks(&m));
        if yields && awaited {
            self.status_mut().move_target = None;
            self.target.clear();
        }
    }

    /// Members whose replacement by an incident takes them to the target, with their new nodes. If
    /// members leave other nodes too, all of their restart domain change their nodes together.
    pub(crate) fn following(&self) -> Assignments {
        let Some(assigned) = self.assigned.as_ref().filter(|_| !self.target.is_empty()) else {
            return Assignments::new();
        };
        let open = |m: &Member| self.target.get(m) != assigned.get(m);
        let alone = |m: &Member| assigned.get(m).is_some_and(|node| self.leaves(node));
        let whole = self.target.keys().any(|m| open(m) && !alone(m));
        let mut follow = Assignments::new();
        for domain in &self.input.gang.domains {
            let members = domain.members.iter();
            let members: BTreeSet<&Member> = members
                .filter(|m| self.target.contains_key(*m) && open(m))
                .collect();
            let replaced = |m: &&Member| self.is_being_replaced(m);
            if whole && !members.iter().all(replaced) {
                continue;
            }
            let gone = |m: &Member| assigned.get(m).is_none_or(|old| !self.stays_on(m, old));
            let moved = members.into_iter().filter(|m| replaced(m) && gone(m));
            follow.extend(moved.filter_map(|m| Some((m.clone(), self.target.get(m)?.clone()))));
        }
        follow
    }

    /// Target nodes of these members are no longer reserved.
    pub(crate) fn give_up_target(&mut self, members: &BTreeSet<Member>) {
        self.target.retain(|member, _| !members.contains(member));
        let left = by_node(&self.target);
        if let Some(target) = &mut self.status_mut().move_target {
            target.nodes = left;
        }
    }
}
