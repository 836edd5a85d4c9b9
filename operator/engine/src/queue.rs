//! The order of the queue, and the capacity that gangs behind a waiting gang may use. How
//! reservations work, and why no gang starves: `docs/decisions/0018`.
//!
//! **Order.** Gangs are served in the order of [`QueuePosition`]: by priority, then gangs with a
//! reservation or nodes, then by the share of their namespace, then by queue time. A preempted gang
//! keeps its queue time.
//!
//! **Reservations.** A gang that does not fit reserves capacity on nodes by name
//! ([`reserve`](crate::reserve)). On a reserved node, gangs behind it may use free capacity minus
//! the reservation. The difference can be negative and includes their evictions, so a victim's
//! capacity goes to the reservation first. Two kinds of work may use reserved capacity, because
//! they delay no gang: work of strictly lower priority that the holder may evict, and work that
//! ends before [`starts_at`](crate::starts_at) (EASY backfill).
//!
//! **No ping-pong.** A gang evicts only work of strictly lower [`victim_priority`], and running
//! work never has a lower one than while waiting. If A evicts B then `priority(A) >
//! victim_priority(B) >= priority(B)`. For B to evict A, `priority(B) > victim_priority(A) >=
//! priority(A)` would be required.

use std::cmp::Reverse;

/// Position of a gang in the queue; smaller positions are served first. The order of the fields is
/// the policy; no other code compares waiting gangs.
///
/// `At` is the caller's time and `Id` its identity of a gang. Both keep their precision, so that
/// every process breaks ties in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePosition<At, Id> {
    /// True if a placed gang requests optional members. It is served after all gangs that wait for
    /// needed members.
    pub growth: bool,
    /// Higher priorities first.
    pub priority: Reverse<i32>,
    /// True if it holds no capacity. Gangs with reserved or assigned nodes keep their position,
    /// whatever the share of their namespace.
    pub empty_handed: bool,
    /// Share of its namespace; 0 for gangs that hold capacity.
    pub share: u64,
    /// Queue time. A preempted gang keeps it.
    pub queued_at: At,
    /// Identity of the gang, which breaks ties.
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

    /// Position with reserved or assigned nodes.
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

/// Priority of running work as a victim: its own, or a higher one after its start
/// (`preemptionPriority` in KEP-5710, Future). A lower one is ignored, because two gangs could then
/// evict each other in turn.
pub fn victim_priority(priority: i32, preemption_priority: Option<i32>) -> i32 {
    preemption_priority.map_or(priority, |p| p.max(priority))
}

/// True if work is within its guaranteed run time. Both times are seconds on one scale.
pub fn within_min_runtime(started: i64, now: i64, min_runtime_seconds: i64) -> bool {
    now.saturating_sub(started) < min_runtime_seconds
}
