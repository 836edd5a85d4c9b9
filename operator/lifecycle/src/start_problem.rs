//! Problems that prevent a pod from starting.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::reasons;
use lockstep_api::member::Member;
use lockstep_api::names::DEFAULT_SCHEDULER;
use lockstep_api::words::time;

use crate::facts::Facts;
use crate::messages::shortened;
use crate::pods::{ContainerState, PodView};
use crate::wake::Wake;

/// Bytes.
const LONGEST: usize = 512;

/// How long a pod may stay unbound before it is reported.
const TO_BIND: TimeDelta = TimeDelta::seconds(10);

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
    ("CrashLoopBackOff", reasons::MEMBERS_NOT_READY),
];
/// Never retried by the kubelet.
const INVALID_IMAGE_NAME: &str = "InvalidImageName";
/// A missing Secret or ConfigMap, or an unsuitable security context.
const CONFIG_ERROR: &str = "CreateContainerConfigError";
/// Shown for every container at first; a problem only after the deadline.
const CREATING: &str = "ContainerCreating";
/// Another container prevents the start, or all containers restart.
const SILENT: [&str; 3] = ["", "PodInitializing", "RestartingAllContainers"];

/// Phrases of runc, crun, gVisor and containerd for a program that cannot be executed. Failures of
/// devices and mounts contain none of them.
const NAMES_PROGRAM: [&str; 4] = ["exec:", "executable", "chdir", "no command specified"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StartProblem {
    pub reason: &'static str,
    pub message: String,
    pub fault: Fault,
    pub is_final: bool,
    /// The lowest is reported.
    rank: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The node, or unknown.
    Node,
    Image,
    Program,
    /// Regardless of the node.
    Template,
    /// No change of the workload can repair it.
    Scheduler,
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

    /// True if another node could start the member. `group_runs`: other members of its group, with
    /// the same template, run.
    pub fn is_of_node(self, group_runs: bool) -> bool {
        match self {
            Self::Node => true,
            Self::Image | Self::Program => group_runs,
            Self::Template | Self::Scheduler => false,
        }
    }

    /// True if the template is the cause. An image may be gone although other nodes have it.
    pub fn is_of_template(self, group_runs: bool) -> bool {
        match self {
            Self::Image | Self::Template => true,
            Self::Program => !group_runs,
            Self::Node | Self::Scheduler => false,
        }
    }
}

/// Includes the creation of a container.
pub(crate) fn waiting_container(pod: &PodView) -> Option<StartProblem> {
    let waiting = pod
        .containers
        .iter()
        .filter_map(|(name, c)| match &c.state {
            ContainerState::Waiting { reason, message } => of_waiting(name, reason, message),
            ContainerState::Running { .. } | ContainerState::Terminated(_) => None,
        });
    waiting.min_by_key(|p| p.rank)
}

fn of_waiting(container: &str, reason: &str, message: &str) -> Option<StartProblem> {
    if SILENT.contains(&reason) {
        return None;
    }
    let known = WAITING.iter().position(|(waits, _)| *waits == reason);
    let unknown = WAITING.len() + usize::from(reason == CREATING);
    let condition = known.map_or(reasons::MEMBERS_NOT_READY, |at| WAITING[at].1);
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
    Some(StartProblem {
        reason: condition,
        message: shortened(
            format!("container {container} waits: {reason}{why}"),
            LONGEST,
        ),
        is_final: reason == INVALID_IMAGE_NAME,
        fault,
        rank: known.unwrap_or(unknown),
    })
}

/// `None` if the pod is bound or gated, or a scheduler has processed it.
pub(crate) fn unbound_since(pod: &PodView) -> Option<DateTime<Utc>> {
    let waits = pod.node.is_none() && !pod.gated && !pod.terminal() && !pod.terminating();
    let looked_at = pod.conditions.get("PodScheduled").is_some();
    (waits && !looked_at).then_some(pod.created_at)
}

pub(crate) fn not_bound(facts: &Facts<'_>, member: &Member) -> StartProblem {
    let template = facts.template(&member.group).and_then(|t| t.spec.as_ref());
    let name = template.and_then(|spec| spec.scheduler_name.as_deref());
    let name = name.unwrap_or(DEFAULT_SCHEDULER);
    StartProblem {
        reason: reasons::NOT_BOUND,
        message: format!("schedulerName is {name}"),
        fault: if name == DEFAULT_SCHEDULER {
            Fault::Scheduler
        } else {
            Fault::Template
        },
        is_final: false,
        rank: 0,
    }
}

/// The worst problem, of the first member that has it.
pub(crate) fn worst<'m>(
    facts: &Facts<'_>,
    pods: impl IntoIterator<Item = (&'m Member, &'m PodView)>,
    wake: &mut Wake,
) -> Option<StartProblem> {
    let of_pod = |(member, pod): (&Member, &PodView)| match unbound_since(pod) {
        Some(since) if facts.due(since + TO_BIND).passed(wake) => {
            let problem = not_bound(facts, member);
            let message = format!(
                "no scheduler has bound pod {} since {}; {}",
                pod.name,
                time(since),
                problem.message
            );
            Some(StartProblem { message, ..problem })
        }
        Some(_) => None,
        None => on_node(pod),
    };
    pods.into_iter().filter_map(of_pod).min_by_key(|p| p.rank)
}

fn on_node(pod: &PodView) -> Option<StartProblem> {
    let problem = waiting_container(pod).filter(|p| p.rank <= WAITING.len())?;
    if pod.terminating() {
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

    fn of(reason: &str, message: &str) -> Option<StartProblem> {
        of_waiting("t", reason, message)
    }

    #[test]
    fn a_container_that_waits_for_another_has_no_problem_of_its_own() {
        for reason in SILENT {
            assert_eq!(of(reason, ""), None);
        }
    }

    #[test]
    fn a_problem_names_the_container_and_the_words_of_the_kubelet() {
        let problem = of("ErrImagePull", "registry.example/trian:1: not found.").unwrap();
        assert_eq!(
            problem.message,
            "container t waits: ErrImagePull: registry.example/trian:1: not found"
        );
        assert_eq!(problem.reason, reasons::IMAGE_UNAVAILABLE);
        let unknown = of("NewReason", "").unwrap();
        assert_eq!(unknown.message, "container t waits: NewReason");
        assert_eq!(unknown.reason, reasons::MEMBERS_NOT_READY);
    }

    #[test]
    fn a_long_message_is_cut() {
        let problem = of("ErrImagePull", &"ä".repeat(4096)).unwrap();
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
            let problem = of(reason, message).unwrap();
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
        let lasting = WAITING
            .iter()
            .filter(|(reason, _)| of(reason, "").unwrap().is_final);
        assert_eq!(
            lasting.map(|(reason, _)| *reason).collect::<Vec<_>>(),
            [INVALID_IMAGE_NAME]
        );
    }
}
