//! The worker of a pod: its memory and its steps.

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

/// Features of a kubelet.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeletConfig {
    /// True if it supports container restart policies and rules (1.35 and later).
    pub restart_rules: bool,
    /// True if it declares and supports `RestartAllContainersOnContainerExits`.
    pub restart_all: bool,
    /// Factor on the times of the crash back-off. 1.0 as in the kubelet.
    pub backoff_scale: f64,
    /// Delay of the final phase after a pod ended by itself: the kubelet's poll.
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

/// Request of the kubelet to the runtime or, for [`Action::DeletePod`], to the API server.
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
    /// Send SIGTERM, and SIGKILL after the grace period. A second stop can only shorten the first.
    Stop {
        /// Runtime ID.
        id: String,
        /// Time until SIGKILL.
        grace: Duration,
        /// True if the preStop hook runs first, within the grace period.
        pre_stop: bool,
    },
    /// Remove the record of an exited instance.
    Remove {
        /// Runtime ID.
        id: String,
    },
    /// Stop the sandbox, unmount volumes.
    StopSandbox,
    /// Delete the pod object with grace period 0 and its UID as precondition, after the status is
    /// written.
    DeletePod,
}

/// Result of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Status to publish, without conditions of other controllers.
    pub status: PodStatus,
    /// Actions in order.
    pub actions: Vec<Action>,
    /// Latest time of the next sync.
    pub wake: Option<DateTime<Utc>>,
    /// True if the worker is inside a call to the runtime: it continues as soon as the call is
    /// complete. All other changes are noticed at the next relist.
    pub blocked: bool,
}

/// Reason for which the kubelet itself ends a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) reason: String,
    pub(super) message: String,
    /// Rejected at admission, without any container.
    pub(super) rejected: bool,
    /// Shown as condition DisruptionTarget.
    pub(super) disruption: bool,
}

/// The kubelet's memory of a pod.
#[derive(Clone, Debug, Default)]
pub struct PodWorker {
    pub(super) start_time: DateTime<Utc>,
    pub(super) backoff: BTreeMap<String, Backoff>,
    /// Containers in back-off at the last sync.
    pub(super) backing_off: BTreeSet<String>,
    /// Number of the next instance for containers without instance in the runtime.
    pub(super) next_attempt: BTreeMap<String, i32>,
    /// `lastState` of containers whose previous instance was removed.
    pub(super) last: BTreeMap<String, ContainerStateTerminated>,
    /// Containers that triggered a restart of all containers, which is in progress.
    pub(super) restarting: Option<BTreeSet<String>>,
    pub(super) ended: Option<Ended>,
    /// No container will be started any more, because all have finished or an init container
    /// failed.
    pub(super) finished: bool,
    pub(super) terminating: Option<Terminating>,
    /// Part of the pod's end that the status shows.
    pub(super) end_shown: EndShown,
    /// True if a restart of all containers has just removed them.
    pub(super) removed: bool,
    /// Start of the probes for containers that a former kubelet started.
    pub(super) probed_since: Option<DateTime<Utc>>,
    /// IDs of containers in a lost sandbox of the pod.
    pub(super) lost: BTreeSet<String>,
    /// Containers that are stopped to be restarted.
    pub(super) replacing: BTreeSet<String>,
    /// Last published phase.
    pub(super) phase: Option<String>,
    /// Last published status.
    shown: Option<PodStatus>,
    pub(super) conditions: Vec<PodCondition>,
    pub(super) ip: Option<String>,
}

/// Start of a pod's termination.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terminating {
    pub(super) since: DateTime<Utc>,
    /// True if it was requested from outside.
    pub(super) told: bool,
}

/// Part of a pod's end that its status shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum EndShown {
    /// Nothing yet.
    #[default]
    Nothing,
    /// The conditions, but not the phase.
    WoundUp,
    /// The final phase.
    Phase,
}

/// Inputs of a step.
pub(super) struct Context<'a> {
    pub(super) pod: &'a PodDesc,
    pub(super) view: &'a PodView,
    pub(super) config: &'a KubeletConfig,
    pub(super) now: DateTime<Utc>,
}

