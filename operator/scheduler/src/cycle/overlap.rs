//! Members that wait for nodes which other gangs' pods fill by now.
//!
//! Pods of a placement that was cleared may still be created and bound, where the controller had not
//! heard of that. Their gang has them, so whoever got the nodes meanwhile does not.

use std::collections::BTreeMap;

use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;
use lockstep_engine::Amounts;
use lockstep_model::{Assignments, GangPhase};

use super::maintain::give_up;
use crate::context::Context;
use crate::standing::position;
use crate::state::GangState;

/// Takes nodes away from members that are not bound and no longer fit beside the members that are;
/// the more important gangs keep theirs. Runs once placements are maintained.
///
/// Pods of others are not counted: whether they leave is for kube-scheduler to say. Nor are gangs
/// that preempt: they wait for the nodes of their victims.
pub(super) fn give_up_overlaps(context: &Context<'_>, gangs: &mut [GangState]) {
    let waiting = gangs.iter().enumerate().filter(|(_, gang)| waits(gang));
    let mut waiting: Vec<(usize, Assignments)> = waiting
        .map(|(at, gang)| (at, gang.unbound()))
        .filter(|(_, unbound)| !unbound.is_empty())
        .collect();
    if waiting.is_empty() {
        return;
    }
    let mut left = Left::of(
        context,
        waiting.iter().flat_map(|(_, unbound)| unbound.values()),
    );
    for gang in gangs.iter().filter(|g| holds(g)) {
        for (member, node) in gang.unfinished_assigned() {
            if left.counts(node) && gang.bound(member, node) {
                left.take(gang, member, node);
            }
        }
    }
    waiting.sort_by_cached_key(|(at, _)| position(&gangs[*at]));
    for (at, mut unbound) in waiting {
        let gang = &mut gangs[at];
        unbound.retain(|member, node| !left.take_if_it_fits(gang, member, node));
        give_up(gang, &unbound.into_keys().collect());
    }
}

/// Whether the gang has capacity, as far as its workload decides that.
fn holds(gang: &GangState) -> bool {
    gang.phase() != GangPhase::Finished && !gang.input.released()
}

/// Whether its members wait for their nodes, and not for victims there.
fn waits(gang: &GangState) -> bool {
    holds(gang) && !gang.disrupted() && gang.status.preemption.is_none()
}

/// What members leave of some nodes, by name.
struct Left<'a> {
    context: &'a Context<'a>,
    nodes: BTreeMap<NodeName, Amounts>,
}

/// What a node offers, if it is there.
fn offered(context: &Context<'_>, name: &NodeName) -> Option<Amounts> {
    let cluster = context.cluster;
    let node = cluster.node(cluster.ordinal(name.as_str())?)?;
    Some(cluster.dims().offered(node))
}

impl<'a> Left<'a> {
    fn of<'n>(context: &'a Context<'a>, nodes: impl Iterator<Item = &'n NodeName>) -> Self {
        let each = nodes.filter_map(|name| Some((name.clone(), offered(context, name)?)));
        Self {
            context,
            nodes: each.collect(),
        }
    }

    fn counts(&self, node: &NodeName) -> bool {
        self.nodes.contains_key(node)
    }

    fn take(&mut self, gang: &GangState, member: &Member, node: &NodeName) {
        if let Some((left, asked)) = self.on(gang, member, node) {
            for (left, asked) in left.iter_mut().zip(asked) {
                *left -= asked;
            }
        }
    }

    /// Takes what the member asks for, if it is left. What is not known is not in the way.
    fn take_if_it_fits(&mut self, gang: &GangState, member: &Member, node: &NodeName) -> bool {
        let fits = self.on(gang, member, node).is_none_or(|(left, asked)| {
            let mut each = left.iter().zip(&asked);
            each.all(|(left, asked)| *asked == 0 || asked <= left)
        });
        if fits {
            self.take(gang, member, node);
        }
        fits
    }

    /// What is left on a node, and what the member asks for.
    fn on(
        &mut self,
        gang: &GangState,
        member: &Member,
        node: &NodeName,
    ) -> Option<(&mut Amounts, Amounts)> {
        let asked = gang.input.requests(&member.group)?;
        Some((self.nodes.get_mut(node)?, self.context.amounts(asked)))
    }
}
