use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::NodePlacement;

/// Result of the search for nodes for a move that the workload's status requests. It is renewed in
/// each cycle until the gang is stopped for the move.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct MoveTarget {
    /// Id of the move (`gangs[].moving.id` in the workload's status).
    pub id: String,
    /// Time of the decision.
    #[serde(default)]
    pub decided_at: DateTime<Utc>,
    /// New nodes of the members that change their nodes, sorted by name. Reserved until the move
    /// ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodePlacement>,
    /// True if a preemption frees nodes once the gang is stopped. `nodes` is then empty.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preempts: bool,
    /// Why the move may not begin now, from the table of condition reasons. Empty if it may.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The reason in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl MoveTarget {
    /// True if the move with this id may begin.
    pub fn permits(&self, id: &str) -> bool {
        self.id == id && self.reason.is_empty()
    }
}
