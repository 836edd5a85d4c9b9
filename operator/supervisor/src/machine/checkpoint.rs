//! Decisions about requests for checkpoints, and about stop signals that are held back meanwhile.

use lockstep_supervisor_protocol::{FromSupervisor, SaveRequest};

use super::event::{Effect, Moment, SignalNumber};
use super::{Machine, Phase};

impl Machine {
    /// True while the child may save a checkpoint on request.
    pub fn awaits_checkpoint(&self, now: Moment) -> bool {
        self.phase == Phase::Running && self.requests.is_open(now)
    }

    pub(super) fn request(&mut self, request: SaveRequest, deadline: Moment) {
        if self.phase != Phase::Running || request.attempt != self.ran {
            return;
        }
        let repeated = self.requests.repeat(&request, deadline);
        if !repeated {
            let reported = self.watch.reported();
            self.requests.open(request.clone(), deadline, reported);
        }
        if !repeated && !request.watch {
            self.print(&format!("a checkpoint is requested: {}", request.reason));
            let signal = self.requests.signal();
            self.actions.push(Effect::Request { request, signal });
        } else {
            self.send_requests();
        }
    }

    /// The file was written, and processes with a handler have received the signal.
    pub(super) fn requested(&mut self, written: bool, signalled: bool) {
        if !self.requests.passed_on(written, signalled) {
            self.print("no process has a handler for the signal, or reads the file of requests");
        }
        self.send_requests();
    }

    pub(super) fn send_requests(&mut self) {
        for message in self.requests.state(self.ran) {
            self.send(message);
        }
    }

    pub(super) fn pass_stops(&mut self, attempt: u64) {
        if attempt == self.ran {
            self.requests.pass_stops();
            self.pass_on();
            self.send(FromSupervisor::PassesStops { attempt });
        }
    }

    /// Passes on the held-back stop signal.
    pub(super) fn pass_on(&mut self) {
        if self.requests.drop_stop()
            && self.phase == Phase::Running
            && let Some(signal) = self.stop
        {
            self.print(&format!("signal {signal} is passed on"));
            self.actions.push(Effect::Forward(signal));
        }
    }

    /// Holds a stop signal back. False if it has to be passed on.
    pub(super) fn holds_back(&mut self, signal: SignalNumber, now: Moment) -> bool {
        let first = self.stop.is_none() && signal == self.waits.stop_signal;
        let held = first && self.requests.holds_back(now);
        if held {
            self.print(&format!(
                "signal {signal} is held back: a checkpoint may be requested"
            ));
        }
        held
    }
}
