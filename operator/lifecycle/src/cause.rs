//! Texts of failure causes for people.

use lockstep_api::workload::{Cause, CauseKind};

pub(crate) fn describe(cause: &Cause) -> String {
    let container = match cause.container.as_str() {
        "" => "a container".to_owned(),
        name => format!("container {name}"),
    };
    let mut text = match cause.kind {
        CauseKind::ContainerExit => {
            let code = cause.exit_code;
            let code = code.map_or(String::new(), |code| format!(" with exit code {code}"));
            format!("{container}{} ended{code}", place(cause, " of "))
        }
        CauseKind::Hang => format!("{container}{} hangs", place(cause, " of ")),
        CauseKind::NodeLost => format!("{} is lost with its node", place(cause, "")),
        CauseKind::PodDeleted => format!("{} was deleted", place(cause, "")),
        CauseKind::PodFailed => format!("{} failed", place(cause, "")),
        CauseKind::Requested
        | CauseKind::Resize
        | CauseKind::Preempted
        | CauseKind::DependencyBroken
        | CauseKind::NodeLeaving
        | CauseKind::NodeFaulty => {
            let has_message = !cause.message.is_empty();
            let description = if has_message {
                &cause.message
            } else {
                cause.kind.as_str()
            };
            return description.to_owned();
        }
    };
    if !cause.reason.is_empty() && cause.reason != cause.kind.as_str() {
        text = format!("{text} ({})", cause.reason);
    }
    // Kubelets end messages with a period, and some with a blank.
    let message = cause.message.trim_end_matches(['.', ' ']);
    if !message.is_empty() {
        text = format!("{text}: {message}");
    }
    if !cause.rule.is_empty() {
        text = format!("{text}, rule {}", cause.rule);
    }
    text
}

fn place(cause: &Cause, before: &str) -> String {
    match (cause.pod.as_str(), cause.node.as_str()) {
        ("", "") if before.is_empty() => "a pod".to_owned(),
        ("", "") => String::new(),
        (pod, "") => format!("{before}pod {pod}"),
        ("", node) => format!("{before}a pod on node {node}"),
        (pod, node) => format!("{before}pod {pod} on node {node}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::DateTime;

    #[test]
    fn a_cause_is_a_sentence_with_what_is_known() {
        let of = |kind, pod: &str, container: &str, code, reason: &str, rule: &str| Cause {
            pod: pod.into(),
            node: "n1".into(),
            container: container.into(),
            exit_code: code,
            reason: reason.into(),
            rule: rule.into(),
            ..Cause::new(kind, DateTime::UNIX_EPOCH)
        };
        let resize = Cause::requested(CauseKind::Resize, DateTime::UNIX_EPOCH, "more members");
        for (cause, text) in [
            (
                of(CauseKind::ContainerExit, "p", "t", Some(3), "Error", "mine"),
                "container t of pod p on node n1 ended with exit code 3 (Error), rule mine",
            ),
            (
                of(CauseKind::ContainerExit, "p", "", None, "", ""),
                "a container of pod p on node n1 ended",
            ),
            (
                of(CauseKind::NodeLost, "p", "", None, "NodeLost", ""),
                "pod p on node n1 is lost with its node",
            ),
            (
                of(CauseKind::PodDeleted, "p", "", None, "", ""),
                "pod p on node n1 was deleted",
            ),
            (resize, "more members"),
            (
                of(CauseKind::PodDeleted, "", "", None, "", ""),
                "a pod on node n1 was deleted",
            ),
            (
                of(CauseKind::Hang, "p", "t", None, "Hang", ""),
                "container t of pod p on node n1 hangs",
            ),
        ] {
            assert_eq!(describe(&cause), text);
        }
    }
}
