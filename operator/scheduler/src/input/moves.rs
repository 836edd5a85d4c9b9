//! The move of a gang in a snapshot file, without names of signals and messages.

use lockstep_api::scheduling::{MoveTarget, PodGroupStatus};
use lockstep_api::workload::{GangMove, NodeToLeave};

/// Id of all moves in a file. Ids are only compared for equality.
const RECORDED: &str = "recorded";

pub(super) fn recorded_move(moving: &GangMove) -> GangMove {
    let nodes = moving.nodes.iter().map(|left| NodeToLeave {
        signal: String::new(),
        ..left.clone()
    });
    GangMove {
        id: RECORDED.to_owned(),
        nodes: nodes.collect(),
        settled: Vec::new(),
        ..moving.clone()
    }
}

/// The target of this move.
pub(super) fn recorded_target(
    moving: Option<&GangMove>,
    status: &PodGroupStatus,
) -> Option<MoveTarget> {
    let target = status.move_target.as_ref()?;
    (moving?.id == target.id).then(|| MoveTarget {
        id: RECORDED.to_owned(),
        message: String::new(),
        ..target.clone()
    })
}
