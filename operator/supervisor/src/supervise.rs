//! The shell around the machine: signals, processes, the socket. It makes no decisions.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use lockstep_supervisor_protocol::{FromAgent, FromSupervisor, SaveRequest, Text, VERSIONS};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::child;
use crate::clock;
use crate::files;
use crate::handlers;
use crate::link::{Link, LinkEvent};
use crate::log::log_line;
use crate::oom::OomCounter;
use crate::progress::ProgressFile;
use crate::requests;
use crate::shared_memory::{CleanedFiles, SharedMemory};
use crate::signals::Signals;
use crate::state;
use crate::tree;
use lockstep_supervisor::machine::{
    Effect, Event, Machine, Moment, OwnExit, SignalNumber, Visible, Waits,
};

/// Variable with the UID of the pod, if the manifest sets it.
const POD_UID: &str = "LOCKSTEP_POD_UID";
/// Time limit for sending the last report.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Longest part of a termination message to send, in bytes. A cut first character takes more bytes
/// in the frame.
const LONGEST_MESSAGE: u64 = 1000;
/// First and longest pause between two searches for processes to kill. SIGCHLD wakes up earlier.
const SEARCH_PAUSE: Duration = Duration::from_millis(1);
const SEARCH_PAUSE_MAX: Duration = Duration::from_millis(250);
/// Pause after a failed write of the state for probes.
const RETRY_STATE: Duration = Duration::from_secs(1);
/// Why signals do not reach processes of another user, and what to do.
const NOT_PERMITTED: &str = "the process has another user, and the supervisor lacks capability \
     KILL: add it to securityContext.capabilities of the container, or run all processes as one user";
/// Interval of reads of the child's progress, and while a checkpoint is requested.
const READ_PROGRESS_EVERY: Duration = Duration::from_secs(1);
const READ_REQUESTED_EVERY: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuperviseOptions {
    pub folder: PathBuf,
    pub command: Vec<OsString>,
    pub waits: Waits,
    /// Folder for shared memory segments of children. `None`: `/dev/shm`, unless the pod shares it
    /// with the host.
    pub shared_memory: Option<PathBuf>,
    pub cleaned: CleanedFiles,
    /// File for the message of the child's exit, as in the container's `terminationMessagePath`.
    pub termination_log: PathBuf,
    /// Variables for which the child keeps the pod's value.
    pub keep: Vec<OsString>,
}

pub fn supervise(options: SuperviseOptions) -> io::Result<u8> {
    let mut supervisor = Supervisor::new(options)?;
    // The kernel may have killed an earlier container together with its supervisor.
    supervisor.clean_shared_memory();
    loop {
        if let Some(code) = supervisor.turn() {
            supervisor.link.flush(clock::now, LAST_WORDS);
            return Ok(code);
        }
        supervisor.wait()?;
    }
}

struct Supervisor {
    options: SuperviseOptions,
    machine: Machine,
    signals: Signals,
    link: Link,
    shared_memory: Option<SharedMemory>,
    oom: OomCounter,
    oom_before: u64,
    child: Option<Pid>,
    progress: ProgressFile,
    read_progress_at: Moment,
    visible: Option<Visible>,
    /// Time of the next write of the state after a failure.
    retry_state: Option<Moment>,
    search_at: Moment,
    search_pause: Duration,
}

impl Supervisor {
    fn new(options: SuperviseOptions) -> io::Result<Self> {
        let now = clock::now();
        let signals = Signals::new()?;
        // Orphaned descendants become children of this process, even if it is not pid 1.
        set_child_subreaper(Some(getpid()))?;
        let mut start_id = [0; 8];
        getrandom(&mut start_id, GetRandomFlags::empty())?;
        let hello = FromSupervisor::Hello {
            versions: VERSIONS,
            pod_uid: Text::cut(std::env::var(POD_UID).unwrap_or_default()),
            start_id: u64::from_ne_bytes(start_id),
        };
        Ok(Self {
            machine: Machine::new(options.waits.clone(), now),
            signals,
            link: Link::new(&options.folder, &hello, now),
            shared_memory: match &options.shared_memory {
                _ if options.cleaned == CleanedFiles::None => None,
                None => SharedMemory::of_container(&options.folder),
                Some(folder) => Some(SharedMemory::new(folder, &options.folder)),
            },
            oom: OomCounter::find(),
            oom_before: 0,
            child: None,
            progress: ProgressFile::new(&options.folder),
            read_progress_at: now,
            visible: None,
            retry_state: None,
            search_at: now,
            search_pause: SEARCH_PAUSE,
            options,
        })
    }

