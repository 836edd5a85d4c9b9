//! A manager without tasks, for simulations: the caller delivers watch events and runs each step.
//!
//! It shares index, queue, controller and scheduler with [`crate::run`]. It has no watches, lease,
//! event publisher or resync, and always leads. A drop simulates a crash.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use kube::Client;
use kube::runtime::watcher::Event;
use lockstep_api::NodeHealthMode;
use lockstep_api::native_group::{NativeSupport, PodField};
use lockstep_api::node_signal::SignalRule;
use lockstep_api::provisioning::AUTOSCALING_VERSIONS;
use lockstep_lifecycle::WorkloadView;
use lockstep_model::{NativeGroup, NativeKind};
use lockstep_scheduler::SchedulingInput;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::Pace;
use crate::api::clients::Clients;
use crate::clock::{Clock, Random};
use crate::config::live::LiveSettings;
use crate::events::{Events, Reports};
use crate::gauges::{Gauges, WorkloadSeries};
use crate::index::{Feeds, Index};
use crate::lease::{Leadership, Tenure};
use crate::policy_check::PolicyMetric;
use crate::process;
use crate::provisioning::task::Provisioner;
use crate::queue::{InHand, Queue, RetryBackoff};
use crate::run::Metrics;
use crate::scheduler::act::StepSender;
use crate::scheduler::input::scheduling_input;
use crate::scheduler::task::Scheduler;
use crate::workload::{Controller, Limits, Parts};

pub use crate::index::{AgentSelector, Key, WatchedKind, member as read_member};
pub use crate::scheduler::task::CycleSummary;
pub use lockstep_lifecycle::provisioning::ProvisioningSettings;

pub struct SteppedParts {
    pub controller: Client,
    pub scheduler: Client,
    pub clock: Arc<dyn Clock>,
    pub random: Random,
    pub agents: AgentSelector,
    pub settings: Arc<lockstep_lifecycle::LifecycleSettings>,
    pub scheduler_settings: lockstep_scheduler::SchedulerSettings,
    pub node_health: NodeHealthMode,
    pub signal_rules: Vec<SignalRule>,
    pub provisioning: ProvisioningSettings,
}

pub struct SteppedManager {
    index: Arc<Index>,
    feeds: Feeds,
    queue: Queue<Key>,
    clock: Arc<dyn Clock>,
    controller: Controller,
    scheduler: Scheduler,
    provisioner: Provisioner,
    /// Counters and histograms. Collectors of gauges are created for each scrape.
    registry: Registry,
    /// Keeps the event channel open.
    _events: Reports,
}

impl SteppedManager {
    pub fn new(parts: SteppedParts) -> Self {
        let SteppedParts {
            controller,
            scheduler,
            clock,
            random,
            agents,
            settings,
            scheduler_settings,
            node_health,
            signal_rules,
            provisioning,
        } = parts;
        let backoff = RetryBackoff {
            first: Duration::from_secs(1),
            max: Duration::from_mins(1),
        };
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let queue = Queue::new(backoff, random, clock.clone(), metrics.queue);
        let index = Index::new(agents, queue.clone(), clock.clone());
        index.use_signal_rules(signal_rules, node_health);
        index.use_autoscaler(provisioning.mode, &provisioning.namespace);
        let (events, reports) = Events::channel(Counter::default());
        // In a process, a separate task discovers the version.
        index.set_requests_version(Some(AUTOSCALING_VERSIONS[0]));
        let controller = unguarded(controller);
        let provisioner = Provisioner::new(
            index.clone(),
            clock.clone(),
            provisioning,
            // Sequential, as below.
            &Clients {
                pace: Pace::new(1),
                ..controller.clone()
            },
            Duration::ZERO,
        );
        let controller = Controller::new(Parts {
            index: index.clone(),
            queue: queue.clone(),
            clients: controller,
            clock: clock.clone(),
            settings,
            // Sequential, because the order of requests determines where a crash happens.
            limits: Limits {
                concurrency: 1,
                in_flight: 1,
            },
            events: events.clone(),
            metrics: metrics.workloads,
            stop: CancellationToken::new(),
        });
        let scheduler = Scheduler::new(
            index.clone(),
            clock.clone(),
            LiveSettings::unchanging(scheduler_settings),
            StepSender::new(&unguarded(scheduler), events, metrics.scheduler),
        );
        Self {
            index,
            feeds: Feeds::default(),
            queue,
            clock,
            controller,
            scheduler,
            provisioner,
            registry,
            _events: reports,
        }
    }

