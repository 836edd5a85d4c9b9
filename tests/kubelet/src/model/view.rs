//! State of a pod in the runtime.

use chrono::{DateTime, Utc};

/// Sandbox and containers of a pod on its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodView {
    /// The sandbox.
    pub sandbox: SandboxView,
    /// All instances of all containers that have not been removed, oldest first.
    pub containers: Vec<ContainerView>,
}

/// State of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SandboxView {
    /// No sandbox.
    #[default]
    Absent,
    /// Volumes and network are being prepared.
    Creating,
    /// Containers can be started.
    Ready {
        /// IP of the pod.
        ip: String,
    },
    /// The sandbox is being stopped and cleaned up.
    Stopping,
    /// Only the records of its containers remain.
    Stopped,
}

/// An instance of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerView {
    /// Runtime ID, without a scheme.
    pub id: String,
    /// Name of the container in the pod spec.
    pub name: String,
    /// Number of this instance, from 0. Becomes `restartCount`.
    pub attempt: i32,
    /// State.
    pub state: State,
    /// Time at which the runtime will kill it, after a stop.
    pub stop_by: Option<DateTime<Utc>>,
    /// Time from which its probes fail, if they do.
    pub unhealthy_since: Option<DateTime<Utc>>,
}

/// State of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Image pull, creation and start are in progress.
    Creating,
    /// Creation failed and is retried.
    NotCreated {
        /// Time of the last failure.
        since: DateTime<Utc>,
        /// Reason as in the status of waiting containers, for example `ErrImagePull`.
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
        /// Exit code. 128 + signal for a process that a signal ended.
        exit_code: i32,
        /// The runtime's reason: `Completed`, `Error`, `OOMKilled`, `StartError`.
        reason: String,
    },
}

impl ContainerView {
    /// True if it exists or is being created.
    pub fn made(&self) -> bool {
        !matches!(self.state, State::NotCreated { .. })
    }

    /// True if its process exists or is about to exist.
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

    /// True if any process exists or is about to exist.
    pub fn any_alive(&self) -> bool {
        self.containers.iter().any(ContainerView::alive)
    }
}
