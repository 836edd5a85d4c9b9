//! The worker of one pod: what it remembers, and one step of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, PodCondition, PodStatus};

use super::admission::Rejection;
use super::backoff::Backoff;
use super::exit::{AfterExit, after_exit};
use super::plan::{self, Plan};
use super::pod::PodDesc;
use super::view::{ContainerView, PodView, SandboxView, State};
use super::{ALL_CONTAINERS_RESTARTING, RESTARTING_ALL_CONTAINERS, status};

/// What one kubelet can do.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeletConfig {
    /// Whether it knows container restart policies and rules (1.35 and later).
    pub restart_rules: bool,
    /// Whether it declares and obeys `RestartAllContainersOnContainerExits`.
    pub restart_all: bool,
    /// Factor on the times of the crash back-off; 1.0 is the kubelet's.
    pub backoff_scale: f64,
    /// How long after a pod has come to its end by itself its final phase shows: the kubelet's poll.
    pub resync: Duration,
}

impl Default for KubeletConfig {
    fn default() -> Self {
        Self {
            restart_rules: true,
            restart_all: true,
            backoff_scale: 1.0,
            resync: Duration::from_secs(1),
        }
    }
}

/// What the kubelet wants of the runtime or, for [`Action::DeletePod`], of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Mount volumes, create the sandbox.
    CreateSandbox,
    /// Create and start an instance of a container.
    Start {
        /// Name in the pod spec.
        name: String,
        /// Number of the instance.
        attempt: i32,
    },
    /// SIGTERM, and SIGKILL after the grace period. A second stop can only shorten the first.
    Stop {
        /// Runtime id.
        id: String,
        /// Time until SIGKILL.
        grace: Duration,
        /// Whether the preStop hook runs first, within the grace period.
        pre_stop: bool,
    },
    /// Remove the record of an exited instance.
    Remove {
        /// Runtime id.
        id: String,
    },
    /// Stop the sandbox, unmount volumes.
    StopSandbox,
    /// Delete the pod object with grace period 0 and its UID as precondition, once the status has
    /// been written.
    DeletePod,
}

/// Result of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Status to publish. Conditions of others are not in it.
    pub status: PodStatus,
    /// What to do, in order.
    pub actions: Vec<Action>,
    /// When to sync again at the latest.
    pub wake: Option<DateTime<Utc>>,
    /// Whether the worker is inside a call to the runtime: it goes on as soon as the runtime is
    /// done, while every other change is noticed at the next relist.
    pub blocked: bool,
}

/// Why the kubelet ends a pod by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) reason: String,
    pub(super) message: String,
    /// Rejected at admission: nothing ever ran.
    pub(super) rejected: bool,
    /// Shown as condition DisruptionTarget.
    pub(super) disruption: bool,
}

/// What the kubelet remembers of one pod.
#[derive(Clone, Debug, Default)]
pub struct PodWorker {
    pub(super) start_time: DateTime<Utc>,
    pub(super) backoff: BTreeMap<String, Backoff>,
    /// Containers that wait for their back-off, as of the last sync.
    pub(super) backing_off: BTreeSet<String>,
    /// Number of the next instance of containers of which the runtime has none.
    pub(super) next_attempt: BTreeMap<String, i32>,
    /// `lastState` of containers whose previous instance was removed.
    pub(super) last: BTreeMap<String, ContainerStateTerminated>,
    /// A restart of all containers is under way; these set it off.
    pub(super) restarting: Option<BTreeSet<String>>,
    pub(super) ended: Option<Ended>,
    /// No container will be started any more, because all have finished for good or an init
    /// container failed.
    pub(super) finished: bool,
    pub(super) terminating: Option<Terminating>,
    /// How far the end of the pod may show.
    pub(super) end_shown: EndShown,
    /// Whether a restart of all containers has just removed them.
    pub(super) removed: bool,
    /// When the probes of containers began that a former kubelet started.
    pub(super) probed_since: Option<DateTime<Utc>>,
    /// Ids of containers in a sandbox that the pod has lost.
    pub(super) lost: BTreeSet<String>,
    /// Containers that are stopped to be started again.
    pub(super) replacing: BTreeSet<String>,
    /// Phase that was shown last.
    pub(super) phase: Option<String>,
    /// Status that was shown last.
    shown: Option<PodStatus>,
    pub(super) conditions: Vec<PodCondition>,
    pub(super) ip: Option<String>,
}

