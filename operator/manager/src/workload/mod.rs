//! The workload controller: takes keys from the queue and reconciles their workloads.
//!
//! | step | where | client |
//! | --- | --- | --- |
//! | build the view | `index` | no |
//! | decide: record, act or idle | `lockstep_lifecycle::decide` | no |
//! | record: write the ledger | [`status`] | yes |
//! | act: send requests | [`act`] | yes |
//! | idle: write the summary if it differs | [`status`] | yes |
//!
//! The controller is the only writer of a workload's status, pods, Service, Workload, pod group
//! specs and orders.

pub mod act;
mod incident_metrics;
mod memory;
pub(crate) mod metrics;
mod status;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lockstep_api::TrainingWorkloadStatus;
use lockstep_lifecycle::{Action, LifecycleSettings, Plan, WorkloadView, decide, transitions};
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::field::Empty;
use tracing::{Instrument, Span, debug, error, error_span, info, warn};

use crate::api::Actor;
use crate::api::clients::Clients;
use crate::api::error::{ApiError, ErrorClass};
use crate::api::write::Written;
use crate::clock::Clock;
use crate::deadline::rest_after;
use crate::events::Events;
use crate::index::{Index, Key, WatchedKind};
use crate::lease::Tenure;
use crate::queue::Queue;
use act::{ActionSender, DryRunResults};
use memory::{Memories, Memory};
use metrics::{PassResult, WorkloadMetrics};
use status::StatusWriter;

/// Pause until own writes are checked again.
const CATCH_UP: Duration = Duration::from_secs(1);

/// Pause after requests. Their effects usually wake the workload earlier.
const AFTER_ACTING: Duration = Duration::from_millis(500);

/// Longest pause after a no-op pass: it can delay the response to a failure. A pass over a gang of
/// thousands takes tens of milliseconds, and each pod changes several times during its start.
const REST_AT_MOST: Duration = Duration::from_millis(500);

struct Passed {
    /// `Err`: the wait that the server requests.
    outcome: Result<(), Duration>,
    rest: Duration,
}

/// With the duration of the decision.
type Decided = (PassResult, Duration);

impl Passed {
    fn ended(result: PassResult, took: Duration) -> Self {
        let rest = match result {
            PassResult::Unchanged => rest_after(took, REST_AT_MOST),
            PassResult::Changed | PassResult::Error => Duration::ZERO,
        };
        Self {
            outcome: Ok(()),
            rest,
        }
    }

    fn failed(retry_after: Duration) -> Self {
        Self {
            outcome: Err(retry_after),
            rest: Duration::ZERO,
        }
    }
}

pub struct Parts {
    pub index: Arc<Index>,
    pub queue: Queue<Key>,
    pub clients: Clients,
    pub clock: Arc<dyn Clock>,
    pub settings: Arc<LifecycleSettings>,
    pub limits: Limits,
    pub events: Events,
    pub metrics: WorkloadMetrics,
    /// After its cancellation, the controller finishes the requests in flight.
    pub stop: CancellationToken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most concurrent passes.
    pub concurrency: usize,
    /// Most requests of one pass in flight.
    pub in_flight: usize,
}

pub struct Controller {
    parts: Parts,
    actions: ActionSender,
    writer: StatusWriter,
    memories: Memories,
}

impl Controller {
    pub fn new(parts: Parts) -> Self {
        let writer = StatusWriter::new(parts.clients.write.clone());
        let actions = ActionSender {
            actor: Actor::new(&parts.clients, parts.limits.in_flight),
            stop: parts.stop.clone(),
            clock: parts.clock.clone(),
        };
        Self {
            parts,
            actions,
            writer,
            memories: Memories::default(),
        }
    }

    /// Reconciles workloads while this process leads. A stop finishes the requests in flight.
    pub async fn run(self: Arc<Self>, mut tenure: Tenure) {
        let mut passes: JoinSet<Passed> = JoinSet::new();
        let mut keys: HashMap<Id, Key> = HashMap::new();
        loop {
            tokio::select! {
                biased;
                () = self.parts.stop.cancelled() => break,
                Some(ended) = passes.join_next_with_id() => self.ended(&mut keys, ended),
                key = self.next(&mut tenure), if passes.len() < self.parts.limits.concurrency => {
                    let (controller, of) = (self.clone(), key.clone());
                    let task = passes.spawn(async move { controller.timed_pass(&of).await });
                    keys.insert(task.id(), key);
                }
            }
        }
        while let Some(ended) = passes.join_next_with_id().await {
            self.ended(&mut keys, ended);
        }
    }

