//! Decisions of the supervisor when time passes.

use super::event::{Effect, Moment};
use super::{Machine, Phase, SIGKILL, Tree, code_of_signal};

pub(super) enum Due {
    Survivors,
    Kill,
    /// Exit with the child's code, for this reason.
    GiveUp(String),
    /// The child hangs, with this description.
    Hang(String),
    /// The held-back stop signal is passed on.
    PassOn,
}

impl Machine {
    pub(super) fn pass_deadlines(&mut self, now: Moment) {
        while let Some((at, due)) = self.due()
            && at <= now
        {
            match due {
                Due::Survivors => self.survivors(),
                Due::Kill => self.kill_tree(now),
                Due::Hang(message) => self.hung(message, now),
                Due::PassOn => self.pass_on(),
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

    /// The next decision and its time. Each decision changes the state, so no decision is due twice
    /// at the same time.
    pub(super) fn due(&self) -> Option<(Moment, Due)> {
        let tree = match self.tree {
            Tree::Stopping { kill_at } => Some((kill_at, Due::Kill)),
            Tree::Dying {
                since,
                reported: false,
            } => Some((since + self.waits.survivors, Due::Survivors)),
            _ => None,
        };
        let waited_for = match self.phase {
            Phase::Ended | Phase::Held { .. } | Phase::Stopping { .. } => self.gives_up(),
            // After a stop signal, the grace period applies instead of the limits of progress.
            Phase::Running if self.stop.is_some() => {
                let at = self.requests.pass_on_at();
                at.map(|at| (at, Due::PassOn))
            }
            Phase::Running => self.hangs(),
            Phase::Leaving { .. } | Phase::Left => None,
        };
        [tree, waited_for]
            .into_iter()
            .flatten()
            .min_by_key(|(at, _)| *at)
    }

    /// Time of the hang.
    fn hangs(&self) -> Option<(Moment, Due)> {
        let hang = self.watch.hang(&self.requests)?;
        Some((hang.at, Due::Hang(hang.message)))
    }

    /// Time at which the supervisor stops waiting and exits with the child's code. A child stopped
    /// by an order has no code of its own, so the supervisor keeps waiting.
    fn gives_up(&self) -> Option<(Moment, Due)> {
        let own = self.exit.as_ref()?;
        if own.exit.code == 0 {
            let why = "the other members are not done in time";
            return (self.phase == Phase::Ended)
                .then(|| (own.at + self.waits.complete, Due::GiveUp(why.to_owned())));
        }
        let agent = self.agentless_since.map(|since| {
            (
                since.max(own.at) + self.waits.agent_away,
                "the agent stays away",
            )
        });
        // `Hold` implies that the manager has recorded the incident.
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
