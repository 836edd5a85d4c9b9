//! Moves of gangs away from nodes with signals.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::CauseKind;

/// A move of a gang away from nodes with signals: members on these nodes get new pods on other
/// nodes, and all others restart in place. The scheduler finds the nodes before the gang is stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct GangMove {
    /// Id of the move.
    pub id: String,
    /// NodeLeaving or NodeFaulty, by the most severe signal.
    pub reason: CauseKind,
    /// The nodes to leave, sorted by name.
    pub nodes: Vec<NodeToLeave>,
    /// Time at which the move was requested from the scheduler.
    pub requested_at: DateTime<Utc>,
    /// Latest start of the stop: the save time and two minutes before the earliest deadline. Absent
    /// without a deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin_by: Option<DateTime<Utc>>,
    /// Absent while the move is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<MoveOutcome>,
    /// Time of the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<DateTime<Utc>>,
}

/// A node that a gang leaves, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeToLeave {
    /// Name of the node.
    pub node: String,
    /// Name of its signal.
    pub signal: String,
    /// Announced end of the node, if the signal has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<DateTime<Utc>>,
}

crate::worded! {
    /// How a move of a gang ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum MoveOutcome {
        /// The gang runs on other nodes.
        Moved = "Moved",
        /// The gang stays until these signals end: no other node was free in time, or the move failed.
        Stayed = "Stayed",
        /// The signals ended before the gang was stopped.
        Withdrawn = "Withdrawn",
    }
}

impl GangMove {
    /// True if no outcome is recorded.
    pub fn is_open(&self) -> bool {
        self.outcome.is_none()
    }
}
