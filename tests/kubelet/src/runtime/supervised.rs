//! A supervised training container: the supervisor's decisions (`lockstep_supervisor::machine`)
//! with a simulated child. Delayed work is returned, as everywhere in the simulated runtime.

use std::time::Duration;

use chrono::{DateTime, Utc};
use k8s_openapi::api::core::v1::Container;
use lockstep_agent::supervisors::frames::{frame, on_frame};
use lockstep_api::names::{SUPERVISOR_DIR, SUPERVISOR_PROGRAM};
use lockstep_node::{SupervisorCommand, SupervisorState};
use lockstep_supervisor::machine::{Effect, Ending, Event, Machine, Moment, Waits};
use lockstep_supervisor_protocol::{FromAgent, FromSupervisor, SaveReply, Text};

use super::script::{OnCheckpoint, OnTerm, Script};
use super::table::Ended;

/// SIGKILL. A shell's exit code is the signal plus 128.
const SIGKILL: u8 = 9;
const SIGNAL_BASE: i32 = 128;

/// A delayed change in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Later {
    /// The child of an attempt ends by itself, unless it has already ended.
    ChildEnds {
        /// The attempt.
        attempt: u64,
        /// Kind of end.
        ended: Ended,
    },
    /// The child of an attempt reaches its next step, if it still runs.
    Steps {
        /// The attempt.
        attempt: u64,
        /// The step.
        step: u64,
    },
    /// The child of an attempt saves its current step, as requested, if it still runs.
    Saves {
        /// The attempt.
        attempt: u64,
    },
    /// All processes that were killed have ended.
    TreeEnded,
    /// A time that the supervisor waits for.
    Time,
    /// The supervisor exits, and with it the container.
    Exits(i32),
}

/// Content of the progress file.
#[derive(Clone, Copy, Debug)]
pub struct ReportedProgress<'a> {
    /// The step.
    pub step: u64,
    /// The last checkpoint.
    pub checkpoint: Option<u64>,
    /// Further words.
    pub words: &'a str,
}

impl ReportedProgress<'static> {
    /// A report without further words.
    pub fn of(step: u64, checkpoint: Option<u64>) -> Self {
        Self {
            step,
            checkpoint,
            words: "",
        }
    }
}

/// Why a child without steps has not hung: a request for a checkpoint. By the node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It was requested, with this deadline.
    Until(DateTime<Utc>),
    /// It was saved at this time.
    SavedAt(DateTime<Utc>),
}

/// A supervisor with its child.
#[derive(Debug)]
pub(super) struct Supervised {
    machine: Machine,
    script: Script,
    kill: Duration,
    /// Attempt of the running child.
    child: Option<u64>,
    /// Last step of the child, and the last one that it saved on request.
    step: u64,
    saved: Option<u64>,
    /// Deadline of the last request.
    deadline: Moment,
    patience: Option<Patience>,
    /// State that the agent has received. `None` without an agent.
    told: Option<SupervisorState>,
}

/// True if the command of a container is the supervisor's.
pub(super) fn is_supervised(container: &Container) -> bool {
    let command = container.command.iter().flatten();
    let program = format!("{SUPERVISOR_DIR}/{SUPERVISOR_PROGRAM}");
    command.take(2).map(String::as_str).eq([&program, "exec"])
}

impl Supervised {
    /// `kill` is the duration of a SIGKILL.
    pub fn new(script: Script, kill: Duration, now: DateTime<Utc>) -> Self {
        Self {
            machine: Machine::new(Waits::default(), moment(now)),
            script,
            kill,
            child: None,
            step: 0,
            saved: None,
            deadline: Moment::ZERO,
            patience: None,
            told: None,
        }
    }

    /// State that the agent has received.
    pub fn told(&self) -> Option<&SupervisorState> {
        self.told.as_ref()
    }

    /// Attempt of the running child.
    pub fn child(&self) -> Option<u64> {
        self.child
    }

