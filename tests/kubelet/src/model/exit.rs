//! Effect of a container's exit: its rules, then its policy, then the pod's policy (KEP-5307).

use k8s_openapi::api::core::v1::{Container, ContainerRestartRule};

use super::pod::{Kind, PodDesc};
use super::worker::KubeletConfig;

/// Rule action that restarts the container.
const RESTART: &str = "Restart";
/// Rule action that restarts all containers of the pod.
pub(super) const RESTART_ALL: &str = "RestartAllContainers";

/// Reaction of the kubelet to an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterExit {
    /// The container stays ended.
    Stay,
    /// The container restarts after its back-off.
    Restart,
    /// All containers of the pod are removed and started as in a new pod.
    RestartAll,
}

/// First matching rule, else the container's restart policy, else the pod's. Kubelets before 1.35
/// support neither rules nor policies of regular containers.
pub(super) fn after_exit(
    pod: &PodDesc,
    kind: Kind,
    c: &Container,
    exit_code: i32,
    config: &KubeletConfig,
) -> AfterExit {
    let rule = if config.restart_rules {
        c.restart_policy_rules
            .iter()
            .flatten()
            .find(|rule| matches(rule, exit_code))
    } else {
        None
    };
    match rule.map(|r| r.action.as_str()) {
        Some(RESTART_ALL) if config.restart_all => return AfterExit::RestartAll,
        // An init container that succeeded is complete whatever its rules are. Only a restart of
        // all containers runs it again.
        Some(RESTART) if kind != Kind::Init || exit_code != 0 => {
            return AfterExit::Restart;
        }
        _ => {}
    }
    let own = c
        .restart_policy
        .as_deref()
        .filter(|_| config.restart_rules || kind == Kind::Sidecar);
    let policy = own
        .or(pod.spec.restart_policy.as_deref())
        .unwrap_or("Always");
    let restart = match (policy, kind) {
        ("Never", _) => false,
        // For an init container, Always means "until it succeeds".
        ("OnFailure", _) | (_, Kind::Init) => exit_code != 0,
        _ => true,
    };
    if restart {
        AfterExit::Restart
    } else {
        AfterExit::Stay
    }
}

fn matches(rule: &ContainerRestartRule, exit_code: i32) -> bool {
    rule.exit_codes.as_ref().is_some_and(|on| {
        let listed = on.values.iter().flatten().any(|v| *v == exit_code);
        match on.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    })
}
