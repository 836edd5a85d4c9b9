//! The controller's memory of workloads between passes. Its loss only costs repeated requests.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::TrainingWorkload;
use lockstep_api::ids::Uid;
use lockstep_lifecycle::LifecycleSettings;
use lockstep_lifecycle::view::{DryRun, FailedRequest, RejectedRequest, Target};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::act::{ActionResults, DryRunResults};
use crate::clock::Clock;
use crate::index::{Key, OwnWrites, ViewInputs};

/// Validity of a dry-run result, because feature gates and webhooks change.
const DRY_RUN_HOLDS: TimeDelta = TimeDelta::minutes(10);
/// Validity of an inconclusive result; doubles with each further one.
const OPEN_HOLDS: TimeDelta = TimeDelta::seconds(30);

pub(super) type Memory = Arc<Mutex<Remembered>>;

#[derive(Debug, Default)]
pub(super) struct Memories(Mutex<HashMap<Key, Memory>>);

#[derive(Debug, Default)]
pub(super) struct Remembered {
    uid: Option<Uid>,
    /// Own writes that the watches have not delivered yet.
    pub writes: OwnWrites,
    pub summarized: Option<Instant>,
    /// The workload as read for each status write without a response. At most one of these writes
    /// is stored.
    pub unconfirmed: Option<Arc<TrainingWorkload>>,
    dry_run: Option<DryRun>,
    /// Consecutive inconclusive dry runs.
    open: i32,
    rejections: BTreeMap<Target, RejectedRequest>,
    failed: Option<FailedRequest>,
    /// Consecutive passes with a failed request.
    failures: u32,
}

impl Memories {
    /// Empty for a new UID.
    pub fn of(&self, key: &Key, uid: &Uid) -> Memory {
        let mut all = self.0.lock();
        let memory = all.entry(key.clone()).or_default();
        if memory.lock().uid.as_ref() != Some(uid) {
            *memory = Arc::new(Mutex::new(Remembered {
                uid: Some(uid.clone()),
                ..Remembered::default()
            }));
        }
        memory.clone()
    }

    pub fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

impl Remembered {
    pub fn view_inputs(&self, settings: &Arc<LifecycleSettings>) -> ViewInputs {
        ViewInputs {
            dry_run: self.dry_run.clone(),
            rejections: self.rejections.values().cloned().collect(),
            failed: self.failed.clone(),
            settings: settings.clone(),
        }
    }

    /// The workload before the stored status write, if a write without a response was stored.
    pub fn stored_unconfirmed(&mut self, read: &TrainingWorkload) -> Option<Arc<TrainingWorkload>> {
        let version = &read.metadata.resource_version;
        let before = self
            .unconfirmed
            .take_if(|w| w.metadata.resource_version != *version)?;
        (before.status != read.status).then_some(before)
    }

    /// `backoff` returns the wait after a number of consecutive failures.
    pub fn record(
        &mut self,
        results: ActionResults,
        began: DateTime<Utc>,
        clock: &dyn Clock,
        backoff: impl Fn(u32) -> Duration,
    ) {
        let now = clock.monotonic();
        self.note_failure(&results, began, clock.wall(), backoff);
        for (kind, version) in results.writes {
            self.writes.wrote(kind, &version, now);
        }
        for target in results.accepted {
            self.rejections.remove(&target);
        }
        for rejection in results.rejections {
            self.rejections.insert(rejection.target.clone(), rejection);
        }
        if let Some(dry_runs) = results.dry_runs {
            self.record_dry_runs(dry_runs);
        }
    }

    fn note_failure(
        &mut self,
        results: &ActionResults,
        began: DateTime<Utc>,
        now: DateTime<Utc>,
        backoff: impl Fn(u32) -> Duration,
    ) {
        // The pass skipped the failed request and all later ones.
        let put_off = self.failed.as_ref().is_some_and(|f| began < f.until);
        if let (Some((rank, message)), Some(failure)) = (&results.failed, &results.failure) {
            self.failures = self.failures.saturating_add(1);
            let wait = backoff(self.failures).max(failure.retry_after);
            self.failed = Some(FailedRequest {
                rank: *rank,
                message: message.clone(),
                until: now + wait,
            });
        } else if results.failure.is_none() && !put_off {
            (self.failed, self.failures) = (None, 0);
        }
    }

