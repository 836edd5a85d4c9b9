//! Processes of the machine and of its containers.

use std::fs;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// PIDs of all descendants of a process, innermost last.
pub fn descendants(pid: u32) -> Vec<u32> {
    let children =
        fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let mut all = Vec::new();
    for child in children.split_whitespace().filter_map(|c| c.parse().ok()) {
        all.push(child);
        all.extend(descendants(child));
    }
    all
}

/// PID of the process of this program among a process and its descendants.
pub fn named(pid: u32, program: &str) -> Option<u32> {
    let mut all = std::iter::once(pid).chain(descendants(pid));
    all.find(|pid| is_named(*pid, program))
}

/// True if the process runs this program.
pub fn is_named(pid: u32, program: &str) -> bool {
    // The kernel keeps 15 characters of the name.
    let short: String = program.chars().take(15).collect();
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == short)
}

/// Sends a signal.
pub fn signal(pid: u32, signal: Signal) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    kill_process(pid.context("a process id")?, signal).context("signal")
}
