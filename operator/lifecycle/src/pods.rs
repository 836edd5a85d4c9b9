//! What is kept of a pod.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::ids::Uid;
use lockstep_api::member::Member;
use lockstep_api::names::{annotations, labels, member_of};

use crate::tier::Tier;

/// Annotation that names the training container; every pod of ours has it, because the runtime
/// lists containers in no particular order.
pub const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// Condition of a pod whose kubelet restarts all of its containers (KEP-5532).
const ALL_CONTAINERS_RESTARTING: &str = "AllContainersRestarting";

/// A pod that a workload controls, trimmed to what decisions read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: Uid,
    /// UID of the workload that controls it.
    pub owner_uid: Uid,
    /// Labels and annotations of ours.
    pub identity: Identity,
    /// Node that it is bound to.
    pub node: Option<String>,
    /// Node that its affinity pins it to (`matchFields metadata.name`).
    pub pinned: Option<String>,
    /// `status.nominatedNodeName`.
    pub nominated: Option<String>,
    /// Priority that admission has given it; None: it has not said.
    pub priority: Option<i32>,
    /// Whether the preemption gate is on.
    pub gated: bool,
    /// When it was created.
    pub created_at: DateTime<Utc>,
    /// When its deletion was asked for.
    pub deleted_at: Option<DateTime<Utc>>,
    /// Grace period of the deletion, in seconds; 0: none is left, or it is not being deleted.
    pub deletion_grace: i64,
    /// Phase.
    pub phase: PodPhase,
    /// Reason of the phase, such as `Evicted` or `OutOfcpu`.
    pub reason: String,
    /// Message of the phase.
    pub message: String,
    /// Address.
    pub pod_ip: Option<String>,
    /// Conditions that are there, by type.
    pub conditions: ByName<ConditionView>,
    /// Statuses of init and regular containers, by name.
    pub containers: ByName<ContainerView>,
}

/// A few things by name, in the order of their names. There are a hundred thousand of these, each
/// of a handful: a map would allocate for eleven at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByName<T>(Vec<(String, T)>);

impl<T> Default for ByName<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> ByName<T> {
    /// The one of a name.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.0
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value)
    }

    /// Puts one under a name, in place of one that is there.
    pub fn insert(&mut self, name: String, value: T) {
        match self.0.binary_search_by(|(n, _)| n.cmp(&name)) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (name, value)),
        }
    }

    /// All of them.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, value)| value)
    }

    /// All of them, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// Names and what they stand for.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &T)> {
        self.0.iter().map(|(name, value)| (name, value))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T> FromIterator<(String, T)> for ByName<T> {
    fn from_iter<I: IntoIterator<Item = (String, T)>>(all: I) -> Self {
        let mut all: Vec<(String, T)> = all.into_iter().collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all.dedup_by(|b, a| a.0 == b.0);
        all.shrink_to_fit();
        Self(all)
    }
}

/// Labels and annotations that the operator puts on its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The member; None when the labels do not name one.
    pub member: Option<Member>,
    /// Whether the Service still selects the pod.
    pub published: bool,
    /// Hash of the spec that it was made from.
    pub spec_hash: String,
    /// Restart tier that it was compiled for.
    pub tier: Option<Tier>,
    /// Attempt of its restart domain when it was made.
    pub attempt: i64,
    /// Placement that chose its node.
    pub placement: String,
}

impl Identity {
    /// Reads labels and annotations. Values of others are possible: what does not parse is absent.
    pub fn read(
        pod_labels: &BTreeMap<String, String>,
        pod_annotations: &BTreeMap<String, String>,
    ) -> Self {
        Self {
            member: member_of(pod_labels),
            published: pod_labels.contains_key(labels::PUBLISHED),
            spec_hash: text_of(pod_annotations, annotations::SPEC_HASH).to_owned(),
            tier: text_of(pod_annotations, annotations::TIER).parse().ok(),
            attempt: text_of(pod_annotations, annotations::ATTEMPT)
                .parse()
                .unwrap_or_default(),
            placement: text_of(pod_annotations, annotations::PLACEMENT).to_owned(),
        }
    }
}

/// The value of an annotation; empty where there is none.
fn text_of<'a>(annotations: &'a BTreeMap<String, String>, key: &str) -> &'a str {
    let value = annotations.get(key);
    value.map(String::as_str).unwrap_or_default()
}

/// Phase of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodPhase {
    /// Not all containers have started, or not known.
    #[default]
    Pending,
    /// At least one container runs or restarts.
    Running,
    /// All containers ended with 0.
    Succeeded,
    /// The pod ended otherwise.
    Failed,
}

impl From<&str> for PodPhase {
    fn from(phase: &str) -> Self {
        match phase {
            "Running" => Self::Running,
            "Succeeded" => Self::Succeeded,
            "Failed" => Self::Failed,
            _ => Self::Pending,
        }
    }
}