/// Since when a pod is being brought to its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terminating {
    pub(super) since: DateTime<Utc>,
    /// Whether somebody else asked for it.
    pub(super) told: bool,
}

/// How much of a pod's end may show in its status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum EndShown {
    /// Nothing yet.
    #[default]
    Nothing,
    /// Conditions tell it, the phase does not.
    WoundUp,
    /// The final phase.
    Phase,
}

/// One step's inputs.
pub(super) struct Context<'a> {
    pub(super) pod: &'a PodDesc,
    pub(super) view: &'a PodView,
    pub(super) config: &'a KubeletConfig,
    pub(super) now: DateTime<Utc>,
}

impl Context<'_> {
    /// Whether the pod is being deleted or gone.
    pub(super) fn told_to_end(&self) -> bool {
        self.pod.deletion.is_some() || self.pod.gone
    }
}

impl PodWorker {
    /// A worker for a pod seen for the first time: `status` is what the API server has, from which
    /// a restarted kubelet takes up restart counts, last states and a restart of all containers
    /// that was under way.
    pub fn new(status: Option<&PodStatus>, now: DateTime<Utc>) -> Self {
        let mut worker = Self {
            start_time: now,
            ..Self::default()
        };
        let Some(status) = status else { return worker };
        if let Some(t) = &status.start_time {
            worker.start_time = status::from_api(t);
        }
        worker.conditions = status.conditions.clone().unwrap_or_default();
        worker.ip.clone_from(&status.pod_ip);
        worker.phase.clone_from(&status.phase);
        worker.finished = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        if worker.finished {
            worker.end_shown = EndShown::WoundUp;
        }
        if worker.showed(ALL_CONTAINERS_RESTARTING) {
            worker.restarting = Some(BTreeSet::new());
        }
        for c in status
            .init_container_statuses
            .iter()
            .chain(&status.container_statuses)
            .flatten()
        {
            let ran = c.container_id.is_some();
            worker
                .next_attempt
                .insert(c.name.clone(), c.restart_count + i32::from(ran));
            if let Some(last) = c.last_state.as_ref().and_then(|s| s.terminated.clone()) {
                worker.last.insert(c.name.clone(), last);
            }
        }
        worker
    }

    /// Refuses the pod at admission: it fails without ever having run.
    pub fn reject(&mut self, rejection: &Rejection) {
        self.ended = Some(Ended {
            reason: rejection.reason.clone(),
            message: format!("Pod was rejected: {}", rejection.message),
            rejected: true,
            disruption: false,
        });
    }

    /// Evicts the pod for want of resources on the node: it fails with reason `Evicted`.
    pub fn evict(&mut self, message: &str) {
        self.end("Evicted", message, true);
    }

    fn end(&mut self, reason: &str, message: &str, disruption: bool) {
        if self.ended.is_none() && !self.finished {
            self.ended = Some(Ended {
                reason: reason.into(),
                message: message.into(),
                rejected: false,
                disruption,
            });
        }
    }

    /// Whether the pod holds room on the node: it is to run, or something of it still runs. A pod
    /// that is being deleted gives its room back with its last container, before its object goes;
    /// the scheduler may use it at once.
    pub fn active(&self, view: &PodView) -> bool {
        let over = self.finished || self.ended.is_some() || self.terminating.is_some();
        !over || view.any_alive()
    }

    /// Whether the pod may be over already, so that its admission must not be checked again.
    pub fn over(&self) -> bool {
        self.finished || self.ended.is_some()
    }

