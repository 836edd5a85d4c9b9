//! A simulated runtime as a function of time: containers are entries in the table, and delayed work
//! is returned as an effect with its delay, which the caller applies after the delay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use lockstep_node::{SupervisorCommand, SupervisorState};
use parking_lot::Mutex;

use super::Fault;
use super::script::{FAILED_MOUNT, OnTerm, START_ERROR, Script};
use super::supervised::{Later, Patience, ReportedProgress, Supervised, is_supervised};
use super::table::{Ended, Table};
use crate::latency::LatencyProfile;
use crate::model::{Action, ContainerView, Kind, PodDesc, SandboxView, State};

/// A delayed change in the runtime.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// The sandbox of a pod is ready, unless it was stopped.
    SandboxReady {
        /// The pod.
        pod: Arc<PodDesc>,
        /// Its IP.
        ip: String,
    },
    /// The sandbox of a pod is stopped and cleaned up.
    SandboxStopped {
        /// The pod.
        pod: Arc<PodDesc>,
    },
    /// The process of a container starts, unless it was stopped before.
    Started {
        /// Runtime id.
        id: String,
    },
    /// The container of a pod cannot be created.
    NotCreated {
        /// Runtime id.
        id: String,
        /// Reason as in the status of a waiting container.
        reason: String,
    },
    /// The process of a container ends, unless it has ended before.
    Ended {
        /// Runtime id.
        id: String,
        /// Kind of end.
        ended: Ended,
    },
    /// A change inside a supervised container.
    Inside {
        /// Runtime id.
        id: String,
        /// The change.
        what: Later,
    },
}

/// Active faults.
#[derive(Debug, Default)]
struct Faults {
    /// Additional time of all starts.
    slow_start: Duration,
    /// IDs of containers that neither react to SIGTERM nor pass probes.
    hung: BTreeSet<String>,
}

/// The simulated runtime of a node.
#[derive(Debug)]
pub struct Pretend {
    table: Arc<Table>,
    profile: LatencyProfile,
    node_name: String,
    images: Mutex<BTreeSet<String>>,
    faults: Mutex<Faults>,
    /// Supervisors by container ID.
    supervised: Mutex<BTreeMap<String, Supervised>>,
    ips: Arc<AtomicU32>,
    next_id: AtomicU32,
}

impl Pretend {
    /// The runtime of node `node_name`. `ips` numbers the pods of all nodes.
    pub fn new(
        node_name: &str,
        table: Table,
        profile: LatencyProfile,
        ips: Arc<AtomicU32>,
    ) -> Self {
        Self {
            table: Arc::new(table),
            profile,
            node_name: node_name.to_owned(),
            images: Mutex::default(),
            faults: Mutex::default(),
            supervised: Mutex::default(),
            ips,
            next_id: AtomicU32::new(1),
        }
    }

    /// The table for the kubelet and the agent of the node.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Starts an action of the kubelet. Returns its effects with their delays. Repeating an action
    /// in progress has no effect.
    pub fn act(
        &self,
        pod: &Arc<PodDesc>,
        action: &Action,
        now: DateTime<Utc>,
    ) -> Vec<(Duration, Effect)> {
        match action {
            Action::CreateSandbox => {
                let unmounted =
                    |(kind, c)| Script::of(kind, c).not_created.as_deref() == Some(FAILED_MOUNT);
                let created = self.table.set_sandbox(pod, SandboxView::Creating);
                if !created || pod.containers().any(unmounted) {
                    return Vec::new();
                }
                let ip = pod_ip(self.ips.fetch_add(1, Ordering::Relaxed));
                let pod = pod.clone();
                vec![(self.profile.sandbox, Effect::SandboxReady { pod, ip })]
            }
            Action::Start { name, attempt } => self.start(pod, name, *attempt, now),
            Action::Stop {
                id,
                grace,
                pre_stop,
            } => self.stop(pod, id, *grace, *pre_stop, now),
            Action::Remove { id } => {
                self.table.remove(id);
                Vec::new()
            }
            Action::StopSandbox => {
                if !self.table.set_sandbox(pod, SandboxView::Stopping) {
                    return Vec::new();
                }
                let pod = pod.clone();
                vec![(self.profile.cleanup, Effect::SandboxStopped { pod })]
            }
            Action::DeletePod => Vec::new(),
        }
    }

    /// Kills a container at once, as `StopContainer` with timeout 0 does.
    pub fn kill(&self, id: &str) -> (Duration, Effect) {
        (self.profile.kill, ended(id, 137))
    }

