//! Facts about an installation. Forbidden facts are absent.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::native_group::NativeSupport;
use lockstep_api::scheduling::AutoscalerMode;

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

/// TrainingWorkloads, as Kueue's configuration names the jobs of other controllers.
pub const FRAMEWORK: &str = "TrainingWorkload.v1alpha1.training.lockstep.dev";

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
    /// Absent if the manager's configuration is unreadable.
    pub autoscaler: Option<AutoscalerFacts>,
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

/// The node autoscaler, as the manager is configured for it.
#[derive(Clone, Debug, Default)]
pub struct AutoscalerFacts {
    pub mode: AutoscalerMode,
    /// Namespace of signal pods.
    pub namespace: String,
    /// True if that namespace exists. Absent if the user may not read it, or in another mode.
    pub namespace_exists: Option<bool>,
    /// True if the API server serves ProvisioningRequests.
    pub serves_requests: bool,
    /// True if Karpenter is installed.
    pub karpenter: bool,
    /// Rights of the mode that the manager lacks. Absent if the user may not check it.
    pub lacks: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default)]
pub struct KueueFacts {
    /// Served versions of Kueue's API. Empty: Kueue is not installed.
    pub versions: Vec<String>,
    /// True if the manager waits for Kueue. Absent if its configuration is unreadable.
    pub enabled: Option<bool>,
    /// Kueue's configuration. Absent if it is forbidden, or in an unusual place.
    pub configuration: Option<KueueConfiguration>,
    /// Rights for Kueue that the manager lacks. Absent if the user may not check it, or if Kueue is
    /// not enabled.
    pub lacks: Option<Vec<String>>,
    /// Number of workloads with a queue. Absent if the user may not list workloads.
    pub queued: Option<usize>,
    /// Queues of workloads, as `namespace/name`, that do not exist. Absent if the user may not list
    /// them, or if Kueue is not enabled.
    pub missing_queues: Option<Vec<String>>,
}

/// The parts of Kueue's configuration that concern members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KueueConfiguration {
    /// True if Kueue also manages jobs without a queue, including pods.
    pub takes_all: bool,
    /// True if Kueue knows TrainingWorkloads as jobs of another controller.
    pub knows_workloads: bool,
    /// Seconds in which the pods of an admitted workload must be ready. Absent: without end.
    pub pods_ready_seconds: Option<i64>,
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
