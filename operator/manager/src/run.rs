//! The whole manager as one future.
//!
//! Nothing here reads the environment, a clock of the machine or a random source, and nothing ends
//! the process: all of that comes in through [`Deps`]. Every task lives in one set; dropping the
//! future drops them, which is a crash.

use std::sync::Arc;

use lockstep_process::endpoints::SharedRegistry;
use lockstep_scheduler::config::PreemptionConfig;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use thiserror::Error;
use tokio::sync::watch as signal;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::api::Pace;
use crate::api::clients::{Clients, Transports};
use crate::api::metrics::RequestMetrics;
use crate::clock::{Clock, Random};
use crate::config::Config;
use crate::config::live::LiveSettings;
use crate::events::{self, Events, Publisher};
use crate::gauges::{Gauges, WorkloadSeries};
use crate::health::Health;
use crate::index::{Index, Key, WatchErrors, Watching, watch_all};
use crate::lease::task::{Candidate, LeaseLost};
use crate::lease::{Leadership, Tenure};
use crate::queue::{InHand, Queue, QueueMetrics};
use crate::resync::resync;
use crate::scheduler::metrics::SchedulerMetrics;
use crate::scheduler::task::Scheduler;
use crate::server_version;
use crate::upstream_scheduling::{self, NativeScheduling};
use crate::workload::metrics::WorkloadMetrics;
use crate::workload::{Controller, Parts};

/// Everything that the manager takes from outside.
pub struct Deps {
    /// Connections.
    pub transports: Transports,
    /// Clocks.
    pub clock: Arc<dyn Clock>,
    /// Jitter and ids.
    pub random: Random,
    /// Settings.
    pub config: Config,
    /// What the configuration says of preemption, as it changes.
    pub preemption: signal::Receiver<PreemptionConfig>,
    /// Identity of this process in the election and in events.
    pub identity: String,
    /// Namespace of this process: of its Lease, and of the agents unless configured otherwise.
    pub namespace: String,
    /// Where metrics are registered.
    pub registry: SharedRegistry,
    /// Where series of single workloads are registered, if there are to be any.
    pub workload_registry: SharedRegistry,
    /// What the health endpoint asks.
    pub health: Health,
    /// Cancelled: finish the step in hand, release the lease, return.
    pub stop: CancellationToken,
}

/// Why the manager ended by itself. The process has to end with it.
#[derive(Debug, Error)]
pub enum RunError {
    /// Another process may lead now.
    #[error(transparent)]
    Lease(#[from] LeaseLost),
    /// A task that never ends has ended.
    #[error("task {0} ended")]
    Ended(&'static str),
}

/// The metrics of all components.
pub(crate) struct Metrics {
    requests: RequestMetrics,
    queue: QueueMetrics,
    watch_errors: WatchErrors,
    native: NativeScheduling,
    workloads: WorkloadMetrics,
    scheduler: SchedulerMetrics,
    lost_events: Counter,
}

impl Metrics {
    /// Lets each component register its own.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        Self {
            requests: RequestMetrics::register(registry),
            queue: QueueMetrics::register(registry),
            watch_errors: WatchErrors::register(registry),
            native: NativeScheduling::register(registry),
            workloads: WorkloadMetrics::register(registry),
            scheduler: SchedulerMetrics::register(registry),
            lost_events: events::register_lost(registry),
        }
    }
}

/// What every part of the manager is made with.
struct Wiring {
    index: Arc<Index>,
    queue: Queue<Key>,
    clients: Clients,
    clock: Arc<dyn Clock>,
    random: Random,
    config: Config,
    metrics: Metrics,
}

/// Runs until `stop`, or until something fails that only a new process can mend.
pub async fn run(deps: Deps) -> Result<(), RunError> {
    let (leadership, tenure) = signal::channel(None);
    let tenure = Tenure::new(tenure);
    let wiring = Wiring::new(&deps, &tenure);
    deps.health.follow(&wiring.index);
    wiring.register_gauges(&tenure, &deps.registry, &deps.workload_registry);
    let Deps {
        config,
        preemption,
        identity,
        namespace,
        stop,
        ..
    } = deps;
    let own = [
        namespace.clone(),
        config.agent_selector(&namespace).namespace,
    ];
    let (nominations, keeps_nominations) = signal::channel(false);
    let live = LiveSettings::new(config, own, preemption, keeps_nominations);

    // Background tasks: they end when this future is dropped or returns.
    let mut background = JoinSet::new();
    wiring.watch(&mut background, nominations);
    let (events, publisher) = wiring.event_publisher(&identity);
    background.spawn(publisher);

    // The lease is given up after the work has stopped.
    let release = CancellationToken::new();
    let mut election = Box::pin(wiring.elect(identity, namespace, leadership, release.clone()));
    let work = wiring.work(live, events, tenure.clone(), stop.clone());
    let mut work = Box::pin(lead(tenure, wiring.index.clone(), work, stop));

    tokio::select! {
        biased;
        lost = &mut election => return Err(lost.err().map_or(RunError::Ended("lease"), RunError::from)),
        () = &mut work => {}
        Some(_) = background.join_next() => return Err(RunError::Ended("watch or events")),
    }
    release.cancel();
    election.await?;
    info!("stopped");
    Ok(())
}