    /// No pass starts while leadership is paused: its back-off would outlast the pause.
    async fn next(&self, tenure: &mut Tenure) -> Key {
        tenure.leading(&*self.parts.clock).await;
        self.parts.queue.next().await
    }

    fn ended(
        &self,
        keys: &mut HashMap<Id, Key>,
        ended: Result<(Id, Passed), tokio::task::JoinError>,
    ) {
        let (id, passed) = match ended {
            Ok((id, passed)) => (id, passed),
            Err(panic) => {
                error!(error = %panic, "a pass has panicked; its workload is tried again");
                self.parts.metrics.passes.panicked();
                (panic.id(), Passed::failed(Duration::ZERO))
            }
        };
        if let Some(key) = keys.remove(&id) {
            self.parts.queue.done(&key, passed.outcome, passed.rest);
        }
    }

    pub(crate) async fn pass_over(&self, key: &Key) {
        let passed = self.timed_pass(key).await;
        self.parts.queue.done(key, passed.outcome, passed.rest);
    }

    pub(crate) fn view(&self, key: &Key) -> Option<WorkloadView> {
        let index = self.parts.index.read();
        let memory = self.memories.of(key, &index.uid_of(key)?);
        let inputs = memory.lock().view_inputs(&self.parts.settings);
        index.view(key, inputs)
    }

    async fn timed_pass(&self, key: &Key) -> Passed {
        // As an error, because a span below the log level would take its fields from the lines.
        let span = error_span!("reconcile", workload = %key, attempt = Empty);
        self.measured_pass(key).instrument(span).await
    }

    async fn measured_pass(&self, key: &Key) -> Passed {
        let started = self.parts.clock.monotonic();
        let outcome = self.pass(key).await;
        let time = self.parts.clock.monotonic() - started;
        match outcome {
            Ok((result, took)) => {
                self.parts.metrics.passes.ended(result, time);
                Passed::ended(result, took)
            }
            Err(failure) => {
                self.parts.metrics.passes.ended(PassResult::Error, time);
                self.parts.metrics.passes.failed(failure.class);
                match failure.class {
                    // Another writer was faster. No operator needs to act.
                    ErrorClass::Conflict | ErrorClass::NotLeading => {
                        debug!(error = %failure.message, "pass is repeated");
                    }
                    class => {
                        warn!(class = class.as_str(), error = %failure.message, "pass failed");
                    }
                }
                Passed::failed(failure.retry_after)
            }
        }
    }

    async fn pass(&self, key: &Key) -> Result<Decided, ApiError> {
        let nothing = Ok((PassResult::Unchanged, Duration::ZERO));
        self.release_orphaned_quota(key).await?;
        let Some(uid) = self.parts.index.read().uid_of(key) else {
            self.memories.forget(key);
            return nothing;
        };
        let exists = |namespace: &str| self.parts.index.read().has_namespace(namespace);
        self.parts.metrics.ensure_series(&key.namespace, exists);
        let memory = self.memories.of(key, &uid);
        if !self.parts.index.caught_up(&mut memory.lock().writes) {
            self.parts.queue.add_after(key.clone(), CATCH_UP);
            return nothing;
        }
        let began = self.parts.clock.monotonic();
        let inputs = memory.lock().view_inputs(&self.parts.settings);
        let Some(view) = self.parts.index.read().view(key, inputs) else {
            return nothing;
        };
        if let Some(status) = &view.workload.status {
            Span::current().record("attempt", status.attempt);
        }
        let before = memory.lock().stored_unconfirmed(&view.workload);
        if let (Some(before), Some(stored)) = (before, &view.workload.status) {
            self.report_changes(&view, before.status.as_ref(), stored);
        }
        let pass = decide(&view, self.parts.clock.wall());
        let took = self.parts.clock.monotonic() - began;
        if let Some(wait) = pass.requeue_after {
            self.parts.queue.add_after(key.clone(), wait);
        }
        match pass.plan {
            Plan::Record(ledger) => {
                self.write_status(&view, &ledger, &memory).await?;
                Ok((PassResult::Changed, took))
            }
            Plan::Act(actions) => {
                self.act(key, &view, actions, &memory).await?;
                Ok((PassResult::Changed, took))
            }
            Plan::Idle(status) => {
                if let Some(wait) = status::put_off(
                    &view,
                    &status,
                    memory.lock().summarized,
                    self.parts.clock.monotonic(),
                ) {
                    self.parts.queue.add_after(key.clone(), wait);
                    return Ok((PassResult::Unchanged, took));
                }
                let changed = self.write_status(&view, &status, &memory).await?;
                let result = if changed {
                    PassResult::Changed
                } else {
                    PassResult::Unchanged
                };
                Ok((result, took))
            }
        }
    }

