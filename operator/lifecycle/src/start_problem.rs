//! Problems that prevent a pod from starting.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::reasons;
use lockstep_api::member::Member;
use lockstep_api::names::DEFAULT_SCHEDULER;
use lockstep_api::words::{count, time};

use crate::facts::Facts;
use crate::messages::shortened;
use crate::pods::{ContainerState, ContainerView, PodView};
use crate::wake::Wake;

/// Bytes.
const LONGEST: usize = 512;

/// How long a pod may stay unbound before a message reports it.
const TO_BIND: TimeDelta = TimeDelta::seconds(10);
/// How long volumes, network, images and init containers of a bound pod may take before a message
/// reports the waiting container.
const TO_CREATE: TimeDelta = TimeDelta::seconds(30);

pub(crate) const START_PROBLEMS: [&str; 3] = [
    reasons::IMAGE_UNAVAILABLE,
    reasons::START_ERROR,
    reasons::NOT_BOUND,
];

/// Reasons of waiting containers, most permanent first, and the reported condition reasons
/// (`pkg/kubelet/images/types.go`, `pkg/kubelet/container/sync_result.go`).
const WAITING: [(&str, &str); 11] = [
    (INVALID_IMAGE_NAME, reasons::IMAGE_UNAVAILABLE),
    ("ErrImageNeverPull", reasons::IMAGE_UNAVAILABLE),
    (CONFIG_ERROR, reasons::START_ERROR),
    ("CreateContainerError", reasons::START_ERROR),
    ("RunContainerError", reasons::START_ERROR),
    ("SignatureValidationFailed", reasons::IMAGE_UNAVAILABLE),
    ("ImageInspectError", reasons::IMAGE_UNAVAILABLE),
    ("ErrImagePull", reasons::IMAGE_UNAVAILABLE),
    ("ImagePullBackOff", reasons::IMAGE_UNAVAILABLE),
    ("RegistryUnavailable", reasons::IMAGE_UNAVAILABLE),
    (BACK_OFF, reasons::MEMBERS_NOT_READY),
];
/// Never retried by the kubelet.
const INVALID_IMAGE_NAME: &str = "InvalidImageName";
/// A missing Secret or ConfigMap, or an unsuitable security context.
const CONFIG_ERROR: &str = "CreateContainerConfigError";
const BACK_OFF: &str = "CrashLoopBackOff";
/// Initial reason of every container; a problem only after [`TO_CREATE`].
const CREATING: &str = "ContainerCreating";
/// False while the pod has no sandbox: volumes or the network are missing
/// (`pkg/kubelet/types/constants.go`).
const HAS_SANDBOX: &str = "PodReadyToStartContainers";
/// Another container prevents the start, or all containers restart.
const SILENT: [&str; 3] = ["", INITIALIZING, "RestartingAllContainers"];
/// Reason of every container of a pod with init containers, also while images are pulled.
const INITIALIZING: &str = "PodInitializing";

