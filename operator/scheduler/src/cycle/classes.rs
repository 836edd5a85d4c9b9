//! Classes of waiting gangs with equal requests. What blocks the first gang of a class blocks all,
//! until a gang gets or releases capacity.

use std::collections::BTreeSet;

use lockstep_engine::Demand;

use crate::asks::{Asks, Request};
use crate::pending::Pending;
use crate::state::GangState;

#[derive(Debug, Default)]
pub(super) struct WaitingClasses {
    classes: Vec<WaitingClass>,
    /// As [`promised_to`]. These gangs may evict more than other gangs.
    promised: Option<BTreeSet<String>>,
}

#[derive(Debug)]
struct WaitingClass {
    asks: Asks,
    pending: Pending,
}

impl WaitingClasses {
    /// Requests that decide the verdict. `None` for a gang with a history: pods, nodes, refusals,
    /// promises, or constraints that only kube-scheduler evaluates.
    pub fn asks(
        &mut self,
        gangs: &[GangState],
        at: usize,
        request: Request,
        demand: &Demand,
        ahead: usize,
    ) -> Option<Asks> {
        let promised = self.promised.get_or_insert_with(|| promised_to(gangs));
        let (gang, input) = (&gangs[at], &gangs[at].input);
        let plain = gang.only_waits() && !promised.contains(gang.uid());
        plain.then(|| Asks {
            demand: demand.clone(),
            request,
            namespace: input.key.namespace.clone(),
            preempts: input.group.preempts,
            preemption_priority: input.preemption_priority,
            ends: input.workload.ends,
            ahead,
        })
    }

    pub fn pending(&self, asks: &Asks) -> Option<&Pending> {
        let mut known = self.classes.iter();
        let known = known.find(|class| class.asks == *asks)?;
        Some(&known.pending)
    }

    /// Records the verdict on a gang without a reservation.
    pub fn waits(&mut self, asks: Asks, pending: &Pending) {
        // No later gang has fewer reservations ahead.
        self.classes.retain(|class| class.asks.ahead == asks.ahead);
        self.classes.push(WaitingClass {
            asks,
            pending: pending.clone(),
        });
    }

    /// Drops verdicts after a gang gets capacity or is to release some.
    pub fn forget(&mut self) {
        self.classes.clear();
        self.promised = None;
    }
}

/// UIDs of pod groups to which backfilled gangs have promised to end in time.
pub(super) fn promised_to(gangs: &[GangState]) -> BTreeSet<String> {
    let backfills = gangs.iter().filter_map(|g| g.backfill.as_ref());
    let holders = backfills.flat_map(|b| b.reserved_for.iter().cloned());
    holders.collect()
}