    /// Releases Kueue Workloads of an earlier workload of this name once its pods are gone.
    async fn release_orphaned_quota(&self, key: &Key) -> Result<(), ApiError> {
        let orphaned = self.parts.index.read().orphaned_quota(key);
        for quota in orphaned {
            if quota.in_use {
                self.parts.queue.add_after(key.clone(), CATCH_UP);
            } else {
                self.actions.release_orphaned_quota(key, &quota).await?;
            }
        }
        Ok(())
    }

    /// Writes a status if it differs, and reports transitions. True if written.
    async fn write_status(
        &self,
        view: &WorkloadView,
        status: &TrainingWorkloadStatus,
        memory: &Memory,
    ) -> Result<bool, ApiError> {
        let written = match self.writer.write(view, status).await {
            Ok(written) => written,
            Err(error) => {
                if matches!(
                    error.class,
                    ErrorClass::Timeout | ErrorClass::ServerError | ErrorClass::Other
                ) {
                    memory.lock().unconfirmed = Some(view.workload.clone());
                }
                return Err(error);
            }
        };
        let Written::At(version) = written else {
            return Ok(false);
        };
        let now = self.parts.clock.monotonic();
        {
            let mut memory = memory.lock();
            memory.unconfirmed = None;
            memory
                .writes
                .wrote(WatchedKind::TrainingWorkload, &version, now);
            memory.summarized = Some(now);
        }
        self.report_changes(view, view.workload.status.as_ref(), status);
        Ok(true)
    }

    fn report_changes(
        &self,
        view: &WorkloadView,
        old: Option<&TrainingWorkloadStatus>,
        new: &TrainingWorkloadStatus,
    ) {
        self.parts.metrics.wrote(view.namespace(), old, new);
        for note in transitions(view.spec(), &old.cloned().unwrap_or_default(), new) {
            info!(reason = note.reason, note = %note.note);
            self.parts.events.workload(view, note);
        }
    }

    async fn act(
        &self,
        key: &Key,
        view: &WorkloadView,
        actions: Vec<Action>,
        memory: &Memory,
    ) -> Result<(), ApiError> {
        let count = actions.len();
        let now = self.parts.clock.wall();
        let others_wait = || self.parts.queue.has_ready();
        let acted = self.actions.act(view, actions, now, others_wait).await;
        if acted.unfinished {
            self.parts.queue.defer(key.clone());
        }
        debug!(actions = count, refused = acted.rejections.len(), "acted");
        for class in &acted.ignored {
            self.parts.metrics.passes.failed(*class);
        }
        for rejection in &acted.rejections {
            warn!(target = ?rejection.target, kind = ?rejection.kind, message = %rejection.message, "refused");
        }
        let news = !acted.rejections.is_empty() || acted.dry_runs.is_some() || acted.unfinished;
        if let Some(DryRunResults { dry_run, pods }) = &acted.dry_runs {
            let hash = &dry_run.spec_hash;
            self.parts
                .index
                .record_admitted(key, view.uid(), hash, pods);
        }
        let failure = acted.failure.clone();
        let failed = acted.failed.is_some();
        let backoff = |failures| self.parts.queue.backoff(failures);
        memory
            .lock()
            .record(acted, now, &*self.parts.clock, backoff);
        match failure {
            Some(failure) => {
                if failed {
                    // Other requests can succeed, and the status must report the failure.
                    self.parts.queue.add(key.clone());
                }
                Err(failure)
            }
            None if news => {
                self.parts.queue.add(key.clone());
                Ok(())
            }
            None => {
                self.parts.queue.add_after(key.clone(), AFTER_ACTING);
                Ok(())
            }
        }
    }
}
