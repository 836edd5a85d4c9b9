//! The kubelet's status of a pod: container statuses, conditions, phase.

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::exit::{AfterExit, after_exit};
use super::plan::{CREATE_RETRY, failed_at, ready_at, started_at};
use super::pod::Kind;
use super::view::{ContainerView, SandboxView, State};
use super::worker::{Context, EndShown, PodWorker};
use super::{ALL_CONTAINERS_RESTARTING, READY_TO_START, RESTARTING_ALL_CONTAINERS};

/// Scheme of container IDs in statuses.
const RUNTIME_SCHEME: &str = "hollow";

/// The runtime's reason for the end of a program that could not be started.
pub(super) const START_ERROR: &str = "StartError";
/// Reason of a waiting container whose start failed.
const NOT_STARTED: &str = "RunContainerError";

/// Converts a time for the API.
pub(super) fn to_api(t: DateTime<Utc>) -> Time {
    Time(jiff::Timestamp::from_second(t.timestamp()).unwrap_or_default())
}

/// Converts a time from the API.
pub(super) fn from_api(t: &Time) -> DateTime<Utc> {
    DateTime::from_timestamp(t.0.as_second(), 0).unwrap_or_default()
}

/// The status of a pod.
pub(super) fn status(w: &mut PodWorker, cx: &Context<'_>) -> PodStatus {
    if let Some(ended) = w.ended.as_ref().filter(|e| e.rejected) {
        return PodStatus {
            phase: Some("Failed".into()),
            reason: Some(ended.reason.clone()),
            message: Some(ended.message.clone()),
            start_time: Some(to_api(w.start_time)),
            observed_generation: cx.pod.generation,
            ..PodStatus::default()
        };
    }
    let shown = |kind: Kind, c: &Container| container_status(w, cx, kind, c);
    let init: Vec<_> = cx
        .pod
        .containers()
        .filter(|(k, _)| *k != Kind::Regular)
        .map(|(k, c)| shown(k, c))
        .collect();
    let mut regular: Vec<_> = cx
        .pod
        .of_kind(Kind::Regular)
        .map(|c| shown(Kind::Regular, c))
        .collect();
    let initialized = initialized(w, cx, &init);
    let ending = w.over() || w.told_to_end(cx);
    let over = ending && !cx.view.any_alive();
    if over && initialized {
        regular.iter_mut().for_each(mark_unknown);
    }
    let true_phase = phase(w, cx, &init, &regular, over);
    let terminal = matches!(true_phase, "Succeeded" | "Failed");
    if terminal && over {
        for c in &mut regular {
            c.ready = false;
            c.started = Some(false);
        }
    }
    let conditions = conditions(w, cx, &init, &regular, initialized, true_phase);
    w.conditions.clone_from(&conditions);
    // The phase stays until nothing of the pod remains, and so do reason and message. Conditions
    // show its end at once (pod-active-deadline, exit-code-never).
    let phase = match &w.phase {
        Some(before) if terminal && w.end_shown != EndShown::Phase => before.clone(),
        _ => true_phase.to_owned(),
    };
    w.phase = Some(phase.clone());
    let ended = w.ended.as_ref().filter(|_| w.end_shown == EndShown::Phase);
    PodStatus {
        phase: Some(phase),
        reason: ended.map(|e| e.reason.clone()),
        message: ended.map(|e| e.message.clone()),
        conditions: Some(conditions),
        init_container_statuses: (!init.is_empty()).then_some(init),
        container_statuses: Some(regular),
        pod_ip: w.ip.clone(),
        pod_ips: w.ip.clone().map(|ip| vec![PodIP { ip }]),
        start_time: Some(to_api(w.start_time)),
        observed_generation: cx.pod.generation,
        ..PodStatus::default()
    }
}

/// An unknown container of a pod that has ended is reported as an error (`TerminatePod`).
fn mark_unknown(c: &mut ContainerStatus) {
    let known = c.state.as_ref().is_some_and(|s| s.terminated.is_some());
    if !known {
        c.state = Some(ContainerState {
            terminated: Some(ContainerStateTerminated {
                exit_code: 137,
                reason: Some("ContainerStatusUnknown".into()),
                message: Some(
                    "The container could not be located when the pod was terminated".into(),
                ),
                ..ContainerStateTerminated::default()
            }),
            ..ContainerState::default()
        });
    }
}

