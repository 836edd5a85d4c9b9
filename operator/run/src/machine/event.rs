//! What goes into the machine and what comes out.

use std::time::Duration;

use lockstep_wire::{Checkpoint, ChildExit, FromAgent, FromSupervisor, Progress, Release};

/// Time since the machine booted.
pub type Moment = Duration;

/// How long the supervisor waits for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// After a failure, for an agent that is away.
    pub agent_away: Duration,
    /// After a failure, for a decision of the manager.
    pub manager_away: Duration,
    /// After exit 0, for the other members of the domain.
    pub complete: Duration,
    /// For killed processes to be gone.
    pub survivors: Duration,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            agent_away: Duration::from_mins(1),
            manager_away: Duration::from_mins(2),
            complete: Duration::from_mins(5),
            survivors: Duration::from_secs(10),
        }
    }
}

/// Number of a signal.
pub type SignalNumber = u8;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this code.
    Code(u8),
    /// By this signal.
    Signal(SignalNumber),
}

/// What happens to the supervisor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An agent is connected, in place of the one before if there was one. It knows nothing yet.
    AgentCame,
    /// The connection to the agent has ended.
    AgentWent,
    /// The agent says something.
    Order(FromAgent),
    /// A signal other than SIGCHLD has arrived.
    Signal(SignalNumber),
    /// The child asked for by [`Effect::Start`] runs.
    Started,
    /// The child asked for by [`Effect::Start`] could not be started.
    NotStarted {
        /// Exit code that stands for it.
        code: u8,
        /// For people.
        message: String,
    },
    /// The child has ended.
    ChildEnded {
        /// How.
        ending: Ending,
        /// Processes of the container that the kernel has killed for memory since it started.
        oom_kills: u32,
    },
    /// No process that descends from the supervisor is left.
    TreeGone,
    /// The child has told another step or checkpoint than before.
    Progress {
        /// The step that it is at.
        step: u64,
        /// The step of the last checkpoint that it has saved, if it tells of one.
        checkpoint: Option<u64>,
    },
    /// Time has passed: [`Machine::next_deadline`].
    Time,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Start the child; answered by [`Event::Started`] or [`Event::NotStarted`].
    Start(Release),
    /// Send a signal to the child.
    Forward(SignalNumber),
    /// Kill every descendant until none is left; answered by [`Event::TreeGone`].
    KillTree,
    /// Unlink what the child has left in shared memory.
    CleanSharedMemory,
    /// Send to the agent. Lost if there is none: what matters is said again when one comes.
    Send(FromSupervisor),
    /// Send how the child has ended by itself. Lost if there is no agent.
    SendExit(OwnExit),
    /// Send which descendants of this attempt are still alive.
    ReportSurvivors {
        /// The attempt.
        attempt: u64,
    },
    /// Send how far the child has come. Lost if there is no agent.
    SendProgress(ProgressSeen),
    /// Print a line.
    Print(String),
    /// Exit. The last action there is.
    Exit(u8),
}

/// How a child ended by itself, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnExit {
    /// How.
    pub exit: ChildExit,
    /// When.
    pub at: Moment,
}

impl OwnExit {
    /// For the agent; `time_of_day`: a moment as time since 1970.
    pub fn into_frame(self, time_of_day: impl Fn(Moment) -> Duration) -> FromSupervisor {
        FromSupervisor::Exited {
            exit: self.exit,
            time: u64::try_from(time_of_day(self.at).as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// How far a child has come, and when that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressSeen {
    /// The attempt.
    pub attempt: u64,
    /// The step that it is at.
    pub step: u64,
    /// When it came to that step.
    pub step_at: Moment,
    /// The step of its last checkpoint, and when it first told of that.
    pub checkpoint: Option<(u64, Moment)>,
}

impl ProgressSeen {
    /// For the agent; `time_of_day`: a moment as time since 1970.
    pub fn to_frame(&self, time_of_day: impl Fn(Moment) -> Duration) -> FromSupervisor {
        let seconds = |at| time_of_day(at).as_secs();
        FromSupervisor::Progress(Progress {
            attempt: self.attempt,
            step: self.step,
            step_time: seconds(self.step_at),
            checkpoint: self.checkpoint.map(|(step, at)| Checkpoint {
                step,
                time: seconds(at),
            }),
        })
    }
}

/// What probes need to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visible {
    /// No child has run yet.
    Starting,
    /// There is no child, since this moment.
    Held(Moment),
    /// The child runs.
    Running,
}
