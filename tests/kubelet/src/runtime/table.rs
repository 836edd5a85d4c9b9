//! Sandboxes and containers of a node, written by its runtime and read by its kubelet and its
//! agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_agent::runtime::Sandbox;
use lockstep_node::{Exit, ObservedContainer};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::script::START_ERROR;
use crate::model::{ContainerView, PodDesc, PodView, SandboxView, State};

/// Maximum number of ended containers that are kept for the agent.
const MAX_UNSEEN: usize = 256;

/// Least time by which a stop must come sooner than the one before. Grace periods are whole seconds.
const LEAST_SOONER: TimeDelta = TimeDelta::milliseconds(500);

/// Notice of a change of a pod in the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Number of the node.
    pub node: usize,
    /// UID of the pod.
    pub uid: String,
    /// A container could not be started. The kubelet gives up its sync then, and learns the exit
    /// from its next relist (missing-binary-restart-all-with-init).
    pub start_failed: bool,
}

/// End of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Exit code. 128 + signal for a process that a signal ended.
    pub exit_code: i32,
    /// The runtime's reason.
    pub reason: &'static str,
}

impl Ended {
    /// An exit by itself or by a signal, with containerd's reason.
    pub fn with_code(exit_code: i32) -> Self {
        Self {
            exit_code,
            reason: if exit_code == 0 { "Completed" } else { "Error" },
        }
    }

    /// Killed by the kernel's out-of-memory killer.
    pub fn oom() -> Self {
        Self {
            exit_code: 137,
            reason: "OOMKilled",
        }
    }
}

/// A pod for its node's agent.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The pod.
    pub pod: Arc<PodDesc>,
    /// Its containers, including those removed since the last read, which the event stream of a
    /// runtime would report too.
    pub containers: Vec<Seen>,
}

/// A container in a [`Snapshot`].
#[derive(Clone, Debug)]
pub struct Seen {
    /// The container.
    pub view: ContainerView,
    /// Time of its creation.
    pub created_at: DateTime<Utc>,
}

impl From<Snapshot> for Sandbox {
    /// Containers that were not started are omitted.
    fn from(snapshot: Snapshot) -> Self {
        let mut containers: BTreeMap<String, Vec<ObservedContainer>> = BTreeMap::new();
        for seen in snapshot.containers {
            let exit = match seen.view.state {
                State::Creating | State::NotCreated { .. } => continue,
                State::Running { .. } => None,
                State::Exited {
                    finished_at,
                    exit_code,
                    reason,
                    ..
                } => Some(Exit {
                    code: exit_code,
                    reason,
                    at: finished_at,
                }),
            };
            let container = ObservedContainer {
                id: seen.view.id,
                restarts: seen.view.attempt,
                created_at: seen.created_at,
                exit,
            };
            containers
                .entry(seen.view.name)
                .or_default()
                .push(container);
        }
        Self {
            pod_uid: snapshot.pod.uid.clone(),
            namespace: snapshot.pod.namespace.clone(),
            labels: snapshot.pod.labels.clone(),
            annotations: snapshot.pod.annotations.clone(),
            containers,
        }
    }
}

/// Shared state of a node's runtime.
#[derive(Debug)]
pub struct Table {
    node: usize,
    pods: Mutex<BTreeMap<String, Entry>>,
    kubelet: mpsc::UnboundedSender<Changed>,
    agent: watch::Sender<()>,
}

#[derive(Debug)]
struct Entry {
    pod: Arc<PodDesc>,
    sandbox: SandboxView,
    containers: Vec<Record>,
    /// Containers that ended and were removed before the agent's read.
    unseen: Vec<Seen>,
}

#[derive(Debug)]
struct Record {
    seen: Seen,
    exit_seen: bool,
}

impl Table {
    /// An empty table. `kubelet` receives all changes.
    pub fn new(node: usize, kubelet: mpsc::UnboundedSender<Changed>) -> Self {
        Self {
            node,
            pods: Mutex::default(),
            kubelet,
            agent: watch::Sender::new(()),
        }
    }

