//! Actions: the difference between the runtime's state and the spec (`computePodActions`).

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::api::core::v1::{Container, Probe};

use super::exit::{AfterExit, after_exit};
use super::pod::Kind;
use super::view::{ContainerView, SandboxView, State};
use super::worker::{Action, Context, EndShown, PodWorker, Terminating, triggers};
use super::{ALL_CONTAINERS_RESTARTING, READY_TO_START};

/// Shortest grace period of the runtime manager, also for shorter requests.
const MIN_GRACE: Duration = Duration::from_secs(2);
/// Time between two syncs of a pod with pending work.
const NEXT_SYNC: TimeDelta = TimeDelta::milliseconds(50);
/// Time from the start of a container to the result of its first probe.
const FIRST_PROBE: TimeDelta = TimeDelta::milliseconds(50);
/// Pause after a container could not be created.
pub(super) const CREATE_RETRY: TimeDelta = TimeDelta::seconds(10);

/// Result of planning; see [`super::Outcome`].
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) actions: Vec<Action>,
    pub(super) wake: Option<DateTime<Utc>>,
    pub(super) blocked: bool,
    /// Containers in back-off.
    pub(super) backing_off: BTreeSet<String>,
    /// True if the worker is inside a call that began earlier: the kubelet publishes a status at
    /// the start of a sync, and not again until the sync is complete.
    pub(super) hold: bool,
    /// Names and instances that a restart of all containers removes now.
    pub(super) removed: Vec<(String, i32)>,
}

impl Plan {
    fn wake_at(&mut self, at: DateTime<Utc>) {
        self.wake = Some(self.wake.map_or(at, |w| w.min(at)));
    }

    fn start(&mut self, c: &Container, attempt: i32) {
        self.blocked = true;
        self.actions.push(Action::Start {
            name: c.name.clone(),
            attempt,
        });
    }

    fn stop(&mut self, c: &ContainerView, by: DateTime<Utc>, now: DateTime<Utc>, pre_stop: bool) {
        let by = by.max(now + MIN_GRACE);
        if c.stop_by.is_none_or(|under_way| by < under_way) {
            let grace = (by - now).to_std().unwrap_or(MIN_GRACE);
            self.actions.push(Action::Stop {
                id: c.id.clone(),
                grace,
                pre_stop,
            });
        }
    }
}

/// Plans a step.
pub(super) fn plan(w: &mut PodWorker, cx: &Context<'_>) -> Plan {
    let mut plan = Plan::default();
    if w.over() || w.told_to_end(cx) {
        terminate(w, cx, &mut plan);
    } else if w.restarting.is_some() {
        restart_all(w, cx, &mut plan);
    } else if cx.told_to_end() {
        // The status after a restart of all containers stays until the sandbox has stopped.
        let (since, told) = (cx.now, true);
        w.terminating = Some(Terminating { since, told });
        plan.wake_at(cx.now);
    } else {
        if let Some(deadline) = w.deadline(cx.pod) {
            plan.wake_at(deadline);
        }
        run(w, cx, &mut plan);
        if w.finished {
            terminate(w, cx, &mut plan);
        }
    }
    plan
}