/// Phrases of runc, crun, gVisor and containerd for a program that cannot be executed. Messages
/// about devices and mounts contain none of them.
const NAMES_PROGRAM: [&str; 4] = ["exec:", "executable", "chdir", "no command specified"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StartProblem {
    pub reason: &'static str,
    pub message: String,
    pub fault: Fault,
    pub is_final: bool,
    /// The problem of lowest rank is reported.
    rank: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The node, or unknown.
    Node,
    Image,
    Program,
    /// The template, whatever the node.
    Template,
    /// The scheduler, or the controller of a scheduling gate: no change of the workload can repair
    /// it.
    Scheduler,
}

impl StartProblem {
    /// No problem before [`TO_CREATE`] has passed.
    fn in_progress(message: String) -> Self {
        Self {
            reason: reasons::MEMBERS_NOT_READY,
            message,
            fault: Fault::Node,
            is_final: false,
            rank: WAITING.len() + 1,
        }
    }

    fn takes_time(&self) -> bool {
        self.rank > WAITING.len()
    }
}

impl Fault {
    /// Without a message, the program counts as the cause.
    pub fn of_program(message: &str) -> Self {
        let names_program = NAMES_PROGRAM.iter().any(|word| message.contains(word));
        if message.is_empty() || names_program {
            Self::Program
        } else {
            Self::Node
        }
    }

    /// True if another node can start the member. `group_runs`: other members with the same
    /// template run.
    pub fn is_of_node(self, group_runs: bool) -> bool {
        match self {
            Self::Node => true,
            Self::Image | Self::Program => group_runs,
            Self::Template | Self::Scheduler => false,
        }
    }

    /// True if the template is the cause. An image can be deleted although other nodes have it.
    pub fn is_of_template(self, group_runs: bool) -> bool {
        match self {
            Self::Image | Self::Template => true,
            Self::Program => !group_runs,
            Self::Node | Self::Scheduler => false,
        }
    }
}

/// The worst problem of the pod: of a waiting container, of the init container that blocks the
/// others, or of the missing sandbox.
pub(crate) fn of_containers(pod: &PodView) -> Option<StartProblem> {
    let problems = pod
        .containers
        .iter()
        .filter_map(|(name, container)| of_container(pod, name, container));
    let worst = problems.min_by_key(|p| p.rank).or_else(|| not_created(pod));
    let sandbox = pod.conditions.get(HAS_SANDBOX);
    let missing = sandbox.is_some_and(|c| c.status == "False") && !pod.terminal();
    if missing && worst.as_ref().is_none_or(StartProblem::takes_time) {
        let why = "volumes or network are not ready; the events of the pod name the cause";
        return Some(StartProblem::in_progress(why.to_owned()));
    }
    worst
}

/// The container that the kubelet creates next: the first init container that has not run, else the
/// first container.
fn not_created(pod: &PodView) -> Option<StartProblem> {
    let waits = |c: &ContainerView| matches!(&c.state, ContainerState::Waiting { reason, .. } if reason == INITIALIZING);
    let failed = |c: &ContainerView| {
        c.init && matches!(&c.state, ContainerState::Terminated(t) if t.exit_code != 0)
    };
    if pod.containers.values().any(failed) {
        return None;
    }
    let waiting = pod.containers.iter().filter(|(_, c)| waits(c));
    let (name, _) = waiting.min_by_key(|(_, c)| !c.init)?;
    let message = format!("container {name} is not created; its image may not be pulled yet");
    Some(StartProblem::in_progress(message))
}

fn of_container(pod: &PodView, name: &str, container: &ContainerView) -> Option<StartProblem> {
    match &container.state {
        ContainerState::Waiting { reason, .. } if SILENT.contains(&reason.as_str()) => None,
        ContainerState::Waiting { reason, message } => {
            let why = match container.last.as_ref().filter(|_| reason == BACK_OFF) {
                Some(exit) if message.is_empty() => &format!("exit code {}", exit.exit_code),
                Some(exit) => &format!("exit code {}; {message}", exit.exit_code),
                None => message,
            };
            Some(of_waiting(name, reason, why))
        }
        ContainerState::Running { started_at } if container.init && !container.ready => {
            let mut others = pod.containers.values().filter(|c| !c.init);
            let since = started_at.map(|at| format!(" since {}", time(at)));
            let message = format!("init container {name} runs{}", since.unwrap_or_default());
            others
                .all(|c| matches!(c.state, ContainerState::Waiting { .. }))
                .then(|| StartProblem::in_progress(message))
        }
        ContainerState::Running { .. } | ContainerState::Terminated(_) => None,
    }
}

fn of_waiting(container: &str, reason: &str, message: &str) -> StartProblem {
    let position = WAITING.iter().position(|(waits, _)| *waits == reason);
    let default_rank = WAITING.len() + usize::from(reason == CREATING);
    let condition = position.map_or(reasons::MEMBERS_NOT_READY, |at| WAITING[at].1);
    let fault = match condition {
        reasons::IMAGE_UNAVAILABLE => Fault::Image,
        reasons::START_ERROR if reason == CONFIG_ERROR => Fault::Template,
        reasons::START_ERROR => Fault::of_program(message),
        _ => Fault::Node,
    };
    let why = message.trim_end_matches('.');
    let why = if why.is_empty() {
        String::new()
    } else {
        format!(": {why}")
    };
    StartProblem {
        reason: condition,
        message: shortened(
            format!("container {container} waits: {reason}{why}"),
            LONGEST,
        ),
        is_final: reason == INVALID_IMAGE_NAME,
        fault,
        rank: position.unwrap_or(default_rank),
    }
}

/// Start of the time in which the kubelet can start the pod: its binding, else its creation.
pub(crate) fn may_start_since(pod: &PodView) -> DateTime<Utc> {
    let bound = pod.condition("PodScheduled").and_then(|c| c.since);
    bound.map_or(pod.created_at, |at| at.max(pod.created_at))
}

/// `None` if the pod is bound or gated by Lockstep, or if a scheduler has processed it.
pub(crate) fn unbound_since(pod: &PodView) -> Option<DateTime<Utc>> {
    let waits = pod.node.is_none() && !pod.gated && pod.is_live();
    // The API server writes the condition of gated pods.
    let looked_at = pod.conditions.get("PodScheduled").is_some() && pod.foreign_gate.is_none();
    (waits && !looked_at).then_some(pod.created_at)
}

pub(crate) fn not_bound(facts: &Facts<'_>, member: &Member, pod: &PodView) -> StartProblem {
    if let Some(gate) = &pod.foreign_gate {
        let message = format!("another controller holds the pod with scheduling gate {gate}");
        return unbound(message, Fault::Scheduler);
    }
    let template = facts.template(&member.group).and_then(|t| t.spec.as_ref());
    let name = template
        .and_then(|spec| spec.scheduler_name.as_deref())
        .unwrap_or(DEFAULT_SCHEDULER);
    let fault = if name == DEFAULT_SCHEDULER {
        Fault::Scheduler
    } else {
        Fault::Template
    };
    unbound(format!("schedulerName is {name}"), fault)
}

fn unbound(message: String, fault: Fault) -> StartProblem {
    StartProblem {
        reason: reasons::NOT_BOUND,
        message,
        fault,
        is_final: false,
        rank: 0,
    }
}

/// The worst problem, of the first such member. If that only takes long, with the number of all pods
/// that do.
pub(crate) fn worst<'m>(
    facts: &Facts<'_>,
    pods: impl IntoIterator<Item = (&'m Member, &'m PodView)>,
    wake: &mut Wake,
) -> Option<StartProblem> {
    let of_pod = |(member, pod): (&Member, &PodView)| match unbound_since(pod) {
        Some(since) if facts.due(since + TO_BIND).passed(wake) => {
            let problem = not_bound(facts, member, pod);
            let message = format!(
                "no scheduler has bound pod {} since {}; {}",
                pod.name,
                time(since),
                problem.message
            );
            Some(StartProblem { message, ..problem })
        }
        Some(_) => None,
        None => on_node(facts, pod, wake),
    };
    let problems: Vec<StartProblem> = pods.into_iter().filter_map(of_pod).collect();
    let late = problems.iter().filter(|p| p.takes_time()).count();
    let mut worst = problems.into_iter().min_by_key(|p| p.rank)?;
    if worst.takes_time() && late > 1 {
        worst.message = format!("{}; {} are late", worst.message, count(late, "pod"));
    }
    Some(worst)
}

