//! What happens when a member fails.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::FailureAction;

/// Reaction to failures. The default restarts the gang in place, up to `limits`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.rules.all(r, self.rules.exists_one(o, o.name == r.name))").message("rule names must be unique"))]
#[x_kube(validation = Rule::new("!has(self.progress) || self.inPlace.supervisor != 'Never'").message("progress is watched by the supervisor: inPlace.supervisor must be Auto"))]
pub struct FailurePolicy {
    /// Ordered rules, at most 20; the first that matches decides. No match: RestartGang for gangs,
    /// RestartContainer for policy Basic.
    #[serde(default)]
    #[schemars(length(max = 20))]
    pub rules: Vec<FailureRule>,
    /// The restart budget: how many counted incidents a workload survives.
    #[serde(default)]
    pub limits: RestartLimits,
    /// What restarts together: all members of the gang, or the members of one replica.
    #[serde(default)]
    pub restart_scope: RestartScope,
    /// Bounds of a restart in place: same pods, nodes and addresses, only training starts again.
    #[serde(default)]
    pub in_place: InPlace,
    /// When a training process that tells its progress counts as hung: it is killed, and its member
    /// has failed with reason Hang. Absent: never. Read at each start of the process
    /// (docs/progress.md).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressPolicy>,
    /// A node that is NotReady this many seconds counts as lost, and its members as failed; 1 to
    /// 86400. No node counts as lost while at least 55 % and three of the nodes of its zone, or all nodes of
    /// the cluster, are NotReady.
    #[serde(default = "node_lost_seconds")]
    #[schemars(range(min = 1, max = 86_400))]
    pub node_lost_seconds: i64,
    /// Longest time from pod creation to running containers (image pull, mounts, init containers),
    /// and from then until a supervisor is at the barrier, in seconds; 1 to 86400. After it the nodes
    /// are released, the node is avoided and the gang queues again, uncounted. In a gang that has run
    /// the member goes elsewhere, of many a tenth at a time. If image, command, configuration or
    /// schedulerName is the cause, no node is avoided, and the third start in a row fails the workload.
    #[serde(default = "start_deadline_seconds")]
    #[schemars(range(min = 1, max = 86_400))]
    pub start_deadline_seconds: i64,
    /// How long the surviving members hold their nodes while a replacement is sought, in seconds; 1
    /// to 86400.
    #[serde(default = "replacement_timeout_seconds")]
    #[schemars(range(min = 1, max = 86_400))]
    pub replacement_timeout_seconds: i64,
    /// Longest grace period of pods of a failed attempt, in seconds; 1 to 86400. Their replacements
    /// wait for them, so a longer `terminationGracePeriodSeconds` is cut to this. Pods that do not
    /// end although their node answers are then deleted by force, and their replacements avoid that
    /// node.
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

/// One rule: what it matches and what follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.failedMember != 'ReplaceElsewhere' || self.avoidSeconds > 0").message("failedMember ReplaceElsewhere needs avoidSeconds > 0"))]
pub struct FailureRule {
    /// Name of the rule, a DNS label; it appears in the incident history.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub name: String,
    /// What the rule matches; every given part must match.
    #[serde(default, rename = "match")]
    pub matches: FailureMatch,
    /// What is done. Ignore: nothing. RestartContainer: the kubelet restarts that container.
    /// RestartPod: all containers of that pod start again, init containers first; in a new pod where
    /// the kubelet cannot restart all of them. RestartGang: all members of the
    /// restart domain start again, in place where they can. RecreateGang: they get new pods on the
    /// nodes that they have. FailWorkload: the workload fails at once.
    pub action: FailureAction,
    /// What becomes of the member that failed, when the action restarts members. InPlace: it
    /// restarts in its pod. Replace: it gets a new pod. ReplaceElsewhere: on another node, since
    /// its own may be broken.
    #[serde(default)]
    pub failed_member: FailedMember,
    /// With failedMember ReplaceElsewhere: how long the node is avoided by this workload, in
    /// seconds; at most 604800.
    #[serde(default = "avoid_seconds")]
    #[schemars(range(min = 0, max = 604_800))]
    pub avoid_seconds: i64,
    /// Whether the incident takes a unit of the restart budget.
    #[serde(default = "yes")]
    pub counted: bool,
}

/// What a rule matches. Empty parts match everything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailureMatch {
    /// Names of groups, at most 8; none: any group.
    #[serde(default)]
    #[schemars(length(max = 8), inner(length(min = 1, max = 40)))]
    pub groups: Vec<String>,
    /// Names of containers, at most 16, init containers and sidecars among them. None: the training
    /// container, and any other whose end ended it too: it failed the pod, or restarted all of it.
    #[serde(default)]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)))]
    pub containers: Vec<String>,
    /// Exit codes of the container. Absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_codes: Option<ExitCodes>,
    /// Kinds of failure other than an exit by itself, at most 16, such as OOMKilled, Hang, NodeLost,
    /// Evicted.
    #[serde(default)]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)))]
    pub reasons: Vec<String>,
    /// Pod conditions that hold, at most 8, such as DisruptionTarget.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub pod_conditions: Vec<PodConditionMatch>,
}

