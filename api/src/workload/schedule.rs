//! How the members are placed.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Placement of the workload's members.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.policy == 'Gang' || !has(self.gang.minCount)").message("gang.minCount needs policy Gang"))]
pub struct Scheduling {
    /// Gang: members of a gang are placed all or none. Basic: each member is placed as
    /// soon as there is capacity for it.
    #[serde(default)]
    pub policy: SchedulingPolicy,
    /// What is placed together.
    #[serde(default)]
    pub gang: GangScheduling,
    /// What preemption takes: All, whole gangs only; Single, single pods. Default: All for gangs (a
    /// gang that loses one member is useless), Single for policy Basic. With Single and a minCount
    /// below its size, a gang goes on without members that are lost while minCount are left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption_mode: Option<DisruptionMode>,
    /// Whether this workload may evict others. Default: that of its priority class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption_policy: Option<PreemptionPolicy>,
    /// Keeps members close together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// Longest wait for capacity, in seconds; 0: no limit.
    #[serde(default)]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub timeout_seconds: i64,
    /// What happens when `timeoutSeconds` has passed.
    #[serde(default)]
    pub on_timeout: OnTimeout,
}

/// Whether members are placed together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SchedulingPolicy {
    /// All or none.
    #[default]
    Gang,
    /// One by one.
    Basic,
}

/// The unit of placement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GangScheduling {
    /// Workload: all members are one gang. Group: one gang per group. Replica: one gang per replica
    /// of each group.
    #[serde(default)]
    pub scope: GangScope,
    /// With scope Workload: how many members must be placed together, 1 to the number of members.
    /// Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 20000))]
    pub min_count: Option<i32>,
}

/// Which members form one gang.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum GangScope {
    /// The whole workload.
    #[default]
    Workload,
    /// Each group.
    Group,
    /// Each replica of each group.
    Replica,
}

/// What preemption takes (KEP-5710 `disruptionMode`). All: whole gangs only. Single: single pods.
/// Default: All for gangs (a gang that loses one member is useless), Single for policy Basic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DisruptionMode {
    /// The gang is evicted whole or not at all.
    All,
    /// Each pod may be evicted alone.
    Single,
}

/// Whether work of strictly lower priority may be evicted to free capacity. Default: that of the
/// priority class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PreemptionPolicy {
    /// Work of strictly lower priority may be evicted.
    PreemptLowerPriority,
    /// No pod is evicted for this workload.
    Never,
}

/// Topology constraint of the placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Topology {
    /// Node label whose values are the domains, such as `topology.kubernetes.io/rack`.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// Required: one domain or no placement. Preferred: one domain where possible.
    #[serde(default)]
    pub mode: TopologyMode,
    /// What shares a domain: each replica, or the whole gang.
    #[serde(default)]
    pub scope: TopologyScope,
}

/// Strength of a topology constraint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TopologyMode {
    /// Must hold.
    #[default]
    Required,
    /// Should hold.
    Preferred,
}

/// What has to share a topology domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TopologyScope {
    /// All members of the gang.
    #[default]
    Gang,
    /// The members of each replica.
    Replica,
}

/// What a scheduling timeout does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnTimeout {
    /// Keep waiting; the condition says so.
    #[default]
    Wait,
    /// The workload fails.
    Fail,
}
