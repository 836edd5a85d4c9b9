//! The root of the workload's spec.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;
use super::{FailurePolicy, Group, Scheduling, TrainingWorkloadStatus};
use crate::names::MANAGED_BY;

/// A training job: groups of identical members that are placed together, restarted together and
/// preempted together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, CustomResource, KubeSchema)]
#[kube(
    group = "training.lockstep.dev",
    version = "v1alpha1",
    kind = "TrainingWorkload",
    plural = "trainingworkloads",
    shortname = "tw",
    category = "all",
    namespaced,
    status = "TrainingWorkloadStatus",
    derive = "PartialEq",
    doc = "A training job: groups of identical members that are placed together, restarted together and preempted together.",
    validation = rules::name_is_a_label(),
    validation = rules::hostnames_fit(),
    printcolumn(json_path = ".status.phase", name = "Status", type_ = "string"),
    printcolumn(json_path = ".status.ready", name = "Ready", type_ = "string"),
    printcolumn(json_path = ".status.restarts.total", name = "Restarts", type_ = "integer"),
    printcolumn(json_path = ".status.accounting.accelerators", name = "Accelerators", type_ = "integer"),
    printcolumn(json_path = ".status.reason", name = "Reason", type_ = "string"),
    printcolumn(json_path = ".status.attempt", name = "Attempt", type_ = "integer", priority = 1),
    printcolumn(json_path = ".status.preemptions", name = "Preemptions", type_ = "integer", priority = 1),
    printcolumn(json_path = ".spec.priorityClassName", name = "Priority", type_ = "string", priority = 1),
    printcolumn(json_path = ".status.accounting.waitingSince", name = "Queued", type_ = "date", priority = 1),
    printcolumn(json_path = ".status.message", name = "Message", type_ = "string", priority = 1),
    printcolumn(json_path = ".metadata.creationTimestamp", name = "Age", type_ = "date")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::member_limit(),
    validation = rules::domain_limit(),
    validation = rules::basic_is_single(),
    validation = rules::progress_needs_gang(),
    validation = rules::min_count_fits(),
    validation = rules::group_min_count_fits(),
    validation = rules::min_count_scope(),
    validation = rules::group_min_count_scope(),
    validation = rules::depends_on_needs_scope(),
    validation = rules::depends_on_earlier(),
    validation = rules::no_system_class(),
    validation = rules::success_groups_exist(),
    validation = rules::rule_groups_exist(),
    validation = rules::coordinator_exists(),
    validation = rules::group_names_fixed(),
    validation = rules::managed_by_fixed(),
    validation = rules::templates_fixed(),
    validation = rules::sizes_fixed(),
    validation = rules::scheduling_fixed(),
    validation = rules::failure_rules_fixed(),
    validation = rules::success_fixed(),
    validation = rules::network_fixed(),
    validation = rules::priority_fixed()
)]
pub struct TrainingWorkloadSpec {
    /// True: all pods end gracefully and their nodes are released. Nothing of it counts as a
    /// failure. While true, the whole spec except group names may be changed.
    #[serde(default)]
    pub suspend: bool,
    /// Which controller acts on the object; any value but `lockstep.dev/operator` means: hands off.
    /// Immutable.
    #[serde(default = "managed_by")]
    #[schemars(length(min = 1, max = 63))]
    pub managed_by: String,
    /// Raise it to restart the gang once, uncounted.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub restart_nonce: i64,
    /// Priority class of all pods and of the gang. Default: the cluster's default class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// The groups, 1 to 8; replicas x size over all of them is at most 20000.
    #[schemars(length(min = 1, max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub groups: Vec<Group>,
    /// What is placed together, how close, what may be evicted for it, and how long it may wait.
    #[serde(default)]
    pub scheduling: Scheduling,
    /// What happens when a member fails. Without rules all members restart together, at most 10
    /// times a day.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// When the workload is complete.
    #[serde(default)]
    pub success_policy: SuccessPolicy,
    /// Names and ranks of the members.
    #[serde(default)]
    pub network: Network,
    /// Longest time from the first start to the end, suspended time excluded, in seconds; 1 to
    /// 31536000. Then the workload fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 31_536_000))]
    pub active_deadline_seconds: Option<i64>,
    /// The object is deleted this many seconds after it has completed or failed; 0 to 31536000.
    /// Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds_after_finished: Option<i64>,
}

/// When the workload is complete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SuccessPolicy {
    /// All: every named group has succeeded. Any: one of them has.
    #[serde(default)]
    pub operator: SuccessOperator,
    /// Groups that count, at most 8. Default: all groups.
    #[serde(default)]
    #[schemars(length(max = 8), inner(length(min = 1, max = 40)))]
    pub groups: Vec<String>,
}

/// How many of the groups must succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SuccessOperator {
    /// Every one.
    #[default]
    All,
    /// One.
    Any,
}

/// Names and ranks of the members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Network {
    /// Name of the headless Service and subdomain of the pods, a DNS label. Default: name of the
    /// workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub subdomain: Option<String>,
    /// Whether members have names before they are ready: training frameworks rendezvous before
    /// readiness.
    pub publish_not_ready_addresses: bool,
    /// Over which members ranks and the world size run: all of the Workload, those of a Group,
    /// those of a Replica.
    pub world: WorldScope,
    /// The member that others rendezvous at. Default: the first member of each world.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordinator: Option<Coordinator>,
    /// Port of the rendezvous, 1 to 65535. When all pods of a restart domain are replaced together
    /// the next of eight ports from here on is used, which network policies have to allow.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
}

impl Network {
    /// Name of the headless Service and subdomain of the pods of a workload of this name.
    pub fn subdomain_of<'a>(&'a self, workload: &'a str) -> &'a str {
        self.subdomain.as_deref().unwrap_or(workload)
    }
}

impl Default for Network {
    fn default() -> Self {
        Self {
            subdomain: None,
            publish_not_ready_addresses: true,
            world: WorldScope::Group,
            coordinator: None,
            port: 29500,
        }
    }
}

/// Over which members ranks run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WorldScope {
    /// All members of the workload.
    Workload,
    /// The members of a group.
    #[default]
    Group,
    /// The members of a replica.
    Replica,
}

/// Address of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Coordinator {
    /// Name of a group.
    #[schemars(length(min = 1, max = 40))]
    pub group: String,
    /// Replica of the group.
    #[serde(default)]
    #[schemars(range(min = 0, max = 20000))]
    pub replica: i32,
    /// Index in the replica.
    #[serde(default)]
    #[schemars(range(min = 0, max = 20000))]
    pub index: i32,
}

fn managed_by() -> String {
    MANAGED_BY.into()
}
