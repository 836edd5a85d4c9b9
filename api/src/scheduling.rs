//! `Workload` and `PodGroup`: the scheduling objects of a workload.
//!
//! Names and specs follow upstream's `scheduling.k8s.io/v1beta1` (KEP-4671, KEP-5710). They are
//! served in Lockstep's own group. The status of `PodGroup` has additional fields after its
//! conditions.

mod move_target;
mod node_demand;
mod preemption;
mod queue;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::move_target::MoveTarget;
pub use self::node_demand::{AutoscalerMode, NodeDemand, ProvisioningPhase, ProvisioningState};
pub use self::preemption::{
    BindingProgress, NextBest, Preemption, PreemptionRequest, Preemptor, Victim,
};
pub use self::queue::QueueStatus;
use crate::condition::{Condition, find, reasons, types};
pub use crate::workload::{PreemptionPolicy, TopologyLevel};

/// The gangs of one workload: one template per kind of gang.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "scheduling.lockstep.dev",
    version = "v1alpha1",
    kind = "Workload",
    plural = "workloads",
    namespaced,
    derive = "PartialEq",
    doc = "The gangs of one workload. Written by the operator."
)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadSpec {
    /// The object for which this one was created.
    pub controller_ref: ControllerRef,
    /// One template per kind of gang, 1 to 8.
    #[schemars(length(min = 1, max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub pod_group_templates: Vec<PodGroupTemplate>,
}

/// Reference to the controlling object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControllerRef {
    /// API group of the object.
    pub api_group: String,
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
}

/// Template of pod groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupTemplate {
    /// Name of the template.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Common spec of the template's pod groups.
    #[serde(flatten)]
    pub gang: GangSpec,
}

/// Common spec of template and pod group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GangSpec {
    /// Gang or basic policy.
    pub scheduling_policy: PodGroupPolicy,
    /// Topology constraint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling_constraints: Option<SchedulingConstraints>,
    /// Unit of preemption.
    #[serde(default)]
    pub disruption_mode: PodGroupDisruptionMode,
    /// Name of the priority class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Value of the priority class.
    #[serde(default)]
    pub priority: i32,
    /// PreemptLowerPriority: the gang may preempt pods of lower priority. Never: it may not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption_policy: Option<PreemptionPolicy>,
}

/// Exactly one of `gang` and `basic`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupPolicy {
    /// All or nothing, with at least `minCount` members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<GangPolicy>,
    /// Pod by pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basic: Option<BasicPolicy>,
}

/// Gang scheduling.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GangPolicy {
    /// Members that must be placed together.
    #[schemars(range(min = 1))]
    pub min_count: i32,
}

/// Pod by pod scheduling.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BasicPolicy {}

/// Topology constraints. `mode`, `scope` and further levels are additions of Lockstep; upstream
/// supports one level, Required, with scope Gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingConstraints {
    /// Levels of the topology, at most 4, outermost first.
    #[schemars(length(max = 4))]
    pub topology: Vec<TopologyLevel>,
}

/// Exactly one of `all` and `single` (KEP-5710 as of 1.37).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupDisruptionMode {
    /// Preemption evicts the whole group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<BasicPolicy>,
    /// Preemption may evict single pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub single: Option<BasicPolicy>,
}

