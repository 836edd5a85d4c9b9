//! Decisions of the supervisor: a function of its state, an event and the time. No I/O.
//!
//! ```text
//!              Hold            Release of exactly this attempt
//!   Held 0 ----------> Held n ---------------------------------> Running n
//!                        ^  ^                                      |    | child ends by itself,
//!        tree is gone    |  |   Hold m > n, tree is gone           |    | or makes no progress
//!                        |  +------------------- Ended n <---------|----+
//!                     Stopping m <---------------------------------+
//!                                        Hold m > n: stop signal if it has a grace, SIGKILL
//!   every state --> Leaving: kills all processes, then exits with one code
//! ```
//!
//! Invariants, checked by the property tests:
//! - A child starts only on the release of the attempt that the supervisor is held for.
//! - A child starts only if no process of an earlier attempt is alive.
//! - Attempts increase.
//! - The supervisor sends an arrival only if no process runs.
//! - Each path to the exit has its exit code.

mod checkpoint;
mod deadlines;
mod event;
mod messages;
mod progress;
mod requests;
mod stop;

use lockstep_supervisor_protocol::{
    ChildExit, ExitReason, FromAgent, FromSupervisor, Release, Text,
};

pub use event::{
    Effect, Ending, Event, Moment, ObservedProgress, OwnExit, SignalNumber, Visible, Waits,
};
use messages::{ended, rendezvous};
use progress::Watch;
use requests::Requests;

const SIGKILL: SignalNumber = 9;