    /// Fails if the object is not of this kind.
    pub fn deliver(&mut self, kind: WatchedKind, event: Event<Value>) -> serde_json::Result<()> {
        self.feeds.handle(&self.index, kind, event)
    }

    /// In a process, a separate task tests the API server.
    pub fn deliver_native_support(&mut self, supported: bool) {
        self.index.set_native_support(supported);
    }

    /// In a process, a separate task finds the served version of Kueue's API.
    pub fn deliver_kueue_version(&mut self, version: Option<&'static str>) {
        self.index.set_kueue_version(version);
    }

    /// In a process, a separate task watches these groups.
    pub fn deliver_native_group(&mut self, kind: NativeKind, key: &Key, group: NativeGroup) {
        self.index.set_native_group(kind, key, Some(group));
    }

    /// Changes the mode, as a changed configuration file does.
    pub fn set_node_health(&self, mode: NodeHealthMode) {
        self.index.set_node_health(mode);
    }

    /// Time until signals of a node begin to count, or end. In a process, a task follows it.
    pub fn next_signal_change(&self) -> Option<Duration> {
        self.index.next_signal_change()
    }

    /// `None` if no workload is due.
    pub async fn pass_next(&self) -> Option<Key> {
        self.index.follow_signals();
        let key = self.queue.try_next()?;
        self.controller.pass_over(&key).await;
        Some(key)
    }

    /// Time of the next pass, if none is due now.
    pub fn next_pass(&self) -> Option<Instant> {
        self.queue.next_due()
    }

    pub async fn pass(&self, key: &Key) {
        self.controller.pass_over(key).await;
    }

    /// True if an input of the scheduler has changed since the last call.
    pub fn scheduler_woken(&self) -> bool {
        self.index.follow_signals();
        self.index.scheduler_woken()
    }

    pub async fn schedule(&mut self) -> CycleSummary {
        self.scheduler.cycle(&CancellationToken::new()).await
    }

    /// True if an input of the provisioner has changed since the last call.
    pub fn provisioning_woken(&self) -> bool {
        self.index.provisioning_woken()
    }

    /// One pass of the provisioner. Returns the time until the next one without a change.
    pub async fn provision(&mut self) -> Duration {
        self.provisioner.pass(&CancellationToken::new()).await
    }

    pub fn scheduler_settings(&mut self) -> &mut lockstep_scheduler::SchedulerSettings {
        &mut self.scheduler.settings
    }

    pub fn view(&self, key: &Key) -> Option<WorkloadView> {
        self.controller.view(key)
    }

    /// The metrics that a leader would export, with series of at most this many workloads.
    pub fn scrape(&self, single_workloads: usize) -> String {
        let mut gauges = Registry::default();
        let leadership = Leadership::for_ever(self.clock.monotonic());
        let tenure = Tenure::new(watch::channel(Some(leadership)).1);
        gauges.register_collector(Box::new(Gauges {
            index: self.index.clone(),
            tenure: tenure.clone(),
            clock: self.clock.clone(),
            accelerators: self.scheduler.settings.rules.costs.accelerators.clone(),
        }));
        gauges.register_collector(Box::new(InHand {
            queue: self.queue.clone(),
            workers: 1,
        }));
        gauges.register_collector(Box::new(WorkloadSeries {
            index: self.index.clone(),
            tenure,
            clock: self.clock.clone(),
            max: single_workloads,
        }));
        encoded(&[&self.registry, &gauges])
    }

    pub fn scheduling_input(&self) -> SchedulingInput {
        scheduling_input(&self.index.read())
    }
}

/// A scrape of the metrics that only a process has, each with a series: requests, served versions,
/// policy checks and the kernel's statistics.
pub fn process_scrape() -> String {
    let mut registry = Registry::default();
    process::register(&mut registry);
    let policies = PolicyMetric::register(&mut registry);
    policies.set("lockstep-operator-objects", false);
    policies.set("lockstep-members", false);
    let metrics = Metrics::register(&mut registry);
    metrics.requests.count(&Method::GET, None);
    metrics.requests.took(&Method::GET, Duration::ZERO);
    metrics.native.set(&NativeSupport {
        versions: vec!["v1beta1".to_owned()],
        pod_field: PodField::Kept,
    });
    encoded(&[&registry])
}

fn encoded(registries: &[&Registry]) -> String {
    let mut text = String::new();
    for registry in registries {
        // Writing to a string cannot fail.
        let _ = encode_registry(&mut text, registry);
    }
    text
}

fn unguarded(client: Client) -> Clients {
    Clients {
        read: client.clone(),
        write: client.clone(),
        lease: client,
        pace: Pace::new(64),
    }
}