/// A gang: members that are placed together, with their placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "scheduling.lockstep.dev",
    version = "v1alpha1",
    kind = "PodGroup",
    plural = "podgroups",
    shortname = "lpg",
    namespaced,
    status = "PodGroupStatus",
    derive = "PartialEq",
    doc = "One gang of a workload. Written by the operator.",
    printcolumn(
        json_path = ".spec.schedulingPolicy.gang.minCount",
        name = "Min",
        type_ = "integer"
    ),
    printcolumn(json_path = ".spec.priority", name = "Priority", type_ = "integer"),
    printcolumn(
        json_path = ".status.conditions[?(@.type==\"PodGroupInitiallyScheduled\")].reason",
        name = "Scheduled",
        type_ = "string"
    ),
    printcolumn(
        json_path = ".status.placement.members",
        name = "Placed",
        type_ = "integer"
    ),
    printcolumn(
        json_path = ".status.conditions[?(@.type==\"PodGroupInitiallyScheduled\")].message",
        name = "Message",
        type_ = "string",
        priority = 1
    ),
    printcolumn(
        json_path = ".metadata.creationTimestamp",
        name = "Age",
        type_ = "date"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupSpec {
    /// The template of this pod group.
    pub workload_ref: WorkloadRef,
    /// Key of the gang in the workload's status.
    #[schemars(length(min = 1))]
    pub gang_key: String,
    /// Policy, priority and topology.
    #[serde(flatten)]
    pub gang: GangSpec,
}

/// Reference to a template of a Workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadRef {
    /// Name of the Workload.
    pub workload_name: String,
    /// Name of the template.
    pub template_name: String,
}

/// Status of a gang. Only the scheduler loop writes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupStatus {
    /// Conditions as in upstream's PodGroup (KEP-4671): PodGroupInitiallyScheduled,
    /// DisruptionTarget.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Nodes of the members. The placement is decided before any pod is created. A new leader
    /// rebuilds its reservations from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Preemption in progress with this gang as the preemptor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption: Option<Preemption>,
    /// Time at which the gang first requested its current capacity. It orders gangs of equal
    /// priority in the queue. A preemption keeps it; any other release of the placement resets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<DateTime<Utc>>,
    /// Refusal of the gang's pods by kube-scheduler for another reason than capacity. While it is
    /// set, the gang preempts no pods. Removed once every member is bound, or when the spec
    /// changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    /// Preemptions for this gang since it last ran. Removed once all placed members run, or when
    /// the spec changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_preemption: Option<LastPreemption>,
    /// Preemptions that were withdrawn before an eviction. Absent after an eviction or a start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn_preemptions: Option<WithdrawnPreemptions>,
    /// The gang for which this one is preempted, while condition DisruptionTarget is True.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptor: Option<Preemptor>,
    /// Request for a checkpoint before the gang is preempted. Its outcome is in the workload's status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_request: Option<PreemptionRequest>,
    /// Nodes whose pinned pods kube-scheduler refused. The gang temporarily avoids them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["node".into()]))]
    pub excluded_nodes: Vec<ExcludedNode>,
    /// Capacity reserved for the waiting gang. Removed once the gang is placed, or waits for
    /// something other than capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Reservation>,
    /// Place in the queue, for the first 100 waiting gangs of each priority. Removed once the gang no
    /// longer waits in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueStatus>,
    /// Nodes for a move of the running gang away from nodes with signals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub move_target: Option<MoveTarget>,
    /// Nodes that a node autoscaler is asked to add. Removed once the gang is placed, or no longer lacks
    /// nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand: Option<NodeDemand>,
}

impl PodGroupStatus {
    /// Reason of condition PodGroupInitiallyScheduled: why the gang is not placed, or that it is.
    pub fn scheduled_reason(&self) -> Option<&str> {
        let scheduled = find(&self.conditions, types::POD_GROUP_INITIALLY_SCHEDULED);
        scheduled.map(|c| c.reason.as_str())
    }

    /// True if a gang without placement waits for capacity. Other gangs without placement
    /// are held, suspended or in back-off.
    pub fn waits_for_capacity(&self) -> bool {
        self.scheduled_reason() == Some(reasons::UNSCHEDULABLE)
    }
}

/// Capacity reserved for a waiting gang: gangs behind it in the queue do not use it. The gang may
/// start elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// Time at which these nodes were chosen. They change only if one of them becomes unusable.
    #[serde(default)]
    pub since: DateTime<Utc>,
    /// Latest start of the gang on these nodes, computed from work with a known end. Absent if that
    /// work alone does not free enough capacity. Gangs that end before it may run there (backfill).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<DateTime<Utc>>,
    /// The nodes, sorted by name.
    pub nodes: Vec<ReservedNode>,
}