    /// Does all work that does not block. It reaps first, then handles signals, then the agent. So
    /// an exit never counts as the result of a signal or order of the same turn.
    fn turn(&mut self) -> Option<u8> {
        // Drained before reaping: a death in between wakes `poll` again.
        let signals = self.signals.take();
        if let Some(code) = self.reap() {
            return Some(code);
        }
        if let Some(progress) = self.read_progress()
            && let Some(code) = self.give(progress)
        {
            return Some(code);
        }
        for signal in signals {
            if let Some(code) = self.give(Event::Signal(signal)) {
                return Some(code);
            }
        }
        for event in self.link.turn(clock::now()) {
            for event in self.events_of(event) {
                if let Some(code) = self.give(event) {
                    return Some(code);
                }
            }
        }
        if let Some(code) = self.give(Event::Time) {
            return Some(code);
        }
        self.kill_tree();
        None
    }

    /// A request for a checkpoint follows the progress that the child has reported before it.
    fn events_of(&mut self, event: LinkEvent) -> Vec<Event> {
        match event {
            LinkEvent::Came => vec![Event::AgentCame],
            LinkEvent::Went => vec![Event::AgentWent],
            LinkEvent::Received(FromAgent::Checkpoint(request)) => {
                let left =
                    Duration::from_secs(request.deadline).saturating_sub(clock::time_of_day());
                let deadline = clock::now().saturating_add(left);
                let before = self.child.and_then(|_| self.progress.read_change(false));
                self.read_progress_at = clock::now();
                let event = Event::Request { request, deadline };
                before.into_iter().chain([event]).collect()
            }
            LinkEvent::Received(order) => vec![Event::Order(order)],
        }
    }

    fn reap(&mut self) -> Option<u8> {
        let reaped = tree::reap(self.child);
        if let Some(ending) = reaped.child {
            self.child = None;
            // Also what it wrote right before its end: often the checkpoint that was requested.
            let requested = self.machine.awaits_checkpoint(clock::now());
            if let Some(progress) = self.progress.read_change(requested)
                && let Some(code) = self.give(progress)
            {
                return Some(code);
            }
            let oom_kills = self.oom.read().saturating_sub(self.oom_before);
            let event = Event::ChildEnded {
                ending,
                oom_kills: oom_kills.try_into().unwrap_or(u32::MAX),
            };
            if let Some(code) = self.give(event) {
                return Some(code);
            }
        }
        if reaped.none_left && self.machine.kills_tree() {
            self.give(Event::TreeEnded)
        } else {
            None
        }
    }

    fn read_progress(&mut self) -> Option<Event> {
        let now = clock::now();
        // Progress is read before each check of a deadline.
        let judged = self.machine.next_deadline().is_some_and(|at| at <= now);
        if self.child.is_none() || (now < self.read_progress_at && !judged) {
            return None;
        }
        let requested = self.machine.awaits_checkpoint(now);
        self.read_progress_at = now
            + if requested {
                READ_REQUESTED_EVERY
            } else {
                READ_PROGRESS_EVERY
            };
        self.progress.read_change(requested)
    }

    fn kill_tree(&mut self) {
        let now = clock::now();
        if self.machine.kills_tree() && now >= self.search_at {
            tree::kill_all(self.child);
            self.search_at = now + self.search_pause;
            self.search_pause = (self.search_pause * 2).min(SEARCH_PAUSE_MAX);
        }
    }