fn container_status(w: &PodWorker, cx: &Context<'_>, kind: Kind, c: &Container) -> ContainerStatus {
    let latest = cx.view.latest(&c.name);
    let previous = cx.view.previous(&c.name).and_then(terminated);
    let last = previous.or_else(|| w.last.get(&c.name).cloned());
    let kept = last.map(|t| ContainerState {
        terminated: Some(t),
        ..ContainerState::default()
    });
    let (state, last_state) = match latest {
        Some(i) => match &i.state {
            State::Creating => (waiting("ContainerCreating", None), kept),
            State::NotCreated { since, reason } => {
                let again = *since + CREATE_RETRY <= cx.now;
                let reason = match reason.as_str() {
                    "ErrImagePull" if again => "ImagePullBackOff",
                    other => other,
                };
                (waiting(reason, None), kept)
            }
            State::Running { started_at } => {
                let running = ContainerStateRunning {
                    started_at: Some(to_api(*started_at)),
                };
                (
                    ContainerState {
                        running: Some(running),
                        ..ContainerState::default()
                    },
                    kept,
                )
            }
            State::Exited {
                exit_code, reason, ..
            } => {
                let ended = ContainerState {
                    terminated: terminated(i),
                    ..ContainerState::default()
                };
                let after = after_exit(cx.pod, kind, c, *exit_code, cx.config);
                let again = !w.over() && after != AfterExit::Stay;
                if w.backing_off.contains(&c.name) && again {
                    let message = format!(
                        "back-off restarting failed container={} pod={}",
                        c.name, cx.pod.name
                    );
                    (waiting("CrashLoopBackOff", Some(message)), Some(ended))
                } else if reason == START_ERROR && again {
                    (waiting(NOT_STARTED, None), Some(ended))
                } else {
                    (ended, kept)
                }
            }
        },
        // The kubelet remembers why a container did not start until it starts, also while it restarts
        // all containers (`reasonCache`).
        None if did_not_start(w, c) => (waiting(NOT_STARTED, None), kept),
        None if w.restarting.is_some() || w.removed => {
            (waiting(RESTARTING_ALL_CONTAINERS, None), kept)
        }
        None if cx.pod.spec.init_containers.is_some() => (waiting("PodInitializing", None), kept),
        None => (waiting("ContainerCreating", None), kept),
    };
    let running = state.running.is_some();
    let started = running && started_at(cx, c).is_some_and(|t| t <= cx.now);
    let passed = started && ready_at(w, cx, c).is_some_and(|t| t <= cx.now);
    let failed = latest.and_then(|i| failed_at(c.readiness_probe.as_ref(), i));
    let healthy = failed.is_none_or(|t| t > cx.now);
    let ready = match kind {
        // Containers that a restart of all containers has just removed still count as passed.
        Kind::Init => latest.map_or(w.removed && w.showed("Initialized"), |i| {
            matches!(i.state, State::Exited { exit_code: 0, .. })
        }),
        Kind::Sidecar | Kind::Regular => passed && healthy,
    };
    let image = c.image.clone().unwrap_or_default();
    ContainerStatus {
        name: c.name.clone(),
        state: Some(state),
        last_state,
        ready,
        started: Some(started),
        restart_count: latest.map_or_else(
            // A failed start is counted when the next one is tried, not when it is removed.
            || w.next_attempt.get(&c.name).copied().unwrap_or(0) - i32::from(did_not_start(w, c)),
            |i| i.attempt,
        ),
        container_id: latest
            .filter(|i| i.state != State::Creating && i.made())
            .map(|i| container_id(&i.id)),
        image_id: if latest.is_some() {
            format!("{RUNTIME_SCHEME}://{image}")
        } else {
            String::new()
        },
        image,
        ..ContainerStatus::default()
    }
}

/// True if the last instance of a container could not be started.
fn did_not_start(w: &PodWorker, c: &Container) -> bool {
    let last = w.last.get(&c.name).and_then(|t| t.reason.as_deref());
    last == Some(START_ERROR) && !w.over()
}

/// Container ID as in statuses.
fn container_id(id: &str) -> String {
    format!("{RUNTIME_SCHEME}://{id}")
}

fn waiting(reason: &str, message: Option<String>) -> ContainerState {
    let waiting = ContainerStateWaiting {
        reason: Some(reason.into()),
        message,
    };
    ContainerState {
        waiting: Some(waiting),
        ..ContainerState::default()
    }
}

pub(super) fn terminated(i: &ContainerView) -> Option<ContainerStateTerminated> {
    let State::Exited {
        started_at,
        finished_at,
        exit_code,
        reason,
    } = &i.state
    else {
        return None;
    };
    Some(ContainerStateTerminated {
        exit_code: *exit_code,
        reason: Some(reason.clone()),
        started_at: Some(to_api(*started_at)),
        finished_at: Some(to_api(*finished_at)),
        container_id: Some(container_id(&i.id)),
        ..ContainerStateTerminated::default()
    })
}

/// True after init containers have passed once, also while a restart of all containers runs them
/// again.
fn initialized(w: &PodWorker, cx: &Context<'_>, init: &[ContainerStatus]) -> bool {
    let kinds = cx.pod.containers().filter(|(k, _)| *k != Kind::Regular);
    let passed = kinds.zip(init).all(|((kind, _), c)| match kind {
        Kind::Init => c.ready,
        _ => c.started == Some(true),
    });
    let regular_ran = cx
        .pod
        .of_kind(Kind::Regular)
        .any(|c| cx.view.latest(&c.name).is_some());
    passed || regular_ran || w.showed("Initialized")
}

