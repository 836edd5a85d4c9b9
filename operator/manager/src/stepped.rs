//! A manager without tasks of its own: whoever holds it brings the news and says what runs next.
//!
//! It is made of the same index, queue, controller and scheduler as [`crate::run`]. What a process
//! has around them is left out: watches (the news are told), the lease (it leads), events, the pass
//! over everything that repairs what the watches miss. Dropping it is a crash: what it remembers is
//! gone.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::runtime::watcher::Event;
use lockstep_lifecycle::WorkloadView;
use lockstep_model::foreign::NativeGroup;
use lockstep_scheduler::SchedulingInput;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::Pace;
use crate::api::clients::Clients;
use crate::clock::{Clock, Random};
use crate::config::Config;
use crate::config::live::LiveSettings;
use crate::events::{Events, Reports};
use crate::gauges::{Gauges, WorkloadSeries};
use crate::index::{Feeds, Index};
use crate::lease::{Leadership, Tenure};
use crate::queue::{Queue, QueueMetrics, RetryBackoff};
use crate::run::Metrics;
use crate::scheduler::input::scheduling_input;
use crate::scheduler::metrics::SchedulerMetrics;
use crate::scheduler::task::Scheduler;
use crate::workload::metrics::WorkloadMetrics;
use crate::workload::{Controller, Limits, Parts};

pub use crate::index::{AgentSelector, Key, WatchedKind, member as read_member};
pub use crate::scheduler::task::CycleSummary;

/// What a stepped manager is made of.
pub struct SteppedParts {
    /// Connection of the workload controller.
    pub controller: Client,
    /// Connection of the scheduler.
    pub scheduler: Client,
    /// Clocks.
    pub clock: Arc<dyn Clock>,
    /// Jitter of what failed.
    pub random: Random,
    /// How pods of agents are recognised.
    pub agents: AgentSelector,
    /// Constants of the decisions about workloads.
    pub settings: Arc<lockstep_lifecycle::LifecycleSettings>,
    /// Constants of the scheduler.
    pub scheduler_settings: lockstep_scheduler::SchedulerSettings,
}

/// One manager that leads.
pub struct SteppedManager {
    index: Arc<Index>,
    feeds: Feeds,
    queue: Queue<Key>,
    clock: Arc<dyn Clock>,
    controller: Controller,
    scheduler: Scheduler,
    /// Kept, so that events have somewhere to go.
    _events: Reports,
}

impl SteppedManager {
    /// A manager that has just begun to lead and knows nothing yet.
    pub fn new(parts: SteppedParts) -> Self {
        let SteppedParts {
            controller,
            scheduler,
            clock,
            random,
            agents,
            settings,
            scheduler_settings,
        } = parts;
        let backoff = RetryBackoff {
            first: Duration::from_secs(1),
            max: Duration::from_mins(1),
        };
        let queue = Queue::new(backoff, random, clock.clone(), QueueMetrics::default());
        let index = Index::new(agents, queue.clone(), clock.clone());
        let (events, reports) = Events::channel(Counter::default());
        let controller = Controller::new(Parts {
            index: index.clone(),
            queue: queue.clone(),
            clients: unguarded(controller),
            clock: clock.clone(),
            settings,
            // One request after the other: their order says after which of them it crashes.
            limits: Limits {
                concurrency: 1,
                in_flight: 1,
            },
            events: events.clone(),
            metrics: WorkloadMetrics::default(),
            stop: CancellationToken::new(),
        });
        let mut scheduler = Scheduler::new(
            index.clone(),
            &unguarded(scheduler),
            clock.clone(),
            LiveSettings::unchanging(Config::default()),
            events,
            SchedulerMetrics::default(),
        );
        scheduler.settings = scheduler_settings;
        Self {
            index,
            feeds: Feeds::default(),
            queue,
            clock,
            controller,
            scheduler,
            _events: reports,
        }
    }

    /// One event of the watch of a kind.
    ///
    /// # Errors
    /// An object that is not of the kind.
    pub fn hear(&mut self, kind: WatchedKind, event: Event<Value>) -> serde_json::Result<()> {
        self.feeds.handle(&self.index, kind, event)
    }

    /// A pod group of kube-scheduler's, whose watch is a task of its own in a process.
    pub fn hear_native_group(&mut self, key: &Key, group: NativeGroup) {
        self.index.set_native_group(key, Some(group));
    }

    /// One pass over the next workload that needs one; none: nobody does now.
    pub async fn pass_next(&self) -> Option<Key> {
        let key = self.queue.try_next()?;
        self.controller.pass_over(&key).await;
        Some(key)
    }

    /// When the next pass is due, where none is due now.
    pub fn next_pass(&self) -> Option<Instant> {
        self.queue.next_due()
    }

    /// One pass over a workload, whether it needs one or not.
    pub async fn pass(&self, key: &Key) {
        self.controller.pass_over(key).await;
    }

    /// Whether something has changed that the scheduler looks at, since the last call.
    pub fn scheduler_woken(&self) -> bool {
        self.index.scheduler_woken()
    }

    /// One cycle of the scheduler.
    pub async fn schedule(&mut self) -> CycleSummary {
        self.scheduler.cycle(&CancellationToken::new()).await
    }

    /// Constants of the scheduler, to be changed between two cycles.
    pub fn scheduler_settings(&mut self) -> &mut lockstep_scheduler::SchedulerSettings {
        &mut self.scheduler.settings
    }

    /// What the next pass over a workload would look at.
    pub fn view(&self, key: &Key) -> Option<WorkloadView> {
        self.controller.view(key)
    }

    /// What a process that leads would tell Prometheus now, of everything and of at most so many
    /// single workloads. What it counts is zero.
    pub fn metrics(&self, single_workloads: usize) -> Registry {
        let mut registry = Registry::default();
        Metrics::register(&mut registry);
        let leadership = Leadership::for_ever(self.clock.monotonic());
        let tenure = Tenure::new(watch::channel(Some(leadership)).1);
        registry.register_collector(Box::new(Gauges {
            index: self.index.clone(),
            tenure: tenure.clone(),
            clock: self.clock.clone(),
            accelerators: self.scheduler.settings.rules.costs.accelerators.clone(),
        }));
        registry.register_collector(Box::new(WorkloadSeries {
            index: self.index.clone(),
            tenure,
            clock: self.clock.clone(),
            max: single_workloads,
        }));
        registry
    }

    /// What the next cycle of the scheduler would look at.
    pub fn scheduling_input(&self) -> SchedulingInput {
        scheduling_input(&self.index.read())
    }
}

/// A connection without deadlines and without a fence.
fn unguarded(client: Client) -> Clients {
    Clients {
        read: client.clone(),
        write: client.clone(),
        lease: client,
        pace: Pace::new(64),
    }
}
