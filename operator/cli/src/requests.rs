//! Answers of restart domains to a request for a checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_api::names::WHOLE;
use lockstep_api::names::annotations::REQUEST_CHECKPOINT;
use lockstep_api::words::count;
use lockstep_api::workload::{CheckpointOutcome, CheckpointRequest};
use lockstep_api::{TrainingWorkload, TrainingWorkloadStatus};
use thiserror::Error;

/// A request that a command has written.
#[derive(Debug)]
pub struct PendingRequest {
    id: String,
    uid: Option<String>,
    /// Last requests of the domains before this one.
    before: BTreeMap<String, CheckpointRequest>,
    /// Domains whose answers were returned.
    reported: BTreeSet<String>,
}

/// State of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct RequestState {
    /// A line for each domain that has answered since the last call.
    pub lines: Vec<String>,
    pub progress: RequestProgress,
}

#[derive(Debug, PartialEq, Eq)]
pub enum RequestProgress {
    /// What is awaited.
    Waiting(String),
    /// All domains have answered: `Ok` if all have saved or ended.
    Answered(Result<(), NotSaved>),
}

/// Why a request has no checkpoint of every domain as its result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotSaved {
    #[error("{0:?} was deleted and created again; the request is gone")]
    Recreated(String),
    #[error("another client has requested a checkpoint of {0:?} in the meantime: retry")]
    Replaced(String),
    #[error("no process of {0:?} received the request: none runs any more")]
    NoProcess(String),
    #[error("{0} of {1} saved no checkpoint")]
    Domains(usize, String),
}

impl PendingRequest {
    /// The request with this id; `before` is the workload before the write.
    pub fn new(id: String, before: &TrainingWorkload) -> Self {
        let requests = requests(before).filter(|(_, r)| !r.is_open());
        Self {
            id,
            uid: before.metadata.uid.clone(),
            before: requests.map(|(d, r)| (d.to_owned(), r.clone())).collect(),
            reported: BTreeSet::new(),
        }
    }

    /// Reads the answers. A request that a stop has joined has the id of the stop, so all requests
    /// since the write count.
    pub fn read(&mut self, workload: &TrainingWorkload) -> Result<RequestState, NotSaved> {
        let name = workload.metadata.name.clone().unwrap_or_default();
        if workload.metadata.uid != self.uid {
            return Err(NotSaved::Recreated(name));
        }
        let status = workload.status.as_ref();
        let handled = status.and_then(|s| s.user_checkpoint_request.as_ref()) == Some(&self.id);
        let annotations = workload.metadata.annotations.as_ref();
        let last = annotations.and_then(|a| a.get(REQUEST_CHECKPOINT));
        if !handled && last != Some(&self.id) {
            return Err(NotSaved::Replaced(name));
        }
        let current: Vec<_> = requests(workload)
            .filter(|(domain, request)| self.before.get(*domain) != Some(request))
            .collect();
        let mut lines = Vec::new();
        for (domain, request) in &current {
            if let Some(outcome) = request.summary()
                && self.reported.insert((*domain).to_owned())
            {
                lines.push(format!("{}{outcome}", of(domain)));
            }
        }
        let open = current.iter().filter(|(_, r)| r.is_open()).count();
        let all = count(current.len(), "restart domain");
        let progress = match (open, handled) {
            (0, true) => RequestProgress::Answered(result(name, &current)),
            (0, false) => RequestProgress::Waiting("waiting for the manager".to_owned()),
            _ => RequestProgress::Waiting(format!("waiting for {open} of {all}")),
        };
        Ok(RequestState { lines, progress })
    }
}

fn result(name: String, answered: &[(&str, &CheckpointRequest)]) -> Result<(), NotSaved> {
    let is_saved = |outcome: Option<CheckpointOutcome>| {
        matches!(
            outcome,
            Some(CheckpointOutcome::Saved | CheckpointOutcome::Ended)
        )
    };
    let failed = answered.iter().filter(|(_, r)| !is_saved(r.outcome));
    match (failed.count(), answered.len()) {
        (_, 0) => Err(NotSaved::NoProcess(name)),
        (0, _) => Ok(()),
        (failed, all) => Err(NotSaved::Domains(failed, count(all, "restart domain"))),
    }
}

fn requests(workload: &TrainingWorkload) -> impl Iterator<Item = (&str, &CheckpointRequest)> {
    let status = workload.status.iter();
    status.flat_map(TrainingWorkloadStatus::checkpoint_requests)
}

/// Prefix of a line about a part of the workload.
fn of(domain: &str) -> String {
    match domain {
        WHOLE => String::new(),
        part => format!("{part}: "),
    }
}
