//! Nodes for the move of a placed gang away from nodes with signals.

use lockstep_api::gangs::Assignments;
use lockstep_api::scheduling::MoveTarget;

use crate::gang::pending::Pending;
use crate::input::GangInput;

/// Result of the search for nodes for the move.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MoveSearch {
    /// New nodes of the members that change their nodes.
    Found(Assignments),
    /// Only a preemption would free nodes.
    Preempts,
    Waits(Pending),
}

/// Nodes that the open move has reserved, as read.
pub(crate) fn permitted_target(gang: &GangInput) -> Assignments {
    let open = gang.workload.moving.as_ref().filter(|m| m.is_open());
    let target = gang.group.status.move_target.as_ref();
    let permitted = target.filter(|t| open.is_some_and(|m| t.permits(&m.id)));
    permitted.map(MoveTarget::assignments).unwrap_or_default()
}
