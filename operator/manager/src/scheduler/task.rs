//! The loop: wakes on change, gathers changes for a moment, decides, acts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio_util::sync::CancellationToken;

use lockstep_scheduler::{Memory, SchedulerSettings, SchedulingInput, SchedulingPlan, schedule};

use super::act::StepSender;
use super::input::scheduling_input;
use super::metrics::SchedulerMetrics;
use crate::api::clients::Clients;
use crate::clock::Clock;
use crate::events::Events;
use crate::index::{Index, Key};

/// The scheduler loop.
pub struct Scheduler {
    index: Arc<Index>,
    clock: Arc<dyn Clock>,
    pub(crate) settings: SchedulerSettings,
    actor: StepSender,
    memory: Memory,
    /// Pod groups of which it is not known whether they were written.
    unsure: BTreeSet<Key>,
}

/// What a cycle came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CycleSummary {
    /// Requests that were decided, without those that only ask.
    pub requests: usize,
    /// Gangs of the queue that were looked at by themselves.
    pub judged: usize,
    /// Searches for victims.
    pub searches: usize,
    /// When to look again although nothing changed.
    pub wake_after: Option<Duration>,
}

impl Scheduler {
    /// A loop over the index.
    pub fn new(
        index: Arc<Index>,
        clients: &Clients,
        clock: Arc<dyn Clock>,
        settings: SchedulerSettings,
        events: Events,
        metrics: SchedulerMetrics,
    ) -> Self {
        let actor = StepSender::new(clients, events, metrics);
        Self {
            index,
            clock,
            settings,
            actor,
            memory: Memory::default(),
            unsure: BTreeSet::new(),
        }
    }

    /// Schedules until stopped. What is being decided then is not waited for, what is being written
    /// is. The index is complete and this process leads: writes are refused by the client once it
    /// does not.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut wake_after = Some(Duration::ZERO);
        while self.pause(wake_after, &stop).await {
            wake_after = self.cycle(&stop).await.wake_after;
        }
    }

    /// One cycle: look up what is unsure, decide, act.
    pub(crate) async fn cycle(&mut self, stop: &CancellationToken) -> CycleSummary {
        let unsure = std::mem::take(&mut self.unsure);
        self.unsure = self.actor.look_up(unsure, &mut self.memory).await;
        if !self.unsure.is_empty() {
            return CycleSummary {
                wake_after: Some(self.settings.retry),
                ..CycleSummary::default()
            };
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
        self.actor
            .metrics
            .decided(&plan, self.clock.monotonic() - began);
        let requests = plan.steps.iter().filter(|step| step.changes()).count();
        let (judged, searches) = (plan.judged, plan.searches);
        // Own status writes come back as changes; everything else is looked at again when it has to
        // be.
        let acted = self.actor.act(plan.steps, &mut self.memory, now).await;
        let retry = (acted.again || !acted.unsure.is_empty()).then_some(self.settings.retry);
        self.unsure = acted.unsure;
        CycleSummary {
            requests,
            judged,
            searches,
            wake_after: plan.wake_after.into_iter().chain(retry).min(),
        }
    }

    /// Decides, on a thread where that may take its time: lease, watches and workloads go on
    /// meanwhile. `None` when stopped: the decision ends by itself, since its steps are counted, and
    /// nobody hears of it. The memory is lost then; it may be at any moment.
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

    /// Waits until something has changed, or for the time given, and then until changes have
    /// gathered. False when stopped.
    async fn pause(&self, wake_after: Option<Duration>, stop: &CancellationToken) -> bool {
        let woken = async {
            match wake_after {
                Some(wait) => tokio::time::timeout(wait, self.index.scheduler_dirty())
                    .await
                    .unwrap_or(()),
                None => self.index.scheduler_dirty().await,
            }
            tokio::time::sleep(self.settings.debounce).await;
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => false,
            () = woken => true,
        }
    }
}
