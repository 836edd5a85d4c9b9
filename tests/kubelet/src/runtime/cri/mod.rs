//! A real container runtime over CRI v1, with the kubelet's handling of sandboxes, containers and
//! volumes.
//!
//! A node's root folder has the same layout as a node: the runtime's socket, the kubelet's folder
//! of pods, logs. Pods use the machine's network, each with a separate address in 127.0.0.0/8.
//! Probes are not run: a container is ready after its delays. Containers that end by themselves are
//! found by listing, many times within one relist of the kubelet.

#![expect(
    clippy::disallowed_methods,
    reason = "real containers run in the time of the machine"
)]

mod client;
mod config;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Result;
use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Container;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tonic::Status;
use tracing::warn;

use self::api::{ContainerConfig, ContainerState, ContainerStatus, PodSandboxConfig};
use self::client::{Calls, is_away, patiently};
use self::config::Undescribed;
use super::addresses::{ADDRESS_POLL, ADDRESS_WAIT, Addresses};
use super::later::Later;
use super::program::{Surroundings, Unstartable};
use super::table::{Ended, Table};
use super::{Fault, Runtime, Unsupported};
use crate::clock::Clock;
use crate::model::{Action, PodDesc, PodView, SandboxView, State};

/// Generated from `proto/kubelet.proto` by `make generate`.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
pub mod api {
    include!("generated/runtime.v1.rs");
}

/// Paths below the root folder of a node.
const SOCKET: &str = "run/containerd/containerd.sock";
const PODS: &str = "var/lib/kubelet/pods";
const LOGS: &str = "var/log/pods";
/// Period of listing running containers.
const POLL: Duration = Duration::from_millis(50);

/// The runtime of a node.
#[derive(Debug)]
pub struct Cri {
    shared: Arc<Shared>,
    /// Tasks in progress, which end when the runtime is dropped. Containers continue.
    later: Later,
}

#[derive(Debug)]
struct Shared {
    node: String,
    pods: PathBuf,
    logs: PathBuf,
    table: Arc<Table>,
    clock: Clock,
    addresses: Arc<Addresses>,
    calls: Calls,
    sandboxes: Mutex<BTreeMap<String, Sandbox>>,
    pids: Mutex<BTreeMap<String, u32>>,
    /// Containers that are being removed.
    removing: Mutex<BTreeSet<String>>,
    next_id: AtomicU32,
}

/// The sandbox of a pod.
#[derive(Clone, Debug)]
struct Sandbox {
    id: String,
    config: PodSandboxConfig,
}

/// Why a container was not created: the reason as in the status of waiting containers, and the full
/// message.
struct NotCreated {
    reason: &'static str,
    error: String,
}

impl Cri {
    /// The runtime of a node with this root folder, which contains the socket.
    pub fn new(
        node: &str,
        root: &Path,
        table: Table,
        clock: Clock,
        addresses: Arc<Addresses>,
    ) -> Result<Self> {
        let shared = Arc::new(Shared {
            node: node.to_owned(),
            pods: root.join(PODS),
            logs: root.join(LOGS),
            table: Arc::new(table),
            clock,
            addresses,
            calls: Calls::new(&root.join(SOCKET))?,
            sandboxes: Mutex::default(),
            pids: Mutex::default(),
            removing: Mutex::default(),
            next_id: AtomicU32::new(1),
        });
        let later = Later::default();
        let work = shared.clone();
        later.run(async move { work.watch().await });
        Ok(Self { shared, later })
    }
}

impl Shared {
    /// Detects containers that ended by themselves, until dropped.
    async fn watch(&self) {
        loop {
            sleep(POLL).await;
            let running: BTreeSet<String> = self
                .table
                .all()
                .into_iter()
                .flat_map(|(_, view)| view.containers)
                .filter(|c| matches!(c.state, State::Running { .. }))
                .map(|c| c.id)
                .collect();
            if running.is_empty() {
                continue;
            }
            let Ok(listed) = self.calls.list().await else {
                continue;
            };
            let alive: BTreeSet<&str> = listed
                .iter()
                .filter(|c| c.state() == ContainerState::ContainerRunning)
                .map(|c| c.id.as_str())
                .collect();
            for id in running.iter().filter(|id| !alive.contains(id.as_str())) {
                if let Err(error) = self.settle(id).await {
                    warn!(container = id, %error, "cannot ask how a container has ended");
                }
            }
        }
    }