    /// One step: status of what the runtime shows now, and what to do about it.
    pub fn sync(
        &mut self,
        pod: &PodDesc,
        view: &PodView,
        config: &KubeletConfig,
        now: DateTime<Utc>,
    ) -> Outcome {
        let cx = Context {
            pod,
            view,
            config,
            now,
        };
        if let SandboxView::Ready { ip } = &view.sandbox {
            self.ip = Some(ip.clone());
        }
        self.note_deadline(&cx);
        self.note_restart_all(&cx);
        // The plan first, because it finds out that the pod is finished. A back-off shows one sync
        // later, that is, when it is over and the container starts: the kubelet's reason cache is
        // filled after the status was made (rule-restart, crash-back-off).
        let Plan {
            actions,
            wake,
            blocked,
            backing_off,
            hold,
            removed,
        } = plan::plan(self, &cx);
        let first = self.shown.is_none();
        let status = match self.shown.take().filter(|_| hold) {
            Some(shown) => shown,
            None => status::status(self, &cx),
        };
        // Probes begin after the first status (kubelet-restarts).
        if first && view.any_alive() {
            self.probed_since = Some(now);
        }
        for (name, attempt) in removed {
            self.note_removed(&name, attempt);
        }
        self.backing_off = backing_off;
        self.shown = Some(status.clone());
        Outcome {
            status,
            actions,
            wake,
            blocked,
        }
    }

    /// The newest instance of a container in the sandbox of the pod.
    pub(super) fn latest<'v>(&self, cx: &Context<'v>, c: &Container) -> Option<&'v ContainerView> {
        let latest = cx.view.latest(&c.name);
        latest.filter(|instance| !self.lost.contains(&instance.id))
    }

    /// Whether a condition was True when the status was last made.
    pub(super) fn showed(&self, condition: &str) -> bool {
        let mut all = self.conditions.iter();
        all.any(|c| c.type_ == condition && c.status == "True")
    }

    /// `activeDeadlineSeconds` of the pod.
    fn note_deadline(&mut self, cx: &Context<'_>) {
        let Some(deadline) = self.deadline(cx.pod) else {
            return;
        };
        if cx.now >= deadline {
            self.end(
                "DeadlineExceeded",
                "Pod was active on the node longer than the specified deadline",
                false,
            );
        }
    }

    /// When the pod's own deadline ends it.
    pub(super) fn deadline(&self, pod: &PodDesc) -> Option<DateTime<Utc>> {
        pod.spec
            .active_deadline_seconds
            .map(|s| self.start_time + TimeDelta::seconds(s))
    }

    /// Begins a restart of all containers when one has exited with a code that asks for it, and
    /// ends it when nothing is left in the runtime. A deletion prevents its start.
    fn note_restart_all(&mut self, cx: &Context<'_>) {
        self.removed = false;
        if self.over() || cx.pod.gone {
            self.restarting = None;
            return;
        }
        match &mut self.restarting {
            Some(_) if cx.view.containers.is_empty() => {
                self.restarting = None;
                self.removed = true;
            }
            Some(_) => {}
            None if cx.told_to_end() => {}
            None => {
                let triggers = triggers(cx);
                if !triggers.is_empty() {
                    self.restarting = Some(triggers);
                }
            }
        }
    }

    /// Whether the pod ends on request. A restart of all containers is a single call, so the kubelet
    /// notices a deletion after it (restart-all-deleted-meanwhile).
    pub(super) fn told_to_end(&self, cx: &Context<'_>) -> bool {
        cx.told_to_end() && self.restarting.is_none() && !self.removed
    }

    /// Notes what the status shows of an instance that a restart of all containers is about to
    /// remove.
    fn note_removed(&mut self, name: &str, attempt: i32) {
        let next = self.next_attempt.entry(name.to_owned()).or_default();
        *next = (*next).max(attempt + 1);
        self.last.insert(
            name.to_owned(),
            ContainerStateTerminated {
                exit_code: 137,
                reason: Some(RESTARTING_ALL_CONTAINERS.into()),
                message: Some(
                    "The container is removed because RestartAllContainers in place".into(),
                ),
                ..ContainerStateTerminated::default()
            },
        );
    }
}

/// Containers whose newest instance exited with a code whose rule restarts all.
pub(super) fn triggers(cx: &Context<'_>) -> BTreeSet<String> {
    let asks = |(kind, c): &(_, &k8s_openapi::api::core::v1::Container)| {
        cx.view
            .latest(&c.name)
            .is_some_and(|latest| match latest.state {
                State::Exited { exit_code, .. } => {
                    after_exit(cx.pod, *kind, c, exit_code, cx.config) == AfterExit::RestartAll
                }
                _ => false,
            })
    };
    cx.pod
        .containers()
        .filter(asks)
        .map(|(_, c)| c.name.clone())
        .collect()
}
