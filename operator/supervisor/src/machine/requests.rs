//! Requests for checkpoints, and stop signals that are held back meanwhile.

use std::time::Duration;

use lockstep_supervisor_protocol::{EVICTION, FromSupervisor, SavePolicy, SaveReply, SaveRequest};

use super::event::{Moment, SignalNumber};

/// How long a stop signal is held back without a request for this stop. With a grace period of 5 s,
/// the child keeps 2 s.
const SILENCE: Duration = Duration::from_secs(3);
/// The deadline of a request for an evicted pod is so long before the time at which the stop signal
/// is passed on, and that time so long before the end of the pod's grace period.
const AFTER_DEADLINE: Duration = Duration::from_secs(5);
/// Word of the progress file of a program that reads the file of requests.
const READS_REQUESTS: &str = "requests=1";

#[derive(Debug, Default)]
pub(super) struct Requests {
    policy: Option<SavePolicy>,
    /// The last request to this child.
    call: Option<Call>,
    /// True if stop signals to this child are not held back.
    passes_stops: bool,
    held_back: Option<HeldBack>,
    /// True if this child, or an earlier child of this container, has said that it reads the file of
    /// requests.
    reads_file: bool,
    /// True if this child, or an earlier child of this container, has saved a checkpoint.
    saves: bool,
}

#[derive(Debug)]
struct Call {
    request: SaveRequest,
    deadline: Moment,
    /// Step of the child and its last checkpoint at the request.
    step: Option<u64>,
    saved: Option<u64>,
    reply: SaveReply,
    answered_at: Moment,
}

/// A stop signal that the child has not received yet.
#[derive(Debug)]
struct HeldBack {
    until: Moment,
    /// The same if no request for this stop comes.
    unless_requested: Option<Moment>,
}

impl Call {
    /// Time until which a stop signal may be held back, if the request is for an eviction.
    fn holds_stops(&self) -> Option<Moment> {
        (*self.request.reason == *EVICTION).then(|| self.deadline + AFTER_DEADLINE)
    }
}

impl Requests {
    pub fn start(&mut self, policy: Option<SavePolicy>) {
        *self = Self {
            policy,
            reads_file: self.reads_file,
            saves: self.saves,
            ..Self::default()
        };
    }

    /// Time before which the child does not hang. A save on request is progress.
    pub fn patience(&self, timeout: Duration) -> Moment {
        self.call
            .as_ref()
            .map_or(Moment::ZERO, |call| match call.reply {
                SaveReply::Requested => call.deadline,
                SaveReply::Saved(_) => call.answered_at + timeout,
                SaveReply::Unsupported => Moment::ZERO,
            })
    }

    /// True if the child has saved on request, or had the time for it.
    pub fn was_requested(&self) -> bool {
        let mut calls = self.call.iter();
        calls.any(|call| !call.request.watch && call.reply != SaveReply::Unsupported)
    }

    /// Time at which the held-back stop signal is passed on.
    pub fn pass_on_at(&self) -> Option<Moment> {
        let held = self.held_back.as_ref()?;
        Some(
            held.unless_requested
                .map_or(held.until, |at| at.min(held.until)),
        )
    }

    /// Forgets the held-back stop signal. True if there was one.
    pub fn drop_stop(&mut self) -> bool {
        self.held_back.take().is_some()
    }

    /// Holds a stop signal back. False if it has to be passed on.
    pub fn holds_back(&mut self, now: Moment) -> bool {
        let seconds = self.policy.map_or(0, |p| p.hold_stop_seconds);
        if seconds == 0 || self.passes_stops {
            return false;
        }
        self.held_back = Some(HeldBack {
            until: now + Duration::from_secs(seconds.into()),
            unless_requested: Some(now + SILENCE),
        });
        self.extend_hold();
        true
    }

    /// A request for the eviction of a member bounds the hold of a stop signal.
    fn extend_hold(&mut self) {
        if let Some(held) = &mut self.held_back
            && let Some(until) = self.call.as_ref().and_then(Call::holds_stops)
        {
            held.until = held.until.min(until);
            held.unless_requested = None;
        }
    }

    /// Notes a report of the child. Returns true if it answers the open request.
    pub fn note(&mut self, step: u64, saved: Option<u64>, words: &str, now: Moment) -> bool {
        self.reads_file |= words.split_ascii_whitespace().any(|w| w == READS_REQUESTS);
        self.saves |= saved.is_some();
        let open = |call: &&mut Call| call.reply == SaveReply::Requested;
        let (Some(saved), Some(call)) = (saved, self.call.as_mut().filter(open)) else {
            return false;
        };
        let new = call.saved != Some(saved);
        let replies = if call.request.watch {
            new
        } else {
            // The same checkpoint again is a new save if the child is still at its step.
            call.step <= Some(saved) && (new || saved >= step)
        };
        if replies {
            (call.reply, call.answered_at) = (SaveReply::Saved(saved), now);
        }
        replies
    }

    /// True while the child may save a checkpoint on request.
    pub fn is_open(&self, now: Moment) -> bool {
        let open = |call: &Call| call.reply == SaveReply::Requested && now < call.deadline;
        self.call.as_ref().is_some_and(open)
    }

    /// Notes the reason and the deadline of a request that is open already. False for a new one.
    pub fn repeat(&mut self, request: &SaveRequest, deadline: Moment) -> bool {
        let known = |call: &&mut Call| call.request.id == request.id;
        let Some(call) = self.call.as_mut().filter(known) else {
            return false;
        };
        (call.request, call.deadline) = (request.clone(), deadline);
        self.extend_hold();
        true
    }

    /// Notes a new request. `reported`: step and checkpoint of the child.
    pub fn open(
        &mut self,
        request: SaveRequest,
        deadline: Moment,
        reported: (Option<u64>, Option<u64>),
    ) {
        let (step, saved) = reported;
        let reply = if request.watch && !self.saves {
            SaveReply::Unsupported
        } else {
            SaveReply::Requested
        };
        self.call = Some(Call {
            request,
            deadline,
            step,
            saved,
            reply,
            answered_at: Moment::ZERO,
        });
        self.extend_hold();
    }

    /// Signal for requests to the child.
    pub fn signal(&self) -> Option<SignalNumber> {
        self.policy?.signal
    }

    /// Notes how the request was passed on. Returns false if the child has no way to learn of it.
    pub fn passed_on(&mut self, written: bool, signalled: bool) -> bool {
        let supported = signalled || written && (self.reads_file || self.saves);
        if let Some(call) = self.call.as_mut().filter(|_| !supported) {
            call.reply = SaveReply::Unsupported;
        }
        supported
    }

    /// Holds back no further stop signal to the child.
    pub fn pass_stops(&mut self) {
        self.passes_stops = true;
    }

    /// What the agent knows of requests and stop signals to the child of this attempt.
    pub fn state(&self, attempt: u64) -> Vec<FromSupervisor> {
        let reply = self.call.as_ref().map(|call| FromSupervisor::Checkpoint {
            request: call.request.clone(),
            reply: call.reply,
        });
        let passes = self.passes_stops;
        let passes = passes.then_some(FromSupervisor::PassesStops { attempt });
        reply.into_iter().chain(passes).collect()
    }
}