    /// Records the end of a container. True if it has ended.
    async fn settle(&self, id: &str) -> Result<bool, Status> {
        let ended = match self.calls.status(id).await? {
            Some(status) if status.state() == ContainerState::ContainerExited => {
                (ended(&status), finished_at(&status))
            }
            Some(_) => return Ok(false),
            None => (unknown(), None),
        };
        self.pids.lock().remove(id);
        let at = ended.1.unwrap_or_else(|| self.clock.now());
        self.table.ended(id, &ended.0, at);
        Ok(true)
    }

    async fn open_sandbox(&self, pod: &Arc<PodDesc>) {
        if let Err(error) = self.make_volumes(pod) {
            warn!(pod = pod.name, %error, "cannot make the volumes of a pod");
        }
        // A sandbox that the runtime created before it was interrupted keeps its number.
        for attempt in 0.. {
            let config = config::sandbox(pod, &self.logs, attempt);
            match self.calls.run_pod(config.clone()).await {
                Ok(id) => {
                    let sandbox = Sandbox { id, config };
                    self.sandboxes.lock().insert(pod.uid.clone(), sandbox);
                    break;
                }
                Err(error) => {
                    warn!(pod = pod.name, %error, "cannot make the sandbox of a pod");
                    sleep(if is_away(&error) { POLL } else { ADDRESS_POLL }).await;
                }
            }
        }
        let ip = self.addresses.open(pod);
        self.table.set_sandbox(pod, SandboxView::Ready { ip });
    }

    /// Creates the folder of a pod and the folders of its volumes, which all users can write to.
    fn make_volumes(&self, pod: &PodDesc) -> io::Result<()> {
        let own = self.pods.join(&pod.uid);
        fs::create_dir_all(&own)?;
        let all = config::volumes(pod, &self.pods);
        for folder in all.values().flatten().filter(|f| f.starts_with(&own)) {
            fs::create_dir_all(folder)?;
            fs::set_permissions(folder, Permissions::from_mode(0o777))?;
        }
        Ok(())
    }

    async fn close_sandbox(&self, pod: &Arc<PodDesc>, ip: Option<&str>) {
        let sandbox = self.sandboxes.lock().get(&pod.uid).cloned();
        if let Some(sandbox) = sandbox {
            let stop = || self.calls.stop_pod(&sandbox.id);
            if let Err(error) = patiently(stop).await {
                warn!(pod = pod.name, %error, "cannot stop the sandbox of a pod");
            }
        }
        self.addresses.close(pod, ip);
        let folder = self.pods.join(&pod.uid);
        if let Err(error) = fs::remove_dir_all(&folder)
            && error.kind() != io::ErrorKind::NotFound
        {
            warn!(folder = %folder.display(), %error, "cannot remove the folder of a pod");
        }
        self.table.set_sandbox(pod, SandboxView::Stopped);
    }

    fn ip(&self, uid: &str) -> Option<String> {
        match self.table.view(uid).sandbox {
            SandboxView::Ready { ip } => Some(ip),
            _ => None,
        }
    }

    /// Creates and starts a container, which the table names `place` until the runtime has named
    /// it.
    async fn run(&self, pod: &PodDesc, container: &Container, place: &str, attempt: i32) {
        let made = self.create(pod, container, attempt).await;
        let started = match made {
            Ok(id) => {
                self.table.named(place, &id);
                self.start(&id).await.map_err(|problem| (id, problem))
            }
            Err(problem) => Err((place.to_owned(), problem)),
        };
        if let Err((id, NotCreated { reason, error })) = started {
            let (pod, container) = (&pod.name, &container.name);
            warn!(pod, container, reason, error, "a container does not start");
            self.table.not_created(&id, reason, self.clock.now());
        }
    }

