//! What is kept of nodes and of their agents.

use chrono::{DateTime, Utc};
use lockstep_api::NodeAgentStatus;

/// A node that runs, or is to run, members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// Since when the node's Ready condition is other than True; None while it is ready.
    pub not_ready_since: Option<DateTime<Utc>>,
    /// Since when the node's Ready condition is True, where it says so.
    pub ready_since: Option<DateTime<Utc>>,
    /// Whether it carries the taint `node.kubernetes.io/out-of-service`.
    pub out_of_service: bool,
    /// `status.declaredFeatures` (KEP-5328).
    pub declared_features: Vec<String>,
    /// `status.nodeInfo.kubeletVersion`, such as `v1.37.2`.
    pub kubelet_version: String,
}

/// The agent of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentInfo {
    /// Whether the agent's own pod is ready.
    pub ready: bool,
    /// What it published. The manager believes it only about pods bound to its node.
    pub status: NodeAgentStatus,
}
