//! Failure policy of a workload.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FailureAction;

/// Reaction to failures. By default the gang restarts in place, up to `limits`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.rules.all(r, self.rules.exists_one(o, o.name == r.name))").message("rule names must be unique"))]
#[x_kube(validation = Rule::new("!has(self.progress) || self.inPlace.supervisor != 'Never'").message("progress is watched by the supervisor: inPlace.supervisor must be Auto"))]
#[x_kube(validation = Rule::new("self.inPlace.stopGraceSeconds == 0 || self.inPlace.stopGraceSeconds < self.inPlace.deadlineSeconds").message("inPlace.stopGraceSeconds must be less than inPlace.deadlineSeconds"))]
pub struct FailurePolicy {
    /// Ordered rules, at most 20; the first match decides. Without a match: RestartGang for gangs,
    /// RestartContainer for policy Basic.
    #[serde(default)]
    #[schemars(length(max = 20))]
    pub rules: Vec<FailureRule>,
    /// The restart budget: number of counted incidents that the workload survives.
    #[serde(default)]
    pub limits: RestartLimits,
    /// Gang: all members of the gang restart together. Replica: the members of one replica do.
    #[serde(default)]
    pub restart_scope: RestartScope,
    /// Limits of in-place restarts, which keep pods, nodes and addresses and restart only the
    /// training process.
    #[serde(default)]
    pub in_place: InPlace,
    /// Limits after which a training process that reports progress counts as hung. It is killed,
    /// and its member fails with reason Hang. Absent: never. A change takes effect at the next
    /// start of the process (docs/progress.md).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressPolicy>,
    /// A node that is NotReady for this many seconds counts as lost, and its members as failed; 1
    /// to 86400, default 60. No node counts as lost while at least 55 % and three of the nodes of
    /// its zone, or all nodes of the cluster, are NotReady.
    #[serde(default = "node_lost_seconds")]
    #[schemars(range(min = 1, max = 86_400))]
    pub node_lost_seconds: i64,
    /// Longest time from pod creation to running containers (image pull, mounts, init containers),
    /// in seconds; 1 to 86400, default 1200. The same limit applies from then until a supervisor is
    /// at the barrier. After it the gang releases its nodes, avoids the node and queues again,
    /// uncounted. In a gang that has run, only the member moves to another node; of many members, a
    /// tenth at a time. If image, command, configuration or schedulerName is the cause, no node is
    /// avoided, and the third start in a row fails the workload.
    #[serde(default = "start_deadline_seconds")]
    #[schemars(range(min = 1, max = 86_400))]
    pub start_deadline_seconds: i64,
    /// Longest time for which the surviving members keep their nodes while a replacement is sought,
    /// in seconds; 1 to 86400, default 300.
    #[serde(default = "replacement_timeout_seconds")]
    #[schemars(range(min = 1, max = 86_400))]
    pub replacement_timeout_seconds: i64,
    /// Longest grace period of pods of a failed attempt, in seconds; 1 to 86400, default 120.
    /// Replacements wait for these pods, so a longer `terminationGracePeriodSeconds` is reduced to
    /// this value. Pods that do not terminate although their node is responsive are then deleted by
    /// force, and their replacements avoid that node.
    #[serde(default = "recreate_grace_seconds")]
    #[schemars(range(min = 1, max = 86_400))]
    pub recreate_grace_seconds: i64,
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            limits: RestartLimits::default(),
            restart_scope: RestartScope::default(),
            in_place: InPlace::default(),
            progress: None,
            node_lost_seconds: node_lost_seconds(),
            start_deadline_seconds: start_deadline_seconds(),
            replacement_timeout_seconds: replacement_timeout_seconds(),
            recreate_grace_seconds: recreate_grace_seconds(),
        }
    }
}

