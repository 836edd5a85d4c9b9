//! Input and output of the machine.

use std::time::Duration;

use lockstep_supervisor_protocol::{
    Checkpoint, ChildExit, FromAgent, FromSupervisor, MAX_PROGRESS, Progress, Release, SaveRequest,
    Text,
};

/// Time since boot.
pub type Moment = Duration;

/// Time limits of the supervisor, and the stop signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Stop signal of the container; default SIGTERM.
    pub stop_signal: SignalNumber,
    /// Time from the stop signal to SIGKILL if an order stops the child; default 0 s: SIGKILL at
    /// once.
    pub stop_grace: Duration,
    /// Longest absence of the agent after a failure; default 60 s.
    pub agent_away: Duration,
    /// Longest wait for the manager's decision after a failure; default 120 s.
    pub manager_away: Duration,
    /// Longest wait for the other members of the domain after exit 0; default 300 s.
    pub complete: Duration,
    /// Time after SIGKILL until living processes are reported; default 10 s.
    pub survivors: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            stop_signal: 15,
            stop_grace: Duration::ZERO,
            agent_away: Duration::from_mins(1),
            manager_away: Duration::from_mins(2),
            complete: Duration::from_mins(5),
            survivors: Duration::from_secs(10),
        }
    }
}

/// Number of a signal.
pub type SignalNumber = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Code(u8),
    Signal(SignalNumber),
}

/// Input of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A new agent has connected and replaces the previous one. The agent knows no state yet.
    AgentCame,
    AgentWent,
    Order(FromAgent),
    /// A request for a checkpoint. The child's progress was read just before.
    Request {
        request: SaveRequest,
        /// Deadline of the request.
        deadline: Moment,
    },
    /// [`Effect::Request`] was performed.
    Requested {
        /// True if the file was written.
        written: bool,
        /// True if a process has received the signal.
        signalled: bool,
    },
    /// A signal other than SIGCHLD has arrived.
    Signal(SignalNumber),
    Started,
    NotStarted {
        /// Exit code for this failure.
        code: u8,
        message: String,
    },
    ChildEnded {
        ending: Ending,
        /// Processes of the container that the kernel has OOM-killed since the child started.
        oom_kills: u32,
    },
    /// The supervisor has no descendants left.
    TreeEnded,
    /// The child has reported a new step or checkpoint.
    Progress {
        step: u64,
        /// Step of the last saved checkpoint, if the child reports checkpoints.
        checkpoint: Option<u64>,
        /// Further words of the report.
        words: Text<MAX_PROGRESS>,
    },
    /// The time of [`Machine::next_deadline`] has passed.
    Time,
}

/// Output of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Start the child; answered by [`Event::Started`] or [`Event::NotStarted`].
    Start(Release),
    /// Send a signal to the child.
    Forward(SignalNumber),
    /// Write the file of requests, then send the signal to the processes with a handler; answered by
    /// [`Event::Requested`].
    Request {
        request: SaveRequest,
        signal: Option<SignalNumber>,
    },
    /// Kill all descendants repeatedly; answered by [`Event::TreeEnded`].
    KillTree,
    /// Unlink files that the child left in shared memory.
    CleanSharedMemory,
    /// Send a message to the agent. Without an agent it is lost; a new connection gets the current
    /// state.
    Send(FromSupervisor),
    /// Send the exit of the child. Lost without an agent.
    SendExit(OwnExit),
    /// Report the living descendants of this attempt.
    ReportSurvivors { attempt: u64 },
    /// Send the child's progress. Lost without an agent.
    SendProgress(ObservedProgress),
    /// Print a line.
    Print(String),
    /// Exit. No effect follows.
    Exit(u8),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnExit {
    pub exit: ChildExit,
    pub at: Moment,
}

impl OwnExit {
    /// Converts to a frame. `time_of_day` converts a moment to time since 1970.
    pub fn into_frame(self, time_of_day: impl Fn(Moment) -> Duration) -> FromSupervisor {
        FromSupervisor::Exited {
            exit: self.exit,
            time: u64::try_from(time_of_day(self.at).as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// Progress of a child and the times at which it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedProgress {
    pub attempt: u64,
    pub step: u64,
    pub step_at: Moment,
    /// Step of the last checkpoint and the time of its first report.
    pub checkpoint: Option<(u64, Moment)>,
    pub words: Text<MAX_PROGRESS>,
}

impl ObservedProgress {
    /// Converts to a frame. `time_of_day` converts a moment to time since 1970.
    pub fn into_frame(self, time_of_day: impl Fn(Moment) -> Duration) -> FromSupervisor {
        let seconds = |at| time_of_day(at).as_secs();
        FromSupervisor::Progress(Progress {
            attempt: self.attempt,
            step: self.step,
            step_time: seconds(self.step_at),
            checkpoint: self.checkpoint.map(|(step, at)| Checkpoint {
                step,
                time: seconds(at),
            }),
            words: self.words,
        })
    }
}

/// State for probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visible {
    /// No child has run yet.
    Starting,
    /// No child runs since this moment.
    Held(Moment),
    Running(Moment),
}