    /// Patience with the running child.
    pub fn patience(&self) -> Option<Patience> {
        self.patience
    }

    /// Links an agent, or unlinks it.
    pub fn link(&mut self, linked: bool, now: DateTime<Utc>) -> Vec<(Duration, Later)> {
        if linked == self.told.is_some() {
            return Vec::new();
        }
        self.told = linked.then(|| SupervisorState {
            takes_requests: true,
            ..SupervisorState::default()
        });
        let event = if linked {
            Event::AgentCame
        } else {
            Event::AgentWent
        };
        self.on(event, now)
    }

    /// Processes a command of the agent.
    pub fn on_command(
        &mut self,
        command: &SupervisorCommand,
        now: DateTime<Utc>,
    ) -> Vec<(Duration, Later)> {
        match frame(command).filter(|_| self.told.is_some()) {
            Some(FromAgent::Checkpoint(request)) => {
                let deadline = Duration::from_secs(request.deadline);
                self.deadline = deadline;
                self.on(Event::Request { request, deadline }, now)
            }
            Some(order) => self.on(Event::Order(order), now),
            None => Vec::new(),
        }
    }

    /// The kubelet sends SIGTERM.
    pub fn terminate(&mut self, now: DateTime<Utc>) -> Vec<(Duration, Later)> {
        self.on(Event::Signal(15), now)
    }

    /// The child ends by itself or by a signal from outside.
    pub fn child_ends(&mut self, ended: &Ended, now: DateTime<Utc>) -> Vec<(Duration, Later)> {
        if self.child.take().is_none() {
            return Vec::new();
        }
        let code = ended.exit_code;
        let ending = match u8::try_from(code - SIGNAL_BASE) {
            Ok(signal) if signal == SIGKILL => Ending::Signal(signal),
            _ => Ending::Code(u8::try_from(code).unwrap_or(1)),
        };
        let oom_kills = u32::from(ended.reason == "OOMKilled");
        self.on(Event::ChildEnded { ending, oom_kills }, now)
    }

    /// Reports progress of the child. A checkpoint on request stays the last one until a later one.
    pub fn tells(
        &mut self,
        report: ReportedProgress<'_>,
        now: DateTime<Utc>,
    ) -> Vec<(Duration, Later)> {
        if self.child.is_none() {
            return Vec::new();
        }
        self.step = report.step;
        let report = Event::Progress {
            step: report.step,
            checkpoint: report.checkpoint.max(self.saved),
            words: Text::cut(report.words),
        };
        self.on(report, now)
    }

    fn next_step(&self, attempt: u64, step: u64) -> Option<(Duration, Later)> {
        let hangs = attempt == 1 && self.script.hangs_after.is_some_and(|last| step > last);
        let wait = self.script.step.filter(|_| !hangs)?;
        Some((wait, Later::Steps { attempt, step }))
    }

    /// Applies a delayed change.
    pub fn happen(&mut self, later: &Later, now: DateTime<Utc>) -> Vec<(Duration, Later)> {
        match later {
            Later::ChildEnds { attempt, ended } if self.child == Some(*attempt) => {
                self.child_ends(ended, now)
            }
            Later::Steps { attempt, step } if self.child == Some(*attempt) => {
                let mut out = self.tells(ReportedProgress::of(*step, None), now);
                out.extend(self.next_step(*attempt, *step + 1));
                out
            }
            Later::Saves { attempt } if self.child == Some(*attempt) => {
                self.saved = Some(self.step);
                self.tells(ReportedProgress::of(self.step, None), now)
            }
            Later::TreeEnded => {
                let killed = Event::ChildEnded {
                    ending: Ending::Signal(SIGKILL),
                    oom_kills: 0,
                };
                let mut out = Vec::new();
                if self.child.take().is_some() {
                    out = self.on(killed, now);
                }
                out.extend(self.on(Event::TreeEnded, now));
                out
            }
            Later::Time => self.on(Event::Time, now),
            Later::ChildEnds { .. }
            | Later::Steps { .. }
            | Later::Saves { .. }
            | Later::Exits(_) => Vec::new(),
        }
    }

