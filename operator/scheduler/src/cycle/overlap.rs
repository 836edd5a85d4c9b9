//! Members whose nodes pods of other gangs occupy.
//!
//! The workload controller can create pods for a placement that was just cleared. If such pods are
//! bound, their gang keeps the nodes, and gangs that got the nodes since then lose them.

use std::collections::BTreeMap;

use lockstep_api::gangs::Assignments;
use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;
use lockstep_engine::Amounts;

use super::maintain::give_up;
use crate::capacity::reservations::position;
use crate::context::Context;
use crate::gang::state::GangState;
use crate::input::hold::GangPhase;

/// Unassigns unbound members that do not fit next to bound members. Gangs ahead in the queue keep
/// their nodes. Runs after placements are maintained.
///
/// Ignores pods outside gangs, which are kube-scheduler's decision, and preemptors, which wait for
/// their victims' nodes.
pub(super) fn give_up_overlaps(context: &Context<'_>, gangs: &mut [GangState]) {
    let mut waiting: Vec<(usize, Assignments)> = gangs
        .iter()
        .enumerate()
        .filter(|(_, gang)| waits(gang))
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
            if !left.nodes.contains_key(node) {
                continue;
            }
            for pod in gang.bound_pods(member, node) {
                left.take(node, &context.amounts(&pod.requests));
            }
        }
    }
    waiting.sort_by_cached_key(|(at, _)| position(&gangs[*at]));
    for (at, mut unbound) in waiting {
        let gang = &mut gangs[at];
        unbound.retain(|member, node| {
            !left.take_if_it_fits(gang, member, node) && !gang.unusable.waiting.contains(member)
        });
        give_up(gang, &unbound.into_keys().collect());
    }
}

/// True if the workload permits the gang to have capacity.
fn holds(gang: &GangState) -> bool {
    gang.phase() != &GangPhase::Finished && !gang.input.released()
}

/// True if members can wait for nodes, without victims.
fn waits(gang: &GangState) -> bool {
    holds(gang) && !gang.disrupted() && gang.status.preemption.is_none()
}

struct Left<'a> {
    context: &'a Context<'a>,
    nodes: BTreeMap<NodeName, Amounts>,
}

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

    fn take(&mut self, node: &NodeName, requested: &Amounts) {
        let left = self.nodes.get_mut(node).into_iter().flatten();
        for (left, requested) in left.zip(requested) {
            *left -= requested;
        }
    }

    /// Takes the member's request if it fits. Unknown nodes and requests always fit.
    fn take_if_it_fits(&mut self, gang: &GangState, member: &Member, node: &NodeName) -> bool {
        let Some(requested) = gang.input.requests(&member.group) else {
            return true;
        };
        let requested = self.context.amounts(requested);
        let mut each = self.nodes.get(node).into_iter().flatten().zip(&requested);
        let fits = each.all(|(left, requested)| *requested == 0 || requested <= left);
        if fits {
            self.take(node, &requested);
        }
        fits
    }
}
