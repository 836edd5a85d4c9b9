use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ObservedSpec;

/// How a node autoscaler learns which nodes waiting gangs lack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AutoscalerMode {
    /// It does not.
    #[default]
    Off,
    /// By one `ProvisioningRequest` for each gang: Cluster Autoscaler, GKE.
    ProvisioningRequest,
    /// By signal pods, one for each member: Karpenter and others.
    Pods,
}

/// Nodes that a node autoscaler is asked to add for the waiting gang.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct NodeDemand {
    /// Number of this try, from 1.
    pub number: i32,
    /// Start of this try.
    pub since: DateTime<Utc>,
    /// Start of the first try.
    pub requested_at: DateTime<Utc>,
    /// End of this try, if it has failed. The next try follows 10 min later; the wait doubles. After
    /// three tries the gang is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_at: Option<DateTime<Utc>>,
    /// What the autoscaler reports, or why the try has failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The spec for which nodes are demanded. A change begins with the first try again.
    pub observed: ObservedSpec,
}

impl NodeDemand {
    /// True while the autoscaler is to be asked.
    pub fn is_open(&self) -> bool {
        self.failed_at.is_none()
    }

    /// The demand without its message.
    #[must_use]
    pub fn without_words(&self) -> Self {
        Self {
            message: String::new(),
            ..self.clone()
        }
    }
}

/// What a node autoscaler reports about the `ProvisioningRequest` of a demand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvisioningState {
    /// Name of the request ([`provisioning_request_name`](crate::names::provisioning_request_name)).
    pub name: String,
    /// Its state.
    pub phase: ProvisioningPhase,
    /// Time at which it entered this state.
    pub since: DateTime<Utc>,
    /// The autoscaler's words about this state. May be empty.
    pub message: String,
}

/// State of a `ProvisioningRequest`, from its conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProvisioningPhase {
    /// No autoscaler has accepted it.
    Created,
    /// An autoscaler is going to add nodes.
    Accepted,
    /// The capacity exists.
    Provisioned,
    /// The capacity cannot be had. Final.
    Failed,
    /// The autoscaler no longer keeps the capacity for the gang.
    BookingExpired,
    /// The autoscaler removes the nodes.
    CapacityRevoked,
}
