//! Executes the actions of a pass: the only requests of the workload controller.
//!
//! Actions are sent in order, and adjacent actions of one kind concurrently, up to a bound. The
//! first failure or the time limit ends the pass, and the next pass decides again. Without the
//! limit, hundreds of slow requests would delay the response to a failure, suspension or deletion
//! by minutes. Creations of pods end as soon as other workloads wait, which then come first.
//!
//! Every delete and every patch of a pod names the pod's UID, so a later pod of that name is safe.
//! Before a pass, [`crate::index::OwnWrites`] ensures that the cache contains own writes. A failure
//! is handled once, because its incident is recorded first.

mod answer;
mod creation;
mod dry_run;
mod quota;
mod request;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use kube::ResourceExt;
use lockstep_api::ids::ResourceVersion;
use lockstep_api::names::annotations;
use lockstep_lifecycle::view::{DryRun, RejectedRequest, Target};
use lockstep_lifecycle::{Action, WorkloadView};
use lockstep_model::Admission;
use tokio_util::sync::CancellationToken;

use crate::api::Actor;
use crate::api::error::{ApiError, ErrorClass};
use crate::clock::Clock;
use crate::index::WatchedKind;

/// A pass sends no further requests after this time.
const LONGEST: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub struct ActionResults {
    pub writes: Vec<(WatchedKind, ResourceVersion)>,
    /// Permanent rejections, for the next view.
    pub rejections: Vec<RejectedRequest>,
    /// Accepted requests. They end earlier rejections.
    pub accepted: Vec<Target>,
    pub dry_runs: Option<DryRunResults>,
    /// The first failure. The pass is retried with back-off.
    pub failure: Option<ApiError>,
    /// Rank and message of the failed request, if the failure concerns it alone.
    pub failed: Option<(u8, String)>,
    /// Error classes of failed best-effort requests.
    pub ignored: Vec<ErrorClass>,
    /// True if requests remain, because the pass took too long or other workloads wait.
    pub unfinished: bool,
}

#[derive(Clone, Debug)]
pub struct DryRunResults {
    /// Verdict on the templates. The controller's memory sets its validity.
    pub dry_run: DryRun,
    pub pods: BTreeMap<String, Admission>,
}

impl ActionResults {
    fn stopped(&self) -> bool {
        self.failure.is_some() || !self.rejections.is_empty() || self.unfinished
    }

    fn absorb(&mut self, request: Request, result: ActionResult) {
        match result {
            ActionResult::Wrote(kind, version) => self.writes.push((kind, version)),
            ActionResult::Accepted(target, kind, version) => {
                self.writes.push((kind, version));
                self.accepted.push(target);
            }
            ActionResult::Ignored(class) => self.ignored.push(class),
            ActionResult::DryRunResults(results) => self.dry_runs = Some(*results),
            ActionResult::Rejected(rejection) => self.rejections.push(rejection),
            ActionResult::Altered(rejection, kind, version) => {
                self.writes.push((kind, version));
                self.rejections.push(rejection);
            }
            ActionResult::Failed(failure) if self.failure.is_none() => {
                if failure.class.is_about_request() {
                    let Request { rank, verb, kind } = request;
                    self.failed = Some((rank, format!("cannot {verb} {kind}: {failure}")));
                }
                self.failure = Some(failure);
            }
            ActionResult::Nothing | ActionResult::Failed(_) => {}
        }
    }
}

#[derive(Clone, Copy)]
struct Request {
    rank: u8,
    verb: &'static str,
    kind: &'static str,
}

impl Request {
    fn of(action: &Action) -> Self {
        let (verb, kind) = action.request();
        Self {
            rank: action.rank(),
            verb,
            kind,
        }
    }
}

#[derive(Debug)]
enum ActionResult {
    Wrote(WatchedKind, ResourceVersion),
    Accepted(Target, WatchedKind, ResourceVersion),
    Nothing,
    Ignored(ErrorClass),
    DryRunResults(Box<DryRunResults>),
    Rejected(RejectedRequest),
    /// Stored, but changed by a webhook.
    Altered(RejectedRequest, WatchedKind, ResourceVersion),
    Failed(ApiError),
}

#[derive(Clone)]
pub struct ActionSender {
    pub actor: Actor,
    /// After its cancellation, no request starts.
    pub stop: CancellationToken,
    pub clock: Arc<dyn Clock>,
}

impl ActionSender {
    /// Sends the actions of one pass, decided at `now`. Creations of pods yield to other workloads if
    /// `others_wait`.
    pub async fn act(
        &self,
        view: &WorkloadView,
        actions: Vec<Action>,
        now: DateTime<Utc>,
        others_wait: impl Fn() -> bool,
    ) -> ActionResults {
        let mut results = ActionResults::default();
        let end = self.clock.monotonic() + LONGEST;
        let mut actions = actions.into_iter().peekable();
        while let Some(first) = actions.next() {
            if results.stopped() || self.stop.is_cancelled() {
                break;
            }
            let yields = matches!(first, Action::CreatePod { .. });
            let kind = std::mem::discriminant(&first);
            let same_kind =
                std::iter::from_fn(|| actions.next_if(|a| std::mem::discriminant(a) == kind));
            let requests = std::iter::once(first)
                .chain(same_kind)
                .map(async |action| (Request::of(&action), self.send(view, action, now).await));
            let settle = |(request, result)| {
                results.absorb(request, result);
                results.unfinished |= self.clock.monotonic() >= end || yields && others_wait();
                if results.stopped() || self.stop.is_cancelled() {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            };
            self.actor.send_all(requests, settle).await;
        }
        results.unfinished &= actions.peek().is_some();
        results
    }
}

/// The part of a stored object that a webhook must not change, if it differs from the sent object.
fn placement_of(object: &impl ResourceExt) -> Option<String> {
    object.annotations().get(annotations::PLACEMENT).cloned()
}
