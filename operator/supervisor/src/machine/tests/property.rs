//! Invariants over random histories.

use std::time::Duration;

use lockstep_supervisor_protocol::{
    ExitReason, FromAgent, FromSupervisor, ProgressLimits, SaveReply, Text,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{HELD, START, TERM, USR1, call, release, release_held, release_with};
use crate::machine::{Effect, Ending, Event, Machine, Moment, OwnExit, Waits};

/// External events. An event that is impossible in the current state is skipped.
#[derive(Clone, Debug)]
enum Step {
    AgentComes,
    AgentGoes,
    Order(FromAgent),
    Signal(u8),
    /// The child ends without an order.
    ChildEnds {
        ending: Ending,
        oom_kills: u32,
    },
    TreeDies,
    Seconds(u64),
    Tells {
        step: u64,
        checkpoint: Option<u64>,
    },
    /// A request for a checkpoint. `handled`: a process has a handler.
    Calls {
        id: u8,
        seconds: u64,
        watch: bool,
        handled: bool,
    },
    BreakProgram,
}

fn steps() -> impl Strategy<Value = Step> {
    let attempts = 1u64..6;
    let orders = prop_oneof![
        4 => attempts.clone().prop_map(|attempt| FromAgent::Hold { attempt }),
        2 => attempts.clone().prop_map(release),
        2 => (attempts.clone(), 1u32..200, 1u32..200).prop_map(|(attempt, timeout_seconds, startup_seconds)| {
            release_with(attempt, Some(ProgressLimits { timeout_seconds, startup_seconds }))
        }),
        2 => attempts.clone().prop_map(release_held),
        1 => attempts.clone().prop_map(|attempt| FromAgent::Complete { attempt }),
        1 => attempts.clone().prop_map(|attempt| FromAgent::Stop { attempt }),
        1 => attempts.prop_map(|attempt| FromAgent::Exit { attempt }),
    ];
    let endings = prop_oneof![
        (0u8..4).prop_map(Ending::Code),
        prop_oneof![Just(9u8), Just(11)].prop_map(Ending::Signal)
    ];
    prop_oneof![
        2 => Just(Step::AgentComes),
        1 => Just(Step::AgentGoes),
        12 => orders.prop_map(Step::Order),
        1 => prop_oneof![Just(2u8), Just(15), Just(USR1)].prop_map(Step::Signal),
        4 => (endings, 0u32..2).prop_map(|(ending, oom_kills)| Step::ChildEnds { ending, oom_kills }),
        4 => Just(Step::TreeDies),
        3 => (0u64..200).prop_map(Step::Seconds),
        3 => (0u64..5, proptest::option::of(0u64..3)).prop_map(|(step, checkpoint)| Step::Tells { step, checkpoint }),
        2 => (0u8..3, 0u64..300, any::<bool>(), any::<bool>())
            .prop_map(|(id, seconds, watch, handled)| Step::Calls { id, seconds, watch, handled }),
        1 => Just(Step::BreakProgram),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tree {
    Gone,
    Alive,
    Killed,
}

/// A request for a checkpoint.
struct Called {
    id: Text<128>,
    watch: bool,
    handled: bool,
    /// Step of the child at the request.
    step: Option<u64>,
}

/// Model of the processes and of all messages.
struct World {
    machine: Machine,
    now: Moment,
    agent: bool,
    breaks: bool,
    child: bool,
    tree: Tree,
    /// Highest attempt ordered while an agent was connected.
    held: u64,
    /// Received releases, of any attempt.
    released: Vec<u64>,
    /// Last started attempt and its limits.
    started: u64,
    limits: Option<ProgressLimits>,
    told: u32,
    /// Start of the current child, and time of its start or last new step.
    started_at: Moment,
    moved_at: Moment,
    step: Option<u64>,
    /// Last request to the current child.
    called: Option<Called>,
    /// Time of a stop signal that the current child has not received.
    held_since: Option<Moment>,
    /// Allowed exit codes of the supervisor.
    codes: Vec<u8>,
    /// The attempt whose exit was reported, and the time of the exit.
    ended: Option<(u64, Moment)>,
    /// The attempt that failed without a later one, and its code.
    failed: Option<(u64, u8)>,
    exited: Option<u8>,
}

impl World {
    fn new(stop_grace: Duration) -> Self {
        let now = Duration::from_secs(START);
        let waits = Waits {
            stop_grace,
            ..Waits::default()
        };
        Self {
            machine: Machine::new(waits, now),
            now,
            agent: false,
            breaks: false,
            child: false,
            tree: Tree::Gone,
            held: 0,
            released: Vec::new(),
            started: 0,
            limits: None,
            told: 0,
            started_at: now,
            moved_at: now,
            step: None,
            called: None,
            held_since: None,
            codes: Vec::new(),
            ended: None,
            failed: None,
            exited: None,
        }
    }

    fn take(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::AgentComes => {
                self.agent = true;
                self.give(Event::AgentCame)
            }
            Step::AgentGoes if self.agent => {
                self.agent = false;
                self.give(Event::AgentWent)
            }
            Step::Order(order) if self.agent => {
                match &order {
                    FromAgent::Hold { attempt } => self.held = self.held.max(*attempt),
                    FromAgent::Release(release) => self.released.push(release.attempt),
                    _ => {}
                }
                self.give(Event::Order(order))
            }
            Step::Signal(signal) => {
                if signal != USR1 {
                    self.codes.push(128 + signal);
                    let waits = signal == TERM && self.child && self.tree == Tree::Alive;
                    self.held_since = self.held_since.or(waits.then_some(self.now));
                }
                self.give(Event::Signal(signal))
            }
            Step::ChildEnds { ending, oom_kills } if self.child => {
                self.child = false;
                self.give(Event::ChildEnded { ending, oom_kills })
            }
            Step::TreeDies if self.tree == Tree::Killed => self.tree_dies(),
            Step::Seconds(seconds) => {
                self.now += Duration::from_secs(seconds);
                self.give(Event::Time)
            }
            Step::Tells { step, checkpoint } if self.child && self.tree == Tree::Alive => {
                self.told += 1;
                if self.step.replace(step) != Some(step) {
                    self.moved_at = self.now;
                }
                self.give(Event::Progress {
                    step,
                    checkpoint,
                    words: Text::default(),
                })
            }
            Step::Calls {
                id,
                seconds,
                watch,
                handled,
            } if self.agent => self.calls(id, seconds, watch, handled),
            Step::BreakProgram => {
                self.breaks = true;
                Ok(())
            }
            Step::AgentGoes
            | Step::Order(_)
            | Step::ChildEnds { .. }
            | Step::Tells { .. }
            | Step::Calls { .. }
            | Step::TreeDies => Ok(()),
        }
    }

    fn calls(
        &mut self,
        id: u8,
        seconds: u64,
        watch: bool,
        handled: bool,
    ) -> Result<(), TestCaseError> {
        let (request, deadline) = call(
            (self.started, &id.to_string()),
            self.now + Duration::from_secs(seconds),
            watch,
        );
        let repeated = (self.called.as_ref()).is_some_and(|called| called.id == request.id);
        if self.child && self.tree == Tree::Alive && !repeated {
            self.called = Some(Called {
                id: request.id.clone(),
                watch,
                handled,
                step: self.step,
            });
        }
        self.give(Event::Request { request, deadline })
    }

    fn tree_dies(&mut self) -> Result<(), TestCaseError> {
        if std::mem::take(&mut self.child) {
            self.give(Event::ChildEnded {
                ending: Ending::Signal(9),
                oom_kills: 0,
            })?;
        }
        self.tree = Tree::Gone;
        self.give(Event::TreeEnded)
    }

    fn give(&mut self, event: Event) -> Result<(), TestCaseError> {
        let actions = self.machine.on(event, self.now);
        prop_assert!(
            self.exited.is_none() || actions.is_empty(),
            "nothing is done after the exit: {actions:?}"
        );
        let mut next = None;
        for action in actions {
            prop_assert!(self.exited.is_none(), "the exit is the last action");
            match action {
                Effect::Start(release) => {
                    prop_assert!(self.tree == Tree::Gone, "two trees at once");
                    prop_assert!(self.agent, "no release comes without an agent");
                    prop_assert_eq!(
                        release.attempt,
                        self.held,
                        "released for exactly the attempt that is held"
                    );
                    prop_assert!(self.released.contains(&release.attempt));
                    prop_assert!(release.attempt > self.started, "attempts rise");
                    self.started = release.attempt;
                    self.limits = release.progress;
                    (self.started_at, self.moved_at, self.step) = (self.now, self.now, None);
                    (self.called, self.held_since) = (None, None);
                    self.failed = None;
                    self.codes.retain(|code| *code >= 128);
                    next = Some(self.start());
                }
                Effect::KillTree => {
                    prop_assert!(self.tree == Tree::Alive);
                    self.tree = Tree::Killed;
                }
                Effect::Forward(signal) => {
                    prop_assert!(self.child, "a signal for a child that is not there");
                    if signal != USR1 {
                        self.held_since = None;
                    }
                }
                Effect::Request { request, .. } => {
                    prop_assert!(self.child && self.tree == Tree::Alive && !request.watch);
                    prop_assert_eq!(request.attempt, self.started);
                    next = Some(Event::Requested {
                        written: true,
                        signalled: self.called.as_ref().is_some_and(|c| c.handled),
                    });
                }
                Effect::CleanSharedMemory => {
                    prop_assert!(self.tree == Tree::Gone, "shared memory of living processes");
                }
                Effect::Send(message) => self.hears(&message)?,
                Effect::SendExit(own) => self.hears_exit(&own)?,
                // The last progress is sent at the end of the child, which may be ordered.
                Effect::SendProgress(seen) => {
                    prop_assert!(self.tree != Tree::Gone);
                    prop_assert_eq!((seen.attempt, Some(seen.step)), (self.started, self.step));
                    prop_assert_eq!(seen.step_at, self.moved_at);
                }
                Effect::ReportSurvivors { .. } => prop_assert!(self.tree == Tree::Killed),
                Effect::Exit(code) => {
                    prop_assert!(
                        self.codes.contains(&code),
                        "exit code {code}, not one of {:?}",
                        self.codes
                    );
                    self.exited = Some(code);
                }
                Effect::Print(_) => {}
            }
        }
        prop_assert!(
            self.machine.next_deadline().is_none_or(|at| at > self.now),
            "time does not stand still"
        );
        let held = self
            .held_since
            .filter(|_| self.child && self.tree == Tree::Alive);
        let longest = Duration::from_secs(HELD.into());
        prop_assert!(
            held.is_none_or(|since| self.now < since + longest),
            "held for too long"
        );
        next.map_or(Ok(()), |event| self.give(event))
    }

    /// Only a child that reports progress hangs, and not before its limits.
    fn hangs(&self) -> Result<(), TestCaseError> {
        let Some(limits) = self.limits else {
            prop_assert!(false, "a child without limits hangs");
            return Ok(());
        };
        prop_assert!(self.told > 0, "it has told nothing, nor has one before it");
        let since = |at| self.now.saturating_sub(at).as_secs();
        prop_assert!(since(self.started_at) >= limits.startup_seconds.into());
        prop_assert!(self.held_since.is_none(), "a stop signal waits");
        let steps = self.step.is_some();
        prop_assert!(!steps || since(self.moved_at) >= limits.timeout_seconds.into());
        Ok(())
    }

    /// An exit is reported when it happens. Repeated reports have the same time.
    fn hears_exit(&mut self, own: &OwnExit) -> Result<(), TestCaseError> {
        let exit = &own.exit;
        prop_assert_eq!(exit.attempt, self.started);
        let known = self.ended.filter(|(attempt, _)| *attempt == exit.attempt);
        prop_assert_eq!(own.at, known.map_or(self.now, |(_, at)| at));
        self.ended = Some((exit.attempt, own.at));
        if exit.reason == ExitReason::Hang {
            self.hangs()?;
        } else {
            prop_assert!(!self.child);
        }
        self.codes.push(exit.code);
        self.failed = (exit.code != 0).then_some((exit.attempt, exit.code));
        Ok(())
    }

    fn start(&mut self) -> Event {
        if std::mem::take(&mut self.breaks) {
            return Event::NotStarted {
                code: 127,
                message: "no such file".to_owned(),
            };
        }
        (self.child, self.tree) = (true, Tree::Alive);
        Event::Started
    }

    fn hears(&mut self, message: &FromSupervisor) -> Result<(), TestCaseError> {
        match message {
            FromSupervisor::Arrived { attempt } => {
                prop_assert!(self.tree == Tree::Gone, "arrived while something runs");
                prop_assert_eq!(*attempt, self.held);
            }
            FromSupervisor::Started { attempt } => {
                prop_assert!(self.child && *attempt == self.started);
            }
            FromSupervisor::Checkpoint { request, reply } => {
                prop_assert_eq!(request.attempt, self.started);
                let Some(called) = &self.called else {
                    return Err(TestCaseError::fail("nobody has asked"));
                };
                prop_assert_eq!(&request.id, &called.id);
                if let SaveReply::Saved(saved) = reply {
                    let older = called.step > Some(*saved);
                    prop_assert!(self.told > 0 && (called.watch || !older), "an older step");
                }
            }
            FromSupervisor::PassesStops { attempt } => prop_assert_eq!(*attempt, self.started),
            FromSupervisor::Hello { .. }
            | FromSupervisor::Exited { .. }
            | FromSupervisor::Survivors { .. }
            | FromSupervisor::Progress(_) => {
                prop_assert!(false, "not the machine's");
            }
        }
        Ok(())
    }
}

proptest! {
    #[test]
    fn no_child_without_its_release_and_no_exit_without_its_code(steps in vec(steps(), 1..80), grace in 0u64..40) {
        let mut world = World::new(Duration::from_secs(grace.saturating_sub(20)));
        for step in steps {
            world.take(step)?;
        }
        // In any state: without an agent a failure ends the container with its code, and no child
        // starts.
        let watched = world.told > 0 && world.limits.is_some();
        let ran = world.child && world.tree == Tree::Alive && !watched;
        let failed = world.failed;
        let started = world.started;
        world.take(Step::AgentGoes)?;
        world.take(Step::TreeDies)?;
        world.take(Step::Seconds(3600))?;
        prop_assert_eq!(world.started, started);
        match failed {
            Some((attempt, code)) if attempt == started => {
                let others: Vec<u8> = world.codes.iter().copied().filter(|c| *c >= 128).collect();
                let right = |exit| exit == code || others.contains(&exit);
                prop_assert!(world.exited.is_some_and(right), "{:?} instead of {code}", world.exited);
            }
            _ => prop_assert!(!ran || world.exited.is_none(), "training goes on without agent and manager"),
        }
    }
}