/// Exit code of a shell for a process that a signal ended: this plus the number of the signal.
const SIGNAL_BASE: u8 = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tree {
    None,
    Alive,
    /// The child has received the stop signal. SIGKILL follows at `until`.
    Stopping {
        kill_at: Moment,
    },
    Dying {
        since: Moment,
        reported: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// At the barrier of this attempt; 0 before the first order.
    Held {
        attempt: u64,
    },
    Running,
    /// Stopped by an order, on the way to the barrier of this attempt.
    Stopping {
        attempt: u64,
    },
    /// The child ended without an order; the decision is pending.
    Ended,
    /// Exits once no process is left.
    Leaving {
        code: u8,
    },
    /// Has returned [`Effect::Exit`].
    Left,
}

#[derive(Debug)]
pub struct Machine {
    waits: Waits,
    phase: Phase,
    tree: Tree,
    /// Attempt of the running or last child; 0 before the first.
    ran: u64,
    /// Stop signal forwarded to that child. The container ends with that child.
    stop: Option<SignalNumber>,
    /// Exit of that child, unless an order ended it.
    exit: Option<OwnExit>,
    watch: Watch,
    requests: Requests,
    /// Start of the agent's absence.
    agentless_since: Option<Moment>,
    idle_since: Moment,
    notice: String,
    actions: Vec<Effect>,
}

impl Machine {
    pub fn new(waits: Waits, now: Moment) -> Self {
        Self {
            waits,
            phase: Phase::Held { attempt: 0 },
            tree: Tree::None,
            ran: 0,
            stop: None,
            exit: None,
            watch: Watch::default(),
            requests: Requests::default(),
            agentless_since: Some(now),
            idle_since: now,
            notice: String::new(),
            actions: vec![Effect::Print(
                "held: waiting for the agent of this node".to_owned(),
            )],
        }
    }

    /// Handles an event and returns the effects in order.
    pub fn on(&mut self, event: Event, now: Moment) -> Vec<Effect> {
        if self.phase != Phase::Left {
            match event {
                Event::AgentCame => self.agent_came(now),
                Event::AgentWent => self.agent_went(now),
                Event::Order(order) => self.order(order, now),
                Event::Request { request, deadline } => self.request(request, deadline),
                Event::Requested { written, signalled } => self.requested(written, signalled),
                Event::Progress {
                    step,
                    checkpoint,
                    words,
                } => {
                    self.watch.words = words;
                    self.progress(step, checkpoint, now);
                }
                Event::Signal(signal) => self.signal(signal, now),
                Event::Started => self.started(),
                Event::NotStarted { code, message } => self.not_started(code, message, now),
                Event::ChildEnded { ending, oom_kills } => self.child_ended(ending, oom_kills, now),
                Event::TreeEnded => self.tree_ended(),
                Event::Time => {}
            }
            self.pass_deadlines(now);
        }
        std::mem::take(&mut self.actions)
    }

    /// Time at which [`Event::Time`] is due.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.due().map(|(at, _)| at)
    }

    pub fn kills_tree(&self) -> bool {
        matches!(self.tree, Tree::Dying { .. })
    }

    /// State for probes.
    pub fn visible(&self) -> Visible {
        match self.phase {
            Phase::Running => Visible::Running(self.watch.started_at),
            _ if self.ran == 0 => Visible::Starting,
            _ => Visible::Held(self.idle_since),
        }
    }

    fn agent_came(&mut self, now: Moment) {
        if self.agentless_since.take().is_some() {
            self.print("the agent is connected");
        }
        self.actions.extend(self.exit.clone().map(Effect::SendExit));
        if let Tree::Dying { reported: true, .. } = self.tree {
            self.actions
                .push(Effect::ReportSurvivors { attempt: self.ran });
        }
        match self.phase {
            Phase::Held { attempt } => self.send(FromSupervisor::Arrived { attempt }),
            Phase::Running => {
                self.send(FromSupervisor::Started { attempt: self.ran });
                self.send_progress(self.watch.observed(self.ran), now);
                self.send_requests();
            }
            Phase::Ended => self.send_requests(),
            Phase::Stopping { .. } | Phase::Leaving { .. } | Phase::Left => {}
        }
    }

    fn agent_went(&mut self, now: Moment) {
        if self.agentless_since.is_none() {
            self.agentless_since = Some(now);
            self.print("the agent is away");
        }
    }

    fn order(&mut self, order: FromAgent, now: Moment) {
        match order {
            // A request is given as `Event::Request`.
            FromAgent::Welcome { .. } | FromAgent::Checkpoint(_) => {}
            FromAgent::Hold { attempt } => self.hold(attempt, now),
            FromAgent::Release(release) => self.release(release, now),
            FromAgent::Complete { attempt } => self.complete(attempt, now),
            FromAgent::Exit { attempt } => self.exit_as_decided(attempt, now),
            FromAgent::Stop { attempt } => self.pass_stops(attempt),
        }
    }

    fn hold(&mut self, attempt: u64, now: Moment) {
        match self.phase {
            Phase::Held { attempt: held } if attempt >= held => self.arrive(attempt),
            Phase::Stopping { attempt: ordered } if attempt >= ordered => {
                self.phase = Phase::Stopping { attempt }
            }
            Phase::Running if attempt > self.ran => self.stop_for(attempt, now),
            // The agent has not seen `Started` yet.
            Phase::Running if attempt == self.ran => self.send(FromSupervisor::Started { attempt }),
            Phase::Ended if attempt > self.ran => {
                if self.tree == Tree::None {
                    self.arrive_cleaned(attempt);
                } else {
                    self.phase = Phase::Stopping { attempt };
                }
            }
            Phase::Leaving { .. } | Phase::Left => {}
            _ => self.print_once(&format!(
                "ignored: an order to hold for attempt {attempt}, which is over"
            )),
        }
    }

    fn release(&mut self, release: Release, now: Moment) {
        match self.phase {
            Phase::Held { attempt } if attempt > 0 && release.attempt == attempt => {
                self.print(&format!("attempt {attempt} starts{}", rendezvous(&release)));
                self.ran = attempt;
                self.exit = None;
                self.phase = Phase::Running;
                self.tree = Tree::Alive;
                self.watch.start(release.progress, now);
                self.requests.start(release.checkpoint);
                self.actions.push(Effect::Start(release));
            }
            Phase::Running if release.attempt == self.ran => {
                self.send(FromSupervisor::Started { attempt: self.ran });
            }
            _ => {
                self.print_once(&format!(
                    "ignored: a release for attempt {}, which is not held here",
                    release.attempt
                ));
            }
        }
    }

    fn complete(&mut self, attempt: u64, now: Moment) {
        let done = self
            .exit
            .as_ref()
            .is_some_and(|own| own.exit.attempt == attempt && own.exit.code == 0);
        if done && self.phase == Phase::Ended {
            self.print("all members are done");
            self.leave(0, now);
        }
    }

    fn exit_as_decided(&mut self, attempt: u64, now: Moment) {
        let Some(own) = self.exit.as_ref().filter(|own| own.exit.attempt == attempt) else {
            return;
        };
        let code = own.exit.code;
        if matches!(
            self.phase,
            Phase::Ended | Phase::Stopping { .. } | Phase::Held { .. }
        ) {
            self.print(&format!("the policy ends this container: exit code {code}"));
            self.leave(code, now);
        }
    }

    fn started(&mut self) {
        if matches!(self.phase, Phase::Running) {
            self.send(FromSupervisor::Started { attempt: self.ran });
        }
    }

    fn progress(&mut self, step: u64, checkpoint: Option<u64>, now: Moment) {
        if self.phase != Phase::Running {
            return;
        }
        let answers = self.requests.note(step, checkpoint, &self.watch.words, now);
        if self.watch.take(step, checkpoint, now) || answers {
            self.send_progress(self.watch.observed(self.ran), now);
        }
        if answers {
            self.print(&format!(
                "checkpoint saved: step {}",
                checkpoint.unwrap_or_default()
            ));
            self.send_requests();
        }
    }

    fn send_progress(&mut self, progress: Option<ObservedProgress>, now: Moment) {
        if let Some(progress) = progress {
            self.watch.mark_reported(now);
            self.actions.push(Effect::SendProgress(progress));
        }
    }

    /// A hang counts as a failure even if the child survives SIGKILL.
    fn hung(&mut self, message: String, now: Moment) {
        self.phase = Phase::Ended;
        let exit = ChildExit {
            attempt: self.ran,
            code: code_of_signal(SIGKILL),
            signal: Some(SIGKILL),
            oom_kills: 0,
            reason: ExitReason::Hang,
            message: Text::cut(message),
        };
        self.report(exit, now);
        self.kill_tree(now);
    }

    fn not_started(&mut self, code: u8, message: String, now: Moment) {
        if !matches!(self.phase, Phase::Running) {
            return;
        }
        self.tree = Tree::None;
        self.idle_since = now;
        self.phase = Phase::Ended;
        let exit = ChildExit {
            attempt: self.ran,
            code,
            signal: None,
            oom_kills: 0,
            reason: ExitReason::StartError,
            message: Text::cut(message),
        };
        self.report(exit, now);
    }

    fn child_ended(&mut self, ending: Ending, oom_kills: u32, now: Moment) {
        match self.phase {
            Phase::Running => {
                let exit = self.exit_of(ending, oom_kills);
                let code = exit.code;
                self.phase = if self.stop.is_some() {
                    Phase::Leaving { code }
                } else {
                    Phase::Ended
                };
                self.report(exit, now);
                // After the end of a container's first process, the kernel kills the rest.
                self.kill_tree(now);
            }
            // The stop signal of an order caused this exit.
            Phase::Stopping { .. } | Phase::Leaving { .. }
                if matches!(self.tree, Tree::Stopping { .. }) =>
            {
                self.kill_tree(now);
            }
            // The order sent SIGKILL. Another exit happened before SIGKILL, and is reported.
            Phase::Stopping { .. } | Phase::Leaving { .. } => {
                if ending != Ending::Signal(SIGKILL) && self.exit.is_none() {
                    let exit = self.exit_of(ending, oom_kills);
                    if let Phase::Leaving { code } = &mut self.phase {
                        *code = exit.code;
                    }
                    self.report(exit, now);
                }
            }
            Phase::Held { .. } | Phase::Ended | Phase::Left => {}
        }
    }

    fn exit_of(&self, ending: Ending, oom_kills: u32) -> ChildExit {
        let (code, signal) = match (ending, self.stop) {
            (Ending::Signal(signal), _) => (code_of_signal(signal), Some(signal)),
            // The child was stopped, so it has not completed, even if it exits 0.
            (Ending::Code(0), Some(signal)) => (code_of_signal(signal), None),
            (Ending::Code(code), _) => (code, None),
        };
        let reason = match (code, self.stop) {
            (_, Some(_)) => ExitReason::Terminated,
            (0, None) => ExitReason::Completed,
            (_, None) if oom_kills > 0 => ExitReason::OomKilled,
            (_, None) => ExitReason::Error,
        };
        ChildExit {
            attempt: self.ran,
            code,
            signal,
            oom_kills,
            reason,
            message: Text::default(),
        }
    }

    fn report(&mut self, exit: ChildExit, now: Moment) {
        self.print(&ended(&exit));
        // Progress first: the agent then knows the last step before the failure.
        self.send_progress(self.watch.unreported(self.ran), now);
        let own = OwnExit { exit, at: now };
        self.actions.push(Effect::SendExit(own.clone()));
        self.exit = Some(own);
    }

    fn tree_ended(&mut self) {
        if !self.kills_tree() {
            return;
        }
        self.tree = Tree::None;
        match self.phase {
            Phase::Stopping { attempt } => self.arrive_cleaned(attempt),
            Phase::Leaving { code } => self.exit(code),
            Phase::Held { .. } | Phase::Running | Phase::Ended | Phase::Left => {}
        }
    }

    fn arrive_cleaned(&mut self, attempt: u64) {
        self.actions.push(Effect::CleanSharedMemory);
        self.arrive(attempt);
    }

    fn arrive(&mut self, attempt: u64) {
        if (self.phase != Phase::Held { attempt }) {
            self.print(&format!("held at the barrier of attempt {attempt}"));
            self.phase = Phase::Held { attempt };
        }
        self.send(FromSupervisor::Arrived { attempt });
    }

    fn kill_tree(&mut self, now: Moment) {
        if matches!(self.tree, Tree::Alive | Tree::Stopping { .. }) {
            self.tree = Tree::Dying {
                since: now,
                reported: false,
            };
            self.idle_since = now;
            self.actions.push(Effect::KillTree);
        }
    }

    fn leave(&mut self, code: u8, now: Moment) {
        self.phase = Phase::Leaving { code };
        match self.tree {
            Tree::Alive => self.kill_tree(now),
            Tree::Stopping { .. }
            | Tree::Dying {
                reported: false, ..
            } => {}
            // Do not wait for overdue processes a second time.
            Tree::None | Tree::Dying { reported: true, .. } => self.exit(code),
        }
    }

    fn exit(&mut self, code: u8) {
        self.print(&format!("exit code {code}"));
        self.phase = Phase::Left;
        self.actions.push(Effect::Exit(code));
    }

    fn send(&mut self, message: FromSupervisor) {
        self.actions.push(Effect::Send(message));
    }

    fn print_once(&mut self, line: &str) {
        if self.notice != line {
            self.print(line);
            line.clone_into(&mut self.notice);
        }
    }

    fn print(&mut self, line: &str) {
        self.actions.push(Effect::Print(line.to_owned()));
    }
}

fn code_of_signal(signal: SignalNumber) -> u8 {
    SIGNAL_BASE.saturating_add(signal)
}

#[cfg(test)]
mod tests;
