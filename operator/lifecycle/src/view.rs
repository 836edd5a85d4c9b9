//! The view of one workload: all inputs of a decision about it, built by the manager from its
//! index.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::ids::{GangKey, ResourceVersion, Uid};
use lockstep_api::member::Member;
use lockstep_api::scheduling::PreemptionPolicy;
use lockstep_api::workload::{TrainingWorkloadSpec, TrainingWorkloadStatus};
use lockstep_api::{PodGroup, RestartOrderSpec, TrainingWorkload, WorkloadSpec};

use crate::nodes::{AgentInfo, NodeInfo};
use crate::pods::PodView;
use crate::settings::LifecycleSettings;
use crate::tier::Tier;
use crate::zones::ZoneInfo;

/// One workload and all that belongs to it.
#[derive(Clone, Debug)]
pub struct WorkloadView {
    /// Which object it is.
    pub id: WorkloadId,
    /// The object, with its last read status.
    pub workload: Arc<TrainingWorkload>,
    /// Pods that the workload controls, by the UID of the owner; labels are irrelevant. Pods of
    /// other owners among them are ignored.
    pub pods: Vec<Arc<PodView>>,
    /// Pod groups that the workload owns, by gang key.
    pub pod_groups: BTreeMap<GangKey, Arc<PodGroup>>,
    /// The Workload of this name, whoever owns it.
    pub scheduling: Option<Held<WorkloadSpec>>,
    /// The Service named like the subdomain, whoever owns it.
    pub service: Option<Held<ServiceContent>>,
    /// The `RestartOrder` of this name, whoever owns it.
    pub order: Option<Held<RestartOrderSpec>>,
    /// Nodes that pods and placements name, by name. A missing node does not exist.
    pub nodes: BTreeMap<String, Arc<NodeInfo>>,
    /// Zones of the cluster, by name.
    pub zones: Arc<BTreeMap<String, ZoneInfo>>,
    /// Agents of those nodes, by node name.
    pub agents: BTreeMap<String, Arc<AgentInfo>>,
    /// Nodes in `nodes` that have or had an agent pod. The time is the start of the current state
    /// (some pod ready, or none), by the manager's clock.
    pub agent_pods: BTreeMap<String, DateTime<Utc>>,
    /// Result of resolving the priority class.
    pub priority: Priority,
    /// Dry-run result for the pods of the current spec. `None`: no dry run yet.
    pub dry_run: Option<DryRun>,
    /// Refused requests of earlier passes, until they succeed.
    pub refusals: Vec<RefusedRequest>,
    /// The last request that the API server failed, until a request of its kind succeeds.
    pub failed: Option<FailedRequest>,
    /// Constants.
    pub settings: Arc<LifecycleSettings>,
}

impl WorkloadView {
    /// The workload's spec.
    pub fn spec(&self) -> &TrainingWorkloadSpec {
        &self.workload.spec
    }

    /// The status. The default before the first write.
    pub fn status(&self) -> TrainingWorkloadStatus {
        self.workload.status.clone().unwrap_or_default()
    }

    /// Name of the workload.
    pub fn name(&self) -> &str {
        &self.id.name
    }

    /// Namespace of the workload.
    pub fn namespace(&self) -> &str {
        &self.id.namespace
    }

    /// UID of the workload.
    pub fn uid(&self) -> &str {
        self.id.uid.as_str()
    }

    /// Generation of the spec.
    pub fn generation(&self) -> i64 {
        self.id.generation
    }

    /// True if the object is being deleted. The garbage collector then deletes its dependents.
    pub fn deleting(&self) -> bool {
        self.workload.metadata.deletion_timestamp.is_some()
    }

    /// Name of the headless Service, and subdomain of the pods.
    pub fn subdomain(&self) -> &str {
        self.spec().network.subdomain_of(self.name())
    }
}

/// Identity of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadId {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: Uid,
    /// Generation of the spec.
    pub generation: i64,
}

impl WorkloadId {
    /// Reads metadata. `None` if the API server has not stored the object, because then it cannot
    /// own others.
    pub fn read(workload: &TrainingWorkload) -> Option<Self> {
        let metadata = &workload.metadata;
        Some(Self {
            namespace: metadata.namespace.clone()?,
            name: metadata.name.clone()?,
            uid: Uid::read(metadata.uid.as_deref())?,
            generation: metadata.generation.unwrap_or_default(),
        })
    }
}

/// An object that the workload needs by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Held<T> {
    /// UID of the object.
    pub uid: Uid,
    /// Version at which the content was read. Updates carry it.
    pub resource_version: ResourceVersion,
    /// True if the workload is its controller, by UID.
    pub owned: bool,
    /// What is in it.
    pub content: T,
}

/// The parts of a Service that are kept as specified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceContent {
    /// Label selector.
    pub selector: BTreeMap<String, String>,
    /// Whether pods have names before they are ready.
    pub publish_not_ready_addresses: bool,
}

/// What the workload's priority class resolves to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Value and policy of the class, or of the cluster's default.
    Resolved {
        /// Value of the class; 0 without class and default.
        value: i32,
        /// Policy of the class.
        preemption: PreemptionPolicy,
    },
    /// The class that the workload names does not exist.
    Unknown,
}

/// Answer of the API server to a dry-run create of one pod for each group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DryRun {
    /// Hash of the spec that the pods were made from; an answer for another spec says nothing.
    pub spec_hash: String,
    /// When it came.
    pub at: DateTime<Utc>,
    /// Until when it counts: a gate of the API server may be switched, a webhook changed.
    pub until: DateTime<Utc>,
    /// Why a pod is invalid (400 or 422), with the field path; None when all were accepted. A 403
    /// is no verdict on the template: quota and policies are asked again at the real create. Nor is
    /// the refusal of a dry run for the sake of a webhook that does not support them.
    pub invalid: Option<String>,
    /// The highest restart tier whose rules the API server is known to keep. One without KEP-5307 drops
    /// them, one whose gate for KEP-5532 is off refuses that action although kubelets may declare it.
    pub tier: Tier,
    /// Whether a request failed without an answer: enough for a gang that waits, and not for pods that
    /// are to be made.
    pub failed: bool,
}

/// A request that the API server refused for good, as opposed to a conflict or a timeout, which are
/// just repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRequest {
    /// What was to be written.
    pub target: Target,
    /// Why not.
    pub kind: RefusalKind,
    /// In the words of the API server.
    pub message: String,
    /// When, by this process's clock: not to be compared with times that another may have written.
    pub at: DateTime<Utc>,
    /// Id of the placement that a pod was to be made for.
    pub placement: Option<String>,
}

/// A request that the API server, or a webhook of it, failed (5xx, no answer in time, no rights). Unlike
/// a refusal this says nothing about the object, and other requests may succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedRequest {
    /// Position of its kind in the order of sending.
    pub rank: u8,
    /// The request, with the words of the API server.
    pub message: String,
    /// Until then neither this request nor those after it are repeated.
    pub until: DateTime<Utc>,
}

/// What a refused request was about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// The pod of a member.
    Pod(Member),
    /// Any other object, by kind and name.
    Object(&'static str, String),
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// 403 by a resource quota.
    QuotaExceeded,
    /// 403 for any other reason.
    Forbidden,
    /// 422 or 400.
    Invalid,
    /// 409: the name belongs to an object that is not ours.
    NameTaken,
}
