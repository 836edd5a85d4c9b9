//! A cause for people.

use lockstep_api::workload::Cause;

/// Whether an exit is what a signal from outside leaves: SIGKILL or SIGTERM, and not for the
/// container's own memory limit.
pub(crate) fn looks_killed(code: i32, reason: &str) -> bool {
    matches!(code, 137 | 143) && reason != "OOMKilled"
}

/// What happened, where, and by which rule it was judged.
pub(crate) fn describe(cause: &Cause) -> String {
    let mut parts = vec![cause.kind.as_str().to_owned()];
    for (label, value) in [
        ("pod", &cause.pod),
        ("on node", &cause.node),
        ("container", &cause.container),
    ] {
        if !value.is_empty() {
            parts.push(format!("{label} {value}"));
        }
    }
    if let Some(code) = cause.exit_code {
        parts.push(format!("exit code {code}"));
    }
    for (label, value) in [("reason", &cause.reason), ("rule", &cause.rule)] {
        if !value.is_empty() {
            parts.push(format!("({label} {value})"));
        }
    }
    let what = parts.join(" ");
    if cause.message.is_empty() {
        what
    } else {
        format!("{what}: {}", cause.message)
    }
}
