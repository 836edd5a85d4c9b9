//! Waiting gangs that ask for the same: what keeps the first of them waiting keeps all of them
//! waiting, for as long as nobody gets or gives up capacity.

use std::collections::BTreeSet;

use lockstep_engine::Demand;

use crate::asks::{Asks, Request};
use crate::pending::Pending;
use crate::state::GangState;

/// What was found out in this cycle about gangs that wait.
#[derive(Debug, Default)]
pub(super) struct WaitingClasses {
    classes: Vec<WaitingClass>,
    /// UIDs of the pod groups to which backfilled gangs have promised to end in time: they may evict
    /// whom others may not.
    promised: Option<BTreeSet<String>>,
}

/// Gangs that ask for the same.
#[derive(Debug)]
struct WaitingClass {
    asks: Asks,
    pending: Pending,
}

impl WaitingClasses {
    /// What of the gang its verdict depends on; `None` for one with a history of its own: pods,
    /// nodes, refusals, promises, constraints that only kube-scheduler knows.
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

    /// Why gangs wait that ask for this.
    pub fn pending(&self, asks: &Asks) -> Option<&Pending> {
        let mut known = self.classes.iter();
        let known = known.find(|class| class.asks == *asks)?;
        Some(&known.pending)
    }

    /// A gang waits that asks for this, and has reserved nothing.
    pub fn waits(&mut self, asks: Asks, pending: &Pending) {
        // Of those behind fewer reservations nobody comes any more.
        self.classes.retain(|class| class.asks.ahead == asks.ahead);
        self.classes.push(WaitingClass {
            asks,
            pending: pending.clone(),
        });
    }

    /// Somebody has got capacity, or is to give it up.
    pub fn forget(&mut self) {
        self.classes.clear();
        self.promised = None;
    }
}

/// UIDs of the pod groups to which backfilled gangs have promised to end in time.
pub(super) fn promised_to(gangs: &[GangState]) -> BTreeSet<String> {
    let backfills = gangs.iter().filter_map(|g| g.backfill.as_ref());
    let holders = backfills.flat_map(|b| b.reserved_for.iter().cloned());
    holders.collect()
}