    /// Applies an effect. Returns further effects with their delays.
    pub fn apply(&self, effect: &Effect, now: DateTime<Utc>) -> Vec<(Duration, Effect)> {
        match effect {
            Effect::SandboxReady { pod, ip } => {
                if self.table.view(&pod.uid).sandbox == SandboxView::Creating {
                    let ip = ip.clone();
                    self.table.set_sandbox(pod, SandboxView::Ready { ip });
                }
            }
            Effect::SandboxStopped { pod } => {
                self.table.set_sandbox(pod, SandboxView::Stopped);
            }
            Effect::Started { id } => {
                self.table.started(id, now);
            }
            Effect::NotCreated { id, reason } => {
                self.table.not_created(id, reason, now);
            }
            Effect::Ended { id, ended } => {
                self.table.ended(id, ended, now);
                self.supervised.lock().remove(id);
            }
            Effect::Inside {
                id,
                what: Later::Exits(code),
            } => {
                self.table.ended(id, &Ended::with_code(*code), now);
                self.supervised.lock().remove(id);
            }
            Effect::Inside { id, what } => {
                return self.inside(id, |s| s.happen(what, now));
            }
        }
        Vec::new()
    }

    /// State that the supervisor of a pod's training container has reported to a linked agent.
    pub fn supervisor(&self, pod_uid: &str) -> Option<SupervisorState> {
        let supervised = self.supervised.lock();
        let (id, _) = self.running_supervised(&supervised, pod_uid)?;
        supervised.get(&id)?.told().cloned()
    }

    /// Attempts of the running training processes under supervisors, by pod UID.
    pub fn children(&self) -> Vec<(String, u64)> {
        let supervised = self.supervised.lock();
        let pods = self.table.all().into_iter();
        pods.flat_map(|(pod, view)| {
            let mut found = Vec::new();
            for container in view.containers.iter().filter(|c| c.alive()) {
                let child = supervised.get(&container.id).and_then(Supervised::child);
                found.extend(child.map(|attempt| (pod.uid.clone(), attempt)));
            }
            found
        })
        .collect()
    }

    /// Why the training process of a pod has not hung without steps.
    pub fn patience(&self, pod_uid: &str) -> Option<Patience> {
        let supervised = self.supervised.lock();
        let (id, _) = self.running_supervised(&supervised, pod_uid)?;
        supervised.get(&id)?.patience()
    }

    /// True if a supervisor holds the process of a container back.
    pub fn is_held(&self, container_id: &str) -> bool {
        let supervised = self.supervised.lock();
        let found = supervised.get(container_id);
        found.is_some_and(|s| s.child().is_none())
    }

    /// Links the agent of the node to its supervisors, or unlinks it.
    pub fn link(&self, linked: bool, now: DateTime<Utc>) -> Vec<(Duration, Effect)> {
        let ids: Vec<String> = self.supervised.lock().keys().cloned().collect();
        let running = |id: &String| {
            let found = self.table.find(id);
            found.is_some_and(|c| matches!(c.state, State::Running { .. }))
        };
        let ids = ids.into_iter().filter(running);
        ids.flat_map(|id| self.inside(&id, |s| s.link(linked, now)))
            .collect()
    }

    /// Sends a command of the agent to the supervisor of a pod.
    pub fn command(
        &self,
        pod_uid: &str,
        command: &SupervisorCommand,
        now: DateTime<Utc>,
    ) -> Vec<(Duration, Effect)> {
        let found = self.running_supervised(&self.supervised.lock(), pod_uid);
        found.map_or(Vec::new(), |(id, _)| {
            self.inside(&id, |s| s.on_command(command, now))
        })
    }

    /// Reports the progress of a pod's training process to its supervisor.
    pub fn progress(
        &self,
        pod_uid: &str,
        report: ReportedProgress<'_>,
        now: DateTime<Utc>,
    ) -> Vec<(Duration, Effect)> {
        let found = self.running_supervised(&self.supervised.lock(), pod_uid);
        found.map_or(Vec::new(), |(id, _)| {
            self.inside(&id, |s| s.tells(report, now))
        })
    }

    fn running_supervised(
        &self,
        supervised: &BTreeMap<String, Supervised>,
        pod_uid: &str,
    ) -> Option<(String, ContainerView)> {
        let view = self.table.view(pod_uid);
        let mut containers = view.containers.into_iter();
        let running = containers
            .find(|c| matches!(c.state, State::Running { .. }) && supervised.contains_key(&c.id))?;
        Some((running.id.clone(), running))
    }

    /// Applies a change to a supervisor. The agent is notified if the supervisor sent a message.
    fn inside(
        &self,
        id: &str,
        happens: impl FnOnce(&mut Supervised) -> Vec<(Duration, Later)>,
    ) -> Vec<(Duration, Effect)> {
        let (later, said) = {
            let mut all = self.supervised.lock();
            let Some(supervised) = all.get_mut(id) else {
                return Vec::new();
            };
            let before = supervised.told().cloned();
            let later = happens(supervised);
            (later, supervised.told() != before.as_ref())
        };
        if said {
            self.table.tell_agent();
        }
        let inside = |(wait, what)| {
            let id = id.to_owned();
            (wait, Effect::Inside { id, what })
        };
        later.into_iter().map(inside).collect()
    }