impl FailureMatch {
    /// Whether failures of members of a group are meant.
    pub fn names_group(&self, group: &str) -> bool {
        names(&self.groups, group)
    }

    /// Whether ends of a container are meant.
    pub fn names_container(&self, container: &str) -> bool {
        names(&self.containers, container)
    }

    /// Whether failures for a reason are meant.
    pub fn names_reason(&self, reason: &str) -> bool {
        names(&self.reasons, reason)
    }
}

/// Whether a list of names, where an empty one stands for all, has the name.
fn names(list: &[String], name: &str) -> bool {
    list.is_empty() || list.iter().any(|n| n == name)
}

/// A set of exit codes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.operator != 'In' || size(self.values) > 0").message("operator In needs at least one value"))]
pub struct ExitCodes {
    /// In: the code is among the values. NotIn: it is not.
    pub operator: ExitCodeOperator,
    /// Exit codes, 1 to 255: 0 is success and never a failure.
    #[schemars(length(max = 255), inner(range(min = 1, max = 255)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub values: Vec<i32>,
}

/// Whether the code must be among the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExitCodeOperator {
    /// Among them.
    In,
    /// Not among them.
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
    /// Status of the condition: True, False or Unknown.
    #[serde(default = "status_true")]
    #[schemars(length(min = 1, max = 16))]
    pub status: String,
}

impl ExitCodes {
    /// Whether an exit code is in the set.
    pub fn contains(&self, code: i32) -> bool {
        match self.operator {
            ExitCodeOperator::In => self.values.contains(&code),
            ExitCodeOperator::NotIn => !self.values.contains(&code),
        }
    }
}

/// What becomes of the failed member's pod.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum FailedMember {
    /// It restarts in its pod.
    #[default]
    InPlace,
    /// Its pod is replaced.
    Replace,
    /// Its pod is replaced on another node.
    ReplaceElsewhere,
}

/// Restart budget: counted incidents in a sliding window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RestartLimits {
    /// Counted incidents allowed in the window, 0 to 100; one more fails the workload.
    #[schemars(range(min = 0, max = 100))]
    pub max_restarts: i32,
    /// Length of the window in seconds, 1 to 31536000.
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

/// What restarts together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RestartScope {
    /// All members of the gang.
    #[default]
    Gang,
    /// The members of one replica.
    Replica,
}

/// The in-place restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InPlace {
    /// Longest time without the arrival of a member, in seconds; 1 to 3600. Then those are replaced
    /// whose own nodes say that they do not come, a tenth of the domain at a time.
    #[schemars(range(min = 1, max = 3600))]
    pub deadline_seconds: i64,
    /// Restarts in place for consecutive incidents before the pods of the domain are recreated, 0
    /// to 100.
    #[schemars(range(min = 0, max = 100))]
    pub max_tries: i32,
    /// Auto: training containers get a supervisor that restarts the training process inside them,
    /// where the installation has one, the node has an agent and the container allows it
    /// (docs/supervisor.md). Never: containers stay as they are.
    pub supervisor: SupervisorMode,
    /// Deny: without a supervisor RestartGang becomes RecreateGang, because nothing keeps two
    /// attempts apart. Allow: such gangs restart in place all the same. Restart domains of one
    /// member restart in place either way.
    pub without_supervisor: WithoutSupervisor,
}

impl Default for InPlace {
    fn default() -> Self {
        Self {
            deadline_seconds: 60,
            max_tries: 3,
            supervisor: SupervisorMode::Auto,
            without_supervisor: WithoutSupervisor::Deny,
        }
    }
}

/// How long a training process may go without progress. It tells its step by writing it to the file
/// that `LOCKSTEP_PROGRESS` names; one that never does is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProgressPolicy {
    /// From one step to the next, in seconds; 10 to 86400. Evaluations and checkpoints that training
    /// waits for count, too.
    #[schemars(range(min = 10, max = 86_400))]
    pub timeout_seconds: i64,
    /// Time to load and compile, in seconds; 10 to 86400: before that long after its start no process
    /// has hung.
    #[serde(default = "startup_seconds")]
    #[schemars(range(min = 10, max = 86_400))]
    pub startup_seconds: i64,
}

/// Whether training containers get a supervisor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SupervisorMode {
    /// Where it can be had.
    #[default]
    Auto,
    /// They stay as they are.
    Never,
}

/// Whether gangs without a barrier restart in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WithoutSupervisor {
    /// They are recreated.
    #[default]
    Deny,
    /// They restart in place.
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
