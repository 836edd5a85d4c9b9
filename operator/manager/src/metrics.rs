//! Metrics. Names of controller-runtime and client-go where they exist, so that existing dashboards work; our own start
//! with `lockstep_`. No label ever holds the name of an object.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use lockstep_api::TrainingWorkloadStatus;
use lockstep_api::scheduling::PodGroupStatus;
use lockstep_api::workload::HistoryEntry;

use crate::clients::ErrorClass;
use crate::scheduler::Plan;

/// Requests to the API server.
#[derive(Clone, Debug, Default)]
pub struct Requests(Family<RequestLabels, Counter>);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    code: String,
    method: String,
}

impl Requests {
    /// Counts one; without a status the request got no answer.
    pub fn count(&self, method: &Method, status: Option<StatusCode>) {
        let code = status.map_or_else(|| "<error>".to_owned(), |s| s.as_u16().to_string());
        self.0.get_or_create(&RequestLabels { code, method: method.to_string() }).inc();
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("rest_client_requests", "Requests to the API server by method and code", self.0.clone());
    }
}

/// The work queue.
#[derive(Clone, Debug)]
pub struct QueueMetrics {
    depth: Gauge,
    adds: Counter,
    retries: Counter,
    waited: Histogram,
    worked: Histogram,
}

impl Default for QueueMetrics {
    fn default() -> Self {
        Self {
            depth: Gauge::default(),
            adds: Counter::default(),
            retries: Counter::default(),
            waited: seconds(),
            worked: seconds(),
        }
    }
}

impl QueueMetrics {
    /// A key came in.
    pub fn added(&self, depth: usize) {
        self.adds.inc();
        self.depth.set(depth as i64);
    }

    /// A key went to a worker after this time.
    pub fn taken(&self, waited: Duration, depth: usize) {
        self.waited.observe(waited.as_secs_f64());
        self.depth.set(depth as i64);
    }

    /// A worker had a key for this time.
    pub fn worked(&self, time: Duration) {
        self.worked.observe(time.as_secs_f64());
    }

    /// A key waits for another attempt.
    pub fn retried(&self) {
        self.retries.inc();
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("workqueue_depth", "Keys waiting", self.depth.clone());
        registry.register("workqueue_adds", "Keys added", self.adds.clone());
        registry.register("workqueue_retries", "Keys that wait for another attempt", self.retries.clone());
        registry.register("workqueue_queue_duration_seconds", "Time that keys wait", self.waited.clone());
        registry.register("workqueue_work_duration_seconds", "Time that workers have a key", self.worked.clone());
    }
}

/// Result of a pass, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Something was written.
    Changed,
    /// Nothing to do.
    Unchanged,
    /// It failed.
    Error,
}

