//! `Workload` and `PodGroup`: the scheduling objects of a workload.
//!
//! Names and spec shape are those of upstream's `scheduling.k8s.io/v1beta1` (KEP-4671, KEP-5710),
//! served in our own group where the cluster does not serve upstream's. Our `PodGroup` status adds
//! what follows its conditions.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::{Condition, find, reasons, types};
pub use crate::workload::PreemptionPolicy;

/// The gangs of one workload: one template for each kind of gang.
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
    /// The object that this one was made for.
    pub controller_ref: ControllerRef,
    /// One template for each kind of gang, 1 to 8.
    #[schemars(length(min = 1, max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub pod_group_templates: Vec<PodGroupTemplate>,
}

/// Reference to the controlling object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControllerRef {
    /// API group.
    pub api_group: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
}

/// Template of pod groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupTemplate {
    /// Name of the template.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// What every pod group of the template has.
    #[serde(flatten)]
    pub gang: GangSpec,
}

/// What template and pod group share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GangSpec {
    /// Gang or basic.
    pub scheduling_policy: PodGroupPolicy,
    /// Topology.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling_constraints: Option<SchedulingConstraints>,
    /// What preemption takes.
    #[serde(default)]
    pub disruption_mode: PodGroupDisruptionMode,
    /// Priority class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Value of the priority class.
    #[serde(default)]
    pub priority: i32,
    /// Whether the gang may preempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption_policy: Option<PreemptionPolicy>,
}

/// Exactly one of `gang` and `basic`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupPolicy {
    /// All or nothing from `minCount`.
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

/// Topology constraints, at most one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingConstraints {
    /// The constraints.
    #[schemars(length(max = 1))]
    pub topology: Vec<TopologyConstraint>,
}

/// One topology constraint. `mode` and `scope` are ours; upstream knows Required at scope Gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyConstraint {
    /// Node label.
    pub key: String,
    /// Strength.
    #[serde(default)]
    pub mode: crate::workload::TopologyMode,
    /// What shares a domain.
    #[serde(default)]
    pub scope: crate::workload::TopologyScope,
}

/// Exactly one of `all` and `single` (KEP-5710 as of 1.37).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupDisruptionMode {
    /// The whole group or nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<BasicPolicy>,
    /// Single pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub single: Option<BasicPolicy>,
}

/// One gang: what is placed together, and where it was placed.
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
    /// The template it was made from.
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
    /// Upstream's conditions.
    #[serde(default)]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Where the members run. Decided before any pod is made; it is the reservation that a new
    /// leader rebuilds from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// The preemption that this gang is the preemptor of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption: Option<Preemption>,
    /// When the gang queued, since it last held capacity; its place in the queue among
    /// equal priorities. A preempted gang keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<DateTime<Utc>>,
    /// What kube-scheduler refuses the gang's pods for, where that is no lack of capacity. While it
    /// is set, no work is preempted for the gang. Removed once every member is bound, or when the
    /// spec changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    /// Preemptions that evicted work for the gang since it last ran. Removed once all placed members
    /// run, or when the spec changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_preemption: Option<LastPreemption>,
    /// Nodes whose pinned pods kube-scheduler refused: the gang is not placed there for a while.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["node".into()]))]
    pub excluded_nodes: Vec<ExcludedNode>,
    /// What is kept for the gang while it waits. Removed once it is placed, or waits for something
    /// other than capacity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<Reservation>,
}

impl PodGroupStatus {
    /// What the condition says that tells why a gang is not placed, or that it is.
    pub fn scheduled_reason(&self) -> Option<&str> {
        let scheduled = find(&self.conditions, types::POD_GROUP_INITIALLY_SCHEDULED);
        scheduled.map(|c| c.reason.as_str())
    }

    /// Whether it is capacity that a gang without a placement waits for; other gangs without one are
    /// held, suspended or back off.
    pub fn waits_for_capacity(&self) -> bool {
        self.scheduled_reason() == Some(reasons::UNSCHEDULABLE)
    }
}

/// Capacity that is kept for a gang that waits: gangs behind it in the queue leave it alone. The
/// gang may start elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// When these nodes were chosen. Others are chosen only when one of them cannot be used any
    /// more.
    #[serde(default)]
    pub since: DateTime<Utc>,
    /// When the gang can start there at the latest, because all that runs there has a deadline.
    /// Absent where that is not known. Gangs that will have ended by then may run there meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_at: Option<DateTime<Utc>>,
    /// The nodes, by name.
    pub nodes: Vec<ReservedNode>,
}

/// What is reserved on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReservedNode {
    /// Name of the node.
    pub node: String,
    /// How many members of each group it is for.
    pub members: BTreeMap<String, i32>,
}

/// A node that a gang is not placed on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExcludedNode {
    /// Name of the node.
    pub node: String,
    /// Reason, from the table of condition reasons.
    pub reason: String,
    /// Until when.
    pub until: DateTime<Utc>,
}

