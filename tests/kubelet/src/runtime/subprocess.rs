//! A runtime whose containers are child processes, with real exits, signals and sockets and without
//! privileges.
//!
//! Every pod has a separate IP in 127.0.0.0/8, folders as volumes, and files for its output.
//! Descendants of a process stay in its process group, which is killed with it. Probes are not run:
//! a container is ready after its delays.

#![expect(
    clippy::disallowed_methods,
    reason = "child processes run in the time of the machine"
)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Container;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use super::addresses::{ADDRESS_POLL, ADDRESS_WAIT, Addresses};
use super::later::Later;
use super::program::{Program, Surroundings, Unstartable, program};
use super::reaper::Reaper;
use super::table::{Ended, Table};
use super::{Fault, Runtime, Unsupported};
use crate::clock::Clock;
use crate::latency::LatencyProfile;
use crate::model::{Action, PodDesc, PodView, SandboxView, State};

/// Shared state of the nodes of a process.
#[derive(Clone, Debug)]
pub struct Host {
    /// Folder for volumes and logs.
    pub folder: PathBuf,
    /// Kills remaining processes after the end of this process.
    pub reaper: Arc<Reaper>,
    /// Addresses of pods.
    pub addresses: Arc<Addresses>,
}

/// The runtime of a node.
#[derive(Debug)]
pub struct Subprocess {
    shared: Arc<Shared>,
    /// Tasks in progress. When the runtime is dropped, they end and their processes are killed.
    later: Later,
}

#[derive(Debug)]
struct Shared {
    table: Arc<Table>,
    profile: LatencyProfile,
    clock: Clock,
    node: String,
    host: Host,
    pids: Mutex<BTreeMap<String, Pid>>,
    slow_start: Mutex<Duration>,
    next_id: AtomicU32,
}

impl Subprocess {
    /// The runtime of a node.
    pub fn new(
        node: &str,
        table: Table,
        profile: LatencyProfile,
        clock: Clock,
        host: Host,
    ) -> Self {
        let shared = Shared {
            table: Arc::new(table),
            profile,
            clock,
            node: node.to_owned(),
            host,
            pids: Mutex::default(),
            slow_start: Mutex::default(),
            next_id: AtomicU32::new(1),
        };
        Self {
            shared: Arc::new(shared),
            later: Later::default(),
        }
    }
}

impl Shared {
    fn folder(&self, pod: &PodDesc) -> PathBuf {
        self.host.folder.join(&self.node).join(&pod.uid)
    }

    /// Folders of the pod's supported volumes.
    fn volumes(&self, pod: &PodDesc) -> BTreeMap<String, PathBuf> {
        let folder = self.folder(pod).join("volumes");
        let place = |v: &k8s_openapi::api::core::v1::Volume| match (&v.empty_dir, &v.host_path) {
            (Some(_), _) => Some((v.name.clone(), folder.join(&v.name))),
            (_, Some(host)) => Some((v.name.clone(), PathBuf::from(&host.path))),
            _ => None,
        };
        pod.spec
            .volumes
            .iter()
            .flatten()
            .filter_map(place)
            .collect()
    }

    fn open_sandbox(&self, pod: &Arc<PodDesc>) {
        if self.table.view(&pod.uid).sandbox != SandboxView::Creating {
            return;
        }
        let own = self.folder(pod);
        for folder in self
            .volumes(pod)
            .values()
            .filter(|folder| folder.starts_with(&own))
        {
            if let Err(error) = fs::create_dir_all(folder) {
                warn!(pod = pod.name, folder = %folder.display(), %error, "cannot make a volume");
            }
        }
        let ip = self.host.addresses.open(pod);
        self.table.set_sandbox(pod, SandboxView::Ready { ip });
    }

    fn close_sandbox(&self, pod: &Arc<PodDesc>, ip: Option<&str>) {
        self.host.addresses.close(pod, ip);
        self.table.set_sandbox(pod, SandboxView::Stopped);
    }

    fn ip(&self, uid: &str) -> Option<String> {
        match self.table.view(uid).sandbox {
            SandboxView::Ready { ip } => Some(ip),
            _ => None,
        }
    }

