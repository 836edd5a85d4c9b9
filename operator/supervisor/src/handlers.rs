//! Finds the processes that have a handler for a signal, and signals no other process: the default
//! action would end it.

use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::tree::{self, Process};

/// Sends the signal to the first process of each branch that has a handler, from the child on. A
/// forked process inherits handlers, so processes below it are not signalled. True if one was.
pub fn signal(child: Pid, signal: Signal) -> bool {
    let child = child.as_raw_nonzero().get();
    let mut sent = false;
    tree::walk(child, |process| {
        let here = handles(process.pid, signal);
        sent |= here && send(process, signal);
        !here
    });
    sent
}

/// A pidfd pins the process before a second check, because the pid may be reused.
fn send(process: &Process, signal: Signal) -> bool {
    let Some(pid) = Pid::from_raw(process.pid) else {
        return false;
    };
    let Ok(pinned) = pidfd_open(pid, PidfdFlags::empty()) else {
        return false;
    };
    tree::descends(process)
        && handles(process.pid, signal)
        && pidfd_send_signal(pinned, signal).is_ok()
}

fn handles(pid: i32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    has_handler(&status, signal)
}

/// A process that catches SIGPWR catches all signals, as dumb-init and programs in Go do, and is no
/// program that saves on request.
fn has_handler(status: &str, signal: Signal) -> bool {
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let catches = |signal: Signal| caught.unwrap_or_default() >> (signal.as_raw() - 1) & 1 == 1;
    catches(signal) && !catches(Signal::POWER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_catches_everything_has_no_handler() {
        let has =
            |mask: &str| has_handler(&format!("SigIgn:\tfff\nSigCgt:\t{mask}\n"), Signal::USR1);
        assert!(has("0000000000000200"));
        assert!(has("0000000180004202"));
        assert!(!has("0000000000004002"), "SIGINT and SIGTERM");
        assert!(!has("fffffffd7fc1feff"), "Go");
        assert!(!has("") && !has("x"));
    }
}
