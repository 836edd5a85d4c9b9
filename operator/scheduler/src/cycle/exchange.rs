//! Gangs that would exchange their nodes within one cycle.
//!
//! Each would have to be written after the others: whichever is written first holds a node together
//! with who has it still, and for good if the process is lost then. So one of them gives up its
//! nodes, and gets others in the next cycle. The ledger keeps what it was to have from those behind
//! it in the queue until then.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;

use super::maintain::give_up;
use crate::decision::Decision;
use crate::pending::{GangName, Pending};
use crate::standing::position;
use crate::state::GangState;
use crate::waits::{circles, waits_for};

/// Leaves no circle of gangs that get each other's nodes, other than by pods that are bound there
/// already, and for gangs that wait for victims: what these get is held by others anyway. Runs when
/// all is decided.
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
        // One that has run may have to do with fewer members if it is seen without some.
        let Some(first) = can_wait.min_by_key(|at| {
            let gang = &gangs[positions[*at]];
            (gang.under_way(), Reverse(position(gang)))
        }) else {
            return;
        };
        let mut behind = circle.iter().filter(|at| waits[**at].contains(&first));
        let Some(&next) = behind.next() else {
            return;
        };
        let to = GangName::of(&gangs[positions[next]].input);
        give_up_first(&mut gangs[positions[first]], Pending::Exchange { to });
    }
}

/// Members with a node that they did not have there before, and that their pods do not hold.
fn gained(gang: &GangState) -> BTreeSet<Member> {
    let before = gang.input.group.assigned.as_deref();
    let had = |member: &Member, node: &NodeName| before.and_then(|b| b.get(member)) == Some(node);
    gang.assigned_members()
        .filter(|(member, node)| !had(member, node) && !gang.bound(member, node))
        .map(|(member, _)| member.clone())
        .collect()
}

/// Takes back what the cycle has decided for the gang, but not that it gives up nodes.
fn give_up_first(gang: &mut GangState, why: Pending) {
    give_up(gang, &gained(gang));
    let read = &gang.input.group.status;
    let promised = read.placement.as_ref().and_then(|p| p.backfill.clone());
    gang.backfill = promised.filter(|_| gang.assigned.is_some());
    gang.status.reservation.clone_from(&read.reservation);
    gang.decision = Decision::None;
    gang.pending = Some(why);
}