/// The phase (`getPhase`). `over`: nothing runs or will run.
fn phase(
    w: &PodWorker,
    cx: &Context<'_>,
    init: &[ContainerStatus],
    regular: &[ContainerStatus],
    over: bool,
) -> &'static str {
    let exit = |c: &ContainerStatus| Some(c.state.as_ref()?.terminated.as_ref()?.exit_code);
    let running = |c: &ContainerStatus| c.state.as_ref().is_some_and(|s| s.running.is_some());
    let fresh = |c: &ContainerStatus| {
        let waits = c.state.as_ref().is_some_and(|s| s.waiting.is_some());
        waits && c.last_state.is_none()
    };
    let kinds = || cx.pod.containers().map(|(kind, _)| kind).zip(init);
    if over || w.ended.is_some() {
        let failed_init =
            kinds().any(|(kind, c)| kind == Kind::Init && exit(c).is_some_and(|code| code != 0));
        let succeeded = !failed_init && regular.iter().all(|c| exit(c) == Some(0));
        return if succeeded && w.ended.is_none() {
            "Succeeded"
        } else {
            "Failed"
        };
    }
    // A running sidecar counts as starting until a regular container exists, because the phase is
    // computed before the probes. Thus a restart of all containers goes from Running to Pending
    // twice if the pod has init containers (restart-all).
    let pending = kinds().any(|(_, c)| running(c) || fresh(c));
    let created = cx
        .pod
        .of_kind(Kind::Regular)
        .any(|c| w.latest(cx, c).is_some_and(ContainerView::made));
    let sidecar_waits = kinds().any(|(kind, c)| kind == Kind::Sidecar && fresh(c));
    if (pending && !created) || sidecar_waits || regular.iter().any(fresh) {
        "Pending"
    } else {
        "Running"
    }
}

fn conditions(
    w: &PodWorker,
    cx: &Context<'_>,
    init: &[ContainerStatus],
    regular: &[ContainerStatus],
    initialized: bool,
    phase: &str,
) -> Vec<PodCondition> {
    let over = match phase {
        "Succeeded" => Some("PodCompleted"),
        "Failed" => Some("PodFailed"),
        _ => None,
    };
    let sidecars = cx
        .pod
        .containers()
        .zip(init)
        .filter(|((k, _), _)| *k == Kind::Sidecar)
        .map(|(_, c)| c);
    let unready: Vec<_> = sidecars
        .chain(regular)
        .filter(|c| !c.ready)
        .map(|c| c.name.as_str())
        .collect();
    let ready = unready.is_empty() && over.is_none();
    let (reason, message) = match over {
        _ if ready => (None, None),
        Some(reason) => (Some(reason), None),
        None => (
            Some("ContainersNotReady"),
            Some(format!(
                "containers with unready status: [{}]",
                unready.join(" ")
            )),
        ),
    };
    let no_sandbox = match cx.view.sandbox {
        SandboxView::Ready { .. } => None,
        SandboxView::Absent | SandboxView::Creating => Some("no pod sandbox exists"),
        SandboxView::Stopping | SandboxView::Stopped => Some("pod sandbox is not ready"),
    };
    let mut out = vec![
        condition(
            w,
            cx,
            READY_TO_START,
            no_sandbox.is_none(),
            no_sandbox.map(|_| "PodSandboxNotReady"),
            no_sandbox.map(str::to_owned),
        ),
        condition(
            w,
            cx,
            "Initialized",
            initialized,
            match phase {
                _ if !initialized => Some("ContainersNotInitialized"),
                "Succeeded" => Some("PodCompleted"),
                _ => None,
            },
            None,
        ),
        condition(w, cx, "Ready", ready, reason, message.clone()),
        condition(w, cx, "ContainersReady", ready, reason, message),
        condition(w, cx, "PodScheduled", true, None, None),
    ];
    if cx.pod.has_restart_all_rule() && cx.config.restart_all {
        let (reason, message) = match &w.restarting {
            Some(_) => (
                Some("RestartAllContainersStarted"),
                Some("container exited with restart policy rule".to_owned()),
            ),
            None => (over, None),
        };
        out.push(condition(
            w,
            cx,
            ALL_CONTAINERS_RESTARTING,
            w.restarting.is_some(),
            reason,
            message,
        ));
    }
    // Like the phase, not before all containers are gone.
    let over = w.end_shown == EndShown::Phase;
    if let Some(ended) = w.ended.as_ref().filter(|e| e.disruption && over) {
        let message = Some(ended.message.clone());
        out.push(condition(
            w,
            cx,
            "DisruptionTarget",
            true,
            Some("TerminationByKubelet"),
            message,
        ));
    }
    out
}

fn condition(
    w: &PodWorker,
    cx: &Context<'_>,
    type_: &str,
    status: bool,
    reason: Option<&str>,
    message: Option<String>,
) -> PodCondition {
    let status = if status { "True" } else { "False" };
    let before = w
        .conditions
        .iter()
        .find(|c| c.type_ == type_ && c.status == status);
    PodCondition {
        type_: type_.into(),
        status: status.into(),
        reason: reason.map(Into::into),
        message,
        last_transition_time: before
            .and_then(|c| c.last_transition_time.clone())
            .or_else(|| Some(to_api(cx.now))),
        observed_generation: cx.pod.generation,
        ..PodCondition::default()
    }
}