    async fn start(&self, id: &str) -> Result<(), NotCreated> {
        if let Err(error) = patiently(|| self.calls.start(id)).await {
            // A program that could not be executed appears as a container that has ended.
            if matches!(patiently(|| self.settle(id)).await, Ok(true)) {
                return Ok(());
            }
            return Err(NotCreated {
                reason: "RunContainerError",
                error: error.to_string(),
            });
        }
        if let Some(pid) = self.calls.pid(id).await {
            self.pids.lock().insert(id.to_owned(), pid);
        }
        if !self.table.started(id, self.clock.now()) {
            // It was stopped during its creation.
            self.stop(id, Duration::ZERO).await;
        }
        Ok(())
    }

    async fn create(
        &self,
        pod: &PodDesc,
        container: &Container,
        attempt: i32,
    ) -> Result<String, NotCreated> {
        let undescribed = |error: Undescribed| NotCreated {
            reason: "CreateContainerConfigError",
            error: error.to_string(),
        };
        let config = self.describe(pod, container, attempt).await;
        let config = config.map_err(undescribed)?;
        let refused = |error: String| NotCreated {
            reason: "CreateContainerError",
            error,
        };
        let sandbox = self.sandboxes.lock().get(&pod.uid).cloned();
        let sandbox = sandbox.ok_or_else(|| refused("the sandbox is gone".into()))?;
        let create = || {
            let (own, pods) = (config.clone(), sandbox.config.clone());
            self.calls.create(&sandbox.id, own, pods)
        };
        let mut made = patiently(create).await;
        // The answer of an interrupted runtime can be lost.
        if made.is_err() && self.remove_namesake(&sandbox.id, &config).await {
            made = patiently(create).await;
        }
        made.map_err(|error| refused(error.to_string()))
    }

    /// Removes a container of the same name and number. True if it existed.
    async fn remove_namesake(&self, sandbox: &str, config: &ContainerConfig) -> bool {
        let listed = patiently(|| self.calls.list()).await.unwrap_or_default();
        let mut same = listed
            .into_iter()
            .filter(|c| c.pod_sandbox_id == sandbox && c.metadata == config.metadata);
        let Some(namesake) = same.next() else {
            return false;
        };
        patiently(|| self.calls.remove(&namesake.id)).await.is_ok()
    }

    /// Waits for the addresses of the pods that the container names.
    async fn describe(
        &self,
        pod: &PodDesc,
        container: &Container,
        attempt: i32,
    ) -> Result<ContainerConfig, Undescribed> {
        let ip = self.ip(&pod.uid).unwrap_or_default();
        let volumes = config::volumes(pod, &self.pods);
        let number = u32::try_from(attempt).unwrap_or_default();
        let patience = Instant::now() + ADDRESS_WAIT;
        loop {
            let names = self.addresses.names();
            let around = Surroundings {
                ip: &ip,
                node: &self.node,
                names: &names,
                volumes: None,
            };
            match config::container(pod, container, number, &around, &volumes) {
                Err(Undescribed::Program(Unstartable::NoAddress(_)))
                    if Instant::now() < patience =>
                {
                    sleep(ADDRESS_POLL).await;
                }
                made => return made,
            }
        }
    }

    async fn stop(&self, id: &str, grace: Duration) {
        if let Err(error) = patiently(|| self.calls.stop(id, grace)).await {
            warn!(container = id, %error, "cannot stop a container");
        }
        if let Err(error) = patiently(|| self.settle(id)).await {
            warn!(container = id, %error, "cannot ask how a container has ended");
        }
    }

    async fn remove(&self, id: &str) {
        if let Err(error) = patiently(|| self.calls.remove(id)).await {
            warn!(container = id, %error, "cannot remove a container");
        }
        self.removing.lock().remove(id);
        self.table.remove(id);
    }
}

/// Sleep in the preStop hook of a container.
fn pre_stop_sleep(pod: &PodDesc, container: &str) -> Duration {
    let spec = pod.containers().find(|(_, c)| c.name == container);
    let hook = spec.and_then(|(_, c)| c.lifecycle.as_ref()?.pre_stop.as_ref()?.sleep.as_ref());
    Duration::from_secs(hook.map_or(0, |h| u64::try_from(h.seconds).unwrap_or(0)))
}

