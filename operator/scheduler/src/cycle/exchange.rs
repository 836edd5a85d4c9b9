//! Gangs that exchange nodes within one cycle.
//!
//! The first written status would promise a node that another gang still has. So one gang releases
//! its nodes, and gets new nodes in the next cycle. Until then, its new nodes stay reserved against
//! gangs behind it in the queue.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;

use super::maintain::give_up;
use crate::capacity::reservations::position;
use crate::gang::decision::Decision;
use crate::gang::pending::Pending;
use crate::gang::state::GangState;
use crate::waits::{circles, waits_for};

/// Breaks circles of gangs that exchange nodes. Leaves circles of bound pods and of preemptors,
/// whose nodes other pods hold anyway. Runs after all decisions.
///
/// Without this stage, if the process dies between the two writes, both gangs hold one node until
/// `overlap` takes it from one of them in the next cycle, and pods of both can be created for it.
pub(super) fn break_circles(gangs: &mut [GangState]) {
    loop {
        let placed_anew = gangs.iter().enumerate().filter(|(_, gang)| !gang.unmoved());
        let (positions, moves): (Vec<usize>, Vec<_>) =
            placed_anew.map(|(at, gang)| (at, gang.moves())).unzip();
        let waits = waits_for(&moves);
        let circle = circles(&waits);
        let can_wait = circle.iter().copied().filter(|at| {
            let gang = &gangs[positions[*at]];
            gang.status.preemption.is_none() && !gained(gang).is_empty()
        });
        // A gang that has run is the last choice: it can continue with fewer members.
        let Some(first) = can_wait.min_by_key(|at| {
            let gang = &gangs[positions[*at]];
            (gang.under_way(), Reverse(position(gang)))
        }) else {
            return;
        };
        let behind = circle.iter().filter(|at| waits[**at].contains(&first));
        let gangs_behind = behind.count();
        if gangs_behind == 0 {
            return;
        }
        let why = Pending::Exchange {
            gangs: gangs_behind,
        };
        give_up_first(&mut gangs[positions[first]], why);
    }
}

/// Members with a new node that their pods do not hold yet.
fn gained(gang: &GangState) -> BTreeSet<Member> {
    let before = gang.input.group.assigned.as_deref();
    let had = |member: &Member, node: &NodeName| before.and_then(|b| b.get(member)) == Some(node);
    gang.assigned_members()
        .filter(|(member, node)| !had(member, node) && !gang.bound(member, node))
        .map(|(member, _)| member.clone())
        .collect()
}

/// Reverts the decision of the cycle for the gang, except released nodes.
fn give_up_first(gang: &mut GangState, why: Pending) {
    give_up(gang, &gained(gang));
    let read = &gang.input.group.status;
    let promised = read.placement.as_ref().and_then(|p| p.backfill.clone());
    gang.backfill = promised.filter(|_| gang.assigned.is_some());
    Arc::make_mut(&mut gang.status)
        .reservation
        .clone_from(&read.reservation);
    gang.decision = Decision::None;
    gang.pending = Some(why);
}
