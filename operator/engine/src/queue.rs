//! The order of the queue, and what gangs behind a waiting one may do meanwhile.
//!
//! **Order.** Gangs are served in the order of [`QueuePosition`]: by priority, then those that hold
//! a reservation or places, then by the share of their namespace, then by the time of queueing. A gang
//! that is preempted keeps that time, so it comes back before those of its share that were queued
//! after it.
//!
//! **Reservations.** A gang that does not fit (the *blocked* one) reserves what it needs on nodes by
//! name ([`reserve`](crate::reserve)): where it would run without the work that may end or that it may
//! evict. Others use everything else. The blocked gang may start elsewhere if it fits there first.
//!
//! **What binds those behind it.** From the free capacity of a reserved node, those behind the gang
//! may take what is left over beside the reservation *and* everything held there now: the difference
//! may be negative, and stays so when they evict, so that a victim's capacity goes to the reservation
//! before it goes to them. Two exceptions delay nobody. Work that the blocked gang can take back, of
//! strictly lower priority and within its reach, may use what is reserved. And so may work that will
//! have ended before the reservation can be used at the latest
//! ([`starts_at`](crate::starts_at), EASY backfill).
//!
//! **No starvation.** Let a gang hold a reservation from time `t` on, on nodes that stay usable. Call
//! *old* what was on these nodes at `t` and may end or be evicted. Whoever enters later beside the
//! reservation leaves it room: at that moment all that is held on the node and the reservation fit
//! together. Whoever enters within the reservation can be taken back, or has ended when the last
//! known end of the old work has come. So once the old work has ended, what is reserved is free or
//! can be taken, and the gang starts: at the latest then, however many come after it. Only gangs
//! ahead of it in the queue, and pods that other schedulers bind, can delay it further. And nobody
//! of its priority gets ahead of it but who holds something and was queued before it: the share of
//! a namespace moves gangs that have reserved nothing, and those alone.
//!
//! **Who waits for whom.** A gang that cannot run, now or ever, keeps from others what it reserved
//! and nothing else: reservations are disjoint, and a gang that would not fit even without all work
//! that may end reserves nothing.
//!
//! **No ping-pong.** A gang evicts only what counts strictly less ([`victim_priority`]), and what
//! runs never counts less than it did while waiting. If A evicts B then `priority(A) >
//! victim_priority(B) >= priority(B)`; for B to evict A it would take `priority(B) >
//! victim_priority(A) >= priority(A)`. Costs, equal or not, decide only among allowed victims.

use std::cmp::Reverse;

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
    /// Whether it holds nothing yet. Those that have reserved nodes, or have some already, keep their
    /// place whatever their namespace gets meanwhile.
    pub empty_handed: bool,
    /// What its namespace has of the cluster, of those that hold nothing; 0 for the others.
    pub share: u64,
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
            empty_handed: true,
            share: 0,
            queued_at,
            id,
        }
    }

    /// The position of one that has reserved nodes, or has some already.
    #[must_use]
    pub fn holding(self) -> Self {
        Self {
            empty_handed: false,
            share: 0,
            ..self
        }
    }

    /// The same where its namespace has this share; of no account for one that holds something.
    #[must_use]
    pub fn with_share(self, share: u64) -> Self {
        Self {
            share: if self.empty_handed { share } else { 0 },
            ..self
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