fn ended(status: &ContainerStatus) -> Ended {
    let reason = match status.reason.as_str() {
        "Completed" => "Completed",
        "OOMKilled" => "OOMKilled",
        "StartError" => "StartError",
        "Unknown" => "Unknown",
        _ => "Error",
    };
    Ended {
        exit_code: status.exit_code,
        reason,
    }
}

/// End of a container that is unknown to the runtime, as shown by the kubelet.
fn unknown() -> Ended {
    Ended {
        exit_code: 137,
        reason: "ContainerStatusUnknown",
    }
}

fn finished_at(status: &ContainerStatus) -> Option<DateTime<Utc>> {
    (status.finished_at > 0).then(|| DateTime::from_timestamp_nanos(status.finished_at))
}

impl Runtime for Cri {
    fn act(&self, pod: &Arc<PodDesc>, action: &Action) {
        let (work, pod) = (self.shared.clone(), pod.clone());
        match action {
            Action::CreateSandbox => {
                if work.table.set_sandbox(&pod, SandboxView::Creating) {
                    self.later.run(async move { work.open_sandbox(&pod).await });
                }
            }
            Action::Start { name, attempt } => {
                let Some((_, spec)) = pod.containers().find(|(_, c)| c.name == *name) else {
                    return;
                };
                let (spec, attempt) = (spec.clone(), *attempt);
                let place = format!("creating-{}", work.next_id.fetch_add(1, Ordering::Relaxed));
                let now = work.clock.now();
                if work.table.create(&pod.uid, &place, name, attempt, now) {
                    self.later
                        .run(async move { work.run(&pod, &spec, &place, attempt).await });
                }
            }
            Action::Stop {
                id,
                grace,
                pre_stop,
            } => {
                let Some(hurried) = work.table.hurry(id, *grace, work.clock.now()) else {
                    return;
                };
                let name = hurried.name;
                if work
                    .table
                    .find(id)
                    .is_some_and(|c| c.state == State::Creating)
                {
                    work.table
                        .ended(id, &Ended::with_code(137), work.clock.now());
                    return;
                }
                let hook = pre_stop.then(|| pre_stop_sleep(&pod, &name));
                let hook = hook.unwrap_or_default().min(*grace);
                let (id, grace) = (id.clone(), grace.saturating_sub(hook));
                self.later.run(async move {
                    sleep(hook).await;
                    work.stop(&id, grace).await;
                });
            }
            Action::Remove { id } => {
                if work.removing.lock().insert(id.clone()) {
                    let id = id.clone();
                    self.later.run(async move { work.remove(&id).await });
                }
            }
            Action::StopSandbox => {
                let ip = work.ip(&pod.uid);
                if work.table.set_sandbox(&pod, SandboxView::Stopping) {
                    self.later
                        .run(async move { work.close_sandbox(&pod, ip.as_deref()).await });
                }
            }
            Action::DeletePod => {}
        }
    }

    fn view(&self, uid: &str) -> PodView {
        self.shared.table.view(uid)
    }

    fn forget(&self, uid: &str) {
        self.shared.table.forget(uid);
        if let Some(sandbox) = self.shared.sandboxes.lock().remove(uid) {
            let work = self.shared.clone();
            self.later.run(async move {
                if let Err(error) = patiently(|| work.calls.remove_pod(&sandbox.id)).await {
                    warn!(sandbox = sandbox.id, %error, "cannot remove a sandbox");
                }
            });
        }
    }

    fn kill(&self, container_id: &str) {
        let (work, id) = (self.shared.clone(), container_id.to_owned());
        self.later
            .run(async move { work.stop(&id, Duration::ZERO).await });
    }

    fn table(&self) -> &Arc<Table> {
        &self.shared.table
    }

    /// Real programs are made to fail from outside.
    fn inject(&self, _fault: &Fault) -> Result<(), Unsupported> {
        Err(Unsupported)
    }

    fn pid(&self, container_id: &str) -> Option<u32> {
        self.shared.pids.lock().get(container_id).copied()
    }
}