    /// Notifications of all changes, for the agent.
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.agent.subscribe()
    }

    /// Notifies the agent of a change that only the agent reads.
    pub fn tell_agent(&self) {
        self.agent.send_replace(());
    }

    fn changed(&self, uid: &str) {
        self.notify(uid, false);
    }

    fn notify(&self, uid: &str, start_failed: bool) {
        // A kubelet that has ended needs no notice.
        let _ = self.kubelet.send(Changed {
            node: self.node,
            uid: uid.to_owned(),
            start_failed,
        });
        self.agent.send_replace(());
    }

    /// The kubelet's view of a pod.
    pub fn view(&self, uid: &str) -> PodView {
        self.pods
            .lock()
            .get(uid)
            .map_or_else(PodView::default, |e| PodView {
                sandbox: e.sandbox.clone(),
                containers: e.containers.iter().map(|r| r.seen.view.clone()).collect(),
            })
    }

    /// The agent's view of the pods for which `wanted` is true. Removed containers that it has read
    /// are then dropped.
    pub fn look(&self, wanted: impl Fn(&PodDesc) -> bool) -> Vec<Snapshot> {
        let mut pods = self.pods.lock();
        let mut out = Vec::new();
        for entry in pods.values_mut().filter(|e| wanted(&e.pod)) {
            let mut containers = std::mem::take(&mut entry.unseen);
            for record in &mut entry.containers {
                record.exit_seen = !record.seen.view.alive();
                containers.push(record.seen.clone());
            }
            out.push(Snapshot {
                pod: entry.pod.clone(),
                containers,
            });
        }
        out
    }

    /// All pods with their views, by UID.
    pub fn all(&self) -> Vec<(Arc<PodDesc>, PodView)> {
        let uids: Vec<_> = self
            .pods
            .lock()
            .iter()
            .map(|(uid, e)| (uid.clone(), e.pod.clone()))
            .collect();
        uids.into_iter()
            .map(|(uid, pod)| (pod, self.view(&uid)))
            .collect()
    }

    /// Sets the state of a pod's sandbox, and adds the pod if it is missing. False without a
    /// change.
    pub fn set_sandbox(&self, pod: &Arc<PodDesc>, sandbox: SandboxView) -> bool {
        {
            let mut pods = self.pods.lock();
            let entry = pods.entry(pod.uid.clone()).or_insert_with(|| Entry {
                pod: pod.clone(),
                sandbox: SandboxView::Absent,
                containers: Vec::new(),
                unseen: Vec::new(),
            });
            if entry.sandbox == sandbox {
                return false;
            }
            entry.sandbox = sandbox;
        }
        self.changed(&pod.uid);
        true
    }

    /// Adds a container in creation. False if this instance exists or the sandbox is not ready.
    pub fn create(
        &self,
        uid: &str,
        id: &str,
        name: &str,
        attempt: i32,
        now: DateTime<Utc>,
    ) -> bool {
        {
            let mut pods = self.pods.lock();
            let Some(entry) = pods.get_mut(uid) else {
                return false;
            };
            let failed = |r: &Record| matches!(r.seen.view.state, State::NotCreated { .. });
            entry
                .containers
                .retain(|r| r.seen.view.name != name || !failed(r));
            let exists = entry
                .containers
                .iter()
                .any(|r| r.seen.view.name == name && r.seen.view.attempt >= attempt);
            if exists || !matches!(entry.sandbox, SandboxView::Ready { .. }) {
                return false;
            }
            let view = ContainerView {
                id: id.to_owned(),
                name: name.to_owned(),
                attempt,
                state: State::Creating,
                stop_by: None,
                unhealthy_since: None,
            };
            entry.containers.push(Record {
                seen: Seen {
                    view,
                    created_at: now,
                },
                exit_seen: false,
            });
        }
        self.changed(uid);
        true
    }

    /// A container by ID.
    pub fn find(&self, id: &str) -> Option<ContainerView> {
        let pods = self.pods.lock();
        pods.values()
            .flat_map(|e| &e.containers)
            .find(|r| r.seen.view.id == id)
            .map(|r| r.seen.view.clone())
    }

    /// Changes a container. `change` returns true for a change. `None` if the container does not
    /// exist.
    pub fn update(
        &self,
        id: &str,
        change: impl FnOnce(&mut ContainerView) -> bool,
    ) -> Option<bool> {
        let (uid, different, start_failed) = {
            let mut pods = self.pods.lock();
            let mut all = pods
                .iter_mut()
                .flat_map(|(uid, e)| e.containers.iter_mut().map(move |r| (uid, r)));
            let (uid, record) = all.find(|(_, r)| r.seen.view.id == id)?;
            let view = &mut record.seen.view;
            let different = change(view);
            let start_failed =
                matches!(&view.state, State::Exited { reason, .. } if reason == START_ERROR);
            (uid.clone(), different, start_failed)
        };
        if different {
            self.notify(&uid, start_failed);
        }
        Some(different)
    }

    /// Shortens the deadline of a container's end and returns the container. `None` if the container ends
    /// by then anyway.
    pub fn hurry(&self, id: &str, grace: Duration, now: DateTime<Utc>) -> Option<ContainerView> {
        let by = now + TimeDelta::from_std(grace).unwrap_or(TimeDelta::MAX);
        let mut hurried = None;
        self.update(id, |c| {
            // A repeated stop is carried out a moment sooner or later after its decision. Its program
            // gets no second signal.
            let sooner = c.alive() && c.stop_by.is_none_or(|t| by + LEAST_SOONER <= t);
            if sooner {
                c.stop_by = Some(by);
                hurried = Some(c.clone());
            }
            sooner
        });
        hurried
    }

    /// Records the runtime's name of a container in creation. `None` if the container does not
    /// exist.
    pub fn named(&self, id: &str, name: &str) -> Option<bool> {
        self.update(id, |c| {
            name.clone_into(&mut c.id);
            true
        })
    }

    /// Records the start of a container's process. False if it was stopped before.
    pub fn started(&self, id: &str, now: DateTime<Utc>) -> bool {
        self.update(id, |c| {
            let creating = c.state == State::Creating;
            if creating {
                c.state = State::Running { started_at: now };
            }
            creating
        }) == Some(true)
    }

    /// Records that a container could not be created.
    pub fn not_created(&self, id: &str, reason: &str, now: DateTime<Utc>) {
        self.update(id, |c| {
            let creating = c.state == State::Creating;
            if creating {
                c.state = State::NotCreated {
                    since: now,
                    reason: reason.to_owned(),
                };
            }
            creating
        });
    }

    /// Records the end of a container's process, or that it will never start. Only the first end
    /// counts.
    pub fn ended(&self, id: &str, ended: &Ended, now: DateTime<Utc>) -> bool {
        self.update(id, |c| {
            let started_at = match c.state {
                State::Creating => now,
                State::Running { started_at } => started_at,
                State::NotCreated { .. } | State::Exited { .. } => return false,
            };
            let (exit_code, reason) = (ended.exit_code, ended.reason.to_owned());
            c.state = State::Exited {
                started_at,
                finished_at: now,
                exit_code,
                reason,
            };
            true
        }) == Some(true)
    }

    /// Reboots the node: all processes are gone, and the runtime finds only the records of its
    /// containers.
    pub fn reboot(&self, now: DateTime<Utc>) {
        let lost = Ended {
            exit_code: 255,
            reason: "Unknown",
        };
        for (pod, view) in self.all() {
            for container in &view.containers {
                self.ended(&container.id, &lost, now);
            }
            self.set_sandbox(&pod, SandboxView::Stopped);
        }
    }

    /// Removes the record of an ended container.
    pub fn remove(&self, id: &str) {
        let uid = {
            let mut pods = self.pods.lock();
            let found = pods.iter_mut().find_map(|(uid, e)| {
                let at = e
                    .containers
                    .iter()
                    .position(|r| r.seen.view.id == id && !r.seen.view.alive())?;
                Some((uid.clone(), e, at))
            });
            let Some((uid, entry, at)) = found else {
                return;
            };
            let record = entry.containers.remove(at);
            if !record.exit_seen && entry.unseen.len() < MAX_UNSEEN {
                entry.unseen.push(record.seen);
            }
            uid
        };
        self.changed(&uid);
    }

    /// Drops a pod.
    pub fn forget(&self, uid: &str) {
        self.pods.lock().remove(uid);
        self.agent.send_replace(());
    }
}
