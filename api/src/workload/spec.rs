//! The root of the workload's spec.

use std::collections::BTreeSet;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rules;
use super::{CheckpointPolicy, FailurePolicy, Group, Scheduling, TrainingWorkloadStatus};
use crate::member::{Member, parse_indexes};
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
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(json_path = ".status.phase", name = "Status", type_ = "string"),
    printcolumn(json_path = ".status.ready", name = "Ready", type_ = "string"),
    printcolumn(json_path = ".status.restarts.total", name = "Restarts", type_ = "integer"),
    printcolumn(json_path = ".status.accounting.accelerators", name = "Accelerators", type_ = "integer"),
    printcolumn(json_path = ".status.reason", name = "Reason", type_ = "string"),
    printcolumn(json_path = ".status.attempt", name = "Attempt", type_ = "integer", priority = 1),
    printcolumn(json_path = ".status.preemptions", name = "Preemptions", type_ = "integer", priority = 1),
    printcolumn(json_path = ".spec.priorityClassName", name = "Priority", type_ = "string", priority = 1),
    printcolumn(json_path = ".status.accounting.waitingSince", name = "Queued", type_ = "date", priority = 1),
    printcolumn(json_path = ".status.progress.summary", name = "Progress", type_ = "string", priority = 1),
    printcolumn(json_path = ".status.message", name = "Message", type_ = "string", priority = 1),
    printcolumn(json_path = ".metadata.creationTimestamp", name = "Age", type_ = "date")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = rules::replicas_count_a_group(),
    validation = rules::replicas_count_one_group(),
    validation = rules::member_limit(),
    validation = rules::domain_limit(),
    validation = rules::basic_is_single(),
    validation = rules::progress_needs_gang(),
    validation = rules::checkpoint_needs_gang(),
    validation = rules::checkpoint_needs_supervisor(),
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
    /// True: all pods terminate gracefully and their nodes are released. This does not count as a
    /// failure. While true, the whole spec except group names may be changed. Default: false.
    #[serde(default)]
    pub suspend: bool,
    /// Controller of the object. Lockstep ignores the object unless the value is
    /// `lockstep.dev/operator`, the default. Immutable.
    #[serde(default = "managed_by")]
    #[schemars(length(min = 1, max = 63))]
    pub managed_by: String,
    /// Any change restarts the gang once, without use of the restart budget.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub restart_nonce: i64,
    /// Priority class of all pods and of the gang. Default: the cluster's default class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// Replicas of the one group without `groups[].replicas`, 0 to 20000, for the scale subresource:
    /// `kubectl scale` and autoscalers change this field. A change has the effect of a change of
    /// `groups[].replicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 20000))]
    pub replicas: Option<i32>,
    /// The groups, 1 to 8. The sum of replicas x size over all groups is at most 20000.
    #[schemars(length(min = 1, max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub groups: Vec<Group>,
    /// Placement: gangs, topology, preemption and the longest wait.
    #[serde(default)]
    pub scheduling: Scheduling,
    /// Reaction to the failure of a member. Without rules all members restart together, at most 10
    /// times a day.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// Checkpoints that the processes save on request, before the gang is stopped. Absent: no request
    /// is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointPolicy>,
    /// When the workload is complete.
    #[serde(default)]
    pub success_policy: SuccessPolicy,
    /// Names and ranks of the members.
    #[serde(default)]
    pub network: Network,
    /// Longest time for which the workload holds nodes, from its first placement, in seconds; 1 to
    /// 31536000. Queued and suspended time does not count. After it, the workload fails. Default:
    /// no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 31_536_000))]
    pub active_deadline_seconds: Option<i64>,
    /// Time from completion or failure to the deletion of the object, in seconds; 0 to 31536000.
    /// Default: never deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 31_536_000))]
    pub ttl_seconds_after_finished: Option<i64>,
}

impl TrainingWorkloadSpec {
    /// Number of replicas of a group of this spec.
    pub fn replicas_of(&self, group: &Group) -> i32 {
        group.replicas.or(self.replicas).unwrap_or(1)
    }

    /// Number of replicas of each group, in the order of the groups.
    pub fn replica_counts(&self) -> Vec<i32> {
        self.groups.iter().map(|g| self.replicas_of(g)).collect()
    }

    /// Number of members of a group of this spec, replicas x size.
    pub fn members_of(&self, group: &Group) -> i32 {
        self.replicas_of(group).saturating_mul(group.size)
    }

    /// Number of members of all groups.
    pub fn members(&self) -> i32 {
        self.groups.iter().map(|g| self.members_of(g)).sum()
    }

    /// Members that have succeeded, from the ledger. Indexes beyond the current size of a group are
    /// ignored.
    pub fn completed(&self, status: &TrainingWorkloadStatus) -> BTreeSet<Member> {
        let of = |group: &Group| {
            let mut groups = status.groups.iter();
            let ranges = groups
                .find(|s| s.name == group.name)
                .map_or("", |s| &s.completed_indexes);
            let (name, size, members) = (
                group.name.clone(),
                group.size.max(1),
                self.members_of(group),
            );
            let indexes = parse_indexes(ranges).unwrap_or_default();
            indexes
                .into_iter()
                .filter(move |i| *i < members)
                .map(move |i| Member::new(name.clone(), i / size, i % size))
        };
        self.groups.iter().flat_map(of).collect()
    }

    /// The group that `replicas` counts.
    pub fn scaled_group(&self) -> Option<&Group> {
        self.replicas?;
        self.groups.iter().find(|g| g.replicas.is_none())
    }
}

/// When the workload is complete.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SuccessPolicy {
    /// All: every selected group must succeed. Any: one of them must. Default: All.
    #[serde(default)]
    pub operator: SuccessOperator,
    /// Names of the selected groups, at most 8. Default: all groups.
    #[serde(default)]
    #[schemars(length(max = 8), inner(length(min = 1, max = 40)))]
    pub groups: Vec<String>,
}

/// Number of groups that must succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SuccessOperator {
    /// Every group.
    #[default]
    All,
    /// One group.
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
    /// True: DNS names of members resolve before the members are ready, because training frameworks
    /// rendezvous before readiness. Default: true.
    pub publish_not_ready_addresses: bool,
    /// Scope of ranks and world size: all members of the Workload, of a Group, or of a Replica.
    /// Default: Group.
    pub world: WorldScope,
    /// The member at which the members rendezvous. Default: the first member of each world.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordinator: Option<Coordinator>,
    /// Port of the rendezvous, 1 to 65535. Default: 29500, and for a coordinator with `hostNetwork`
    /// a port from 20000 to 27999 that differs between coordinators, because they share the ports
    /// of a node. Each time all pods of a restart domain are replaced together, the next of eight
    /// ports from this one is used. Network policies must allow these ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<i32>,
}

impl Network {
    /// Name of the headless Service and subdomain of the pods of a workload with this name.
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
            port: None,
        }
    }
}

/// Scope of ranks and world size.
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