    fn record_dry_runs(&mut self, DryRunResults { dry_run, pods }: DryRunResults) {
        let open = pods.values().any(|p| p.why_not().is_some());
        self.open = if open { self.open + 1 } else { 0 };
        let holds = match self.open {
            0 => DRY_RUN_HOLDS,
            times => DRY_RUN_HOLDS.min(OPEN_HOLDS * (1 << (times - 1).min(8))),
        };
        self.dry_run = Some(DryRun {
            until: dry_run.at + holds,
            ..dry_run
        });
    }
}

#[cfg(test)]
mod tests {
    use lockstep_api::TrainingWorkloadStatus;
    use lockstep_api::tier::Tier;
    use lockstep_model::Admission;

    use super::*;
    use crate::api::error::{ApiError, ErrorClass};

    /// Validity of each result in seconds.
    fn holds(answers: &[Admission]) -> Vec<i64> {
        let mut memory = Remembered::default();
        let at: DateTime<Utc> = DateTime::UNIX_EPOCH;
        let mut hold = |answer: &Admission| {
            memory.record_dry_runs(DryRunResults {
                dry_run: DryRun {
                    spec_hash: "h".into(),
                    at,
                    until: at,
                    invalid: None,
                    tier: Tier::RestartAll,
                    failed: false,
                },
                pods: [("g".to_owned(), answer.clone())].into(),
            });
            let view_inputs = memory.view_inputs(&Arc::new(LifecycleSettings::default()));
            (view_inputs.dry_run.unwrap().until - at).num_seconds()
        };
        answers.iter().map(&mut hold).collect()
    }

    #[test]
    fn the_first_of_two_unanswered_writes_is_seen_stored() {
        let workload = |version: &str, reason: &str| {
            let object = crate::gauges::tests::workload("ns", "w", "c");
            let mut workload: TrainingWorkload = serde_json::from_value(object).unwrap();
            workload.metadata.resource_version = Some(version.into());
            workload.status = Some(TrainingWorkloadStatus {
                reason: reason.into(),
                ..TrainingWorkloadStatus::default()
            });
            Arc::new(workload)
        };
        let read = workload("1", "Starting");
        let mut memory = Remembered {
            unconfirmed: Some(read.clone()),
            ..Remembered::default()
        };
        assert!(memory.stored_unconfirmed(&read).is_none(), "not seen yet");
        let stored = workload("2", "Ready");
        let before = memory.stored_unconfirmed(&stored);
        assert_eq!(before.unwrap().status, read.status);
        assert!(
            memory.stored_unconfirmed(&stored).is_none(),
            "reported once"
        );
        memory.unconfirmed = Some(read.clone());
        let edited = workload("2", "Starting");
        assert!(memory.stored_unconfirmed(&edited).is_none(), "not stored");
        assert!(memory.unconfirmed.is_none());
    }

    #[test]
    fn a_request_that_fails_waits_longer_each_time_until_one_succeeds() {
        let mut memory = Remembered::default();
        let at = |seconds| DateTime::from_timestamp(seconds, 0).unwrap();
        let error = |wait| ApiError {
            class: ErrorClass::ServerError,
            message: "m".into(),
            retry_after: Duration::from_secs(wait),
        };
        let failed = |wait| ActionResults {
            failed: Some((7, "m".into())),
            failure: Some(error(wait)),
            ..ActionResults::default()
        };
        let backoff = |failures: u32| Duration::from_secs(u64::from(failures));
        let mut waits = Vec::new();
        for wait in [0, 0, 9] {
            memory.note_failure(&failed(wait), at(100), at(100), backoff);
            let until = memory.failed.as_ref().unwrap().until;
            waits.push((until - at(100)).num_seconds());
        }
        assert_eq!(
            waits,
            [1, 2, 9],
            "the server asks for more than the back-off"
        );
        let other = ActionResults::default();
        memory.note_failure(&other, at(105), at(105), backoff);
        assert!(memory.failed.is_some(), "its request was left out");
        memory.note_failure(&other, at(109), at(109), backoff);
        assert_eq!((&memory.failed, memory.failures), (&None, 0));
    }

    #[test]
    fn a_dry_run_result_is_cached_and_an_unanswered_dry_run_is_retried_soon() {
        let admitted = Admission::As(Box::default());
        let open = Admission::Failed("a quota".to_owned());
        let answers = [&admitted, &open, &open, &open, &admitted, &open].map(Admission::clone);
        assert_eq!(holds(&answers), [600, 30, 60, 120, 600, 30]);
        assert_eq!(holds(&vec![open; 40]).last(), Some(&600));
    }
}
