//! What the runtime shows of one pod.

use chrono::{DateTime, Utc};

/// Sandbox and containers of one pod on its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodView {
    /// The sandbox.
    pub sandbox: SandboxView,
    /// Every instance of every container that has not been removed, oldest first.
    pub containers: Vec<ContainerView>,
}

/// Life of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SandboxView {
    /// There is none.
    #[default]
    Absent,
    /// Volumes and network are being prepared.
    Creating,
    /// Containers can be started in it.
    Ready {
        /// IP of the pod.
        ip: String,
    },
    /// It is being stopped and cleaned up.
    Stopping,
    /// Nothing of it is left but the records of its containers.
    Stopped,
}

/// One instance of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerView {
    /// Runtime id, without a scheme.
    pub id: String,
    /// Name of the container in the pod spec.
    pub name: String,
    /// Number of this instance, from 0; becomes `restartCount`.
    pub attempt: i32,
    /// Where it is in its life.
    pub state: State,
    /// When the runtime will kill it, once a stop is under way.
    pub stop_by: Option<DateTime<Utc>>,
    /// Since when its probes fail, when they do.
    pub unhealthy_since: Option<DateTime<Utc>>,
}

/// Life of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Image pull, creation and start are under way.
    Creating,
    /// It could not be created and is tried again.
    NotCreated {
        /// When the last try failed.
        since: DateTime<Utc>,
        /// As waiting containers show it, such as `ErrImagePull`.
        reason: String,
    },
    /// Its process runs.
    Running {
        /// When it started.
        started_at: DateTime<Utc>,
    },
    /// Its process has ended.
    Exited {
        /// When it started.
        started_at: DateTime<Utc>,
        /// When it ended.
        finished_at: DateTime<Utc>,
        /// Exit code; 128 + signal for a process that a signal ended.
        exit_code: i32,
        /// The runtime's reason: `Completed`, `Error`, `OOMKilled`, `StartError`.
        reason: String,
    },
}

impl ContainerView {
    /// Whether it exists or is being created.
    pub fn made(&self) -> bool {
        !matches!(self.state, State::NotCreated { .. })
    }

    /// Whether a process exists or is about to.
    pub fn alive(&self) -> bool {
        self.made() && !matches!(self.state, State::Exited { .. })
    }
}

impl PodView {
    /// The newest instance of a container.
    pub fn latest(&self, name: &str) -> Option<&ContainerView> {
        self.containers
            .iter()
            .filter(|c| c.name == name)
            .max_by_key(|c| c.attempt)
    }

    /// The instance before the newest, which `lastState` shows.
    pub fn previous(&self, name: &str) -> Option<&ContainerView> {
        let latest = self.latest(name)?.attempt;
        self.containers
            .iter()
            .filter(|c| c.name == name && c.attempt < latest)
            .max_by_key(|c| c.attempt)
    }

    /// Whether any process exists or is about to.
    pub fn any_alive(&self) -> bool {
        self.containers.iter().any(ContainerView::alive)
    }
}
