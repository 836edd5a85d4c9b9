//! The state of a node, in parts that do not depend on each other.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// What the scheduler and the workloads on a node read of its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// Whether it reports to the API server.
    pub reach: Reach,
    /// Marked against new pods. A drain marks all its nodes before the first eviction.
    pub cordoned: bool,
    /// Being deleted. It takes no new pods, and its pods may still run.
    pub deleting: bool,
    /// What signals about it announce.
    pub outlook: Outlook,
}

/// The most severe signal that counts, in mode `Act`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outlook {
    /// None.
    #[default]
    Healthy,
    /// [`SignalLevel::Suspect`](crate::SignalLevel::Suspect).
    Suspect,
    /// [`SignalLevel::Leaving`](crate::SignalLevel::Leaving).
    Leaving {
        /// The earliest deadline. `None` if no signal has one.
        deadline: Option<DateTime<Utc>>,
    },
    /// [`SignalLevel::Faulty`](crate::SignalLevel::Faulty).
    Faulty,
}

/// Whether a node reports to the API server. Silence is a loss only after some time, because nodes
/// are NotReady for seconds when a kubelet restarts or its lease is overdue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Ready: its reports are current.
    #[default]
    Responding,
    /// NotReady.
    Silent {
        /// From when its silence counts. `None` during an outage of its zone, in which no node is
        /// lost.
        since: Option<DateTime<Utc>>,
    },
    /// Tainted `node.kubernetes.io/out-of-service` (KEP-2268).
    OutOfService,
    /// Deleted.
    Gone,
}

impl NodeState {
    /// State of a node that does not exist.
    pub const GONE: Self = Self {
        reach: Reach::Gone,
        cordoned: false,
        deleting: false,
        outlook: Outlook::Healthy,
    };

    /// True if pods can start on the node, unless its taints prevent it.
    pub fn is_ready(self) -> bool {
        self.reach == Reach::Responding && !self.deleting
    }

    /// True if the node may get pods: it is ready, and no fault of it is certain.
    pub fn takes_pods(self) -> bool {
        self.is_ready() && self.outlook != Outlook::Faulty
    }
}
