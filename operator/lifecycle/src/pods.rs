use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::ids::Uid;
use lockstep_api::member_pod::Identity;
use lockstep_api::tier::Tier;

/// `activeDeadlineSeconds` by which the kubelet ends a pod at once and keeps its logs.
pub const END_AT_ONCE: i64 = 1;
/// The kubelet restarts all containers of the pod (KEP-5532).
const ALL_CONTAINERS_RESTARTING: &str = "AllContainersRestarting";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    pub name: String,
    pub uid: Uid,
    pub owner_uid: Uid,
    pub identity: Identity,
    pub node: Option<String>,
    /// Node in `matchFields metadata.name`.
    pub pinned: Option<String>,
    pub nominated: Option<String>,
    /// `None` before admission.
    pub priority: Option<i32>,
    pub gated: bool,
    /// First scheduling gate of another controller.
    pub foreign_gate: Option<String>,
    pub ends_at_once: bool,
    pub created_at: DateTime<Utc>,
    /// End of the grace period. The kubelet's last DELETE, without a grace period, moves it to the
    /// time of that request.
    pub deletion_timestamp: Option<DateTime<Utc>>,
    /// Time of the first request to delete the pod. `None`: not deleted, or the manager knows only
    /// the last request.
    pub deletion_requested_at: Option<DateTime<Utc>>,
    /// When the manager received the deletion of a pod that it already knew, by the manager's clock.
    pub deletion_received_at: Option<DateTime<Utc>>,
    /// Seconds. 0: none left, or not deleted.
    pub deletion_grace: i64,
    pub phase: PodPhase,
    /// Such as `Evicted` or `OutOfcpu`.
    pub reason: String,
    pub message: String,
    pub pod_ip: Option<String>,
    pub conditions: ByName<ConditionView>,
    /// Init and regular containers.
    pub containers: ByName<ContainerView>,
}

/// A small sorted map. About 100,000 of them have few entries each, and a `BTreeMap` allocates
/// space for eleven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByName<T>(Vec<(String, T)>);