/// Stops regular containers together, then sidecars one by one in reverse order, within one grace
/// period, then the sandbox. Then the pod object can be removed.
fn terminate(w: &mut PodWorker, cx: &Context<'_>, plan: &mut Plan) {
    let told = cx.told_to_end();
    plan.hold = w.terminating.is_some_and(|t| t.told == told);
    let since = w.terminating.map_or(cx.now, |t| t.since);
    w.terminating = Some(Terminating { since, told });
    if cx.view.any_alive() {
        plan.blocked = true;
        stop_containers(cx, plan, since);
        return;
    }
    // A pod that ended by itself is first reported as ended in its old phase. Its final phase
    // follows a poll later: recorded as 1.1 s in exit-code-never, 1.8 s in sidecar-dies.
    let by_itself = !told && w.ended.is_none();
    match cx.view.sandbox {
        SandboxView::Creating | SandboxView::Ready { .. } => {
            plan.actions.push(Action::StopSandbox);
            if by_itself && !plan.hold {
                w.end_shown = EndShown::WoundUp;
            } else {
                plan.blocked = true;
            }
        }
        SandboxView::Stopping => plan.blocked = w.end_shown == EndShown::Nothing,
        SandboxView::Absent | SandboxView::Stopped => {
            plan.hold = false;
            if by_itself && w.end_shown == EndShown::Nothing {
                w.end_shown = EndShown::WoundUp;
                plan.wake_at(cx.now + cx.config.resync);
            } else {
                w.end_shown = EndShown::Phase;
            }
            if cx.pod.deletion.is_some() && !cx.pod.gone {
                plan.actions.push(Action::DeletePod);
            }
        }
    }
}

fn stop_containers(cx: &Context<'_>, plan: &mut Plan, since: DateTime<Utc>) {
    let grace = match cx.pod.deletion {
        _ if cx.pod.gone => MIN_GRACE,
        Some(asked) => asked,
        None => cx.pod.spec_grace(),
    };
    let by = since + grace;
    let sidecars: Vec<_> = cx
        .pod
        .of_kind(Kind::Sidecar)
        .map(|c| c.name.as_str())
        .collect();
    let (side, main): (Vec<_>, Vec<_>) = cx
        .view
        .containers
        .iter()
        .filter(|c| c.alive())
        .partition(|c| sidecars.contains(&c.name.as_str()));
    if main.is_empty() {
        let last = side
            .into_iter()
            .max_by_key(|c| sidecars.iter().position(|s| *s == c.name));
        if let Some(c) = last {
            plan.stop(c, by, cx.now, true);
        }
    } else {
        for c in main {
            plan.stop(c, by, cx.now, true);
        }
    }
}

/// KEP-5532: kills running containers in turn, without preStop and grace, and then removes all
/// containers. Triggering containers are removed last, so that an interrupted restart is detected
/// from their records.
fn restart_all(w: &mut PodWorker, cx: &Context<'_>, plan: &mut Plan) {
    plan.blocked = true;
    // After a reboot, one sync creates a sandbox and the next one removes the containers.
    match cx.view.sandbox {
        SandboxView::Stopped => return plan.actions.push(Action::CreateSandbox),
        SandboxView::Creating => return plan.hold = true,
        SandboxView::Ready { .. } if !w.showed(READY_TO_START) => {
            return plan.wake_at(cx.now + NEXT_SYNC);
        }
        SandboxView::Absent | SandboxView::Ready { .. } | SandboxView::Stopping => {}
    }
    plan.hold = w.showed(ALL_CONTAINERS_RESTARTING);
    let set_off = w.restarting.clone().unwrap_or_default();
    let set_off = if set_off.is_empty() {
        triggers(cx)
    } else {
        set_off
    };
    if let Some(c) = cx.view.containers.iter().find(|c| c.alive()) {
        plan.stop(c, cx.now, cx.now, false);
        return;
    }
    let (last, first): (Vec<_>, Vec<_>) = cx
        .view
        .containers
        .iter()
        .partition(|c| set_off.contains(&c.name));
    for c in first.into_iter().chain(last) {
        plan.removed.push((c.name.clone(), c.attempt));
        plan.actions.push(Action::Remove { id: c.id.clone() });
    }
}