    /// Runs a container from start to end.
    async fn run(&self, pod: Arc<PodDesc>, container: Container, id: String, attempt: i32) {
        let wait = self.profile.start + *self.slow_start.lock();
        sleep(wait).await;
        let ended = match self.start(&pod, &container, attempt).await {
            Ok(mut child) => {
                let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
                if let Some(pid) = pid {
                    self.host.reaper.started(pid);
                    self.pids.lock().insert(id.clone(), pid);
                }
                if !self.table.started(&id, self.clock.now()) {
                    signal(pid, Signal::KILL, true);
                }
                let status = child.wait().await;
                // Its descendants are killed too, as in a container after the end of its first
                // process.
                signal(pid, Signal::KILL, true);
                if let Some(pid) = self.pids.lock().remove(&id) {
                    self.host.reaper.ended(pid);
                }
                status.map_or(
                    Ended {
                        exit_code: 255,
                        reason: "Unknown",
                    },
                    ended,
                )
            }
            Err(error) => {
                warn!(
                    pod = pod.name,
                    container = container.name,
                    error,
                    "container cannot start"
                );
                Ended {
                    exit_code: 128,
                    reason: "StartError",
                }
            }
        };
        debug!(
            pod = pod.name,
            container = container.name,
            code = ended.exit_code,
            "container ended"
        );
        self.table.ended(&id, &ended, self.clock.now());
    }

    async fn start(
        &self,
        pod: &PodDesc,
        container: &Container,
        attempt: i32,
    ) -> Result<Child, String> {
        let ip = self.ip(&pod.uid).ok_or("the sandbox is gone")?;
        let volumes = self.volumes(pod);
        let patience = Instant::now() + ADDRESS_WAIT;
        let program = loop {
            let names = self.host.addresses.names();
            let around = Surroundings {
                ip: &ip,
                node: &self.node,
                names: &names,
                volumes: Some(&volumes),
            };
            match program(pod, container, &around) {
                Err(Unstartable::NoAddress(_)) if Instant::now() < patience => {
                    sleep(ADDRESS_POLL).await;
                }
                made => break made.map_err(|e| e.to_string())?,
            }
        };
        let folder = self.folder(pod).join(&container.name);
        spawn(&program, &folder, attempt)
            .map_err(|e| format!("cannot start {}: {e}", program.argv.join(" ")))
    }

    fn stop(&self, pod: &PodDesc, id: &str, grace: Duration, pre_stop: bool) -> Option<Stopping> {
        let name = self.table.hurry(id, grace, self.clock.now())?.name;
        if self
            .table
            .find(id)
            .is_some_and(|c| c.state == State::Creating)
        {
            self.kill(id);
            return None;
        }
        let spec = pod.containers().find(|(_, c)| c.name == name)?.1;
        let sleep = spec
            .lifecycle
            .as_ref()
            .and_then(|l| l.pre_stop.as_ref()?.sleep.as_ref().map(|s| s.seconds));
        let hook = Duration::from_secs(
            u64::try_from(sleep.filter(|_| pre_stop).unwrap_or(0)).unwrap_or(0),
        );
        Some(Stopping {
            hook: hook.min(grace),
            grace,
        })
    }

    fn signal(&self, id: &str, what: Signal) {
        signal(
            self.pids.lock().get(id).copied(),
            what,
            what == Signal::STOP,
        );
    }

    /// Kills a container's processes. A container without process will not start.
    fn kill(&self, id: &str) {
        let pid = self.pids.lock().get(id).copied();
        if pid.is_some() {
            signal(pid, Signal::KILL, true);
        } else if self
            .table
            .find(id)
            .is_some_and(|c| c.state == State::Creating)
        {
            self.table
                .ended(id, &Ended::with_code(137), self.clock.now());
        }
    }
}

/// Times of a stop.
struct Stopping {
    hook: Duration,
    grace: Duration,
}