impl Context<'_> {
    /// True if the pod is being deleted or gone.
    pub(super) fn told_to_end(&self) -> bool {
        self.pod.deletion.is_some() || self.pod.gone
    }
}

impl PodWorker {
    /// A worker for a new pod. `status` is the API server's, from which a restarted kubelet takes
    /// restart counts, last states and a restart of all containers in progress.
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

    /// Refuses the pod at admission: it fails without any container.
    pub fn reject(&mut self, rejection: &Rejection) {
        self.ended = Some(Ended {
            reason: rejection.reason.clone(),
            message: format!("Pod was rejected: {}", rejection.message),
            rejected: true,
            disruption: false,
        });
    }

    /// Evicts the pod for lack of resources on the node: it fails with reason `Evicted`.
    pub fn evict(&mut self, message: &str) {
        self.end("Evicted", message, true);
    }

    /// Evicts the pod for a limit of its own, such as that of an emptyDir: without condition
    /// `DisruptionTarget` (`emptyDirLimitEviction`).
    pub fn evict_for_own_limit(&mut self, message: &str) {
        self.end("Evicted", message, false);
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

    /// True if the pod uses resources of the node: it is to run, or a part of it still runs. A pod
    /// that is being deleted releases its resources with its last container, before its object is
    /// removed, and the scheduler can use them at once.
    pub fn active(&self, view: &PodView) -> bool {
        let over = self.finished || self.ended.is_some() || self.terminating.is_some();
        !over || view.any_alive()
    }

    /// True if the pod can already be over, so that its admission must not be checked again.
    pub fn over(&self) -> bool {
        self.finished || self.ended.is_some()
    }

    /// A step: status from the current state of the runtime, and actions.
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
        // The plan first, because it determines whether the pod is finished. A back-off is visible
        // one sync later, that is, at its end when the container starts, because the kubelet fills
        // its reason cache after the status (rule-restart, crash-back-off).
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
            self.note_removed(&name, attempt, view.latest(&name));
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

    /// True if the condition was True in the last status.
    pub(super) fn showed(&self, condition: &str) -> bool {
        let mut all = self.conditions.iter();
        all.any(|c| c.type_ == condition && c.status == "True")
    }

    /// Applies `activeDeadlineSeconds` of the pod.
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

    /// Time at which the pod's deadline ends it.
    pub(super) fn deadline(&self, pod: &PodDesc) -> Option<DateTime<Utc>> {
        pod.spec
            .active_deadline_seconds
            .map(|s| self.start_time + TimeDelta::seconds(s))
    }

    /// Begins a restart of all containers after an exit with a matching code, and ends it when the
    /// runtime has no container left. A deletion prevents its start.
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

    /// True if the pod ends on request. A restart of all containers is a single call, so the
    /// kubelet notices a deletion after it (restart-all-deleted-meanwhile).
    pub(super) fn told_to_end(&self, cx: &Context<'_>) -> bool {
        cx.told_to_end() && self.restarting.is_none() && !self.removed
    }

    /// Records the status of an instance that a restart of all containers is about to remove. An
    /// instance that did not start keeps its exit: the kubelet shows it as waiting
    /// (`convertToAPIContainerStatuses`).
    fn note_removed(&mut self, name: &str, attempt: i32, latest: Option<&ContainerView>) {
        let next = self.next_attempt.entry(name.to_owned()).or_default();
        *next = (*next).max(attempt + 1);
        let shown = latest.and_then(status::terminated);
        let not_started = shown.filter(|t| t.reason.as_deref() == Some(status::START_ERROR));
        let masked = || ContainerStateTerminated {
            exit_code: 137,
            reason: Some(RESTARTING_ALL_CONTAINERS.into()),
            message: Some("The container is removed because RestartAllContainers in place".into()),
            ..ContainerStateTerminated::default()
        };
        self.last
            .insert(name.to_owned(), not_started.unwrap_or_else(masked));
    }
}

/// Containers whose newest instance exited with a code whose rule restarts all containers.
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
