//! Does what a pass has decided: the only requests that the workload controller sends.
//!
//! Actions go out in their order; neighbours of one kind concurrently, up to a bound. The first failure stops the rest:
//! what was not sent is decided anew from what is there then.
//!
//! Every delete and every patch of a pod names the pod's UID. That is enough where the decision came from the cache: a
//! pod that has taken the name meanwhile is not touched. That the cache is not older than this process's own writes is
//! seen to before the pass ([`crate::index::OwnWrites`]), and a failure is acted on once, because its incident is in the
//! ledger before.

mod request;

use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use kube::Client;
use lockstep_lifecycle::view::{DryRun, Refusal, Target};
use lockstep_lifecycle::{Action, WorkloadView};
use tokio_util::sync::CancellationToken;

use crate::clients::{ErrorClass, classify, message, retry_after};
use crate::index::Kind;

/// Name under which the fields that we write are ours.
pub const FIELD_MANAGER: &str = "lockstep-manager";

/// What has become of a pass's actions.
#[derive(Debug, Default)]
pub struct Acted {
    /// Versions that were written.
    pub writes: Vec<(Kind, Option<String>)>,
    /// What was refused for good; feeds the next view.
    pub refusals: Vec<Refusal>,
    /// What was accepted; an earlier refusal of it is over.
    pub accepted: Vec<Target>,
    /// Verdict on the template, where it was asked for.
    pub dry_run: Option<DryRun>,
    /// The first failure that is to be repeated with back-off.
    pub failure: Option<Failure>,
    /// Requests that were given up as best effort, by class of their error.
    pub ignored: Vec<ErrorClass>,
}

/// A request that failed and is decided anew later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What kind of failure.
    pub class: ErrorClass,
    /// For the log.
    pub message: String,
    /// How long the server asks to wait.
    pub retry_after: Duration,
}

impl From<&kube::Error> for Failure {
    fn from(error: &kube::Error) -> Self {
        Self { class: classify(error), message: message(error), retry_after: retry_after(error) }
    }
}

impl Acted {
    fn stopped(&self) -> bool {
        self.failure.is_some() || !self.refusals.is_empty()
    }

    fn absorb(&mut self, done: Done) {
        match done {
            Done::Wrote(kind, version) => self.writes.push((kind, version)),
            Done::Accepted(target, kind, version) => {
                self.writes.push((kind, version));
                self.accepted.push(target);
            }
            Done::Nothing => {}
            Done::Ignored(class) => self.ignored.push(class),
            Done::Judged(verdict) => self.dry_run = Some(verdict),
            Done::Refused(refusal) => self.refusals.push(refusal),
            Done::Failed(failure) => {
                self.failure.get_or_insert(failure);
            }
        }
    }
}

/// What has become of one action.
#[derive(Debug)]
enum Done {
    Wrote(Kind, Option<String>),
    Accepted(Target, Kind, Option<String>),
    /// There was nothing to do any more.
    Nothing,
    /// Best effort.
    Ignored(ErrorClass),
    Judged(DryRun),
    Refused(Refusal),
    Failed(Failure),
}

/// Sends actions.
#[derive(Clone)]
pub struct Actor {
    /// Client for reads: who owns a name that is taken.
    pub read: Client,
    /// Client for writes.
    pub write: Client,
    /// Most requests of one pass in flight.
    pub in_flight: usize,
    /// Once cancelled, requests in flight are finished and no more are sent.
    pub stop: CancellationToken,
}

impl Actor {
    /// Sends the actions of one pass over a workload, decided at `now`.
    pub async fn act(&self, view: &WorkloadView, actions: Vec<Action>, now: DateTime<Utc>) -> Acted {
        let mut acted = Acted::default();
        let mut actions = actions.into_iter().peekable();
        while let Some(first) = actions.next() {
            if acted.stopped() || self.stop.is_cancelled() {
                break;
            }
            let kind = std::mem::discriminant(&first);
            let mut flying = FuturesUnordered::new();
            let mut next = Some(first);
            while next.is_some() || !flying.is_empty() {
                while let Some(action) = next.take_if(|_| flying.len() < self.in_flight.max(1)) {
                    flying.push(self.send(view, action, now));
                    next = actions.next_if(|a| std::mem::discriminant(a) == kind);
                }
                if let Some(done) = flying.next().await {
                    acted.absorb(done);
                }
                if acted.stopped() || self.stop.is_cancelled() {
                    next = None;
                }
            }
        }
        acted
    }
}
