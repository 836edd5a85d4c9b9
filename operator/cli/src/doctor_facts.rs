//! Facts about an installation. Forbidden facts are absent.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::native_group::NativeSupport;

use crate::agents::AgentReport;
use crate::version::VersionReport;

/// Kinds of Lockstep, as `plural.group`.
pub const RESOURCES: [&str; 5] = [
    "nodeagents.training.lockstep.dev",
    "podgroups.scheduling.lockstep.dev",
    "restartorders.training.lockstep.dev",
    "trainingworkloads.training.lockstep.dev",
    "workloads.scheduling.lockstep.dev",
];

/// Admission policies of Lockstep. An overlay can prefix the names.
pub const POLICIES: [&str; 3] = [
    "lockstep-members",
    "lockstep-node-agents",
    "lockstep-operator-objects",
];

#[derive(Clone, Debug, Default)]
pub struct InstallFacts {
    pub kubernetes: String,
    /// Kinds of Lockstep that are served as v1alpha1, as `plural.group`.
    pub served: BTreeSet<String>,
    /// Other API groups with kinds of the same name as Lockstep's.
    pub other_groups: BTreeSet<String>,
    pub managers: Option<Vec<ManagerPod>>,
    /// The lease; inner `None`: it does not exist.
    pub lease: Option<Option<LeaseFacts>>,
    pub versions: VersionReport,
    pub policies: Option<Vec<PolicyFacts>>,
    pub accounts: Vec<AccountFacts>,
    pub agents: Option<AgentReport>,
    pub nodes: Option<Vec<NodeFacts>>,
    pub namespace: String,
    pub rights: Vec<RightFacts>,
    /// What the API server supports of native groups.
    pub native: NativeSupport,
    /// The scheduling backend in the manager's configuration; absent if it is unreadable.
    pub backend: Option<String>,
    /// Kueue's handling of jobs without a queue.
    pub kueue: KueueFacts,
    pub objects: Vec<ObjectFacts>,
    /// Disruption budgets that select members.
    pub budgets: Option<Vec<BudgetFacts>>,
}

/// A disruption budget over members, as the disruption controller counts them.
#[derive(Clone, Debug, Default)]
pub struct BudgetFacts {
    pub namespace: String,
    pub name: String,
    /// Members that it selects.
    pub members: usize,
    /// Pods that the controller expects.
    pub expected: i32,
    /// True if the controller cannot count the pods, and so allows no eviction.
    pub failed: bool,
}

impl BudgetFacts {
    /// What the budget does instead of what its user wants.
    pub fn fault(&self) -> Option<String> {
        let found = if self.failed {
            "allows no eviction".to_owned()
        } else if usize::try_from(self.expected).is_ok_and(|expected| expected < self.members) {
            format!("counts {} of {} members", self.expected, self.members)
        } else {
            return None;
        };
        Some(format!("{}/{} {found}", self.namespace, self.name))
    }
}

#[derive(Clone, Debug, Default)]
pub struct ObjectFacts {
    /// Plural name, such as `podgroups`.
    pub kind: String,
    /// Number of readable objects, and a message for each unreadable object. Absent if the user may
    /// not list them.
    pub read: Option<(usize, Vec<String>)>,
}

/// Kueue's handling of jobs without a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KueueFacts {
    /// Kueue is not installed.
    #[default]
    Absent,
    /// Its configuration is forbidden, or in an unusual place.
    Unseen,
    /// Kueue ignores them.
    LeavesThem,
    /// Kueue manages them, including pods.
    TakesAll,
}

#[derive(Clone, Debug, Default)]
pub struct ManagerPod {
    pub namespace: String,
    pub name: String,
    pub ready: bool,
    /// Last warning in its log. Absent if the pod is ready, the log has no warning, or the log is
    /// forbidden.
    pub warning: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub struct AccountFacts {
    pub account: String,
    /// True if it has the rights that the policies require. Absent if the user may not check it.
    pub writes: Option<bool>,
}

#[derive(Clone, Debug, Default)]
pub struct LeaseFacts {
    pub holder: String,
    pub renewed: Option<DateTime<Utc>>,
    /// Duration of the lease in seconds: other candidates wait this long after a renewal.
    pub duration_seconds: i64,
}

impl LeaseFacts {
    /// True if another candidate may take the lease.
    pub fn is_expired(&self, now: DateTime<Utc>) -> bool {
        let lasts = TimeDelta::seconds(self.duration_seconds);
        self.renewed.is_none_or(|at| at + lasts < now)
    }
}

#[derive(Clone, Debug, Default)]
pub struct PolicyFacts {
    pub name: String,
    pub denies: bool,
}

#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    pub name: String,
    /// True if its kubelet can restart all containers of a pod.
    pub restarts_all: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct RightFacts {
    pub verbs: &'static str,
    pub allowed: bool,
}
