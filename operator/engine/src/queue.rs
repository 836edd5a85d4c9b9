//! The order of the queue, and what gangs behind a waiting one may do meanwhile.
//!
//! **Order.** Gangs are served in the order of [`QueuePosition`]: by priority, then by the time of
//! queueing. A gang that is preempted keeps that time, so it comes back before those that were
//! queued after it.
//!
//! **Backfill that cannot delay.** When a gang (the *blocked* one) does not fit, those behind it
//! may still run, but only
//! - in capacity that it can take back: that of work of strictly lower priority, when the blocked
//!   gang may preempt and that work may be evicted; or
//! - in capacity that it could never use ([`ReservedCapacity`] holds what it could). On a node that
//!   would hold `h` of its pods if it were empty, others may take, of each resource that such a pod
//!   requests, only what is left over beside `h` pods *and* everything held there now. Work ends
//!   and releases its capacity, so later there is at least as much: for every resource that was
//!   taken the node still has capacity for `h` pods, and the resources that were not taken are as
//!   they would have been. The blocked gang therefore has the same slots, on every node, at every
//!   later time, whichever work ends first: it starts exactly when it would have started without
//!   the backfill.
//!
//! No run times are needed, nor trusted. A gang that would not fit an empty cluster blocks no
//! other: it would block for ever.
//!
//! **No starvation.** No gang that is queued later takes slots of a blocked gang, so once the work
//! that runs ends (or is evicted), the gang has its slots: however large it is, and however many
//! small ones wait behind it.
//!
//! **No ping-pong.** A gang evicts only what counts strictly less ([`victim_priority`]), and what
//! runs never counts less than it did while waiting. If A evicts B then `priority(A) >
//! victim_priority(B) >= priority(B)`; for B to evict A it would take `priority(B) >
//! victim_priority(A) >= priority(A)`. Costs, equal or not, decide only among allowed victims.

use std::cmp::Reverse;

use crate::{
    cluster::Cluster,
    placement::{place, slots},
    problem::Demand,
};

/// The position of a gang in the queue; a smaller one is served first. The order of the fields is
/// the policy: no other place compares gangs that wait.
///
/// `At` is the caller's time and `Id` its identity of a gang, so that both keep their precision and
/// ties are settled the same way in every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePosition<At, Id> {
    /// Whether a placed gang asks for members beyond those that it needs. Growth is served after
    /// every gang that waits for what it needs.
    pub growth: bool,
    /// Higher priorities first.
    pub priority: Reverse<i32>,
    /// When the gang was queued. It keeps this time when it is preempted, so that it comes back
    /// before those that were queued after it.
    pub queued_at: At,
    /// Identity of the gang, which settles ties.
    pub id: Id,
}

impl<At, Id> QueuePosition<At, Id> {
    /// The position of a gang that waits for the members that it needs.
    pub fn new(priority: i32, queued_at: At, id: Id) -> Self {
        Self {
            growth: false,
            priority: Reverse(priority),
            queued_at,
            id,
        }
    }

    /// The position of a placed gang that asks for more members.
    pub fn growth(priority: i32, queued_at: At, id: Id) -> Self {
        Self {
            growth: true,
            ..Self::new(priority, queued_at, id)
        }
    }
}

/// Priority of running work as a victim: its own, or the higher one it was given for the time after
/// its start (`preemptionPriority` of KEP-5710's future section). A lower one is not heeded, since
/// it would let two gangs evict each other in turn.
pub fn victim_priority(priority: i32, preemption_priority: Option<i32>) -> i32 {
    preemption_priority.map_or(priority, |p| p.max(priority))
}

/// Whether work is still within the run time that it is guaranteed. Both times are seconds on one
/// scale.
pub fn within_min_runtime(started: i64, now: i64, min_runtime_seconds: i64) -> bool {
    now.saturating_sub(started) < min_runtime_seconds
}

/// Whether a gang would fit if nothing else ran. One that would not must not block others.
pub fn fits_empty(cluster: &Cluster, demand: &Demand) -> bool {
    place(&cluster.emptied(), demand).is_ok()
}

/// The capacity that is reserved for waiting gangs, gathered gang by gang: the work per gang does
/// not grow with their number.
#[derive(Clone, Debug, Default)]
pub struct ReservedCapacity {
    /// The most of each resource that any of them could use of a node, node after node.
    own: Vec<i64>,
}

impl ReservedCapacity {
    /// Reserves what a gang could use. Reads what nodes offer, not what is free.
    pub fn add(&mut self, cluster: &Cluster, demand: &Demand) {
        let dims = cluster.dims();
        self.own.resize(cluster.node_count() * dims, 0);
        for shape in &demand.shapes {
            for node in (0..cluster.node_count()).filter(|&n| demand.admits(shape, n)) {
                let offered = cluster.allocatable(node);
                let whole = i64::from(slots(offered, &shape.request));
                for (dim, &request) in shape.request.iter().enumerate().filter(|&(_, &r)| r > 0) {
                    // Several shapes may share a node in ways that counting one of them does not
                    // see.
                    let own = if demand.shapes.len() == 1 {
                        whole * request
                    } else {
                        offered[dim]
                    };
                    let kept = &mut self.own[node * dims + dim];
                    *kept = (*kept).max(own);
                }
            }
        }
    }

    /// Reserves what is reserved in another, too.
    pub fn join(&mut self, other: &Self) {
        if self.own.len() < other.own.len() {
            self.own.resize(other.own.len(), 0);
        }
        for (kept, &own) in self.own.iter_mut().zip(&other.own) {
            *kept = (*kept).max(own);
        }
    }

    /// Leaves of the free capacity what may be used behind those gangs.
    pub fn limit(&self, capacity: &mut Cluster) {
        let dims = capacity.dims();
        for (at, &own) in self.own.iter().enumerate().filter(|&(_, &own)| own > 0) {
            let (node, dim) = (at / dims, at % dims);
            capacity.limit(node, dim, capacity.free(node)[dim] - own);
        }
    }
}
