//! Progress of a child, and detection of hangs.

use std::time::Duration;

use lockstep_supervisor_protocol::{MAX_PROGRESS, ProgressLimits, Text};

use super::event::{Moment, ObservedProgress};
use super::requests::Requests;

/// Shortest time between two progress messages about steps, because each wakes the agent. A new
/// checkpoint is sent at once.
const REPORT_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Watch {
    pub started_at: Moment,
    limits: Option<ProgressLimits>,
    /// True if this child, or an earlier child of this container, has reported a step. A child that
    /// never reports progress never counts as hung: in most jobs only one member reports.
    reports_progress: bool,
    last: Option<Step>,
    checkpoint: Option<(u64, Moment)>,
    /// Further words of the last report.
    pub words: Text<MAX_PROGRESS>,
    reported_at: Option<Moment>,
    unreported: bool,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    number: u64,
    at: Moment,
}

pub(super) struct Hang {
    pub at: Moment,
    pub message: String,
}

impl Watch {
    pub fn start(&mut self, limits: Option<ProgressLimits>, now: Moment) {
        *self = Self {
            started_at: now,
            limits,
            reports_progress: self.reports_progress,
            ..Self::default()
        };
    }

    pub fn take(&mut self, step: u64, checkpoint: Option<u64>, now: Moment) -> bool {
        self.reports_progress = true;
        if self.last.is_none_or(|last| last.number != step) {
            self.last = Some(Step {
                number: step,
                at: now,
            });
            self.unreported = true;
        }
        let saved = checkpoint.filter(|c| self.checkpoint.is_none_or(|(last, _)| last != *c));
        if let Some(saved) = saved {
            self.checkpoint = Some((saved, now));
        }
        let due = self
            .reported_at
            .is_none_or(|then| now >= then + REPORT_EVERY);
        due || saved.is_some()
    }

    /// Progress that the agent has not received.
    pub fn unreported(&self, attempt: u64) -> Option<ObservedProgress> {
        self.observed(attempt).filter(|_| self.unreported)
    }

    pub fn mark_reported(&mut self, now: Moment) {
        self.reported_at = Some(now);
        self.unreported = false;
    }

    pub fn observed(&self, attempt: u64) -> Option<ObservedProgress> {
        let last = self.last?;
        Some(ObservedProgress {
            attempt,
            step: last.number,
            step_at: last.at,
            checkpoint: self.checkpoint,
            words: self.words.clone(),
        })
    }

    /// The last step and checkpoint.
    pub fn reported(&self) -> (Option<u64>, Option<u64>) {
        let step = self.last.map(|last| last.number);
        (step, self.checkpoint.map(|(saved, _)| saved))
    }

    /// The hang that follows if the child reports no further progress.
    pub fn hang(&self, requests: &Requests) -> Option<Hang> {
        let limits = self.limits.filter(|_| self.reports_progress)?;
        let timeout = Duration::from_secs(limits.timeout_seconds.into());
        let started = self.started_at + Duration::from_secs(limits.startup_seconds.into());
        // `startup_seconds` applies even after a step: a child may report a step, restore a
        // checkpoint, and compile for a long time.
        let (at, since) = match self.last {
            None => (started, "it started".to_owned()),
            Some(step) => (
                started.max(step.at + timeout),
                format!("step {}", step.number),
            ),
        };
        let at = at.max(requests.patience(timeout));
        let from = self.last.map_or(self.started_at, |step| step.at);
        let seconds = at.saturating_sub(from).as_secs();
        Some(Hang {
            at,
            message: format!("no progress for {seconds} s after {since}"),
        })
    }
}
