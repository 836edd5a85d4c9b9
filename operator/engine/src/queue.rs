//! Order of the scheduling queue, and rules for reserved capacity. Design, and why a gang with a
//! reservation does not starve: `docs/decisions/0018`.
//!
//! **Order.** The scheduler serves gangs in the order of [`QueuePosition`]: gangs that lack needed
//! members before placed gangs that request optional members, then by priority, then gangs with
//! reserved or assigned nodes, then by the share of their namespace, then by queue time. A
//! preempted gang keeps its queue time.
//!
//! **Reservations.** A gang that does not fit reserves capacity on nodes by name
//! ([`reserve`](crate::reserve)). On a reserved node, gangs behind it may use the free capacity,
//! including capacity freed by their evictions, minus the reservation. The difference can be
//! negative, so evictions first fill the reservation. Two kinds of work may use reserved capacity,
//! because they do not delay the gang with the reservation: work of strictly lower priority that
//! this gang may evict, and work that ends before [`starts_at`](crate::starts_at) (EASY backfill).
//!
//! **No ping-pong.** A gang evicts only work of strictly lower [`victim_priority`], and the victim
//! priority of work is never lower than its queue priority. If A evicts B then `priority(A) >
//! victim_priority(B) >= priority(B)`. For B to evict A, `priority(B) > victim_priority(A) >=
//! priority(A)` would be required.

use std::cmp::Reverse;

/// Position of a gang in the queue; smaller positions are served first. The derived `Ord` compares
/// the fields in declaration order, which is the queue policy.
///
/// `At` is the type of the queue time, `Id` the type of the gang's identity. Both are compared
/// without rounding, so every process breaks ties in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePosition<At, Id> {
    /// True if a placed gang requests optional members. The scheduler serves it after all gangs
    /// that wait for required members.
    pub growth: bool,
    /// Higher priorities first.
    pub priority: Reverse<i32>,
    /// True if the gang has neither reserved nor assigned nodes. For other gangs, the share of the
    /// namespace does not affect the position.
    pub empty_handed: bool,
    /// Share of the cluster that the gang's namespace has, divided by the namespace's weight; 0 for
    /// gangs with reserved or assigned nodes.
    pub share: u64,
    /// Queue time. A preempted gang keeps it.
    pub queued_at: At,
    /// Breaks ties.
    pub id: Id,
}

impl<At, Id> QueuePosition<At, Id> {
    /// Position of a gang that waits for needed members.
    pub fn new(priority: i32, queued_at: At, id: Id) -> Self {
        Self {
            growth: false,
            priority: Reverse(priority),
            empty_handed: true,
            share: 0,
            queued_at,
            id,
        }
    }

    /// Position of the gang once it has reserved or assigned nodes.
    #[must_use]
    pub fn holding(self) -> Self {
        Self {
            empty_handed: false,
            share: 0,
            ..self
        }
    }

    /// Position with this share of its namespace. Ignored for gangs that hold capacity.
    #[must_use]
    pub fn with_share(self, share: u64) -> Self {
        Self {
            share: if self.empty_handed { share } else { 0 },
            ..self
        }
    }

    /// Position of a placed gang that requests more members.
    pub fn growth(priority: i32, queued_at: At, id: Id) -> Self {
        Self {
            growth: true,
            ..Self::new(priority, queued_at, id)
        }
    }
}

/// Priority of running work as a victim: the higher of its queue priority and its preemption
/// priority (KEP-5710, `preemptionPriority`). A lower preemption priority would let two gangs evict
/// each other in turn.
pub fn victim_priority(priority: i32, preemption_priority: Option<i32>) -> i32 {
    preemption_priority.map_or(priority, |p| p.max(priority))
}

/// True if work is within its guaranteed run time. Both times are Unix seconds.
pub fn within_min_runtime(started: i64, now: i64, min_runtime_seconds: i64) -> bool {
    now.saturating_sub(started) < min_runtime_seconds
}