    /// Handles an event, performs the effects, and handles the events that result.
    fn give(&mut self, event: Event) -> Option<u8> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.machine.on(event, clock::now()) {
                match action {
                    Effect::Exit(code) => return Some(code),
                    action => events.extend(self.act(action)),
                }
            }
            self.show();
        }
        None
    }

    fn act(&mut self, action: Effect) -> Option<Event> {
        match action {
            Effect::Start(release) => return Some(self.start(&release)),
            Effect::Forward(signal) => self.forward(signal),
            Effect::Request { request, signal } => {
                return Some(self.request_checkpoint(&request, signal));
            }
            Effect::KillTree => (self.search_at, self.search_pause) = (Moment::ZERO, SEARCH_PAUSE),
            Effect::CleanSharedMemory => self.clean_shared_memory(),
            Effect::Send(message) => self.link.send(&message),
            Effect::ReportSurvivors { attempt } => {
                let (count, text) = tree::survivors();
                let (processes, verb) = match count {
                    1 => ("process", "survives"),
                    _ => ("processes", "survive"),
                };
                let hint = if tree::may_signal_all() {
                    String::new()
                } else {
                    format!("; {NOT_PERMITTED}")
                };
                log_line(&format!(
                    "{count} {processes} of attempt {attempt} {verb} SIGKILL: {text}{hint}"
                ));
                self.link.send(&FromSupervisor::Survivors {
                    attempt,
                    count,
                    message: Text::cut(text),
                });
            }
            Effect::SendExit(own) => {
                let own = self.with_message(own);
                self.link.send(&own.into_frame(time_of_day));
            }
            Effect::SendProgress(seen) => self.link.send(&seen.into_frame(time_of_day)),
            Effect::Print(line) => log_line(&line),
            Effect::Exit(_) => {}
        }
        None
    }

    /// Adds the child's own message, which stays in its file until the next start.
    fn with_message(&self, mut own: OwnExit) -> OwnExit {
        if own.exit.message.is_empty() {
            let end =
                files::read_end(&self.options.termination_log, LONGEST_MESSAGE).unwrap_or_default();
            own.exit.message = Text::cut(String::from_utf8_lossy(&end).trim());
        }
        own
    }

    fn start(&mut self, release: &lockstep_supervisor_protocol::Release) -> Event {
        if let Some(shared_memory) = &mut self.shared_memory
            && let Err(error) = shared_memory.remember()
        {
            log_line(&format!(
                "cannot write the list of files in shared memory: {error}"
            ));
        }
        self.oom_before = self.oom.read();
        if let Err(error) = self.progress.clear() {
            log_line(&format!(
                "cannot clear {}: {error}",
                self.progress.path().display()
            ));
        }
        if let Err(error) = requests::clear(&self.options.folder) {
            log_line(&format!("cannot clear the file of requests: {error}"));
        }
        // Otherwise, the kubelet would show this message for a later exit.
        let log = &self.options.termination_log;
        if let Err(error) = files::empty(log) {
            log_line(&format!("cannot empty {}: {error}", log.display()));
        }
        let environment = child::environment(
            release,
            |name| std::env::var_os(name),
            &self.options.folder,
            &self.options.keep,
        );
        match child::start(&self.options.command, environment) {
            Ok(pid) => {
                self.child = Some(pid);
                Event::Started
            }
            Err(child::NotStarted { code, message }) => Event::NotStarted { code, message },
        }
    }

    fn forward(&self, signal: SignalNumber) {
        if let (Some(child), Some(signal)) = (self.child, Signal::from_named_raw(signal.into())) {
            // The child is not reaped yet, so the pid is still the child's. If the child has ended,
            // the next turn reports the exit.
            if kill_process(child, signal) == Err(Errno::PERM) {
                log_line(&format!(
                    "cannot pass on signal {}: {NOT_PERMITTED}",
                    signal.as_raw()
                ));
            }
        }
    }

    fn request_checkpoint(&self, request: &SaveRequest, signal: Option<SignalNumber>) -> Event {
        let written = requests::write(&self.options.folder, request);
        if let Err(error) = &written {
            log_line(&format!("cannot write the file of requests: {error}"));
        }
        let signal = signal.and_then(|signal| Signal::from_named_raw(signal.into()));
        Event::Requested {
            written: written.is_ok(),
            signalled: signal
                .zip(self.child)
                .is_some_and(|(signal, child)| handlers::signal(child, signal)),
        }
    }

    fn clean_shared_memory(&self) {
        let cleaned = self.options.cleaned;
        let memory = self.shared_memory.as_ref();
        let removed = memory.map_or(0, |memory| memory.clean(cleaned));
        if removed > 0 {
            let files = if removed == 1 { "file" } else { "files" };
            log_line(&format!("unlinked {removed} {files} in shared memory"));
        }
    }

    /// Writes the state for probes if it has changed. If a write fails, probes read the old state.
    fn show(&mut self) {
        let (visible, now) = (self.machine.visible(), clock::now());
        if self.visible == Some(visible) || self.retry_state.is_some_and(|at| now < at) {
            return;
        }
        let failed_before = self.retry_state.is_some();
        match state::write(&self.options.folder, visible) {
            Ok(()) => (self.visible, self.retry_state) = (Some(visible), None),
            Err(error) => {
                self.retry_state = Some(now + RETRY_STATE);
                if !failed_before {
                    log_line(&format!("cannot write the state for probes: {error}"));
                }
            }
        }
    }

    fn wait(&self) -> io::Result<()> {
        let search = self.machine.kills_tree().then_some(self.search_at);
        let read_progress_at = self.child.map(|_| self.read_progress_at);
        let due = [
            self.machine.next_deadline(),
            self.link.next_deadline(),
            search,
            read_progress_at,
            self.retry_state,
        ]
        .into_iter()
        .flatten()
        .min();
        let timeout = due.map(|due| due.saturating_sub(clock::now()));
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        fds.extend(self.link.fds());
        match poll(
            &mut fds,
            timeout.and_then(|timeout| timeout.try_into().ok()).as_ref(),
        ) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn time_of_day(at: Moment) -> Duration {
    let ago = clock::now().saturating_sub(at);
    clock::time_of_day().saturating_sub(ago)
}
