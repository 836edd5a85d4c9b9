//! What a child tells of its progress, and when it has hung.

use std::time::Duration;

use lockstep_wire::ProgressLimits;

use super::event::{Moment, ProgressSeen};

/// Between two words to the agent about steps alone; each of them wakes it up. A new checkpoint is
/// told at once.
const TELL: Duration = Duration::from_secs(10);

/// The progress of the child that runs, or ran last.
#[derive(Debug, Default)]
pub(super) struct Watch {
    started_at: Moment,
    limits: Option<ProgressLimits>,
    /// Whether this child, or one before it in this container, has told a step. A child that never
    /// does is left alone: in most jobs one member tells for all.
    tells: bool,
    last: Option<Step>,
    checkpoint: Option<(u64, Moment)>,
    reported_at: Option<Moment>,
    /// Whether the agent has not heard the last of it.
    unreported: bool,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    number: u64,
    at: Moment,
}

/// A child that has made no progress in time.
pub(super) struct Hang {
    /// Since when it has hung.
    pub at: Moment,
    /// For people.
    pub message: String,
}

impl Watch {
    /// Another child starts.
    pub fn start(&mut self, limits: Option<ProgressLimits>, now: Moment) {
        *self = Self {
            started_at: now,
            limits,
            tells: self.tells,
            ..Self::default()
        };
    }

    /// Takes what the child tells; whether the agent is to hear of it now.
    pub fn take(&mut self, step: u64, checkpoint: Option<u64>, now: Moment) -> bool {
        self.tells = true;
        if self.last.is_none_or(|last| last.number != step) {
            self.last = Some(Step {
                number: step,
                at: now,
            });
            self.unreported = true;
        }
        let saved = checkpoint.filter(|c| self.checkpoint.is_none_or(|(known, _)| known != *c));
        if let Some(saved) = saved {
            self.checkpoint = Some((saved, now));
        }
        let due = self.reported_at.is_none_or(|then| now >= then + TELL);
        due || saved.is_some()
    }

    /// What the agent has not heard; none: it has heard all.
    pub fn unreported(&self, attempt: u64) -> Option<ProgressSeen> {
        self.seen(attempt).filter(|_| self.unreported)
    }

    /// The agent is told all of it.
    pub fn mark_reported(&mut self, now: Moment) {
        self.reported_at = Some(now);
        self.unreported = false;
    }

    /// What is known of the progress of this attempt.
    pub fn seen(&self, attempt: u64) -> Option<ProgressSeen> {
        let last = self.last?;
        Some(ProgressSeen {
            attempt,
            step: last.number,
            step_at: last.at,
            checkpoint: self.checkpoint,
        })
    }

    /// When the child will have hung if nothing else is heard of it.
    pub fn hang(&self) -> Option<Hang> {
        let limits = self.limits.filter(|_| self.tells)?;
        let timeout = Duration::from_secs(limits.timeout_seconds.into());
        let started = self.started_at + Duration::from_secs(limits.startup_seconds.into());
        // Before and after it restores a checkpoint it may tell steps, and then compile for long.
        let (at, since) = match self.last {
            None => (started, "it started".to_owned()),
            Some(step) => (
                started.max(step.at + timeout),
                format!("step {}", step.number),
            ),
        };
        let from = self.last.map_or(self.started_at, |step| step.at);
        let seconds = at.saturating_sub(from).as_secs();
        Some(Hang {
            at,
            message: format!("no progress for {seconds} s after {since}"),
        })
    }
}
