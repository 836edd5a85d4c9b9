//! What the supervisor prints of attempts.

use std::net::SocketAddr;

use lockstep_wire::{ChildExit, ExitReason, Release};

/// Whom an attempt meets, and where.
pub(super) fn rendezvous(release: &Release) -> String {
    let members = if release.world == 1 {
        "1 member".to_owned()
    } else {
        format!("{} members", release.world)
    };
    match release.coordinator {
        Some(c) => format!(": {members}, coordinator {}", SocketAddr::new(c.ip, c.port)),
        None => format!(": {members}"),
    }
}

/// How an attempt has ended.
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
