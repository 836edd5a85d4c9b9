//! For whom of a gang room is sought now, and which of its nodes are worth waiting for.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::reasons;
use lockstep_engine::Cluster;
use lockstep_lifecycle::growth::{Seekers, seekers};
use lockstep_model::gang::Standing;
use lockstep_model::{Ahead, Request};

use super::case::Case;
use super::pass::Pass;

/// Placements in a row that may end with a rejection by some kubelet before its node counts as useless.
const REJECTIONS: i32 = 3;

/// Why a gang waits that would fit without evicting anybody.
pub(super) const REJECTED: &str = "waiting to try nodes again whose kubelets have rejected its pods";

impl Pass<'_> {
    /// Finds out which members of each gang ask for seats. Runs once the seats that were lost are gone.
    pub fn note_seekers(&mut self) {
        let grow_after = TimeDelta::from_std(self.settings.grow_after).unwrap_or(TimeDelta::MAX);
        for ix in 0..self.cases.len() {
            let found = seekers_of(&self.cases[ix], self.now, grow_after);
            if let Some(at) = found.grows_at {
                self.wake_at(at);
            }
            self.cases[ix].seekers = found;
        }
    }

    /// When a gang would fit without evicting anybody, if it only waits until nodes may be used again whose kubelets have
    /// rejected its pods: what they saw and we did not has most likely passed. A gang that is rejected again and again does
    /// not wait for that.
    pub fn usable_again(&self, ix: usize, request: &Request, room: &Cluster, ahead: &Ahead) -> Option<DateTime<Utc>> {
        let case = &self.cases[ix];
        let ledger = case.view().ledger().filter(|l| l.attempts <= REJECTIONS)?;
        let refusing = self.memory.refusing_nodes.get(&case.uid);
        let mut again = request.clone();
        let mut until = None;
        for avoided in ledger.avoid.iter().filter(|a| a.reason == reasons::REJECTED_BY_NODE && a.until > self.now) {
            if let Some(node) = self.cluster.ordinal(&avoided.node)
                && refusing.is_none_or(|nodes| !nodes.contains_key(&avoided.node))
            {
                again.excluded.remove(node);
                until = until.max(Some(avoided.until));
            }
        }
        let demand = again.demand(self.cluster).ok()?;
        until.filter(|_| self.turn(ix, &demand, ahead).now(room).is_ok())
    }
}

fn seekers_of(case: &Case, now: DateTime<Utc>, grow_after: TimeDelta) -> Seekers {
    let seated = case.seats.as_ref().filter(|s| s.len() < case.gang.size());
    match (seated, &case.workload.status) {
        (Some(seats), Some(status)) if case.standing == Standing::Active => {
            seekers(&case.gang, &case.workload.spec, status, Some(seats), now, grow_after)
        }
        // Without seats all ask for one, and with all seats nobody does.
        _ => Seekers::default(),
    }
}
