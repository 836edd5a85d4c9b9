//! What the controller remembers of a workload between passes. Losing it costs repeated questions,
//! nothing else.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use lockstep_api::TrainingWorkloadStatus;
use lockstep_api::ids::Uid;
use lockstep_lifecycle::view::{DryRun, RefusedRequest, Target};
use lockstep_lifecycle::{LifecycleSettings, WorkloadView};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::act::ActionResults;
use crate::index::{Key, Known, OwnWrites};

/// How long the answer to a dry run holds: a gate of the API server may be switched, a webhook changed.
const DRY_RUN_HOLDS: Duration = Duration::from_mins(10);

/// Memory of one workload, shared with the pass over it.
pub(super) type Memory = Arc<Mutex<Remembered>>;

/// Memory of all workloads.
#[derive(Debug, Default)]
pub(super) struct Memories(Mutex<HashMap<Key, Memory>>);

/// What is remembered.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    uid: Option<Uid>,
    /// Own writes that the watches have not shown yet.
    pub writes: OwnWrites,
    /// When the status was last written.
    pub summarized: Option<Instant>,
    /// A status that was sent, of which no answer says whether it was stored.
    pub unanswered: Option<Box<StatusChange>>,
    /// The last answer to a dry run, and when it came.
    dry_run: Option<(DryRun, Instant)>,
    refusals: BTreeMap<Target, RefusedRequest>,
}

/// A change of status, from what was read at a version.
#[derive(Debug)]
pub(super) struct StatusChange {
    pub read_at: Option<String>,
    pub old: Option<TrainingWorkloadStatus>,
    pub new: TrainingWorkloadStatus,
}

impl StatusChange {
    pub fn new(view: &WorkloadView, new: &TrainingWorkloadStatus) -> Self {
        Self {
            read_at: view.workload.metadata.resource_version.clone(),
            old: view.workload.status.clone(),
            new: new.clone(),
        }
    }
}

impl Memories {
    /// The memory of a workload; empty for a new UID.
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

    /// The workload is gone.
    pub fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

impl Remembered {
    /// What goes into the next view.
    pub fn known(&self, settings: &Arc<LifecycleSettings>, now: Instant) -> Known {
        let fresh = |(_, at): &&(DryRun, Instant)| now.duration_since(*at) < DRY_RUN_HOLDS;
        let dry_run = self.dry_run.as_ref().filter(fresh);
        Known {
            dry_run: dry_run.map(|(answer, _)| answer.clone()),
            refusals: self.refusals.values().cloned().collect(),
            settings: settings.clone(),
        }
    }

    /// The change without an answer, if this view shows that it was stored. It is forgotten once a
    /// later version shows something else.
    pub fn shown(&mut self, view: &WorkloadView) -> Option<Box<StatusChange>> {
        let version = view.workload.metadata.resource_version.as_ref();
        let change = self.unanswered.take_if(|c| c.read_at.as_ref() != version)?;
        (view.workload.status.as_ref() == Some(&change.new)).then_some(change)
    }

    /// Takes over what has become of a pass's requests.
    pub fn learn(&mut self, results: ActionResults, now: Instant) {
        for (kind, version) in results.writes {
            self.writes.wrote(kind, &version, now);
        }
        for target in results.accepted {
            self.refusals.remove(&target);
        }
        for refusal in results.refusals {
            self.refusals.insert(refusal.target.clone(), refusal);
        }
        if let Some(verdict) = results.dry_run {
            self.dry_run = Some((verdict, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_lifecycle::Tier;

    use super::*;
    use crate::clock::{Clock, SystemClock};

    #[test]
    fn the_answer_to_a_dry_run_is_asked_for_again_after_a_while() {
        let mut memory = Remembered::default();
        let answer = DryRun {
            spec_hash: "h".into(),
            invalid: None,
            tier: Tier::RestartAll,
        };
        let results = ActionResults {
            dry_run: Some(answer),
            ..ActionResults::default()
        };
        let now = SystemClock.monotonic();
        memory.learn(results, now);
        let settings = Arc::new(LifecycleSettings::default());
        let knows = |after| memory.known(&settings, now + after).dry_run.is_some();
        assert!(knows(Duration::from_mins(9)) && !knows(Duration::from_mins(10)));
    }
}