/// A condition of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConditionView {
    /// True, False or Unknown.
    pub status: String,
    /// Reason.
    pub reason: String,
    /// Message.
    pub message: String,
    /// When the status last changed.
    pub since: Option<DateTime<Utc>>,
}

/// Status of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerView {
    /// Whether it is an init container (sidecars are).
    pub init: bool,
    /// Whether it is ready.
    pub ready: bool,
    /// How often the kubelet restarted it.
    pub restart_count: i32,
    /// Runtime id, such as `containerd://4f2a...`; of the state that is shown.
    pub id: Option<String>,
    /// Present state.
    pub state: ContainerState,
    /// How the one before it ended.
    pub last: Option<Termination>,
}

/// State of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// Not started; the reason is the kubelet's.
    Waiting {
        /// Such as `ContainerCreating`, `ImagePullBackOff`, `CrashLoopBackOff`.
        reason: String,
        /// For people.
        message: String,
    },
    /// Running since.
    Running {
        /// Start.
        started_at: Option<DateTime<Utc>>,
    },
    /// Ended; with restart rules it may start again.
    Terminated(Termination),
}

impl Default for ContainerState {
    fn default() -> Self {
        Self::Waiting {
            reason: String::new(),
            message: String::new(),
        }
    }
}

/// How a container ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Termination {
    /// Exit code; 137 where the kubelet or the agent killed it.
    pub exit_code: i32,
    /// Such as `Error`, `Completed`, `OOMKilled`, `RestartingAllContainers`.
    pub reason: String,
    /// For people.
    pub message: String,
    /// End, by the node's clock.
    pub finished_at: Option<DateTime<Utc>>,
    /// Runtime id of the container that ended.
    pub id: Option<String>,
}

impl PodView {
    /// The node that it is bound to, or else the one that it is pinned to.
    pub fn place(&self) -> Option<&str> {
        self.node.as_deref().or(self.pinned.as_deref())
    }

    /// Whether a supervisor starts its training process.
    pub fn is_supervised(&self) -> bool {
        self.identity.tier.is_some_and(Tier::has_barrier)
    }

    /// Whether the pod has ended and holds no capacity any more.
    pub fn terminal(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// Whether every container that it shows has ended, so that only its phase is still on the way.
    pub fn winding_up(&self) -> bool {
        !self.containers.is_empty() && self.containers.values().all(|c| c.terminated().is_some())
    }

    /// Whether the pod is ready and stays.
    pub fn ready(&self) -> bool {
        self.phase == PodPhase::Running && !self.terminating() && self.condition("Ready").is_some()
    }

    /// Whether its deletion was asked for.
    pub fn terminating(&self) -> bool {
        self.deleted_at.is_some()
    }

    /// When the grace period of its deletion is over.
    pub fn ends_at(&self) -> Option<DateTime<Utc>> {
        let grace = TimeDelta::try_seconds(self.deletion_grace).unwrap_or_default();
        self.deleted_at?.checked_add_signed(grace)
    }

    /// Whether a condition is there with status True.
    pub fn condition(&self, type_: &str) -> Option<&ConditionView> {
        self.conditions.get(type_).filter(|c| c.status == "True")
    }

    /// Whether its kubelet is restarting all of its containers.
    pub fn restarts_all(&self) -> bool {
        self.condition(ALL_CONTAINERS_RESTARTING).is_some()
    }

    /// Whether any of its containers has ever started.
    pub fn has_run(&self) -> bool {
        self.containers.values().any(ContainerView::started)
    }
}

impl ContainerView {
    /// Whether it has ever started.
    pub fn started(&self) -> bool {
        self.restart_count > 0
            || self.last.is_some()
            || !matches!(self.state, ContainerState::Waiting { .. })
    }

    /// Whether it runs.
    pub fn running(&self) -> bool {
        matches!(self.state, ContainerState::Running { .. })
    }

    /// Since when it runs.
    pub fn running_since(&self) -> Option<DateTime<Utc>> {
        match &self.state {
            ContainerState::Running { started_at } => *started_at,
            ContainerState::Waiting { .. } | ContainerState::Terminated(_) => None,
        }
    }

    /// How it ended, if it does not run now.
    pub fn terminated(&self) -> Option<&Termination> {
        match &self.state {
            ContainerState::Terminated(t) => Some(t),
            _ => None,
        }
    }

    /// Runtime id of the container that is shown, running or ended.
    pub fn runtime_id(&self) -> Option<&str> {
        let ended = || self.terminated()?.id.as_deref();
        self.id.as_deref().or_else(ended)
    }
}

/// A runtime id without its scheme: pod status says `containerd://4f2a`, the runtime itself `4f2a`.
pub fn bare_id(id: &str) -> &str {
    id.rsplit_once("//").map_or(id, |(_, bare)| bare)
}
