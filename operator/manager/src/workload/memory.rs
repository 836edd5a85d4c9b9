//! What the controller remembers of a workload between passes. Losing it costs repeated questions,
//! nothing else.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lockstep_api::ids::Uid;
use lockstep_lifecycle::LifecycleSettings;
use lockstep_lifecycle::view::{DryRun, RefusedRequest, Target};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::act::ActionResults;
use crate::index::{Key, Known, OwnWrites};

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
    dry_run: Option<DryRun>,
    refusals: BTreeMap<Target, RefusedRequest>,
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
    pub fn known(&self, settings: &Arc<LifecycleSettings>) -> Known {
        Known {
            dry_run: self.dry_run.clone(),
            refusals: self.refusals.values().cloned().collect(),
            settings: settings.clone(),
        }
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
            self.dry_run = Some(verdict);
        }
    }
}