/// Reservation on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReservedNode {
    /// Name of the node.
    pub node: String,
    /// Number of members per group for which the node is reserved.
    pub members: BTreeMap<String, i32>,
}

/// A node that the gang avoids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExcludedNode {
    /// Name of the node.
    pub node: String,
    /// Reason, from the table of condition reasons.
    pub reason: String,
    /// End of the exclusion.
    pub until: DateTime<Utc>,
}

/// A refusal by kube-scheduler that is not about capacity, or pods that no scheduler has handled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// Name of the pod.
    pub pod: String,
    /// The node that the pod was pinned to.
    pub node: String,
    /// Message of the pod's condition PodScheduled. If no scheduler has handled the pod: name of
    /// the pod's scheduler.
    pub message: String,
    /// True if the pod's scheduler has neither bound nor refused it in time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unanswered: bool,
    /// Time of the last refusal.
    pub at: DateTime<Utc>,
    /// Refused placements in a row. The next placement follows 5 s after the first; the wait
    /// doubles up to 5 min.
    pub tries: i32,
    /// The refused spec.
    pub observed: ObservedSpec,
}

/// Preemptions for a gang since it last ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastPreemption {
    /// Time at which the last preemption was decided.
    pub decided_at: DateTime<Utc>,
    /// Time of the last failed preemption. A preemption fails if the gang's pods are refused or not
    /// scheduled, victims do not terminate in time, or bound members do not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_at: Option<DateTime<Utc>>,
    /// Failed preemptions in a row. The next preemption follows 10 min after the first failure; the
    /// wait doubles up to 24 h.
    #[serde(default)]
    pub failures: i32,
    /// Generations of the objects from which these preemptions were decided.
    pub observed: ObservedSpec,
}

impl LastPreemption {
    /// True if the last preemption has failed, false while its result is open.
    pub fn has_failed(&self) -> bool {
        self.failed_at.is_some_and(|at| at >= self.decided_at)
    }
}

/// Preemptions that were withdrawn before an eviction, because pods of other controllers took the
/// capacity or another controller holds the gang's pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WithdrawnPreemptions {
    /// Time of the last withdrawal.
    pub last: DateTime<Utc>,
    /// Withdrawals in a row. The next preemption follows 5 s after the first one; the wait doubles
    /// up to 5 min.
    pub count: i32,
    /// Generations of the objects from which these preemptions were decided.
    pub observed: ObservedSpec,
}

/// The spec of a gang, as generations of its objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObservedSpec {
    /// `metadata.generation` of the pod group.
    pub generation: i64,
    /// `metadata.generation` of the workload.
    pub workload_generation: i64,
}

/// Nodes of a gang's members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// Id of the decision. A change of nodes gets a new id.
    pub id: String,
    /// Time of the decision.
    #[serde(default)]
    pub decided_at: DateTime<Utc>,
    /// Number of placed members.
    pub members: i32,
    /// The nodes, sorted by name.
    pub nodes: Vec<NodePlacement>,
    /// Set if the gang runs on nodes reserved for other gangs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backfill: Option<Backfill>,
}

/// The gang runs on nodes reserved for other gangs, because its deadline ends it in time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Backfill {
    /// Time by which the gang must have ended. If its deadline is raised beyond this time, the
    /// gangs with the reservation may preempt it.
    #[serde(default)]
    pub ends_by: DateTime<Utc>,
    /// UIDs of the pod groups for which the nodes are reserved.
    pub reserved_for: Vec<String>,
}

/// Members on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePlacement {
    /// Name of the node.
    pub node: String,
    /// Members, as ranges such as `workers/0/0-7`.
    pub members: Vec<String>,
}
