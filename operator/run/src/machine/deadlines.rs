//! What the supervisor does because time has passed.

use super::event::{Effect, Moment};
use super::{Machine, Phase, SIGKILL, Tree, code_of_signal};

/// What is due.
pub(super) enum Due {
    /// Killed processes are still alive.
    Survivors,
    /// Leave with the child's code, for this reason.
    GiveUp(String),
    /// The child has hung, as this says.
    Hang(String),
}

impl Machine {
    pub(super) fn pass_deadlines(&mut self, now: Moment) {
        while let Some((at, due)) = self.due()
            && at <= now
        {
            match due {
                Due::Survivors => self.survivors(),
                Due::Hang(message) => self.hung(message, now),
                Due::GiveUp(why) => {
                    self.print(&why);
                    let code = self
                        .exit
                        .as_ref()
                        .map_or(code_of_signal(SIGKILL), |own| own.exit.code);
                    self.leave(code, now);
                }
            }
        }
    }

    fn survivors(&mut self) {
        if let Tree::Dying { reported, .. } = &mut self.tree {
            *reported = true;
        }
        self.actions
            .push(Effect::ReportSurvivors { attempt: self.ran });
        if let Phase::Leaving { code } = self.phase {
            self.exit(code);
        }
    }

    /// What happens next by itself, and when. Nothing that is due twice at the same moment.
    pub(super) fn due(&self) -> Option<(Moment, Due)> {
        let survivors = match self.tree {
            Tree::Dying {
                since,
                reported: false,
            } => Some((since + self.waits.survivors, Due::Survivors)),
            _ => None,
        };
        let waited_for = match self.phase {
            Phase::Ended | Phase::Held { .. } | Phase::Stopping { .. } => self.gives_up(),
            Phase::Running => self.hangs(),
            Phase::Leaving { .. } | Phase::Left => None,
        };
        [survivors, waited_for]
            .into_iter()
            .flatten()
            .min_by_key(|(at, _)| *at)
    }

    /// When the child will have hung. One that was told to stop has its grace period instead.
    fn hangs(&self) -> Option<(Moment, Due)> {
        let hang = self.watch.hang().filter(|_| self.stop.is_none())?;
        Some((hang.at, Due::Hang(hang.message)))
    }

    /// When waiting ends, with the child's code. A child that was stopped on order has no code of
    /// its own, and waits on.
    fn gives_up(&self) -> Option<(Moment, Due)> {
        let own = self.exit.as_ref()?;
        if own.exit.code == 0 {
            let why = "the other members are not done in time";
            return (self.phase == Phase::Ended)
                .then(|| (own.at + self.waits.complete, Due::GiveUp(why.to_owned())));
        }
        let agent = self.agent_away.map(|since| {
            (
                since.max(own.at) + self.waits.agent_away,
                "the agent stays away",
            )
        });
        // From the order to hold on, the incident is decided and recorded.
        let decided = self.phase != Phase::Ended;
        let manager =
            (!decided).then(|| (own.at + self.waits.manager_away, "no decision has come"));
        let (at, why) = [agent, manager]
            .into_iter()
            .flatten()
            .min_by_key(|(at, _)| *at)?;
        Some((at, Due::GiveUp(format!("{why} after a failure"))))
    }
}
