//! Whose turn it is, and what those behind may do meanwhile.
//!
//! **Order.** Gangs are served by priority, then by the time of their first attempt. A gang that is preempted keeps that
//! time, so it comes back before those that asked after it.
//!
//! **Backfill that cannot delay.** When a gang (the *blocked* one) does not fit, those behind it may still run, but only
//! - in room that it can take back: work of strictly lower priority, when the blocked gang may preempt and that work may be
//!   evicted; or
//! - in room that it could never use ([`room_behind`]). On a node that would hold `h` of its pods if it were empty, others
//!   may take, of each resource that such a pod asks for, only what is left over beside `h` pods *and* everything held there
//!   now. Work ends and gives room back, so later there is at least as much: for every resource that was taken the node
//!   still has room for `h` pods, and the resources that were not taken are as they would have been. The blocked gang
//!   therefore has the same seats, on every node, at every later time, whichever work ends first: it starts exactly when it
//!   would have started without the backfill.
//!
//! No run times are needed, nor trusted. A gang that would not fit an empty cluster blocks nobody: it would block for ever.
//!
//! **No starvation.** Nobody who asks later takes seats of a blocked gang, so once the work that runs ends (or is evicted),
//! the gang has its seats: however large it is, and however many small ones wait behind it.
//!
//! **No ping-pong.** A gang evicts only what counts strictly less ([`standing`]), and what runs never counts less than it
//! did while waiting. If A evicts B then `priority(A) > standing(B) >= priority(B)`; for B to evict A it would take
//! `priority(B) > standing(A) >= priority(A)`. Costs, equal or not, decide only among allowed victims.

use std::cmp::Reverse;

use crate::{
    cluster::Cluster,
    infeasible::Infeasible,
    placement::{check, place, seats},
    problem::{Demand, Placement, PreemptionPolicy},
};

/// A place in the queue; a smaller one is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    /// Higher priorities first.
    priority: Reverse<i32>,
    /// Time of the first attempt, in seconds on any fixed scale. Kept through preemptions.
    since: i64,
    /// Ordinal of the gang, which settles ties.
    gang: usize,
}

impl Turn {
    /// The place of a gang of this priority that first asked at `since`.
    pub fn new(priority: i32, since: i64, gang: usize) -> Self {
        Self { priority: Reverse(priority), since, gang }
    }

    /// Ordinal of the gang.
    pub fn gang(&self) -> usize {
        self.gang
    }
}

/// Priority of running work as a victim: its own, or the higher one it was given for the time after its start
/// (`preemptionPriority` of KEP-5710's future section). A lower one is not heeded, since it would let two gangs evict each
/// other in turn.
pub fn standing(priority: i32, preemption_priority: Option<i32>) -> i32 {
    preemption_priority.map_or(priority, |p| p.max(priority))
}

/// Whether work is still within the run time that it is guaranteed. Both times are seconds on one scale.
pub fn within_min_runtime(started: i64, now: i64, min_runtime_seconds: i64) -> bool {
    now.saturating_sub(started) < min_runtime_seconds
}

/// Whether a blocked gang can take back the room of work of this priority once it runs.
pub fn can_take_back(blocked: &Demand, priority: i32, evictable: bool) -> bool {
    evictable && priority < blocked.priority && blocked.preemption == PreemptionPolicy::LowerPriority
}

/// Whether a gang would fit if nothing else ran. One that would not must not block others.
pub fn fits_empty(cluster: &Cluster, demand: &Demand) -> bool {
    place(&cluster.emptied(), demand).is_ok()
}

/// The room that gangs behind all of `blocked` may use: what none of those could ever use itself. `cluster` is the room as
/// it is.
pub fn room_behind(cluster: &Cluster, blocked: &[&Demand]) -> Cluster {
    let mut kept = Kept::default();
    for demand in blocked {
        kept.add(cluster, demand);
    }
    let mut room = cluster.clone();
    kept.limit(&mut room);
    room
}

/// What waiting gangs keep for themselves, gathered gang by gang: the work per gang does not grow with their number.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// The most of each resource that any of them could use of a node, node after node.
    own: Vec<i64>,
}

impl Kept {
    /// Keeps what a gang could use. Reads what nodes offer, not what is free.
    pub fn add(&mut self, cluster: &Cluster, demand: &Demand) {
        let dims = cluster.dims();
        self.own.resize(cluster.node_count() * dims, 0);
        for shape in &demand.shapes {
            for node in (0..cluster.node_count()).filter(|&n| demand.admits(shape, n)) {
                let offered = cluster.allocatable(node);
                let whole = i64::from(seats(offered, &shape.request));
                for (dim, &request) in shape.request.iter().enumerate().filter(|&(_, &r)| r > 0) {
                    // Several shapes may share a node in ways that counting one of them does not see.
                    let own = if demand.shapes.len() == 1 { whole * request } else { offered[dim] };
                    let kept = &mut self.own[node * dims + dim];
                    *kept = (*kept).max(own);
                }
            }
        }
    }

    /// Keeps what others keep, too.
    pub fn join(&mut self, other: &Self) {
        if self.own.len() < other.own.len() {
            self.own.resize(other.own.len(), 0);
        }
        for (kept, &own) in self.own.iter_mut().zip(&other.own) {
            *kept = (*kept).max(own);
        }
    }

    /// Leaves of the room what may be used behind those gangs.
    pub fn limit(&self, room: &mut Cluster) {
        let dims = room.dims();
        for (at, &own) in self.own.iter().enumerate().filter(|&(_, &own)| own > 0) {
            let (node, dim) = (at / dims, at % dims);
            room.limit(node, dim, room.free(node)[dim] - own);
        }
    }
}

/// What one round of the queue came to, for one gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Served {
    /// It runs here.
    Placed(Placement),
    /// It waits, and those behind it respect its seats.
    Blocked(Infeasible),
    /// It waits, and would wait even in an empty cluster: it blocks nobody.
    Impossible(Infeasible),
}

/// Serves a queue from free room alone: who runs where, and who waits. `evictable` tells of each gang whether it may be
/// evicted once it runs. The answers are in the order of the turns.
pub fn serve(cluster: &Cluster, queue: &[(Turn, &Demand, bool)]) -> Vec<(usize, Served)> {
    let mut order: Vec<&(Turn, &Demand, bool)> = queue.iter().collect();
    order.sort_unstable_by_key(|(turn, ..)| *turn);
    let mut room = cluster.clone();
    let mut blocked: Vec<&Demand> = Vec::new();
    let mut served = Vec::new();
    for &&(turn, demand, evictable) in &order {
        let ahead: Vec<&Demand> =
            blocked.iter().copied().filter(|b| !can_take_back(b, demand.priority, evictable)).collect();
        let outcome = match place(&room_behind(&room, &ahead), demand) {
            Ok(placement) => {
                room.reserve(&demand.shapes, &placement);
                Served::Placed(placement)
            }
            Err(reason) if check(cluster, demand).is_err() || !fits_empty(cluster, demand) => {
                Served::Impossible(reason)
            }
            Err(reason) => {
                blocked.push(demand);
                Served::Blocked(reason)
            }
        };
        served.push((turn.gang, outcome));
    }
    served
}
