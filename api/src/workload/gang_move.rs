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
    /// The nodes to leave, sorted by name; at most 64, most severe and earliest first. Others are
    /// left by a later move.
    #[schemars(length(max = 64))]
    pub nodes: Vec<NodeToLeave>,
    /// Ledger: signals for which the gang has moved or stays. While they stand, they cause no
    /// further move.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub settled: Vec<NodeToLeave>,
    /// True if the gang leaves these nodes only within a restart that has another reason.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub with_restart: bool,
    /// Time at which the move was requested from the scheduler.
    pub requested_at: DateTime<Utc>,
    /// Latest start of the stop: the save time and two minutes before the earliest deadline. Absent
    /// without a deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin_by: Option<DateTime<Utc>>,
    /// Time at which the stop of its members was ordered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_at: Option<DateTime<Utc>>,
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
        /// The signals ended, or the gang lost its placement, before the gang was stopped for it.
        Withdrawn = "Withdrawn",
    }
}

impl GangMove {
    /// True if no outcome is recorded.
    pub fn is_open(&self) -> bool {
        self.outcome.is_none()
    }

    /// True if this signal of the node causes no further move.
    pub fn is_settled(&self, node: &str, signal: &str) -> bool {
        let mut settled = self.settled.iter();
        settled.any(|s| s.node == node && s.signal == signal)
    }

    /// True while the gang restarts for another reason, and could leave these nodes in that restart.
    pub fn awaits_restart(&self) -> bool {
        self.with_restart && self.is_awaited()
    }

    /// True until the stop of the members is ordered. Until then, the move can be withdrawn.
    pub fn is_awaited(&self) -> bool {
        self.is_open() && self.began_at.is_none()
    }
}
