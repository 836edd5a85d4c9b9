//! Actions on failures.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::SchedulingPolicy;
use crate::condition::reasons;

crate::worded! {
    /// Action on a failure, from the mildest to the most severe. Failures that are handled together
    /// get the most severe action only.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub enum FailureAction {
        /// No action; the container stays as it is.
        Ignore = "Ignore",
        /// The kubelet restarts the container.
        RestartContainer = "RestartContainer",
        /// All containers of the pod restart in place.
        RestartPod = "RestartPod",
        /// Every member of the restart domain restarts in place; pods that cannot are replaced.
        RestartGang = "RestartGang",
        /// All pods of the restart domain are replaced; their nodes stay reserved.
        RecreateGang = "RecreateGang",
        /// The workload fails.
        FailWorkload = "FailWorkload",
    }
}

/// Scope of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionScope {
    /// Nothing is restarted.
    None,
    /// The failed container.
    Container,
    /// The failed pod.
    Pod,
    /// Every member of the restart domain.
    Domain,
    /// The workload ends.
    Workload,
}

impl FailureAction {
    /// The action for failures that match no rule.
    pub fn default_for(policy: SchedulingPolicy) -> Self {
        match policy {
            SchedulingPolicy::Gang => Self::RestartGang,
            SchedulingPolicy::Basic => Self::RestartContainer,
        }
    }

    /// Scope of the action.
    pub fn scope(self) -> ActionScope {
        match self {
            Self::Ignore => ActionScope::None,
            Self::RestartContainer => ActionScope::Container,
            Self::RestartPod => ActionScope::Pod,
            Self::RestartGang | Self::RecreateGang => ActionScope::Domain,
            Self::FailWorkload => ActionScope::Workload,
        }
    }

    /// Severity of the action, independent of the order of definition.
    pub fn severity(self) -> u8 {
        match self {
            Self::Ignore => 0,
            Self::RestartContainer => 1,
            Self::RestartPod => 2,
            Self::RestartGang => 3,
            Self::RecreateGang => 4,
            Self::FailWorkload => 5,
        }
    }

    /// The more severe of two actions, for failures that are handled together.
    #[must_use]
    pub fn or_more_severe(self, other: Self) -> Self {
        if other.severity() > self.severity() {
            other
        } else {
            self
        }
    }

    /// True if nothing is restarted.
    pub fn leaves_container(self) -> bool {
        match self.scope() {
            ActionScope::None => true,
            ActionScope::Container
            | ActionScope::Pod
            | ActionScope::Domain
            | ActionScope::Workload => false,
        }
    }

    /// True if all containers of the failed pod restart.
    pub fn restarts_pod(self) -> bool {
        match self.scope() {
            ActionScope::Pod => true,
            ActionScope::None
            | ActionScope::Container
            | ActionScope::Domain
            | ActionScope::Workload => false,
        }
    }

    /// True if the other members of the restart domain continue to run.
    pub fn affects_single_pod(self) -> bool {
        match self.scope() {
            ActionScope::None | ActionScope::Container | ActionScope::Pod => true,
            ActionScope::Domain | ActionScope::Workload => false,
        }
    }

    /// True if the workload fails.
    pub fn ends_workload(self) -> bool {
        match self.scope() {
            ActionScope::Workload => true,
            ActionScope::None | ActionScope::Container | ActionScope::Pod | ActionScope::Domain => {
                false
            }
        }
    }

    /// True if every pod of the restart domain is replaced, in any state.
    pub fn replaces_pods(self) -> bool {
        match self {
            Self::RecreateGang => true,
            Self::Ignore
            | Self::RestartContainer
            | Self::RestartPod
            | Self::RestartGang
            | Self::FailWorkload => false,
        }
    }

    /// True if an incident with this action leads its restart domain to a new attempt.
    pub fn raises_attempt(self) -> bool {
        match self {
            Self::RestartGang | Self::RecreateGang => true,
            Self::Ignore | Self::RestartContainer | Self::RestartPod | Self::FailWorkload => false,
        }
    }

    /// The corresponding action with new pods, for members that cannot restart in place.
    #[must_use]
    pub fn with_new_pods(self) -> Self {
        match self {
            Self::RestartGang => Self::RecreateGang,
            Self::Ignore
            | Self::RestartContainer
            | Self::RestartPod
            | Self::RecreateGang
            | Self::FailWorkload => self,
        }
    }

    /// Reason in conditions and events.
    pub fn reason(self) -> &'static str {
        match self {
            Self::RestartGang => reasons::RESTART_GANG,
            Self::RecreateGang => reasons::RECREATE_GANG,
            Self::FailWorkload => reasons::FAILURE_POLICY,
            Self::Ignore | Self::RestartContainer | Self::RestartPod => reasons::RESTART_POD,
        }
    }
}