/// Starts the program in its own process group.
fn spawn(program: &Program, folder: &Path, attempt: i32) -> io::Result<Child> {
    fs::create_dir_all(folder)?;
    let log = File::options()
        .create(true)
        .append(true)
        .open(folder.join(format!("{attempt}.log")))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let (first, rest) = program
        .argv
        .split_first()
        .ok_or(io::ErrorKind::InvalidInput)?;
    Command::new(first)
        .args(rest)
        .env_clear()
        .env("PATH", path)
        .envs(program.env.iter().map(|(name, value)| (name, value)))
        .current_dir(folder)
        .stdin(Stdio::null())
        .stderr(log.try_clone()?)
        .stdout(log)
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

/// Signals a process or its whole group. A process that has ended is not an error.
fn signal(pid: Option<Pid>, signal: Signal, group: bool) {
    let Some(pid) = pid else { return };
    let sent = if group {
        kill_process_group(pid, signal)
    } else {
        kill_process(pid, signal)
    };
    if let Err(error) = sent {
        debug!(?pid, %error, "signal not delivered");
    }
}

fn ended(status: ExitStatus) -> Ended {
    Ended::with_code(
        status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
    )
}

impl Runtime for Subprocess {
    fn act(&self, pod: &Arc<PodDesc>, action: &Action) {
        let shared = &self.shared;
        match action {
            Action::CreateSandbox => {
                if shared.table.set_sandbox(pod, SandboxView::Creating) {
                    let (pod, work) = (pod.clone(), shared.clone());
                    self.later
                        .after(shared.profile.sandbox, move || work.open_sandbox(&pod));
                }
            }
            Action::Start { name, attempt } => {
                let Some((_, spec)) = pod.containers().find(|(_, c)| c.name == *name) else {
                    return;
                };
                let id = format!(
                    "{}-{}",
                    shared.node,
                    shared.next_id.fetch_add(1, Ordering::Relaxed)
                );
                if shared
                    .table
                    .create(&pod.uid, &id, name, *attempt, shared.clock.now())
                {
                    let (work, pod, spec, attempt) =
                        (shared.clone(), pod.clone(), spec.clone(), *attempt);
                    self.later
                        .run(async move { work.run(pod, spec, id, attempt).await });
                }
            }
            Action::Stop {
                id,
                grace,
                pre_stop,
            } => {
                if let Some(stopping) = shared.stop(pod, id, *grace, *pre_stop) {
                    let (id, work) = (id.clone(), shared.clone());
                    self.later.run(async move {
                        sleep(stopping.hook).await;
                        work.signal(&id, Signal::TERM);
                        sleep(stopping.grace.saturating_sub(stopping.hook)).await;
                        work.kill(&id);
                    });
                }
            }
            Action::Remove { id } => shared.table.remove(id),
            Action::StopSandbox => {
                let ip = shared.ip(&pod.uid);
                if shared.table.set_sandbox(pod, SandboxView::Stopping) {
                    let (pod, work) = (pod.clone(), shared.clone());
                    self.later.after(shared.profile.cleanup, move || {
                        work.close_sandbox(&pod, ip.as_deref());
                    });
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
        // Volumes and logs of a removed pod. A folder that was never created need not be removed.
        let folder = self.shared.host.folder.join(&self.shared.node).join(uid);
        if let Err(error) = fs::remove_dir_all(&folder)
            && error.kind() != io::ErrorKind::NotFound
        {
            warn!(folder = %folder.display(), %error, "cannot remove the folder of a pod");
        }
    }

    fn kill(&self, container_id: &str) {
        self.shared.kill(container_id);
    }

    fn table(&self) -> &Arc<Table> {
        &self.shared.table
    }

    fn inject(&self, fault: &Fault) -> Result<(), Unsupported> {
        match fault {
            // A real program determines its exit code. Only the effect of a signal can be
            // simulated.
            Fault::End { id, ended } if ended.exit_code == 137 => self.shared.kill(id),
            Fault::End { .. } => return Err(Unsupported),
            Fault::Hang { id } => self.shared.signal(id, Signal::STOP),
            Fault::SlowStart { by } => *self.shared.slow_start.lock() = *by,
        }
        Ok(())
    }

    fn pid(&self, container_id: &str) -> Option<u32> {
        self.shared
            .pids
            .lock()
            .get(container_id)
            .map(|pid| pid.as_raw_nonzero().get().cast_unsigned())
    }
}