/// Regular operation of a pod: sandbox, init containers in order, sidecars, regular containers.
fn run(w: &mut PodWorker, cx: &Context<'_>, plan: &mut Plan) {
    match cx.view.sandbox {
        SandboxView::Ready { .. } => {}
        SandboxView::Absent => {
            plan.blocked = true;
            return plan.actions.push(Action::CreateSandbox);
        }
        SandboxView::Creating => {
            plan.blocked = true;
            return;
        }
        SandboxView::Stopping => return,
        SandboxView::Stopped => return renew_sandbox(w, cx, plan),
    }
    let under_way =
        |c: &ContainerView| c.state == State::Creating || (c.alive() && c.stop_by.is_some());
    plan.hold = cx.view.containers.iter().any(under_way);
    plan.blocked = plan.hold;
    forget_old(cx, plan);
    let initialized = cx
        .pod
        .of_kind(Kind::Regular)
        .any(|c| w.latest(cx, c).is_some());
    if !init(w, cx, plan, initialized) {
        return;
    }
    let mut running = false;
    for c in cx.pod.of_kind(Kind::Regular) {
        running |= keep(w, cx, plan, Kind::Regular, c) != Standing::Over;
    }
    if !running {
        w.finished = true;
    }
}

/// A reboot has ended the sandbox: the pod starts again in a new sandbox. With restartPolicy Never
/// the kubelet creates none, even if a rule restarts a container.
fn renew_sandbox(w: &mut PodWorker, cx: &Context<'_>, plan: &mut Plan) {
    let ran = !cx.view.containers.is_empty();
    if ran && cx.pod.spec.restart_policy.as_deref() == Some("Never") {
        let stays = |c: &Container| match cx.view.latest(&c.name).map(|i| &i.state) {
            Some(State::Exited { exit_code, .. }) => {
                after_exit(cx.pod, Kind::Regular, c, *exit_code, cx.config) == AfterExit::Stay
            }
            _ => true,
        };
        w.finished = cx.pod.of_kind(Kind::Regular).all(stays);
        return;
    }
    w.lost = cx.view.containers.iter().map(|c| c.id.clone()).collect();
    plan.blocked = true;
    plan.actions.push(Action::CreateSandbox);
}

/// Removes instances that are older than the instance in `lastState`.
fn forget_old(cx: &Context<'_>, plan: &mut Plan) {
    for c in &cx.view.containers {
        if cx
            .view
            .latest(&c.name)
            .is_some_and(|latest| c.attempt + 1 < latest.attempt)
        {
            plan.actions.push(Action::Remove { id: c.id.clone() });
        }
    }
}

/// Runs init containers and sidecars. True if regular containers can run.
fn init(w: &mut PodWorker, cx: &Context<'_>, plan: &mut Plan, initialized: bool) -> bool {
    for (kind, c) in cx
        .pod
        .containers()
        .filter(|(kind, _)| *kind != Kind::Regular)
    {
        if initialized && kind == Kind::Init {
            continue;
        }
        let standing = keep(w, cx, plan, kind, c);
        let passed = match (kind, standing) {
            (Kind::Init, Standing::Over) => {
                if !succeeded(cx, c) {
                    w.finished = true;
                    return false;
                }
                true
            }
            (Kind::Init, _) => false,
            (_, Standing::Running) => started_at(cx, c).is_some_and(|t| t <= cx.now),
            _ => false,
        };
        if !passed && !initialized {
            return false;
        }
    }
    true
}

fn succeeded(cx: &Context<'_>, c: &Container) -> bool {
    cx.view
        .latest(&c.name)
        .is_some_and(|i| matches!(i.state, State::Exited { exit_code: 0, .. }))
}

/// State of a container after [`keep`].
#[derive(PartialEq, Eq)]
enum Standing {
    /// Its process runs.
    Running,
    /// It is being started or in back-off.
    Coming,
    /// It has ended and will not restart.
    Over,
}

