//! Does what a pass has decided: the only requests that the workload controller sends.
//!
//! Actions go out in their order; neighbours of one kind concurrently, up to a bound. The first
//! failure stops the rest: what was not sent is decided anew from what is there then. So does the
//! time: where each request takes a second, hundreds would keep a failure, a suspension or a
//! deletion of the workload waiting for minutes.
//!
//! Every delete and every patch of a pod names the pod's UID. That is enough where the decision
//! came from the cache: a pod that has taken the name meanwhile is not touched. That the cache is
//! not older than this process's own writes is seen to before the pass
//! ([`crate::index::OwnWrites`]), and a failure is acted on once, because its incident is in the
//! ledger before.

mod dry_run;
mod request;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use lockstep_api::ids::ResourceVersion;
use lockstep_lifecycle::view::{DryRun, RefusedRequest, Target};
use lockstep_lifecycle::{Action, WorkloadView};
use lockstep_model::Admission;
use tokio_util::sync::CancellationToken;

use crate::api::Actor;
use crate::api::error::{ApiError, ErrorClass};
use crate::clock::Clock;
use crate::index::WatchedKind;

/// After this time a pass sends no more.
const LONGEST: Duration = Duration::from_secs(5);

/// What has become of a pass's actions.
#[derive(Debug, Default)]
pub struct ActionResults {
    /// Versions that were written.
    pub writes: Vec<(WatchedKind, ResourceVersion)>,
    /// What was refused for good; feeds the next view.
    pub refusals: Vec<RefusedRequest>,
    /// What was accepted; an earlier refusal of it is over.
    pub accepted: Vec<Target>,
    /// The answer to a dry run, where it was asked for.
    pub judged: Option<Judged>,
    /// The first failure that is to be repeated with back-off.
    pub failure: Option<ApiError>,
    /// Rank and message of the request with that failure, if the API server has failed that request.
    pub failed: Option<(u8, String)>,
    /// Requests that were given up as best effort, by class of their error.
    pub ignored: Vec<ErrorClass>,
    /// Time was up before all was sent.
    pub unfinished: bool,
}

/// The answer of the API server to a dry run.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The verdict on the templates. Until when it counts is up to who remembers it.
    pub dry_run: DryRun,
    /// What it makes of the pods, by group.
    pub pods: BTreeMap<String, Admission>,
}

impl ActionResults {
    fn stopped(&self) -> bool {
        self.failure.is_some() || !self.refusals.is_empty() || self.unfinished
    }

    fn absorb(&mut self, request: Request, result: ActionResult) {
        match result {
            ActionResult::Wrote(kind, version) => self.writes.push((kind, version)),
            ActionResult::Accepted(target, kind, version) => {
                self.writes.push((kind, version));
                self.accepted.push(target);
            }
            ActionResult::Ignored(class) => self.ignored.push(class),
            ActionResult::Judged(judged) => self.judged = Some(*judged),
            ActionResult::Refused(refusal) => self.refusals.push(refusal),
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

/// What an action sends.
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

/// What has become of one action.
#[derive(Debug)]
enum ActionResult {
    Wrote(WatchedKind, ResourceVersion),
    Accepted(Target, WatchedKind, ResourceVersion),
    /// There was nothing to do any more.
    Nothing,
    /// Best effort.
    Ignored(ErrorClass),
    Judged(Box<Judged>),
    Refused(RefusedRequest),
    Failed(ApiError),
}

/// Sends the actions of the workload controller.
#[derive(Clone)]
pub struct ActionSender {
    /// Reads who owns a name that is taken; writes.
    pub actor: Actor,
    /// Once cancelled, requests in flight are finished and no more are sent.
    pub stop: CancellationToken,
    /// Tells when a pass has taken long enough.
    pub clock: Arc<dyn Clock>,
}

impl ActionSender {
    /// Sends the actions of one pass over a workload, decided at `now`.
    pub async fn act(
        &self,
        view: &WorkloadView,
        actions: Vec<Action>,
        now: DateTime<Utc>,
    ) -> ActionResults {
        let mut results = ActionResults::default();
        let end = self.clock.monotonic() + LONGEST;
        let mut actions = actions.into_iter().peekable();
        while let Some(first) = actions.next() {
            if results.stopped() || self.stop.is_cancelled() {
                break;
            }
            let kind = std::mem::discriminant(&first);
            let same_kind =
                std::iter::from_fn(|| actions.next_if(|a| std::mem::discriminant(a) == kind));
            let requests = std::iter::once(first)
                .chain(same_kind)
                .map(async |action| (Request::of(&action), self.send(view, action, now).await));
            let settle = |(request, result)| {
                results.absorb(request, result);
                results.unfinished |= self.clock.monotonic() >= end;
                if results.stopped() || self.stop.is_cancelled() {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            };
            self.actor.send_all(requests, settle).await;
        }
        results
    }
}
