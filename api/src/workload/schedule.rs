//! Placement of members.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;

/// Placement of the workload's members.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.policy == 'Gang' || !has(self.gang.minCount)").message("gang.minCount needs policy Gang"))]
pub struct Scheduling {
    /// Gang: the members of a gang are placed all or none. Basic: each member is placed as soon as
    /// there is capacity for it. Default: Gang.
    #[serde(default)]
    pub policy: SchedulingPolicy,
    /// Members that form a gang.
    #[serde(default)]
    pub gang: GangScheduling,
    /// Unit of preemption. All: whole gangs only. Single: single pods. Default: All for gangs,
    /// because a gang is useless after the loss of one member; Single for policy Basic. With Single
    /// and a minCount below its size, a gang continues without lost members while minCount remain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disruption_mode: Option<DisruptionMode>,
    /// Never: this workload evicts no pods. PreemptLowerPriority: it evicts pods of lower priority if
    /// its priority class allows that, which is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption_policy: Option<PreemptionPolicy>,
    /// Objects by which the gangs of this workload are scheduled. Default: `scheduling.backend` of the
    /// manager's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<Backend>,
    /// Keeps members close together, on 1 to 4 levels of the topology.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// Longest wait for capacity, in seconds; 0 to 31536000. Default 0: no limit.
    #[serde(default)]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub timeout_seconds: i64,
    /// Action after `timeoutSeconds`. Wait: keep waiting. Fail: the workload fails. Default: Wait.
    #[serde(default)]
    pub on_timeout: OnTimeout,
}

/// Objects by which gangs are scheduled. Lockstep: Lockstep's own objects. Both: kube-scheduler also
/// gets a native group for each gang, where the API server supports it. Kubernetes: kube-scheduler
/// places and preempts gangs by their native groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Backend {
    /// Lockstep's own objects.
    #[default]
    Lockstep,
    /// Lockstep's own objects, and native groups.
    Both,
    /// Native groups. Lockstep places and preempts nothing.
    Kubernetes,
}

impl Backend {
    /// True if kube-scheduler chooses the nodes, and preempts.
    pub fn kube_scheduler_places(self) -> bool {
        match self {
            Self::Lockstep | Self::Both => false,
            Self::Kubernetes => true,
        }
    }

    /// True if gangs get native groups (`scheduling.k8s.io`), where the API server supports them.
    pub fn has_native_groups(self) -> bool {
        match self {
            Self::Lockstep => false,
            Self::Both | Self::Kubernetes => true,
        }
    }
}

/// Placement policy of members.
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
    /// of each group. Default: Workload.
    #[serde(default)]
    pub scope: GangScope,
    /// With scope Workload: members that must be placed together, 1 to the number of members.
    /// Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 20000))]
    pub min_count: Option<i32>,
}

/// Members that form one gang.
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

/// Unit of preemption (KEP-5710 `disruptionMode`). All: whole gangs only. Single: single pods.
/// Default: All for gangs, because a gang is useless after the loss of one member; Single for
/// policy Basic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DisruptionMode {
    /// The gang is evicted as a whole or not at all.
    All,
    /// Single pods may be evicted.
    Single,
}

/// Permission to evict pods of strictly lower priority. Default: the policy of the priority class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PreemptionPolicy {
    /// Pods of strictly lower priority may be evicted.
    PreemptLowerPriority,
    /// No pod is evicted for this workload.
    Never,
}

/// Topology constraints of the placement: `levels`, or the fields of one level.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = rules::one_level_or_several())]
#[x_kube(validation = rules::levels_differ())]
pub struct Topology {
    /// Levels of the topology, 1 to 4, outermost first: block, rack, NVLink domain. A domain of a
    /// level is one value of its label within one domain of the levels before it. Preferred levels
    /// are left out until the gang fits: levels of the gang before levels of the replicas, inner
    /// levels first. Not with `key`, `mode` or `scope`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 4))]
    pub levels: Vec<TopologyLevel>,
    /// Short form of one level: its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub key: Option<String>,
    /// Short form of one level: its mode. Default: Required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<TopologyMode>,
    /// Short form of one level: its scope. Default: Gang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<TopologyScope>,
}

impl Scheduling {
    /// Levels of the topology, outermost first.
    pub fn levels(&self) -> Vec<TopologyLevel> {
        let Some(topology) = &self.topology else {
            return Vec::new();
        };
        let short = topology.key.iter().map(|key| TopologyLevel {
            key: key.clone(),
            mode: topology.mode.unwrap_or_default(),
            scope: topology.scope.unwrap_or_default(),
        });
        topology.levels.iter().cloned().chain(short).collect()
    }
}

/// A level of the topology, and the members that must share one of its domains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyLevel {
    /// Node label whose values are the domains, such as `topology.kubernetes.io/rack`.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// Required: one domain or no placement. Preferred: one domain if possible. Default: Required.
    #[serde(default)]
    pub mode: TopologyMode,
    /// Gang: all members of the gang share a domain. Replica: the members of each replica share
    /// one. Default: Gang.
    #[serde(default)]
    pub scope: TopologyScope,
}

/// Strength of a topology constraint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TopologyMode {
    /// Must be met.
    #[default]
    Required,
    /// Should be met.
    Preferred,
}

/// Members that must share a topology domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TopologyScope {
    /// All members of the gang.
    #[default]
    Gang,
    /// The members of each replica.
    Replica,
}

/// Action after a scheduling timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnTimeout {
    /// Keep waiting; the condition reports the timeout.
    #[default]
    Wait,
    /// The workload fails.
    Fail,
}
