//! The view of one workload: all inputs of its decisions, built from the manager's index.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_api::ids::{GangKey, ResourceVersion, Uid};
use lockstep_api::kueue::{FlavorSpec, KueueWorkload};
use lockstep_api::member::Member;
use lockstep_api::scheduling::PreemptionPolicy;
use lockstep_api::workload::{TrainingWorkloadSpec, TrainingWorkloadStatus};
use lockstep_api::{PodGroup, RestartOrderSpec, TrainingWorkload, WorkloadSpec};

use crate::gangs::GangView;
use crate::nodes::{AgentInfo, NodeInfo};
use crate::pods::PodView;
use crate::settings::LifecycleSettings;
use lockstep_api::tier::Tier;

/// One workload and all objects that belong to it.
#[derive(Clone, Debug)]
pub struct WorkloadView {
    pub id: WorkloadId,
    /// The workload, with its last read status.
    pub workload: Arc<TrainingWorkload>,
    /// Pods that the workload controls, by the owner's UID. Pods of other owners are ignored.
    pub pods: Vec<Arc<PodView>>,
    /// The last pods of members without a pod, if they were disrupted before their deletion. Their
    /// conditions have the cause.
    pub disrupted: BTreeMap<Member, Arc<PodView>>,
    pub gangs: BTreeMap<GangKey, GangView>,
    /// Pod groups that the workload owns, by gang key. Only updates of these objects read them.
    pub pod_groups: BTreeMap<GangKey, Arc<PodGroup>>,
    /// The Workload of this name, of any owner.
    pub scheduling: Option<Held<WorkloadSpec>>,
    /// Native groups of the workload, and others with similar names.
    pub native: NativeView,
    /// Quota from Kueue.
    pub kueue: KueueView,
    /// The Service named like the subdomain, of any owner.
    pub service: Option<Held<ServiceContent>>,
    /// The `RestartOrder` of this name, of any owner.
    pub order: Option<Held<RestartOrderSpec>>,
    /// Nodes of pods and placements, by name. A missing node does not exist.
    pub nodes: BTreeMap<String, Arc<NodeInfo>>,
    /// Agents of those nodes, by node name.
    pub agents: BTreeMap<String, Arc<AgentInfo>>,
    /// Nodes that have or had an agent pod, and since when their agent pods are ready or not ready,
    /// by the manager's clock.
    pub agent_pods: BTreeMap<String, DateTime<Utc>>,
    /// True if agents exist and all of them can supervise. Pods whose nodes are unknown then get
    /// supervisors.
    pub all_agents_supervise: bool,
    pub priority: Priority,
    /// Dry-run result for the pods of the current spec. `None`: no dry run yet.
    pub dry_run: Option<DryRun>,
    /// Refused requests of earlier passes, until they succeed.
    pub rejections: Vec<RejectedRequest>,
    /// The last failed request, until a request of its kind succeeds.
    pub failed: Option<FailedRequest>,
    pub settings: Arc<LifecycleSettings>,
}

impl WorkloadView {
    pub fn spec(&self) -> &TrainingWorkloadSpec {
        &self.workload.spec
    }

    /// The default before the first write.
    pub fn status(&self) -> TrainingWorkloadStatus {
        self.workload.status.clone().unwrap_or_default()
    }

    pub fn name(&self) -> &str {
        &self.id.name
    }

    pub fn namespace(&self) -> &str {
        &self.id.namespace
    }

    pub fn uid(&self) -> &str {
        self.id.uid.as_str()
    }

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadId {
    pub namespace: String,
    pub name: String,
    pub uid: Uid,
    pub generation: i64,
}

impl WorkloadId {
    /// `None` before the API server has stored the object, which then cannot own objects.
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
    pub uid: Uid,
    /// Version at which the content was read, for updates.
    pub resource_version: ResourceVersion,
    /// True if the workload is its controller, by UID.
    pub owned: bool,
    /// True if it has no owner, and its label names an earlier workload of this name: the workload
    /// was deleted with `--cascade=orphan`, or a backup restored the object without its owner.
    pub orphaned: bool,
    pub content: T,
}

/// Native groups (`scheduling.k8s.io`), by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NativeView {
    /// True if the API server supports native groups. `None`: not tested yet.
    pub supported: Option<bool>,
    pub workloads: BTreeMap<String, Held<()>>,
    pub pod_groups: BTreeMap<String, Held<NativePodGroup>>,
}

/// The parts of a native pod group that change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NativePodGroup {
    pub min_count: i32,
    /// True once kube-scheduler has placed `min_count` members together. Never reverts.
    pub scheduled: bool,
    /// Why kube-scheduler has not placed it.
    pub unschedulable: Option<String>,
    /// True if it was deleted. It stays until its pods have ended.
    pub terminating: bool,
}

/// What is known of Kueue's objects. The default of a manager without Kueue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KueueView {
    pub access: KueueAccess,
    /// The Kueue Workload of the workload, by its name and owner.
    pub workload: Option<Held<KueueWorkload>>,
    pub classes: Arc<KueueClasses>,
}

/// Whether Kueue's objects are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KueueAccess {
    /// Not listed yet.
    #[default]
    Unread,
    NotServed,
    /// In this version.
    Served(&'static str),
}

/// Objects of Kueue without namespace, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KueueClasses {
    pub flavors: BTreeMap<String, FlavorSpec>,
    /// Values of WorkloadPriorityClasses.
    pub priorities: BTreeMap<String, i32>,
}

/// The specified parts of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceContent {
    pub selector: BTreeMap<String, String>,
    pub publish_not_ready_addresses: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Priority of the class, or of the cluster's default class.
    Resolved {
        /// 0 without a class.
        value: i32,
        preemption: PreemptionPolicy,
    },
    ClassMissing,
}

/// Result of dry-run creates of one pod per group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DryRun {
    /// Hash of the spec of the pods. A result for another spec is ignored.
    pub spec_hash: String,
    pub at: DateTime<Utc>,
    /// End of the result's validity, because feature gates and webhooks change.
    pub until: DateTime<Utc>,
    /// Why a pod is invalid (400 or 422), with the field path. Not set for 403, because the real
    /// create repeats checks of quota and policies, nor for webhooks without dry-run support.
    pub invalid: Option<String>,
    /// The highest tier whose rules the API server keeps. Without KEP-5307, the API server drops
    /// the rules. Without the gate for KEP-5532, it refuses that action, even if kubelets declare
    /// it.
    pub tier: Tier,
    /// True if a request failed without a result. Gangs are then placed, but no pods are created.
    pub failed: bool,
}

/// A permanently rejected request. Conflicts and timeouts are retried instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedRequest {
    pub target: Target,
    pub kind: RejectionKind,
    pub message: String,
    /// Time by this process's clock. Other processes' times are not comparable.
    pub at: DateTime<Utc>,
    pub placement: Option<String>,
}

/// A request that the API server or a webhook failed (5xx, no response in time, no rights). The
/// object itself can be valid, and other requests may succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedRequest {
    /// Position of its kind in the sending order.
    pub rank: u8,
    pub message: String,
    /// Time until which this request and later kinds are postponed.
    pub until: DateTime<Utc>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    Pod(Member),
    /// Any other object, by kind and name.
    Object(&'static str, String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionKind {
    /// 403 by a resource quota.
    QuotaExceeded,
    /// 403 for any other reason.
    Forbidden,
    /// 422 or 400.
    Invalid,
    /// 409: another owner's object has the name.
    NameTaken,
    /// Created, but a webhook has changed what identifies or places the pod.
    Altered,
}