    fn on(&mut self, event: Event, now: DateTime<Utc>) -> Vec<(Duration, Later)> {
        let mut out = Vec::new();
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for effect in self.machine.on(event, moment(now)) {
                match effect {
                    Effect::Start(release) => {
                        let attempt = release.attempt;
                        self.child = Some(attempt);
                        (self.step, self.saved, self.patience) = (0, None, None);
                        events.push(Event::Started);
                        if let Some(run) = self.script.run {
                            let ended = self.script.end.clone();
                            out.push((run, Later::ChildEnds { attempt, ended }));
                        }
                        out.extend(self.next_step(attempt, 1));
                    }
                    Effect::Forward(_) => out.extend(self.forwarded()),
                    Effect::Request { request, .. } => {
                        let signalled = self.script.on_checkpoint.is_some();
                        let written = true;
                        events.push(Event::Requested { written, signalled });
                        out.extend(self.requested(request.attempt));
                    }
                    Effect::KillTree => out.push((self.kill, Later::TreeEnded)),
                    Effect::Send(said) => {
                        self.note(&said, now);
                        self.say(&said);
                    }
                    Effect::SendExit(own) => self.say(&own.into_frame(|at| at)),
                    Effect::SendProgress(seen) => self.say(&seen.into_frame(|at| at)),
                    Effect::Exit(code) => {
                        out.push((Duration::ZERO, Later::Exits(code.into())));
                    }
                    Effect::CleanSharedMemory
                    | Effect::ReportSurvivors { .. }
                    | Effect::Print(_) => {}
                }
            }
        }
        if let Some(due) = self.machine.next_deadline() {
            out.push((due.saturating_sub(moment(now)), Later::Time));
        }
        out
    }

    /// A repeated reply changes nothing.
    fn note(&mut self, said: &FromSupervisor, now: DateTime<Utc>) {
        let FromSupervisor::Checkpoint { reply, .. } = said else {
            return;
        };
        self.patience = match (reply, self.patience) {
            (SaveReply::Requested, _) => {
                let deadline = i64::try_from(self.deadline.as_secs()).unwrap_or_default();
                DateTime::from_timestamp(deadline, 0).map(Patience::Until)
            }
            (SaveReply::Saved(_), before @ Some(Patience::SavedAt(_))) => before,
            (SaveReply::Saved(_), _) => Some(Patience::SavedAt(now)),
            (SaveReply::Unsupported, _) => None,
        };
    }

    fn say(&mut self, said: &FromSupervisor) {
        let told = self.told.take();
        self.told = told.map(|told| on_frame(&told, said).unwrap_or(told));
    }

    /// Reaction of the child to a request for a checkpoint.
    fn requested(&self, attempt: u64) -> Option<(Duration, Later)> {
        let later = match self.script.on_checkpoint? {
            OnCheckpoint::Save => Later::Saves { attempt },
            OnCheckpoint::Exit(code) => {
                let ended = Ended::with_code(code);
                Later::ChildEnds { attempt, ended }
            }
            OnCheckpoint::Ignore => return None,
        };
        Some((self.script.checkpoint, later))
    }

    /// Reaction of the child to SIGTERM.
    fn forwarded(&self) -> Option<(Duration, Later)> {
        let OnTerm::Exit(code) = self.script.on_term else {
            return None;
        };
        let ended = Ended::with_code(code);
        let attempt = self.child?;
        Some((
            self.script.term.unwrap_or(self.kill),
            Later::ChildEnds { attempt, ended },
        ))
    }
}

/// Moments of this model are times of day.
fn moment(now: DateTime<Utc>) -> Moment {
    Duration::from_millis(u64::try_from(now.timestamp_millis()).unwrap_or_default())
}
