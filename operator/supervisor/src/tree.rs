//! Descendants of the supervisor: find, kill, reap.
//!
//! The supervisor is the child subreaper, so orphaned descendants become its children. If `wait`
//! finds no child, no descendant is left. `/proc` only finds processes to kill.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, pidfd_open, pidfd_send_signal,
    test_kill_process, wait,
};

use lockstep_supervisor::machine::Ending;

#[derive(Debug, Default)]
pub struct Reaped {
    /// How the child ended, if it was reaped.
    pub child: Option<Ending>,
    pub none_left: bool,
}

pub fn reap(child: Option<Pid>) -> Reaped {
    let mut reaped = Reaped::default();
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if Some(pid) == child => {
                let signal = status
                    .terminating_signal()
                    .map(|signal| Ending::Signal(signal as u8));
                reaped.child =
                    signal.or_else(|| status.exit_status().map(|code| Ending::Code(code as u8)));
            }
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Err(Errno::CHILD) => {
                reaped.none_left = true;
                return reaped;
            }
            Ok(None) | Err(_) => return reaped,
        }
    }
}

/// A process from `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub pid: i32,
    parent: i32,
    name: String,
    state: char,
    threads: u32,
    /// Start time in clock ticks since boot. Together with the pid it identifies one process.
    started: u64,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Format: `PID (NAME) STATE PPID ...`. The name can contain any character, even parentheses.
    fn parse(stat: &str) -> Option<Self> {
        let (pid, rest) = stat.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let threads = fields.nth(15)?.parse().ok()?;
        let started = fields.nth(1)?.parse().ok()?;
        Some(Self {
            pid: pid.parse().ok()?,
            parent,
            name: name.to_owned(),
            state,
            threads,
            started,
        })
    }

    /// In state Z, other threads of the process may still run.
    fn is_dead(&self) -> bool {
        self.state == 'X' || self.state == 'Z' && self.threads <= 1
    }
}

/// Living descendants of this process; empty if `/proc` belongs to another pid namespace, where the
/// same pids are other processes.
fn descendants() -> Vec<Process> {
    let own = getpid().as_raw_nonzero().get();
    if fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() != own.to_string().as_str()) {
        return Vec::new();
    }
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all: Vec<Process> = pids.filter_map(Process::read).collect();
    let mut below = below(own, all);
    below.retain(|process| !process.is_dead());
    below
}

/// The descendants of `root`, by pid.
fn below(root: i32, all: Vec<Process>) -> Vec<Process> {
    let mut children: BTreeMap<i32, Vec<Process>> = BTreeMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = BTreeMap::new();
    let mut open = vec![root];
    while let Some(parent) = open.pop() {
        for process in children.remove(&parent).into_iter().flatten() {
            open.push(process.pid);
            found.insert(process.pid, process);
        }
    }
    found.into_values().collect()
}

/// Visits a descendant and what is below it, each process after its parent. Nothing is visited below
/// a process for which `enters` returns false.
pub fn walk(root: i32, mut enters: impl FnMut(&Process) -> bool) {
    let all = descendants();
    let mut open: Vec<&Process> = all.iter().filter(|p| p.pid == root).collect();
    while let Some(process) = open.pop() {
        if enters(process) {
            open.extend(all.iter().filter(|p| p.parent == process.pid));
        }
    }
}

/// Sends SIGKILL to all current descendants. The next call finds processes forked during this call.
/// The child is killed even if `/proc` is unreadable.
pub fn kill_all(child: Option<Pid>) {
    if let Some(child) = child {
        // Not reaped yet, so the pid still belongs to the child.
        let _ = kill_process(child, Signal::KILL);
    }
    for process in descendants() {
        kill(&process);
    }
}

/// Kills a process if it still descends from this one. The pid may have been reused, in a shared
/// pid namespace even by another container. So a pidfd pins the process before a second check.
/// After an error, the process is gone or counts as a survivor.
fn kill(process: &Process) {
    let Some(pid) = Pid::from_raw(process.pid) else {
        return;
    };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pinned) if descends(process) => {
            let _ = pidfd_send_signal(pinned, Signal::KILL);
        }
        // Without pidfd in the kernel or sandbox, the pid could be reused between check and kill.
        Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) if descends(process) => {
            let _ = kill_process(pid, Signal::KILL);
        }
        _ => {}
    }
}

/// True if the same process is alive and descends from this one.
pub fn descends(process: &Process) -> bool {
    let own = getpid().as_raw_nonzero().get();
    let Some(mut at) = Process::read(process.pid).filter(|now| now.started == process.started)
    else {
        return false;
    };
    let mut visited = BTreeSet::new();
    while at.parent != own {
        if !visited.insert(at.pid) {
            return false;
        }
        let Some(parent) = Process::read(at.parent) else {
            return false;
        };
        at = parent;
    }
    true
}

/// False if this process may not send signals to a living descendant: the process has another user.
pub fn may_signal_all() -> bool {
    let mut pids = descendants()
        .into_iter()
        .filter_map(|process| Pid::from_raw(process.pid));
    pids.all(|pid| test_kill_process(pid) != Err(Errno::PERM))
}

/// Number of living descendants, and a description of the first 8.
pub fn survivors() -> (u32, String) {
    const SHOWN: usize = 8;
    let alive = descendants();
    let mut text = String::new();
    for process in alive.iter().take(SHOWN) {
        let separator = if text.is_empty() { "" } else { ", " };
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "{separator}pid {} {} (state {})",
            process.pid, process.name, process.state
        );
    }
    (alive.len() as u32, text)
}

#[cfg(test)]
mod tests {
    use super::{Process, below};

    fn process(pid: i32, parent: i32) -> Process {
        Process {
            pid,
            parent,
            name: "p".to_owned(),
            state: 'S',
            threads: 1,
            started: 0,
        }
    }

    #[test]
    fn names_of_processes_can_hold_anything() {
        let stat = "42 (a) R 1 (b) S 7 42 42 0 -1 4194304 91 0 0 0 0 0 0 0 20 0 1 0 123456 2600960 200 1844";
        let found = Process::parse(stat).unwrap();
        assert_eq!(
            (found.pid, &*found.name, found.state, found.parent),
            (42, "a) R 1 (b", 'S', 7)
        );
        assert_eq!((found.threads, found.started), (1, 123_456));
        assert_eq!(Process::parse("42 (a) S 7"), None);
    }

    #[test]
    fn a_process_whose_main_thread_has_ended_is_dead_without_other_threads() {
        let dead = |state, threads| {
            let process = Process {
                state,
                threads,
                ..process(2, 1)
            };
            process.is_dead()
        };
        assert!(dead('Z', 1) && dead('X', 0));
        assert!(!dead('Z', 2) && !dead('S', 1));
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_nothing_else_is() {
        let all = vec![
            process(9, 8),
            process(8, 5),
            process(5, 1),
            process(6, 1),
            process(7, 6),
            process(1, 0),
        ];
        let pids: Vec<i32> = below(5, all).iter().map(|p| p.pid).collect();
        assert_eq!(pids, [8, 9]);
    }

    #[test]
    fn this_process_can_be_read() {
        let own = Process::read(std::process::id() as i32).unwrap();
        assert!(own.started > 0 && !own.is_dead());
    }
}
