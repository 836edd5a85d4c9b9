//! What gangs that wait have reserved, and whom that binds.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_engine::{Amounts, Cluster, NodeIx};

use crate::request::PlacementRequest;
use crate::victims::{VictimFilter, VictimRules};

/// Time between the end of a gang that uses what is reserved and the time from which it is
/// reserved: what it takes to see the one and to start the other.
const MARGIN: TimeDelta = TimeDelta::seconds(30);

/// A gang that asks for capacity, as far as it matters to those ahead of it.
#[derive(Clone, Copy, Debug)]
pub struct AskingGang<'a> {
    /// What it asks for.
    pub request: &'a PlacementRequest,
    /// Namespace of its workload.
    pub namespace: &'a str,
    /// Priority that it will have as a victim once it runs.
    pub victim_priority: i32,
    /// Whether it can be evicted as soon as it runs.
    pub evictable: bool,
    /// Which work may be evicted at all.
    pub victims: &'a VictimRules,
    /// When it will have ended at the latest; `None`: nobody knows.
    pub ends: Option<DateTime<Utc>>,
}

/// What one gang has reserved.
#[derive(Clone, Debug)]
pub struct QueueReservation {
    /// The gang: the caller's number of it.
    pub gang: usize,
    /// Its priority.
    pub priority: i32,
    /// Whether it may preempt.
    pub preempts: bool,
    /// Extended resources that it asks for.
    pub wanted: BTreeSet<String>,
    /// When it can use the reservation at the latest; `None`: nobody knows.
    pub starts_at: Option<DateTime<Utc>>,
    /// What is reserved on which node.
    pub nodes: BTreeMap<NodeIx, Amounts>,
}

/// What gangs have reserved that are ahead in the queue.
#[derive(Clone, Debug, Default)]
pub struct ReservationsAhead(Vec<QueueReservation>);

impl QueueReservation {
    /// Takes what is reserved out of what is free. What is left may be below zero: what is released
    /// goes to the reservation first.
    pub fn take(&self, free: &mut Cluster) {
        for (&node, amounts) in &self.nodes {
            free.add_pod(node, amounts);
        }
    }

    /// Whether the holder could evict the gang as soon as it runs.
    fn can_take_back(&self, asking: &AskingGang<'_>) -> bool {
        self.preempts
            && asking.evictable
            && asking.victim_priority < self.priority
            && self.reaches(asking)
    }

    /// Whether the rules let the holder evict the gang.
    fn reaches(&self, asking: &AskingGang<'_>) -> bool {
        let nobody = BTreeSet::new();
        // Budgets change with every pod: what they guard now says nothing about then.
        let filter = VictimFilter {
            rules: asking.victims,
            wanted: &self.wanted,
            beyond_budgets: true,
            refused: &nobody,
        };
        let mut holds = asking.request.templates.iter().map(|t| &*t.requests);
        filter.admits_gang(asking.namespace, &mut holds)
    }

    /// Whether the gang will have ended before what is reserved can be used. A holder that may not
    /// preempt could not hold it to that.
    fn starts_after(&self, asking: &AskingGang<'_>) -> bool {
        let end = asking.ends.and_then(|end| end.checked_add_signed(MARGIN));
        let in_time = |start| end.is_some_and(|end| end <= start);
        self.preempts && self.starts_at.is_some_and(in_time)
    }
}

impl ReservationsAhead {
    /// Adds that of the next gang in the queue.
    pub fn push(&mut self, reservation: QueueReservation) {
        self.0.push(reservation);
    }

    /// All of them, in the order of the queue.
    pub fn iter(&self) -> impl Iterator<Item = &QueueReservation> {
        self.0.iter()
    }

    /// Those that bind the gang: it has to leave alone what is reserved.
    pub(crate) fn binding<'a>(
        &'a self,
        asking: &'a AskingGang<'a>,
    ) -> impl Iterator<Item = &'a QueueReservation> {
        self.0.iter().filter(|r| !r.can_take_back(asking))
    }

    /// Those that bind the gang, apart from those that can be used only after it has ended; and the
    /// latter.
    pub(crate) fn binding_now<'a>(
        &'a self,
        asking: &'a AskingGang<'a>,
    ) -> (Vec<&'a QueueReservation>, Vec<&'a QueueReservation>) {
        let (later, now) = self.binding(asking).partition(|r| r.starts_after(asking));
        (now, later)
    }
}

impl FromIterator<QueueReservation> for ReservationsAhead {
    fn from_iter<I: IntoIterator<Item = QueueReservation>>(all: I) -> Self {
        Self(all.into_iter().collect())
    }
}