impl Wiring {
    /// Makes what the parts share. Writes are sent in this tenure only.
    fn new(deps: &Deps, tenure: &Tenure) -> Self {
        let (config, clock, random) = (&deps.config, &deps.clock, &deps.random);
        let metrics = Metrics::register(&mut deps.registry.lock());
        let clients = Clients::new(
            &deps.transports,
            config.deadlines(),
            tenure.clone(),
            clock,
            Pace::new(config.limits().in_flight),
            &metrics.requests,
        );
        let queue = Queue::new(
            config.pass_backoff(),
            random.clone(),
            clock.clone(),
            metrics.queue.clone(),
        );
        let agents = config.agent_selector(&deps.namespace);
        Self {
            index: Index::new(agents, queue.clone(), clock.clone()),
            queue,
            clients,
            clock: clock.clone(),
            random: random.clone(),
            config: config.clone(),
            metrics,
        }
    }

    /// Registers what is computed at each scrape: everywhere, and of single workloads if there are
    /// to be such series.
    fn register_gauges(
        &self,
        tenure: &Tenure,
        registry: &SharedRegistry,
        workload_registry: &SharedRegistry,
    ) {
        let gauges = Gauges {
            index: self.index.clone(),
            tenure: tenure.clone(),
            clock: self.clock.clone(),
            accelerators: self.config.scheduler.accelerators.clone(),
        };
        let in_hand = InHand {
            queue: self.queue.clone(),
            workers: self.config.workloads.concurrency,
        };
        registry.lock().register_collector(Box::new(gauges));
        registry.lock().register_collector(Box::new(in_hand));
        let shown = &self.config.metrics.workloads;
        if shown.enabled {
            let series = WorkloadSeries {
                index: self.index.clone(),
                tenure: tenure.clone(),
                clock: self.clock.clone(),
                max: shown.max,
            };
            workload_registry
                .lock()
                .register_collector(Box::new(series));
        }
    }

    /// Starts the tasks that keep the index up to date, and the pass over everything that repairs
    /// what they miss.
    fn watch(&self, tasks: &mut JoinSet<()>, nominations: signal::Sender<bool>) {
        let watching = Watching {
            client: self.clients.read.clone(),
            backoff: self.config.watch_backoff(),
            random: self.random.clone(),
            errors: self.metrics.watch_errors.clone(),
        };
        watch_all(&self.index, &watching, tasks);
        let (read, native) = (self.clients.read.clone(), self.metrics.native.clone());
        tasks.spawn(upstream_scheduling::follow(
            read.clone(),
            self.index.clone(),
            self.random.clone(),
            native,
        ));
        tasks.spawn(server_version::follow(
            read,
            self.random.clone(),
            nominations,
        ));
        tasks.spawn(resync(
            self.index.clone(),
            self.random.clone(),
            self.config.resync_period(),
        ));
    }

    /// The sender of events, and the task that writes them.
    fn event_publisher(&self, identity: &str) -> (Events, impl Future<Output = ()> + use<>) {
        let lost = self.metrics.lost_events.clone();
        let (events, reports) = Events::channel(lost.clone());
        let publisher = Publisher {
            client: self.clients.write.clone(),
            clock: self.clock.clone(),
            random: self.random.clone(),
            identity: identity.to_owned(),
            lost,
        };
        (events, publisher.run(reports))
    }

    /// Takes part in the election, or leads without one.
    async fn elect(
        &self,
        identity: String,
        namespace: String,
        leadership: signal::Sender<Option<Leadership>>,
        release: CancellationToken,
    ) -> Result<(), LeaseLost> {
        if !self.config.leader_election.enabled {
            let for_ever = Leadership::for_ever(self.clock.monotonic());
            leadership.send_replace(Some(for_ever));
            release.cancelled().await;
            return Ok(());
        }
        let candidate = Candidate {
            client: self.clients.lease.clone(),
            namespace,
            name: self.config.leader_election.name.clone(),
            identity,
            timing: self.config.timing(),
            clock: &*self.clock,
        };
        candidate.run(leadership, release).await
    }

    /// The workload controller and the scheduler. Both finish what they have in hand once stopped.
    fn work(
        &self,
        live: LiveSettings,
        events: Events,
        tenure: Tenure,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + use<> {
        let controller = Arc::new(Controller::new(Parts {
            index: self.index.clone(),
            queue: self.queue.clone(),
            clients: self.clients.clone(),
            clock: self.clock.clone(),
            settings: Arc::new(self.config.settings()),
            limits: self.config.limits(),
            events: events.clone(),
            metrics: self.metrics.workloads.clone(),
            stop: stop.clone(),
        }));
        let scheduler = Scheduler::new(
            self.index.clone(),
            &self.clients,
            self.clock.clone(),
            live,
            events,
            self.metrics.scheduler.clone(),
        );
        async move {
            tokio::join!(controller.run(tenure.clone()), scheduler.run(tenure, stop));
        }
    }
}

/// Waits for a complete index and for leadership, then works until stopped.
async fn lead(
    mut tenure: Tenure,
    index: Arc<Index>,
    work: impl Future<Output = ()>,
    stop: CancellationToken,
) {
    let ready = async {
        index.synced().await;
        tenure.acquired().await
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => return,
        leading = ready => if leading.is_err() { return },
    }
    info!("synced and leading: work begins");
    work.await;
}

#[cfg(test)]
mod tests;