/// A rule: its match and its action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!self.match.reasons.exists(r, r == 'NodeLeaving' || r == 'NodeFaulty') || self.action in ['RestartGang', 'RecreateGang', 'Ignore']").message("match.reasons NodeLeaving and NodeFaulty need action RestartGang, RecreateGang or Ignore (the gang stays)"))]
#[x_kube(validation = Rule::new("self.failedMember != 'ReplaceElsewhere' || self.avoidSeconds > 0").message("failedMember ReplaceElsewhere needs avoidSeconds > 0"))]
pub struct FailureRule {
    /// Name of the rule, a DNS label. It appears in the incident history.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// Failures that the rule matches. All given parts must match.
    #[serde(default, rename = "match")]
    pub matches: FailureMatch,
    /// Ignore: the container stays down, and the workload fails once no other member is left to
    /// run. RestartContainer: the kubelet restarts that container. RestartPod: all
    /// containers of that pod restart, init containers first; in a new pod if the kubelet cannot
    /// restart all of them. RestartGang: all members of the restart domain restart, in place if
    /// possible. RecreateGang: all members get new pods on their nodes. FailWorkload: the workload
    /// fails at once.
    pub action: FailureAction,
    /// Handling of the failed member, if the action restarts members. InPlace: it restarts in its
    /// pod. Replace: it gets a new pod. ReplaceElsewhere: it gets a new pod on another node,
    /// because its node may be broken.
    #[serde(default)]
    pub failed_member: FailedMember,
    /// With failedMember ReplaceElsewhere: how long this workload avoids the node, in seconds; at
    /// most 604800, default 3600.
    #[serde(default = "avoid_seconds")]
    #[schemars(range(min = 0, max = 604_800))]
    pub avoid_seconds: i64,
    /// True if the incident uses the restart budget. Default: true.
    #[serde(default = "yes")]
    pub counted: bool,
}

/// Match of a rule. Empty parts match everything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureMatch {
    /// Names of groups, at most 8. Empty: any group.
    #[serde(default)]
    #[schemars(length(max = 8), inner(length(min = 1, max = 40)))]
    pub groups: Vec<String>,
    /// Names of containers, at most 16, including init containers and sidecars. Empty: the training
    /// container, and each container whose exit also terminates the training container, by failing
    /// the pod or by restarting all its containers.
    #[serde(default)]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)))]
    pub containers: Vec<String>,
    /// Exit codes of the container. Absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_codes: Option<ExitCodes>,
    /// Failure reasons, at most 16, such as OOMKilled, Hang, NodeLost, Evicted. Empty: any reason,
    /// except NodeLeaving and NodeFaulty: moves away from nodes with signals match only rules that
    /// name them. Of such rules, reasons, groups and action count. RestartGang moves the members on
    /// these nodes and restarts the others in place, RecreateGang gives new pods to all, and with
    /// Ignore the gang stays. A move is never counted.
    #[serde(default)]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)))]
    pub reasons: Vec<String>,
    /// Pod conditions that must be met, at most 8, such as DisruptionTarget.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub pod_conditions: Vec<PodConditionMatch>,
}

impl FailureMatch {
    /// True if the match includes the group.
    pub fn names_group(&self, group: &str) -> bool {
        names(&self.groups, group)
    }

    /// True if the match includes the container.
    pub fn names_container(&self, container: &str) -> bool {
        names(&self.containers, container)
    }

    /// True if the match includes the reason.
    pub fn names_reason(&self, reason: &str) -> bool {
        names(&self.reasons, reason)
    }
}

/// True if the list contains the name, or is empty.
fn names(list: &[String], name: &str) -> bool {
    list.is_empty() || list.iter().any(|n| n == name)
}

/// A set of exit codes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.operator != 'In' || size(self.values) > 0").message("operator In needs at least one value"))]
pub struct ExitCodes {
    /// In: the code is one of the values. NotIn: it is not.
    pub operator: ExitCodeOperator,
    /// Exit codes, 1 to 255. Code 0 is success and never a failure.
    #[schemars(length(max = 255), inner(range(min = 1, max = 255)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub values: Vec<i32>,
}

/// Relation of the code to the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExitCodeOperator {
    /// The code is one of the values.
    In,
    /// The code is none of the values.
    NotIn,
}

/// A pod condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodConditionMatch {
    /// Type of the condition.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 317))]
    pub type_: String,
    /// Status of the condition: True, False or Unknown. Default: True.
    #[serde(default = "status_true")]
    #[schemars(length(min = 1, max = 16))]
    pub status: String,
}

impl ExitCodes {
    /// True if an exit code is in the set.
    pub fn contains(&self, code: i32) -> bool {
        match self.operator {
            ExitCodeOperator::In => self.values.contains(&code),
            ExitCodeOperator::NotIn => !self.values.contains(&code),
        }
    }
}

/// Handling of the failed member's pod.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum FailedMember {
    /// The member restarts in its pod.
    #[default]
    InPlace,
    /// The pod is replaced.
    Replace,
    /// The pod is replaced on another node.
    ReplaceElsewhere,
}