/// Starts a container that should run, or returns the time of its start.
fn keep(
    w: &mut PodWorker,
    cx: &Context<'_>,
    plan: &mut Plan,
    kind: Kind,
    c: &Container,
) -> Standing {
    let Some(latest) = w.latest(cx, c) else {
        let next = w.next_attempt.get(&c.name).copied().unwrap_or(0);
        let lost = cx.view.latest(&c.name).map(|c| c.attempt + 1);
        plan.start(c, lost.unwrap_or(next));
        return Standing::Coming;
    };
    let (finished_at, exit_code) = match latest.state {
        State::Creating => return Standing::Coming,
        State::NotCreated { since, .. } => {
            let retry = since + CREATE_RETRY;
            if retry > cx.now {
                plan.wake_at(retry);
            } else {
                plan.start(c, latest.attempt);
            }
            return Standing::Coming;
        }
        State::Running { .. } => {
            watch_probes(w, cx, plan, c, latest);
            return Standing::Running;
        }
        State::Exited {
            finished_at,
            exit_code,
            ..
        } => (finished_at, exit_code),
    };
    if after_exit(cx.pod, kind, c, exit_code, cx.config) == AfterExit::Stay {
        return Standing::Over;
    }
    // A container that the liveness probe ended is started again in the same call.
    let replaced = w.replacing.remove(&c.name);
    let backoff = w.backoff.entry(c.name.clone()).or_default();
    let scale = cx.config.backoff_scale;
    if let Some(until) = backoff
        .until(finished_at, scale)
        .filter(|until| *until > cx.now)
    {
        plan.wake_at(until);
        plan.backing_off.insert(c.name.clone());
    } else {
        backoff.raise(finished_at, cx.now, scale);
        plan.start(c, latest.attempt + 1);
        plan.hold |= replaced;
    }
    Standing::Coming
}

/// Schedules syncs at the first success of a probe and at the end of readiness. Stops containers
/// with failed liveness probes.
fn watch_probes(
    w: &mut PodWorker,
    cx: &Context<'_>,
    plan: &mut Plan,
    c: &Container,
    instance: &ContainerView,
) {
    let unready = failed_at(c.readiness_probe.as_ref(), instance);
    for at in [started_at(cx, c), ready_at(w, cx, c), unready]
        .into_iter()
        .flatten()
        .filter(|t| *t > cx.now)
    {
        plan.wake_at(at);
    }
    if let Some(kill) = failed_at(c.liveness_probe.as_ref(), instance) {
        if kill <= cx.now {
            plan.stop(instance, cx.now + cx.pod.spec_grace(), cx.now, true);
            plan.blocked = true;
            w.replacing.insert(c.name.clone());
        } else {
            plan.wake_at(kill);
        }
    }
}

/// Time at which a container with failing probes has reached the probe's failure threshold.
pub(super) fn failed_at(probe: Option<&Probe>, instance: &ContainerView) -> Option<DateTime<Utc>> {
    let (probe, since) = (probe?, instance.unhealthy_since?);
    Some(since + period(probe) * probe.failure_threshold.unwrap_or(3))
}

/// Time from which a running container counts as started: at once, or at the first success of its
/// startup probe, which on these nodes is its first run.
pub(super) fn started_at(cx: &Context<'_>, c: &Container) -> Option<DateTime<Utc>> {
    match cx.view.latest(&c.name)?.state {
        State::Running { started_at } => Some(started_at + initial_delay(c.startup_probe.as_ref())),
        _ => None,
    }
}

/// Time from which a running container counts as ready: at once, or after its readiness probe has
/// run.
pub(super) fn ready_at(w: &PodWorker, cx: &Context<'_>, c: &Container) -> Option<DateTime<Utc>> {
    let State::Running {
        started_at: running,
    } = cx.view.latest(&c.name)?.state
    else {
        return None;
    };
    let started = started_at(cx, c)?;
    let Some(probe) = &c.readiness_probe else {
        return Some(started);
    };
    let first = running + initial_delay(Some(probe)).max(FIRST_PROBE);
    let again = w.probed_since.filter(|since| *since > running);
    let again = again.map(|since| since + period(probe));
    Some(started.max(first).max(again.unwrap_or(first)))
}

fn period(probe: &Probe) -> TimeDelta {
    TimeDelta::seconds(probe.period_seconds.unwrap_or(10).into())
}

fn initial_delay(probe: Option<&Probe>) -> TimeDelta {
    TimeDelta::seconds(
        probe
            .and_then(|p| p.initial_delay_seconds)
            .unwrap_or(0)
            .into(),
    )
}