impl<T> Default for ByName<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> ByName<T> {
    pub fn get(&self, name: &str) -> Option<&T> {
        self.0
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value)
    }

    pub fn insert(&mut self, name: String, value: T) {
        match self.0.binary_search_by(|(n, _)| n.cmp(&name)) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (name, value)),
        }
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, value)| value)
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&String, &T)> {
        self.0.iter().map(|(name, value)| (name, value))
    }

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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodPhase {
    /// Or unknown.
    #[default]
    Pending,
    Running,
    Succeeded,
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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConditionView {
    /// True, False or Unknown.
    pub status: String,
    pub reason: String,
    pub message: String,
    pub since: Option<DateTime<Utc>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerView {
    /// Includes sidecars.
    pub init: bool,
    pub ready: bool,
    pub restart_count: i32,
    /// Runtime id of the container in `state`, such as `containerd://4f2a...`.
    pub id: Option<String>,
    pub state: ContainerState,
    /// How the previous container ended.
    pub last: Option<Termination>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerState {
    Waiting {
        /// Such as `ContainerCreating`, `ImagePullBackOff`, `CrashLoopBackOff`.
        reason: String,
        message: String,
    },
    Running {
        started_at: Option<DateTime<Utc>>,
    },
    /// May start again by restart rules.
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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Termination {
    /// 137 if the kubelet or the agent killed it.
    pub exit_code: i32,
    /// Such as `Error`, `Completed`, `OOMKilled`, `RestartingAllContainers`.
    pub reason: String,
    pub message: String,
    /// By the node's clock.
    pub finished_at: Option<DateTime<Utc>>,
    pub id: Option<String>,
}

impl PodView {
    /// The node to which the pod is bound, else pinned.
    pub fn place(&self) -> Option<&str> {
        self.node.as_deref().or(self.pinned.as_deref())
    }

    pub fn is_supervised(&self) -> bool {
        self.identity.tier.is_some_and(Tier::has_barrier)
    }

    /// True if the pod has ended and holds no capacity.
    pub fn terminal(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// True if the pod has neither ended nor is being deleted.
    pub fn is_live(&self) -> bool {
        !self.terminal() && !self.terminating()
    }

    /// True if all containers have ended. The phase can lag behind.
    pub fn has_stopped(&self) -> bool {
        let ended = || self.containers.values().all(|c| c.terminated().is_some());
        self.terminal() || !self.containers.is_empty() && ended()
    }

    pub fn ready(&self) -> bool {
        self.phase == PodPhase::Running && !self.terminating() && self.condition("Ready").is_some()
    }

    pub fn terminating(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// True if the pod was deleted before it was bound. The API server refuses to bind it, so it
    /// never runs, and only a finalizer keeps the object.
    pub fn never_runs(&self) -> bool {
        self.node.is_none() && self.terminating()
    }

    /// Sets [`Self::deletion_received_at`], and keeps the time of the first request to delete the
    /// pod. `before` is the last view of this name.
    #[must_use]
    pub fn received(self, before: Option<&Self>, now: DateTime<Utc>) -> Self {
        let before = before.filter(|before| before.uid == self.uid);
        let received_at = match before {
            Some(before) if before.terminating() => before.deletion_received_at,
            other => other.map(|_| now),
        };
        let requested_at = before.and_then(|before| before.deletion_requested_at);
        Self {
            deletion_received_at: received_at.filter(|_| self.terminating()),
            deletion_requested_at: requested_at.or(self.deletion_requested_at),
            ..self
        }
    }

    /// End of the grace period. The manager's clock can be ahead of the API server's. So the period
    /// begins when the manager receives the deletion, if it knew the pod before and that is later.
    pub fn ends_at(&self) -> Option<DateTime<Utc>> {
        let grace = TimeDelta::try_seconds(self.deletion_grace).unwrap_or_default();
        let received_end = self
            .deletion_received_at
            .and_then(|at| at.checked_add_signed(grace));
        self.deletion_timestamp.max(received_end)
    }

    /// `None` unless the condition's status is True.
    pub fn condition(&self, type_: &str) -> Option<&ConditionView> {
        self.conditions.get(type_).filter(|c| c.status == "True")
    }

    pub fn restarts_all(&self) -> bool {
        self.condition(ALL_CONTAINERS_RESTARTING).is_some()
    }

    /// When the kubelet last began or completed a restart of all containers.
    pub fn restarted_at(&self) -> Option<DateTime<Utc>> {
        self.conditions.get(ALL_CONTAINERS_RESTARTING)?.since
    }

    pub fn has_run(&self) -> bool {
        self.containers.values().any(ContainerView::started)
    }
}

impl ContainerView {
    pub fn started(&self) -> bool {
        self.restart_count > 0
            || self.last.is_some()
            || !matches!(self.state, ContainerState::Waiting { .. })
    }

    pub fn running(&self) -> bool {
        matches!(self.state, ContainerState::Running { .. })
    }

    pub fn running_since(&self) -> Option<DateTime<Utc>> {
        match &self.state {
            ContainerState::Running { started_at } => *started_at,
            ContainerState::Waiting { .. } | ContainerState::Terminated(_) => None,
        }
    }

    pub fn terminated(&self) -> Option<&Termination> {
        match &self.state {
            ContainerState::Terminated(t) => Some(t),
            _ => None,
        }
    }

    pub fn runtime_id(&self) -> Option<&str> {
        let ended = || self.terminated()?.id.as_deref();
        self.id.as_deref().or_else(ended)
    }
}

/// Id without the scheme: pod status has `containerd://4f2a`, the runtime `4f2a`.
pub fn bare_id(id: &str) -> &str {
    id.rsplit_once("//").map_or(id, |(_, bare)| bare)
}
