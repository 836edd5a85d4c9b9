//! Log lines about attempts.

use std::net::SocketAddr;

use lockstep_supervisor_protocol::{ChildExit, ExitReason, Release};

/// Members and coordinator of an attempt. World size 0 means that the pod's environment has the
/// number, as with current agents.
pub(super) fn rendezvous(release: &Release) -> String {
    let members = match release.world {
        0 => None,
        1 => Some("1 member".to_owned()),
        n => Some(format!("{n} members")),
    };
    let coordinator = release
        .coordinator
        .map(|c| format!("coordinator {}", SocketAddr::new(c.ip, c.port)));
    let parts: Vec<String> = members.into_iter().chain(coordinator).collect();
    if parts.is_empty() {
        return String::new();
    }
    format!(": {}", parts.join(", "))
}

pub(super) fn ended(exit: &ChildExit) -> String {
    let what = match (exit.reason, exit.signal) {
        (ExitReason::StartError, _) => format!("could not start: {}", exit.message),
        (ExitReason::Hang, _) => format!("hangs: {}", exit.message),
        (ExitReason::OomKilled, _) => format!("ended with code {}, out of memory", exit.code),
        (_, Some(signal)) => format!("ended by signal {signal}"),
        (_, None) => format!("ended with code {}", exit.code),
    };
    format!("attempt {} {what}", exit.attempt)
}
