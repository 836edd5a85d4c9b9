use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lockstep_api::TrainingWorkloadStatus;
use lockstep_api::workload::{
    CauseKind, CheckpointOutcome, CheckpointRequest, FailureAction, HistoryEntry, Phases,
};
use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::metrics::{restarts, saves};

/// Most incidents end in these actions.
fn common_actions() -> impl Iterator<Item = FailureAction> {
    let actions = FailureAction::ALL.into_iter();
    actions.filter(|action| action.raises_attempt())
}

fn recoveries() -> impl Iterator<Item = FailureAction> {
    let actions = FailureAction::ALL.into_iter();
    actions.filter(|action| !action.leaves_container() && !action.ends_workload())
}

#[derive(Clone, Debug)]
pub(super) struct IncidentMetrics {
    finished: Family<IncidentLabels, Counter>,
    phases: Family<PhaseLabel, Histogram>,
    recovery: Family<RecoveryLabels, Histogram>,
    lost: Family<CauseLabels, Counter>,
    restart: Counter,
    preemptions: Counter,
    checkpoints: Family<OutcomeLabel, Histogram>,
    namespaces: Arc<Mutex<BTreeSet<String>>>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct IncidentLabels {
    namespace: String,
    action: &'static str,
    cause: &'static str,
    counted: &'static str,
}

impl IncidentLabels {
    fn of(namespace: &str, action: FailureAction, cause: CauseKind, counted: bool) -> Self {
        Self {
            namespace: namespace.to_owned(),
            action: action.as_str(),
            cause: cause.as_str(),
            counted: if counted { "true" } else { "false" },
        }
    }
}

fn all_incidents() -> impl Iterator<Item = (FailureAction, CauseKind, bool)> {
    FailureAction::ALL.into_iter().flat_map(|action| {
        let causes = CauseKind::ALL.into_iter();
        causes.flat_map(move |cause| [true, false].map(|counted| (action, cause, counted)))
    })
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RecoveryLabels {
    action: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

/// An action that keeps pods can still recreate some, and then takes as long as a recreation of
/// all.
const RESULTS: [&str; 2] = ["in_place", "recreated"];

fn result(recreated: i32) -> &'static str {
    let [in_place, replaced] = RESULTS;
    if recreated == 0 { in_place } else { replaced }
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CauseLabels {
    namespace: String,
    cause: &'static str,
}

impl CauseLabels {
    fn of(namespace: &str, cause: CauseKind) -> Self {
        Self {
            namespace: namespace.to_owned(),
            cause: cause.as_str(),
        }
    }
}

impl Default for IncidentMetrics {
    fn default() -> Self {
        Self {
            finished: Family::default(),
            phases: Family::new_with_constructor(restarts),
            recovery: Family::new_with_constructor(restarts),
            lost: Family::default(),
            restart: Counter::default(),
            preemptions: Counter::default(),
            checkpoints: Family::new_with_constructor(saves),
            namespaces: Arc::default(),
        }
    }
}

fn phases_of(p: &Phases) -> [(&'static str, f64); 5] {
    [
        ("detect", p.detect_ms),
        ("decide", p.decide_ms),
        ("stop", p.stop_ms),
        ("barrier", p.barrier_ms),
        ("start", p.start_ms),
    ]
    .map(|(phase, ms)| (phase, ms as f64 / 1000.0))
}

/// The attempt alone does not identify an incident: a preemption can interrupt its restart.
fn same(one: &HistoryEntry, other: &HistoryEntry) -> bool {
    (&one.domain, one.attempt, one.cause.kind, one.time)
        == (&other.domain, other.attempt, other.cause.kind, other.time)
}

/// Requests for checkpoints with a new outcome.
fn outcomes<'a>(
    old: Option<&TrainingWorkloadStatus>,
    new: &'a TrainingWorkloadStatus,
) -> impl Iterator<Item = &'a CheckpointRequest> {
    let old = old.into_iter();
    let before: BTreeMap<&str, &CheckpointRequest> = old
        .flat_map(TrainingWorkloadStatus::checkpoint_requests)
        .collect();
    let closed = new.checkpoint_requests().filter(|(_, r)| !r.is_open());
    closed.filter_map(move |(domain, request)| {
        (before.get(domain) != Some(&request)).then_some(request)
    })
}

impl IncidentMetrics {
    /// Creates the series of a namespace at zero, so that the first incident shows as an increase.
    /// Only common actions get series, because all would be ten times as many. Removes the series
    /// of deleted namespaces.
    pub fn ensure_series(&self, namespace: &str, exists: impl Fn(&str) -> bool) {
        let mut namespaces = self.namespaces.lock();
        if namespaces.contains(namespace) {
            return;
        }
        for deleted in namespaces.extract_if(.., |name| !exists(name)) {
            self.forget(&deleted);
        }
        namespaces.insert(namespace.to_owned());
        for cause in CauseKind::ALL {
            let labels = CauseLabels::of(namespace, cause);
            drop(self.lost.get_or_create(&labels));
            for action in common_actions() {
                drop(self.finished_as(namespace, action, cause, cause.is_counted()));
            }
        }
    }

    fn forget(&self, namespace: &str) {
        for cause in CauseKind::ALL {
            let labels = CauseLabels::of(namespace, cause);
            self.lost.remove(&labels);
        }
        for (action, cause, counted) in all_incidents() {
            let labels = IncidentLabels::of(namespace, action, cause, counted);
            self.finished.remove(&labels);
        }
    }

    pub fn wrote(
        &self,
        namespace: &str,
        old: Option<&TrainingWorkloadStatus>,
        new: &TrainingWorkloadStatus,
    ) {
        let recorded = old.map_or(&[][..], |o| &o.history);
        let entries = new.history.iter();
        for entry in entries.filter(|e| !recorded.iter().any(|o| same(o, e))) {
            self.finished(namespace, entry);
        }
        for request in outcomes(old, new) {
            self.answered(request);
        }
        let preemptions = new.preemptions - old.map_or(0, |o| o.preemptions);
        self.preemptions
            .inc_by(u64::try_from(preemptions).unwrap_or_default());
    }

    fn answered(&self, request: &CheckpointRequest) {
        let (Some(outcome), Some(millis)) = (request.outcome, request.millis) else {
            return;
        };
        let outcome = outcome.as_str();
        let labels = OutcomeLabel { outcome };
        self.checkpoints
            .get_or_create(&labels)
            .observe(millis as f64 / 1000.0);
    }

    fn finished(&self, namespace: &str, entry: &HistoryEntry) {
        self.finished_as(namespace, entry.action, entry.cause.kind, entry.counted)
            .inc();
        for (phase, seconds) in phases_of(&entry.phases) {
            self.phases
                .get_or_create(&PhaseLabel { phase })
                .observe(seconds);
        }
        if let Some(recovered) = entry.recovered_at {
            let time = (recovered - entry.time).to_std().unwrap_or_default();
            let labels = RecoveryLabels {
                action: entry.action.as_str(),
                result: result(entry.recreated),
            };
            self.recovery
                .get_or_create(&labels)
                .observe(time.as_secs_f64());
        }
        let labels = CauseLabels::of(namespace, entry.cause.kind);
        let lost = u64::try_from(entry.lost_accelerator_seconds).unwrap_or_default();
        self.lost.get_or_create(&labels).inc_by(lost);
        // Without labels, because a scrape is limited to 4500 series.
        let restart = u64::try_from(entry.restart_accelerator_seconds).unwrap_or_default();
        self.restart.inc_by(restart);
    }

    fn finished_as(
        &self,
        namespace: &str,
        action: FailureAction,
        cause: CauseKind,
        counted: bool,
    ) -> Counter {
        let labels = IncidentLabels::of(namespace, action, cause, counted);
        self.finished.get_or_create_owned(&labels)
    }

    /// Known label values start at zero.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        for (phase, _) in phases_of(&Phases::default()) {
            drop(metrics.phases.get_or_create(&PhaseLabel { phase }));
        }
        for action in recoveries().map(FailureAction::as_str) {
            for result in RESULTS {
                let labels = RecoveryLabels { action, result };
                drop(metrics.recovery.get_or_create(&labels));
            }
        }
        for outcome in CheckpointOutcome::ALL.map(CheckpointOutcome::as_str) {
            drop(metrics.checkpoints.get_or_create(&OutcomeLabel { outcome }));
        }
        registry.register(
            "lockstep_checkpoint_request_seconds",
            "From a request for a checkpoint to its outcome, by outcome",
            metrics.checkpoints.clone(),
        );
        registry.register(
            "lockstep_incidents",
            "Finished incidents by action, by cause, and by whether they used a restart of the budget",
            metrics.finished.clone(),
        );
        registry.register(
            "lockstep_incident_phase_seconds",
            "Length of the phases of an incident: detect, decide, stop, barrier, start",
            metrics.phases.clone(),
        );
        registry.register(
            "lockstep_recovery_seconds",
            "From the failure until all members ran again, by result: in_place, or recreated if a pod was replaced; incidents with another end are not counted",
            metrics.recovery.clone(),
        );
        registry.register(
            "lockstep_lost_accelerator_seconds",
            "Lost work of all members, since the last checkpoint, by cause of the incident",
            metrics.lost.clone(),
        );
        registry.register(
            "lockstep_restart_accelerator_seconds",
            "Time of all members from the failure until all ran again",
            metrics.restart.clone(),
        );
        registry.register(
            "lockstep_preemptions",
            "Workloads preempted",
            metrics.preemptions.clone(),
        );
        metrics
    }
}
