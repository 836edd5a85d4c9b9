//! What is known of an installation. What may not be read is absent.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};

use crate::agents::AgentReport;
use crate::version::VersionReport;

/// Kinds that Lockstep brings, as `plural.group`.
pub const RESOURCES: [&str; 5] = [
    "nodeagents.training.lockstep.dev",
    "podgroups.scheduling.lockstep.dev",
    "restartorders.training.lockstep.dev",
    "trainingworkloads.training.lockstep.dev",
    "workloads.scheduling.lockstep.dev",
];

/// Admission policies that Lockstep brings; an overlay may put a prefix before the names.
pub const POLICIES: [&str; 3] = [
    "lockstep-members",
    "lockstep-node-agents",
    "lockstep-operator-objects",
];

/// What is known of an installation.
#[derive(Clone, Debug, Default)]
pub struct InstallFacts {
    /// Version of Kubernetes.
    pub kubernetes: String,
    /// Kinds of ours that are served as v1alpha1, as `plural.group`.
    pub served: BTreeSet<String>,
    /// Other API groups with kinds called as ours.
    pub other_groups: BTreeSet<String>,
    /// Pods of managers.
    pub managers: Option<Vec<ManagerPod>>,
    /// The lease, where there is one.
    pub lease: Option<Option<LeaseFacts>>,
    /// Versions that meet.
    pub versions: VersionReport,
    /// Each of [`POLICIES`].
    pub policies: Option<Vec<PolicyFacts>>,
    /// Service accounts of managers, and whether the policies let them write.
    pub accounts: Vec<AccountFacts>,
    /// Node agents.
    pub agents: Option<AgentReport>,
    /// Nodes.
    pub nodes: Option<Vec<NodeFacts>>,
    /// What the user may do.
    pub rights: Vec<RightFacts>,
    /// Versions of upstream's group `scheduling.k8s.io` that serve pod groups.
    pub native: Vec<String>,
    /// What Kueue does with jobs that name no queue.
    pub kueue: KueueFacts,
    /// Objects of each kind that the manager watches.
    pub objects: Vec<ObjectFacts>,
}

/// Objects of a kind of Lockstep.
#[derive(Clone, Debug, Default)]
pub struct ObjectFacts {
    /// Kind, as `podgroups`.
    pub kind: String,
    /// How many can be read, and a sentence for each that cannot; absent: they may not be listed.
    pub read: Option<(usize, Vec<String>)>,
}

/// What Kueue does with jobs that name no queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KueueFacts {
    /// It is not installed.
    #[default]
    Absent,
    /// Its configuration may not be read, or is not where its manifests put it.
    Unseen,
    /// It leaves them alone.
    LeavesThem,
    /// It manages them, pods included.
    TakesAll,
}

/// A pod of a manager.
#[derive(Clone, Debug, Default)]
pub struct ManagerPod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Whether it is ready.
    pub ready: bool,
    /// Last warning in its log; absent: it is ready, there is none, or the log may not be read.
    pub warning: Option<String>,
}

/// The service account of a Deployment of managers.
#[derive(Clone, Debug, Default)]
pub struct AccountFacts {
    /// User name.
    pub account: String,
    /// Whether it has the rights that the policies ask for; absent: that may not be asked.
    pub writes: Option<bool>,
}

/// Who leads.
#[derive(Clone, Debug, Default)]
pub struct LeaseFacts {
    /// Identity of the holder.
    pub holder: String,
    /// When it was renewed.
    pub renewed: Option<DateTime<Utc>>,
    /// How long others wait after that.
    pub duration_seconds: i64,
}

/// An admission policy.
#[derive(Clone, Debug, Default)]
pub struct PolicyFacts {
    /// Name, without the prefix that it is installed with.
    pub name: String,
    /// Whether it is bound and denies.
    pub denies: bool,
}

/// A node.
#[derive(Clone, Debug, Default)]
pub struct NodeFacts {
    /// Name.
    pub name: String,
    /// Whether its kubelet restarts all containers of a pod.
    pub restarts_all: bool,
}

/// Something that the user may do, or may not.
#[derive(Clone, Copy, Debug)]
pub struct RightFacts {
    /// Verbs of this program that need it, with what is missing.
    pub verbs: &'static str,
    /// Whether it is allowed.
    pub allowed: bool,
}
