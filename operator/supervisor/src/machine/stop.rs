//! Stops of the child: by an order, or by a signal to the container.

use super::{Effect, Machine, Moment, Phase, SignalNumber, Tree, code_of_signal};

/// Signals that always stop a process: SIGINT, SIGQUIT, SIGTERM. A pod can define a further one.
const STOPPING: [SignalNumber; 3] = [2, 3, 15];

impl Machine {
    /// Stops the child for the barrier of an attempt.
    pub(super) fn stop_for(&mut self, attempt: u64, now: Moment) {
        self.print(&format!(
            "attempt {attempt} is ordered: stopping attempt {}",
            self.ran
        ));
        match self.stop {
            None => {
                self.phase = Phase::Stopping { attempt };
                self.stop_tree(now);
            }
            // The container is about to end. It will not arrive at another barrier and must not
            // delay one.
            Some(signal) => self.leave(code_of_signal(signal), now),
        }
    }

    /// Sends the stop signal to the child. SIGKILL to all processes follows after the grace.
    fn stop_tree(&mut self, now: Moment) {
        let grace = self.waits.stop_grace;
        if grace.is_zero() || self.requests.was_requested() {
            self.kill_tree(now);
        } else if self.tree == Tree::Alive {
            self.tree = Tree::Stopping {
                kill_at: now + grace,
            };
            self.idle_since = now;
            self.actions.push(Effect::Forward(self.waits.stop_signal));
        }
    }

    pub(super) fn signal(&mut self, signal: SignalNumber, now: Moment) {
        let stops = STOPPING.contains(&signal) || signal == self.waits.stop_signal;
        match self.phase {
            Phase::Running => {
                let held = stops && self.holds_back(signal, now);
                if stops {
                    self.stop = Some(signal);
                }
                if stops && !held {
                    self.requests.drop_stop();
                }
                if !held {
                    self.actions.push(Effect::Forward(signal));
                }
            }
            Phase::Ended if stops => {
                let code = self
                    .exit
                    .as_ref()
                    .map_or(code_of_signal(signal), |own| own.exit.code);
                self.leave(code, now);
            }
            Phase::Held { .. } | Phase::Stopping { .. } if stops => {
                // A failure that awaits a new attempt remains the exit of this container.
                let failed = self.exit.as_ref().filter(|own| own.exit.code != 0);
                let code = failed.map_or(code_of_signal(signal), |own| own.exit.code);
                self.leave(code, now);
            }
            _ => {}
        }
    }
}