/// A refusal by kube-scheduler that is not about capacity, or that nobody has looked at the pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// Name of the pod.
    pub pod: String,
    /// The node that it was pinned to.
    pub node: String,
    /// What kube-scheduler says: the message of the pod's condition PodScheduled. Where nobody says
    /// anything: who should.
    pub message: String,
    /// Whether the scheduler that the pod names has neither bound nor refused it in time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unanswered: bool,
    /// When it was noted last.
    pub at: DateTime<Utc>,
    /// Placements in a row that ended so. The next is made 5 s after the first, then after twice as
    /// long, at most 5 min.
    pub tries: i32,
    /// The spec that was refused.
    pub observed: ObservedSpec,
}

/// Preemptions that evicted work for a gang since it last ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastPreemption {
    /// When the last of them was decided.
    pub decided_at: DateTime<Utc>,
    /// When one of them failed last: the gang's pods were refused or not scheduled, the victims did not
    /// leave in time, or members that were bound did not start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_at: Option<DateTime<Utc>>,
    /// Failed preemptions in a row. The next preemption is decided 10 min after the first failure, then
    /// after twice as long, at most 24 h.
    #[serde(default)]
    pub failures: i32,
    /// The spec that they were for.
    pub observed: ObservedSpec,
}

impl LastPreemption {
    /// True if the last preemption has failed; false while its result is open.
    pub fn has_failed(&self) -> bool {
        self.failed_at.is_some_and(|at| at >= self.decided_at)
    }
}

/// The spec of a gang, as generations of the objects that it consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObservedSpec {
    /// `metadata.generation` of the pod group.
    pub generation: i64,
    /// `metadata.generation` of the workload.
    pub workload_generation: i64,
}

/// Where the members of a gang run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// Identifies this decision; a change of nodes is a new id.
    pub id: String,
    /// When it was decided.
    #[serde(default)]
    pub decided_at: DateTime<Utc>,
    /// Number of members placed.
    pub members: i32,
    /// The nodes, by name.
    pub nodes: Vec<NodePlacement>,
    /// Set where the gang runs on nodes that are reserved for later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backfill: Option<Backfill>,
}

/// A gang runs on nodes that are reserved for others, because its deadline ends it in time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Backfill {
    /// By when it has to have ended. If its deadline is raised beyond that, those for which the
    /// nodes are reserved may preempt it.
    #[serde(default)]
    pub ends_by: DateTime<Utc>,
    /// UIDs of the pod groups for which the nodes are reserved.
    pub reserved_for: Vec<String>,
}

/// The members on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePlacement {
    /// Name of the node.
    pub node: String,
    /// Members, as ranges such as `workers/0/0-7`.
    pub members: Vec<String>,
}

/// The intent to preempt: persisted before anybody is evicted, validated again whenever it is
/// resumed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Preemption {
    /// Identifies the intent; victims carry it in their condition.
    pub id: String,
    /// UID of the preemptor's pod group. An intent whose UID is another is ignored.
    #[serde(rename = "preemptorUID")]
    pub preemptor_uid: String,
    /// When it was decided.
    #[serde(default)]
    pub decided_at: DateTime<Utc>,
    /// Id of the placement that needs the capacity.
    pub placement: String,
    /// Who leaves.
    pub victims: Vec<Victim>,
    /// Why these, for people.
    #[serde(default)]
    pub explanation: String,
    /// Cost of the victims in accelerator-seconds.
    #[serde(default)]
    pub cost: i64,
    /// No set of victims that frees enough capacity costs less than this, in accelerator-seconds.
    #[serde(default)]
    pub at_least: i64,
    /// Whether no cheaper set frees enough capacity.
    #[serde(default)]
    pub proven: bool,
    /// The next best set that was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_best: Option<NextBest>,
    /// How far the gang has come since its last victim was gone. Absent while one is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<BindingProgress>,
}

/// How many members of a gang have been bound to their nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BindingProgress {
    /// The most members that were seen bound, or finished since, at once.
    pub bound: i32,
    /// When so many were first seen bound, or the last victim gone. If no further member is bound
    /// and none is refused within 15 min, the preemption is given up.
    pub since: DateTime<Utc>,
}

/// Another set of victims, for comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NextBest {
    /// What it would have cost, in accelerator-seconds.
    pub cost: i64,
    /// Who would have left, as `podgroup namespace/name`; of many, the first.
    pub victims: Vec<String>,
}

/// A unit that is evicted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Victim {
    /// `PodGroup` for a gang, `Pod` for a single pod.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID; a victim with another UID is not touched.
    pub uid: String,
    /// Priority.
    #[serde(default)]
    pub priority: i32,
    /// Pods evicted.
    #[serde(default)]
    pub pods: i32,
    /// Accelerator-seconds of work lost.
    #[serde(default)]
    pub cost: i64,
    /// Work of others that a single pod belongs to and that goes whole or not at all: all pods of it are
    /// victims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// When its eviction was first requested. While a single pod stays, its disruption budgets refuse
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_requested_at: Option<DateTime<Utc>>,
}