fn on_node(facts: &Facts<'_>, pod: &PodView, wake: &mut Wake) -> Option<StartProblem> {
    let problem = of_containers(pod).filter(|_| !pod.terminating())?;
    if problem.takes_time() && !facts.due(may_start_since(pod) + TO_CREATE).passed(wake) {
        return None;
    }
    let node = pod.place().unwrap_or_default();
    Some(StartProblem {
        message: format!("pod {} on node {node}: {}", pod.name, problem.message),
        ..problem
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_api::member_pod::Identity;

    use crate::pods::{ByName, ConditionView, PodPhase, Termination};

    fn of(reason: &str, message: &str) -> StartProblem {
        of_waiting("t", reason, message)
    }

    fn waits(reason: &str) -> ContainerView {
        ContainerView {
            state: ContainerState::Waiting {
                reason: reason.to_owned(),
                message: String::new(),
            },
            ..ContainerView::default()
        }
    }

    fn pod(containers: impl IntoIterator<Item = (&'static str, ContainerView)>) -> PodView {
        let containers = containers.into_iter();
        PodView {
            name: "p".into(),
            uid: "u".parse().unwrap(),
            owner_uid: "o".parse().unwrap(),
            identity: Identity::default(),
            node: None,
            pinned: None,
            nominated: None,
            priority: None,
            gated: false,
            foreign_gate: None,
            ends_at_once: false,
            created_at: DateTime::UNIX_EPOCH,
            deletion_timestamp: None,
            deletion_requested_at: None,
            deletion_received_at: None,
            deletion_grace: 0,
            phase: PodPhase::Pending,
            reason: String::new(),
            message: String::new(),
            pod_ip: None,
            conditions: ByName::default(),
            containers: containers.map(|(name, c)| (name.to_owned(), c)).collect(),
        }
    }

    fn message(
        containers: impl IntoIterator<Item = (&'static str, ContainerView)>,
    ) -> Option<String> {
        of_containers(&pod(containers)).map(|p| p.message)
    }

    #[test]
    fn a_container_that_waits_for_another_has_no_problem_of_its_own() {
        for reason in ["", "RestartingAllContainers"] {
            assert_eq!(message([("t", waits(reason))]), None);
        }
    }

    /// The kubelet shows no other reason while it pulls images of a pod with init containers.
    #[test]
    fn the_next_container_of_a_pod_with_init_containers_is_named() {
        let init = |state| ContainerView {
            init: true,
            ready: true,
            state,
            ..ContainerView::default()
        };
        let waits_for =
            |name| format!("container {name} is not created; its image may not be pulled yet");
        let of = |load| message([("load", init(load)), ("main", waits(INITIALIZING))]);
        assert_eq!(of(waits(INITIALIZING).state), Some(waits_for("load")));
        let ended = ContainerState::Terminated(Termination::default());
        assert_eq!(of(ended), Some(waits_for("main")));
    }

    #[test]
    fn the_init_container_that_delays_the_others_is_named() {
        let started_at = Some("2026-05-01T10:00:00Z".parse().unwrap());
        let init = |ready| ContainerView {
            init: true,
            ready,
            state: ContainerState::Running { started_at },
            ..ContainerView::default()
        };
        let runs = "init container load runs since 2026-05-01T10:00:00Z";
        let of = |load, t| message([("load", load), ("t", t)]);
        assert_eq!(
            of(init(false), waits("PodInitializing")).as_deref(),
            Some(runs)
        );
        let sidecar = init(true);
        assert_eq!(
            of(sidecar, waits("PodInitializing")).as_deref(),
            Some("container t is not created; its image may not be pulled yet")
        );
        let training = ContainerView {
            init: false,
            ..init(true)
        };
        assert_eq!(of(init(false), training), None);
        let fails = ContainerView {
            init: true,
            last: Some(Termination {
                exit_code: 3,
                ..Termination::default()
            }),
            ..waits(BACK_OFF)
        };
        assert_eq!(
            of(fails, waits("PodInitializing")).as_deref(),
            Some("container load waits: CrashLoopBackOff: exit code 3")
        );
    }

    #[test]
    fn a_pod_without_sandbox_refers_to_its_events() {
        let mut pod = pod([("t", waits(CREATING))]);
        let message = |pod: &PodView| of_containers(pod).map(|p| p.message);
        let creating = "container t waits: ContainerCreating";
        assert_eq!(message(&pod).as_deref(), Some(creating));
        let no_sandbox = ConditionView {
            status: "False".into(),
            ..ConditionView::default()
        };
        pod.conditions.insert(HAS_SANDBOX.into(), no_sandbox);
        let why = "volumes or network are not ready; the events of the pod name the cause";
        assert_eq!(message(&pod).as_deref(), Some(why));
    }

    #[test]
    fn a_problem_names_the_container_and_the_words_of_the_kubelet() {
        let problem = of("ErrImagePull", "registry.example/trian:1: not found.");
        assert_eq!(
            problem.message,
            "container t waits: ErrImagePull: registry.example/trian:1: not found"
        );
        assert_eq!(problem.reason, reasons::IMAGE_UNAVAILABLE);
        let unknown = of("NewReason", "");
        assert_eq!(unknown.message, "container t waits: NewReason");
        assert_eq!(unknown.reason, reasons::MEMBERS_NOT_READY);
    }

    #[test]
    fn a_long_message_is_cut() {
        let problem = of("ErrImagePull", &"ä".repeat(4096));
        assert!(problem.message.len() <= LONGEST);
    }

    #[test]
    fn the_words_of_kubelet_and_runtime_name_the_cause() {
        let missing = "unable to start container process: exec: \"pyhton\": executable file not found in $PATH";
        let device = "nvidia-container-cli: initialization error: nvml error: driver not loaded";
        let no_command = "failed to generate spec: no command specified";
        let no_secret = "secret \"token\" not found";
        for (reason, message, fault) in [
            ("ErrImagePull", "not found", Fault::Image),
            ("InvalidImageName", "", Fault::Image),
            ("CreateContainerConfigError", no_secret, Fault::Template),
            ("CreateContainerError", no_command, Fault::Program),
            ("RunContainerError", missing, Fault::Program),
            ("RunContainerError", "", Fault::Program),
            ("RunContainerError", device, Fault::Node),
            ("CreateContainerError", "deadline exceeded", Fault::Node),
            ("CrashLoopBackOff", "back-off 10s", Fault::Node),
        ] {
            let problem = of(reason, message);
            assert_eq!(problem.fault, fault, "{reason}: {message}");
        }
    }

    #[test]
    fn members_that_run_show_that_the_node_of_another_is_the_cause() {
        for (fault, alone, with_others) in [
            (Fault::Node, (true, false), (true, false)),
            (Fault::Image, (false, true), (true, true)),
            (Fault::Program, (false, true), (true, false)),
            (Fault::Template, (false, true), (false, true)),
            (Fault::Scheduler, (false, false), (false, false)),
        ] {
            let of = |runs| (fault.is_of_node(runs), fault.is_of_template(runs));
            assert_eq!((of(false), of(true)), (alone, with_others), "{fault:?}");
        }
    }

    #[test]
    fn only_an_image_name_that_cannot_be_parsed_is_final() {
        let lasting = WAITING.iter().filter(|(reason, _)| of(reason, "").is_final);
        assert_eq!(
            lasting.map(|(reason, _)| *reason).collect::<Vec<_>>(),
            [INVALID_IMAGE_NAME]
        );
    }
}
