//! The whole manager as one future.
//!
//! It reads no environment, clock or random source, and never exits the process: [`Deps`] provides
//! all of them. One set owns every task. Dropping the future drops the tasks, which simulates a
//! crash.

use std::sync::Arc;

use lockstep_api::NodeHealthMode;
use lockstep_api::scheduling::AutoscalerMode;
use lockstep_common::endpoints::SharedRegistry;
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
use crate::discovery::{KUEUE, PROVISIONING_REQUESTS};
use crate::events::{self, Events, Publisher};
use crate::gauges::{Gauges, WorkloadSeries};
use crate::health::Health;
use crate::index::{Index, Key, WatchErrors, Watching, watch_all};
use crate::lease::task::{Candidate, LeaseLost};
use crate::lease::{Leadership, Tenure};
use crate::node_health;
use crate::provisioning::task::Provisioner;
use crate::queue::{InHand, Queue, QueueMetrics};
use crate::resync::resync;
use crate::scheduler::act::StepSender;
use crate::scheduler::metrics::SchedulerMetrics;
use crate::scheduler::task::Scheduler;
use crate::server_version;
use crate::upstream_scheduling::{Discovery, NativeMetrics};
use crate::workload::metrics::WorkloadMetrics;
use crate::workload::{Controller, Parts};

pub struct Deps {
    pub transports: Transports,
    pub clock: Arc<dyn Clock>,
    pub random: Random,
    pub config: Config,
    /// Whether preemption is enabled.
    pub preemption: signal::Receiver<bool>,
    /// What is done about signals of nodes.
    pub node_health: signal::Receiver<NodeHealthMode>,
    /// Identity of this process in the election and in events.
    pub identity: String,
    /// Namespace of this process, its Lease and, by default, the agents.
    pub namespace: String,
    pub registry: SharedRegistry,
    pub workload_registry: SharedRegistry,
    pub health: Health,
    /// After its cancellation, the manager finishes the current step, releases the lease and
    /// returns.
    pub stop: CancellationToken,
}

/// Error after which the process must exit.
#[derive(Debug, Error)]
pub enum RunError {
    /// Another process can be the leader now.
    #[error(transparent)]
    Lease(#[from] LeaseLost),
    /// A permanent task has ended.
    #[error("task {0} ended")]
    Ended(&'static str),
}

pub(crate) struct Metrics {
    pub requests: RequestMetrics,
    pub queue: QueueMetrics,
    watch_errors: WatchErrors,
    pub native: NativeMetrics,
    pub workloads: WorkloadMetrics,
    pub scheduler: SchedulerMetrics,
    lost_events: Counter,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        Self {
            requests: RequestMetrics::register(registry),
            queue: QueueMetrics::register(registry),
            watch_errors: WatchErrors::register(registry),
            native: NativeMetrics::register(registry),
            workloads: WorkloadMetrics::register(registry),
            scheduler: SchedulerMetrics::register(registry),
            lost_events: events::register_lost(registry),
        }
    }
}

struct Wiring {
    index: Arc<Index>,
    queue: Queue<Key>,
    clients: Clients,
    clock: Arc<dyn Clock>,
    random: Random,
    config: Config,
    metrics: Metrics,
}

/// Runs until `stop` is cancelled, or until an error that only a new process can resolve.
pub async fn run(deps: Deps) -> Result<(), RunError> {
    let (leadership, tenure) = signal::channel(None);
    let tenure = Tenure::new(tenure);
    let wiring = Wiring::new(&deps, &tenure);
    deps.health.follow(&wiring.index);
    wiring.register_gauges(&tenure, &deps.registry, &deps.workload_registry);
    let Deps {
        config,
        preemption,
        node_health,
        identity,
        namespace,
        stop,
        ..
    } = deps;
    let agents = config.agent_selector(&namespace).namespace;
    let settings = config.scheduler_settings([&namespace, &agents]);
    let (nominations, keeps_nominations) = signal::channel(false);
    let live = LiveSettings::new(settings, preemption, keeps_nominations);

    let mut background = JoinSet::new();
    wiring.watch(&mut background, nominations, namespace.clone());
    background.spawn(node_health::follow(wiring.index.clone(), node_health));
    let (events, publisher) = wiring.event_publisher(&identity);
    background.spawn(publisher);

    // Cancelled after all work has stopped.
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
        let index = Index::new(agents, queue.clone(), clock.clone());
        index.use_signal_rules(
            config.node_health.signal_rules(),
            *deps.node_health.borrow(),
        );
        index.use_autoscaler(config.autoscaler.mode, &config.autoscaler.namespace);
        Self {
            index,
            queue,
            clients,
            clock: clock.clone(),
            random: random.clone(),
            config: config.clone(),
            metrics,
        }
    }

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

    fn watch(&self, tasks: &mut JoinSet<()>, nominations: signal::Sender<bool>, namespace: String) {
        let watching = Watching {
            client: self.clients.read.clone(),
            backoff: self.config.watch_backoff(),
            random: self.random.clone(),
            errors: self.metrics.watch_errors.clone(),
        };
        watch_all(&self.index, &watching, tasks);
        if self.config.kueue.enabled {
            tasks.spawn(KUEUE.follow(self.index.clone(), watching.clone()));
        }
        if self.config.autoscaler.mode == AutoscalerMode::ProvisioningRequest {
            tasks.spawn(PROVISIONING_REQUESTS.follow(self.index.clone(), watching.clone()));
        }
        let read = self.clients.read.clone();
        let discovery = Discovery {
            watching,
            namespace,
            period: self.config.resync_period(),
        };
        tasks.spawn(discovery.follow(self.index.clone(), self.metrics.native.clone()));
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

    /// Leads at once if the election is disabled.
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

    /// After a stop, all finish their current step.
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
            self.clock.clone(),
            live,
            StepSender::new(&self.clients, events, self.metrics.scheduler.clone()),
        );
        let provisioner = Provisioner::new(
            self.index.clone(),
            self.clock.clone(),
            self.config.provisioning_settings(),
            &self.clients,
            self.config.resync_period(),
        );
        async move {
            tokio::join!(
                controller.run(tenure.clone()),
                scheduler.run(tenure.clone(), stop.clone()),
                provisioner.run(tenure, stop)
            );
        }
    }
}

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
