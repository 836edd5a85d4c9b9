//! The loop: wakes on change, gathers changes for a moment, decides, acts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use lockstep_scheduler::{Memory, SchedulerSettings, schedule};

use super::act::StepSender;
use super::input::scheduling_input;
use super::metrics::SchedulerMetrics;
use crate::api::clients::Clients;
use crate::clock::Clock;
use crate::events::Events;
use crate::index::Index;

/// The scheduler loop.
pub struct Scheduler {
    index: Arc<Index>,
    clock: Arc<dyn Clock>,
    settings: SchedulerSettings,
    actor: StepSender,
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
        }
    }

    /// Schedules until stopped; the pass in hand is finished. The index is complete and this
    /// process leads: writes are refused by the client once it does not.
    pub async fn run(self, stop: CancellationToken) {
        let mut memory = Memory::default();
        let mut unsure = BTreeSet::new();
        let mut wake_after = Some(Duration::ZERO);
        loop {
            if !self.pause(wake_after, &stop).await {
                return;
            }
            unsure = self.actor.look_up(unsure, &mut memory).await;
            if !unsure.is_empty() {
                wake_after = Some(self.settings.retry);
                continue;
            }
            let began = self.clock.monotonic();
            let input = scheduling_input(&self.index.read());
            let now = self.clock.wall();
            let plan = schedule(&input, &mut memory, &self.settings, now).plan;
            drop(input);
            self.actor
                .metrics
                .decided(&plan, self.clock.monotonic() - began);
            // Own status writes come back as changes; everything else is looked at again when it
            // has to be.
            let acted = self.actor.act(plan.steps, &mut memory, now).await;
            let retry = (acted.again || !acted.unsure.is_empty()).then_some(self.settings.retry);
            wake_after = plan.wake_after.into_iter().chain(retry).min();
            unsure = acted.unsure;
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
