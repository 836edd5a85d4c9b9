//! Reservations of waiting gangs, and the gangs that they bind.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_engine::{Amounts, Cluster, NodeIx};

use crate::demand::request::PlacementRequest;
use crate::eviction::victims::{VictimFilter, VictimRules};

/// Time from the end of a backfilled gang to the start of the reservation: the scheduler observes
/// the end and starts the next gang.
const MARGIN: TimeDelta = TimeDelta::seconds(30);

/// A gang that requests capacity, for reservations ahead of it in the queue.
#[derive(Clone, Copy, Debug)]
pub struct Requester<'a> {
    pub request: &'a PlacementRequest,
    pub namespace: &'a str,
    pub victim_priority: i32,
    /// True if it can be evicted as soon as it runs.
    pub evictable: bool,
    pub victims: &'a VictimRules,
    /// True if it replaces members of a gang that runs.
    pub replaces: bool,
    /// Latest end of the gang. `None`: unknown.
    pub ends: Option<DateTime<Utc>>,
}

/// Capacity that a waiting gang has reserved: what gangs behind it in the queue read.
#[derive(Clone, Debug)]
pub struct QueueReservation {
    /// Number of the gang, chosen by the caller.
    pub gang: usize,
    pub priority: i32,
    pub preempts: bool,
    /// Extended resources that it requests.
    pub requested: BTreeSet<String>,
    /// Latest start of the gang on the reserved nodes. `None`: unknown.
    pub starts_at: Option<DateTime<Utc>>,
    pub nodes: BTreeMap<NodeIx, Amounts>,
}

impl QueueReservation {
    /// Subtracts the reservation from the free capacity. The result can be negative: released
    /// capacity goes to the reservation first.
    pub fn take(&self, free: &mut Cluster) {
        for (&node, amounts) in &self.nodes {
            free.add_pod(node, amounts);
        }
    }

    /// True if the gang must not use the reserved capacity. A holder that may not preempt yields to
    /// a running gang, which holds more capacity than it lacks.
    pub(crate) fn binds(&self, requester: &Requester<'_>) -> bool {
        let yields = requester.replaces && !self.preempts;
        !yields && !self.can_take_back(requester)
    }

    /// True if the holder could evict the gang as soon as it runs.
    fn can_take_back(&self, requester: &Requester<'_>) -> bool {
        self.preempts
            && requester.evictable
            && requester.victim_priority < self.priority
            && self.reaches(requester)
    }

    fn reaches(&self, requester: &Requester<'_>) -> bool {
        let nobody = BTreeSet::new();
        // Budgets change with every pod, so their current state is ignored.
        let filter = VictimFilter {
            rules: requester.victims,
            requested: &self.requested,
            beyond_budgets: true,
            refused: &nobody,
        };
        let mut holds = requester.request.templates.iter().map(|t| &*t.requests);
        filter.admits_gang(requester.namespace, &mut holds)
    }

    /// True if a gang with this end ends before the reservation starts, and the holder may preempt
    /// to enforce it.
    pub fn starts_after(&self, ends: Option<DateTime<Utc>>) -> bool {
        let end = ends.and_then(|end| end.checked_add_signed(MARGIN));
        let in_time = |start| end.is_some_and(|end| end <= start);
        self.preempts && self.starts_at.is_some_and(in_time)
    }
}