/// Passes over workloads.
#[derive(Clone, Debug)]
pub struct Passes {
    total: Family<PassLabels, Counter>,
    errors: Family<ErrorLabels, Counter>,
    panics: Counter,
    time: Histogram,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PassLabels {
    controller: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ErrorLabels {
    class: &'static str,
}

impl Default for Passes {
    fn default() -> Self {
        Self { total: Family::default(), errors: Family::default(), panics: Counter::default(), time: seconds() }
    }
}

impl Passes {
    /// A pass has ended.
    pub fn ended(&self, outcome: Outcome, time: Duration) {
        let result = match outcome {
            Outcome::Changed => "requeue",
            Outcome::Unchanged => "success",
            Outcome::Error => "error",
        };
        self.total.get_or_create(&PassLabels { controller: "trainingworkload", result }).inc();
        self.time.observe(time.as_secs_f64());
    }

    /// A request of a pass has failed.
    pub fn failed(&self, class: ErrorClass) {
        self.errors.get_or_create(&ErrorLabels { class: class.as_str() }).inc();
    }

    /// A pass has panicked.
    pub fn panicked(&self) {
        self.panics.inc();
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("controller_runtime_reconcile", "Passes by result", self.total.clone());
        registry.register("controller_runtime_reconcile_panics", "Passes that panicked", self.panics.clone());
        registry.register("controller_runtime_reconcile_time_seconds", "Length of passes", self.time.clone());
        registry.register("lockstep_write_errors", "Failed writes of passes by class", self.errors.clone());
    }
}

/// Failures of watches by kind.
#[derive(Clone, Debug, Default)]
pub struct WatchErrors(Family<KindLabel, Counter>);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

impl WatchErrors {
    /// A watch has failed.
    pub fn count(&self, kind: &'static str) {
        self.0.get_or_create(&KindLabel { kind }).inc();
    }
}

/// Versions of upstream's scheduling group that serve pod groups.
#[derive(Clone, Debug, Default)]
pub struct NativeScheduling(Family<VersionLabel, Gauge>);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VersionLabel {
    version: String,
}

impl NativeScheduling {
    /// What is served now.
    pub fn set(&self, versions: &[String]) {
        self.0.clear();
        for version in versions {
            self.0.get_or_create(&VersionLabel { version: version.clone() }).set(1);
        }
    }
}

/// What has become of incidents.
#[derive(Clone, Debug)]
pub struct Incidents {
    restarts: Family<IncidentLabels, Counter>,
    phases: Family<PhaseLabel, Histogram>,
    preemptions: Counter,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct IncidentLabels {
    action: String,
    cause: String,
    counted: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

impl Default for Incidents {
    fn default() -> Self {
        Self {
            restarts: Family::default(),
            phases: Family::new_with_constructor(seconds),
            preemptions: Counter::default(),
        }
    }
}

impl Incidents {
    /// Counts what a written status has that the one before had not.
    pub fn count(&self, old: Option<&TrainingWorkloadStatus>, new: &TrainingWorkloadStatus) {
        let known = |e: &HistoryEntry| {
            old.is_some_and(|old| old.history.iter().any(|o| o.domain == e.domain && o.epoch == e.epoch))
        };
        for entry in new.history.iter().filter(|e| !known(e)) {
            let labels = IncidentLabels {
                action: format!("{:?}", entry.action),
                cause: format!("{:?}", entry.cause.kind),
                counted: entry.counted.to_string(),
            };
            self.restarts.get_or_create(&labels).inc();
            let p = &entry.phases;
            for (phase, ms) in [
                ("detect", p.detect_ms),
                ("decide", p.decide_ms),
                ("stop", p.stop_ms),
                ("barrier", p.barrier_ms),
                ("start", p.start_ms),
            ] {
                self.phases.get_or_create(&PhaseLabel { phase }).observe(ms as f64 / 1000.0);
            }
        }
        let preemptions = new.preemptions - old.map_or(0, |o| o.preemptions);
        self.preemptions.inc_by(u64::try_from(preemptions).unwrap_or_default());
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("lockstep_incidents", "Finished incidents", self.restarts.clone());
        registry.register("lockstep_incident_phase_seconds", "Length of the phases of incidents", self.phases.clone());
        registry.register("lockstep_preemptions", "Workloads preempted", self.preemptions.clone());
    }
}

/// What the scheduler decides.
#[derive(Clone, Debug)]
pub struct Scheduling {
    passes: Family<SchedulerPassLabels, Histogram>,
    placements: Counter,
    preemptions: Family<PreemptionLabels, Counter>,
    victims: Family<VictimLabels, Counter>,
    lost: Counter,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct SchedulerPassLabels {
    kind: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PreemptionLabels {
    proven: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VictimLabels {
    kind: &'static str,
}

impl Default for Scheduling {
    fn default() -> Self {
        Self {
            passes: Family::new_with_constructor(seconds),
            placements: Counter::default(),
            preemptions: Family::default(),
            victims: Family::default(),
            lost: Counter::default(),
        }
    }
}

impl Scheduling {
    /// A pass has been decided in this time.
    pub fn decided(&self, plan: &Plan, time: Duration) {
        let kind = match (plan.searches, plan.asking) {
            (0, 0) => "upkeep",
            (0, _) => "placement",
            _ => "preemption",
        };
        let result = if plan.steps.is_empty() { "nothing" } else { "changes" };
        self.passes.get_or_create(&SchedulerPassLabels { kind, result }).observe(time.as_secs_f64());
    }

    /// Counts what a written status has that the one before had not.
    pub fn wrote(&self, old: &PodGroupStatus, new: &PodGroupStatus) {
        let (had, has) = (old.placement.as_ref(), new.placement.as_ref());
        if has.is_some_and(|p| had.is_none_or(|h| h.id != p.id)) {
            self.placements.inc();
        }
        // An intent that goes on with fewer victims was counted with all of them.
        let Some(intent) = new.preemption.as_ref().filter(|_| old.preemption.is_none()) else { return };
        let proven = if intent.proven { "true" } else { "false" };
        self.preemptions.get_or_create(&PreemptionLabels { proven }).inc();
        for victim in &intent.victims {
            let kind = if victim.kind == "PodGroup" { "podgroup" } else { "pod" };
            self.victims.get_or_create(&VictimLabels { kind }).inc();
        }
        self.lost.inc_by(u64::try_from(intent.cost).unwrap_or_default());
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "lockstep_scheduler_pass_seconds",
            "Time that the scheduler takes to decide, by the most that a pass did and by whether anything came of it",
            self.passes.clone(),
        );
        registry.register("lockstep_placements", "Placements decided, changed ones included", self.placements.clone());
        registry.register("lockstep_preemption_intents", "Preemptions decided", self.preemptions.clone());
        registry.register("lockstep_preemption_victims", "Victims of the preemptions decided", self.victims.clone());
        registry.register(
            "lockstep_preemption_lost_accelerator_seconds",
            "Work that the preemptions decided destroy",
            self.lost.clone(),
        );
    }
}

/// All metrics that are counted where things happen. Gauges over objects are computed at scrape from the index.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Requests.
    pub requests: Requests,
    /// The queue.
    pub queue: QueueMetrics,
    /// Passes.
    pub passes: Passes,
    /// Watches.
    pub watch_errors: WatchErrors,
    /// Upstream's scheduling kinds.
    pub native: NativeScheduling,
    /// Incidents.
    pub incidents: Incidents,
    /// The scheduler.
    pub scheduling: Scheduling,
    /// Events that could not be sent.
    pub lost_events: Counter,
}

/// The registry of a process; the server reads it while parts are still registering.
pub type SharedRegistry = Arc<Mutex<Registry>>;

impl Metrics {
    /// Registers everything.
    pub fn register(&self, registry: &mut Registry) {
        self.requests.register(registry);
        self.queue.register(registry);
        self.passes.register(registry);
        self.incidents.register(registry);
        self.scheduling.register(registry);
        registry.register("lockstep_watch_errors", "Failures of watches", self.watch_errors.0.clone());
        registry.register(
            "lockstep_native_scheduling",
            "Versions of scheduling.k8s.io that serve pod groups",
            self.native.0.clone(),
        );
        registry.register("lockstep_events_lost", "Events that could not be sent", self.lost_events.clone());
    }
}

/// 1 ms to about 17 min, in steps of four.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 4.0, 11))
}