/// Restart budget: counted incidents in a sliding window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RestartLimits {
    /// Counted incidents allowed in the window, 0 to 100, default 10. One more fails the workload.
    #[schemars(range(min = 0, max = 100))]
    pub max_restarts: i32,
    /// Length of the window in seconds, 1 to 31536000, default 86400.
    #[schemars(range(min = 1, max = 31_536_000))]
    pub window_seconds: i64,
}

impl Default for RestartLimits {
    fn default() -> Self {
        Self {
            max_restarts: 10,
            window_seconds: 86_400,
        }
    }
}

/// Members that restart together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RestartScope {
    /// All members of the gang.
    #[default]
    Gang,
    /// The members of one replica.
    Replica,
}

/// In-place restarts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InPlace {
    /// Longest time since the restart order or the last arrival of a member, in seconds; 1 to 3600,
    /// default 60. After it, members whose node agents report them as overdue are replaced, at most
    /// a tenth of the domain at a time.
    #[schemars(range(min = 1, max = 3600))]
    pub deadline_seconds: i64,
    /// In-place restarts for consecutive incidents before the pods of the domain are recreated, 0
    /// to 100, default 3.
    #[schemars(range(min = 0, max = 100))]
    pub max_tries: i32,
    /// Auto: training containers get a supervisor that restarts the training process in them
    /// (docs/supervisor.md). It requires an installation with supervisors, an agent on the node and
    /// a suitable container. Never: no supervisor. Default: Auto.
    pub supervisor: SupervisorMode,
    /// Deny: RestartGang replaces the pods of members without a supervisor, because two attempts
    /// could overlap. Allow: such members restart in place anyway. Restart domains of one member
    /// always restart in place. Default: Deny.
    pub without_supervisor: WithoutSupervisor,
    /// Files of the training process in `/dev/shm` that the supervisor unlinks before the next
    /// attempt. CleanKnown: leftovers of communication libraries and of Python's multiprocessing, by
    /// their names (docs/supervisor.md). CleanAll: all new files of the same user. Keep: none. Default: CleanKnown.
    pub shared_memory: SharedMemoryPolicy,
    /// Time for supervised members that have not failed, from the stop signal to SIGKILL, in seconds;
    /// 0 to 3600, less than deadlineSeconds. A member can save a checkpoint in it. Each restart waits for
    /// the slowest member. Default: 0, SIGKILL at once.
    #[schemars(range(min = 0, max = 3600))]
    pub stop_grace_seconds: i64,
}

impl Default for InPlace {
    fn default() -> Self {
        Self {
            deadline_seconds: 60,
            max_tries: 3,
            supervisor: SupervisorMode::Auto,
            without_supervisor: WithoutSupervisor::Deny,
            shared_memory: SharedMemoryPolicy::CleanKnown,
            stop_grace_seconds: 0,
        }
    }
}

/// Limits for a training process without progress. The process reports its step in the file that
/// `LOCKSTEP_PROGRESS` names. A process that never reports is never treated as hung.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProgressPolicy {
    /// Longest time between two steps, in seconds; 10 to 86400. It includes evaluations and
    /// checkpoints that block training.
    #[schemars(range(min = 10, max = 86_400))]
    pub timeout_seconds: i64,
    /// Time to load and compile after the start of a process, in seconds; 10 to 86400, default
    /// 1800. Within it, no process counts as hung.
    #[serde(default = "startup_seconds")]
    #[schemars(range(min = 10, max = 86_400))]
    pub startup_seconds: i64,
}

/// Use of supervisors in training containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SupervisorMode {
    /// Use a supervisor if possible.
    #[default]
    Auto,
    /// Use no supervisor.
    Never,
}

/// Leftover files in `/dev/shm` that a restart in place unlinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SharedMemoryPolicy {
    /// Files with the names of known libraries.
    #[default]
    CleanKnown,
    /// All files that have appeared since the process started.
    CleanAll,
    /// No file.
    Keep,
}

/// Handling of gangs without a barrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WithoutSupervisor {
    /// Pods are recreated.
    #[default]
    Deny,
    /// Members restart in place.
    Allow,
}

fn node_lost_seconds() -> i64 {
    60
}

fn start_deadline_seconds() -> i64 {
    1200
}

fn replacement_timeout_seconds() -> i64 {
    300
}

fn recreate_grace_seconds() -> i64 {
    120
}

fn startup_seconds() -> i64 {
    1800
}

fn avoid_seconds() -> i64 {
    3600
}

fn yes() -> bool {
    true
}

fn status_true() -> String {
    "True".into()
}
