use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, error_span};

use lockstep_scheduler::{Memory, SchedulerSettings, SchedulingInput, SchedulingPlan, schedule};

use super::act::StepSender;
use super::input::scheduling_input;
use crate::clock::Clock;
use crate::config::live::LiveSettings;
use crate::deadline::rest_after;
use crate::index::{Index, Key};
use crate::lease::Tenure;

pub struct Scheduler {
    index: Arc<Index>,
    clock: Arc<dyn Clock>,
    pub(crate) settings: SchedulerSettings,
    live: LiveSettings,
    actor: StepSender,
    memory: Memory,
    /// Number of the last cycle since the start of this process.
    cycles: u64,
    /// Pod groups whose last write has an unknown result.
    unsure: BTreeSet<Key>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CycleSummary {
    pub requests: usize,
    /// Queued gangs evaluated individually.
    pub judged: usize,
    pub searches: usize,
    /// Time until the next cycle without changes.
    pub wake_after: Option<Duration>,
    pub took: Duration,
}

impl CycleSummary {
    /// A longer pause follows a no-op cycle.
    fn gather(&self, settings: &SchedulerSettings) -> Duration {
        if self.requests > 0 {
            return settings.debounce;
        }
        let rest = rest_after(self.took, settings.gather_at_most);
        settings.debounce.max(rest)
    }
}

impl Scheduler {
    pub fn new(
        index: Arc<Index>,
        clock: Arc<dyn Clock>,
        live: LiveSettings,
        actor: StepSender,
    ) -> Self {
        Self {
            index,
            clock,
            settings: live.settings(),
            live,
            actor,
            memory: Memory::default(),
            cycles: 0,
            unsure: BTreeSet::new(),
        }
    }

    /// Requires a complete index and leadership. A stop abandons the current decision but finishes
    /// current writes. While leadership is paused, no cycle starts and the client refuses writes.
    pub async fn run(mut self, mut tenure: Tenure, stop: CancellationToken) {
        let mut last = CycleSummary {
            wake_after: Some(Duration::ZERO),
            ..CycleSummary::default()
        };
        while self.pause(last, &mut tenure, &stop).await {
            last = self.cycle(&stop).await;
        }
    }

    pub(crate) async fn cycle(&mut self, stop: &CancellationToken) -> CycleSummary {
        self.cycles += 1;
        // As an error, because a span below the log level would take its fields from the lines.
        let span = error_span!("cycle", number = self.cycles);
        self.numbered_cycle(stop).instrument(span).await
    }

    async fn numbered_cycle(&mut self, stop: &CancellationToken) -> CycleSummary {
        let unsure = std::mem::take(&mut self.unsure);
        self.unsure = self.actor.resolve_unsure(unsure, &mut self.memory).await;
        if !self.unsure.is_empty() {
            return CycleSummary {
                wake_after: Some(self.settings.retry),
                ..CycleSummary::default()
            };
        }
        if let Some(settings) = self.live.take() {
            self.settings = settings;
        }
        let began = self.clock.monotonic();
        let input = scheduling_input(&self.index.read());
        let now = self.clock.wall();
        let Some(plan) = self.decide(input, now, stop).await else {
            return CycleSummary {
                wake_after: Some(self.settings.retry),
                ..CycleSummary::default()
            };
        };
        let took = self.clock.monotonic() - began;
        self.actor.metrics.decided(&plan, took);
        let requests = plan.steps.iter().filter(|step| step.changes()).count();
        let (judged, searches) = (plan.evaluated, plan.searches);
        // Own status writes return as changes. The plan sets the time of other checks.
        let acted = self.actor.act(plan.steps, &mut self.memory, now).await;
        let retry = (acted.again || !acted.unsure.is_empty()).then_some(self.settings.retry);
        self.unsure = acted.unsure;
        CycleSummary {
            requests,
            judged,
            searches,
            wake_after: plan.wake_after.into_iter().chain(retry).min(),
            took,
        }
    }

    /// Decides on a blocking thread, so that lease, watches and workloads continue. `None` after a
    /// stop: the abandoned decision ends by itself. The loss of its memory is safe.
    async fn decide(
        &mut self,
        input: SchedulingInput,
        now: DateTime<Utc>,
        stop: &CancellationToken,
    ) -> Option<SchedulingPlan> {
        let mut memory = std::mem::take(&mut self.memory);
        let settings = self.settings.clone();
        let deciding = tokio::task::spawn_blocking(move || {
            let plan = schedule(&input, &mut memory, &settings, now).plan;
            (plan, memory)
        });
        let decided = tokio::select! {
            biased;
            () = stop.cancelled() => return None,
            decided = deciding => decided,
        };
        match decided {
            Ok((plan, memory)) => {
                self.memory = memory;
                Some(plan)
            }
            Err(error) => {
                if error.is_panic() {
                    std::panic::resume_unwind(error.into_panic());
                }
                None
            }
        }
    }

    /// Waits for a change or `wake_after`, then until the changes of one batch have arrived and
    /// this process leads. False after a stop.
    async fn pause(
        &self,
        last: CycleSummary,
        tenure: &mut Tenure,
        stop: &CancellationToken,
    ) -> bool {
        let changed = async {
            tokio::select! {
                () = self.index.scheduler_dirty() => {}
                () = self.live.changed() => {}
            }
        };
        let woken = async {
            match last.wake_after {
                Some(wait) => tokio::time::timeout(wait, changed).await.unwrap_or(()),
                None => changed.await,
            }
            tokio::time::sleep(last.gather(&self.settings)).await;
            tenure.leading(&*self.clock).await;
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => false,
            () = woken => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_no_op_cycles_leave_nine_tenths_of_the_time_idle_up_to_half_a_second() {
        let settings = SchedulerSettings::default();
        let gather = |millis, requests| {
            let last = CycleSummary {
                requests,
                took: Duration::from_millis(millis),
                ..CycleSummary::default()
            };
            last.gather(&settings).as_millis()
        };
        assert_eq!(
            (gather(1, 0), gather(30, 0), gather(2000, 0)),
            (20, 270, 500)
        );
        assert_eq!(
            gather(2000, 1),
            20,
            "what was decided is gone on with at once"
        );
    }
}