    /// Injects a fault. Returns its effects with their delays. The process that ends is the
    /// supervisor's child, if the container has a supervisor.
    pub fn inject(&self, fault: &Fault, now: DateTime<Utc>) -> Vec<(Duration, Effect)> {
        match fault {
            Fault::End { id, ended } => {
                let child = self.supervised.lock().get(id).and_then(Supervised::child);
                if child.is_some() {
                    return self.inside(id, |s| s.child_ends(ended, now));
                }
                self.table.ended(id, ended, now);
                self.supervised.lock().remove(id);
            }
            Fault::Hang { id } => {
                self.faults.lock().hung.insert(id.clone());
                self.table.update(id, |c| {
                    let fresh = c.unhealthy_since.is_none();
                    c.unhealthy_since.get_or_insert(now);
                    fresh
                });
            }
            Fault::SlowStart { by } => self.faults.lock().slow_start = *by,
        }
        Vec::new()
    }

    fn start(
        &self,
        pod: &Arc<PodDesc>,
        name: &str,
        attempt: i32,
        now: DateTime<Utc>,
    ) -> Vec<(Duration, Effect)> {
        let Some((kind, spec)) = pod.containers().find(|(_, c)| c.name == name) else {
            return Vec::new();
        };
        let number = self.next_id.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}-{number}", self.node_name);
        if !self.table.create(&pod.uid, &id, name, attempt, now) {
            return Vec::new();
        }
        let pulled = !self
            .images
            .lock()
            .insert(spec.image.clone().unwrap_or_default());
        let pull = if pulled {
            Duration::ZERO
        } else {
            self.profile.image_pull
        };
        let wait = pull + self.profile.start + self.faults.lock().slow_start;
        let script = Script::of(kind, spec);
        if let Some(reason) = script.not_created {
            return vec![(wait, Effect::NotCreated { id, reason })];
        }
        let ended = script.end.clone();
        if ended.reason == START_ERROR {
            return vec![(wait, Effect::Ended { id, ended })];
        }
        if kind == Kind::Regular && is_supervised(spec) {
            let supervised = Supervised::new(script, self.profile.kill, now);
            self.supervised.lock().insert(id.clone(), supervised);
            return vec![(wait, Effect::Started { id })];
        }
        let mut effects = vec![(wait, Effect::Started { id: id.clone() })];
        if let Some(run) = script.run {
            effects.push((wait + run, Effect::Ended { id, ended }));
        }
        effects
    }

    fn stop(
        &self,
        pod: &Arc<PodDesc>,
        id: &str,
        grace: Duration,
        pre_stop: bool,
        now: DateTime<Utc>,
    ) -> Vec<(Duration, Effect)> {
        let Some(c) = self.table.hurry(id, grace, now) else {
            return Vec::new();
        };
        let found = pod.containers().find(|(_, spec)| spec.name == c.name);
        let usual = self.profile.terminate;
        let none = (Duration::ZERO, OnTerm::Exit(143), usual);
        let (hook, on_term, term) = found.map_or(none, |(kind, spec)| {
            let sleep = spec
                .lifecycle
                .as_ref()
                .and_then(|l| l.pre_stop.as_ref()?.sleep.as_ref().map(|s| s.seconds));
            let hook = Duration::from_secs(u64::try_from(sleep.unwrap_or(0)).unwrap_or(0));
            let script = Script::of(kind, spec);
            (
                if pre_stop { hook } else { Duration::ZERO },
                script.on_term,
                script.term.unwrap_or(usual),
            )
        });
        let term = hook + term;
        let hung = self.faults.lock().hung.contains(id);
        if self.supervised.lock().contains_key(id) && c.state != State::Creating {
            let mut effects = vec![(grace + self.profile.kill, ended(id, 137))];
            if !hung {
                effects.extend(self.inside(id, |s| s.terminate(now)));
            }
            return effects;
        }
        let (wait, code) = match (on_term, c.state) {
            (_, State::Creating) => (Duration::ZERO, 137),
            (OnTerm::Exit(code), _) if !hung && term <= grace => (term, code),
            _ => (grace + self.profile.kill, 137),
        };
        vec![(wait, ended(id, code))]
    }
}

fn ended(id: &str, code: i32) -> Effect {
    Effect::Ended {
        id: id.to_owned(),
        ended: Ended::with_code(code),
    }
}

/// The n-th pod IP: 10.128.0.1 and up, without the first and last of each block of 256.
fn pod_ip(n: u32) -> String {
    let (block, host) = (n / 254, n % 254 + 1);
    format!("10.{}.{}.{host}", 128 + (block >> 8) % 128, block & 0xff)
}
