//! The plain way to serve a queue, for the promises that the queue makes.

use lockstep_engine::{
    Cluster, Demand, EvictionPolicy, GangPlacement, Infeasible, place,
    queue::{QueuePosition, ReservedCapacity, fits_empty},
};

/// What one round of the queue comes to for one gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Served {
    /// It runs here.
    Placed(GangPlacement),
    /// It waits, and those behind it leave its slots alone.
    Blocked(Infeasible),
    /// It waits, and would wait even in an empty cluster: it blocks no other.
    Impossible(Infeasible),
}

/// Serves a queue from free capacity alone: which gang runs where, and which waits. The flag says
/// of each gang whether it may be evicted once it runs. The answers are in the order of the queue.
pub fn serve(
    cluster: &Cluster,
    queue: &[(QueuePosition<i64, usize>, &Demand, bool)],
) -> Vec<(usize, Served)> {
    let mut order: Vec<&(QueuePosition<i64, usize>, &Demand, bool)> = queue.iter().collect();
    order.sort_unstable_by_key(|(position, ..)| *position);
    let mut free = cluster.clone();
    let mut blocked: Vec<&Demand> = Vec::new();
    let mut served = Vec::new();
    for &&(position, demand, evictable) in &order {
        let ahead: Vec<&Demand> = blocked
            .iter()
            .copied()
            .filter(|b| !can_take_back(b, demand.priority, evictable))
            .collect();
        let outcome = match place(&capacity_behind(&free, &ahead), demand) {
            Ok(placement) => {
                free.reserve(&demand.shapes, &placement);
                Served::Placed(placement)
            }
            Err(reason) if !fits_empty(cluster, demand) => Served::Impossible(reason),
            Err(reason) => {
                blocked.push(demand);
                Served::Blocked(reason)
            }
        };
        served.push((position.id, outcome));
    }
    served
}

/// Whether a blocked gang can take back the capacity of work of this priority once it runs.
fn can_take_back(blocked: &Demand, priority: i32, evictable: bool) -> bool {
    evictable && priority < blocked.priority && blocked.preemption == EvictionPolicy::LowerPriority
}

/// The capacity that gangs behind all of `blocked` may use: what none of those could ever use
/// itself. `cluster` is the capacity as it is.
pub fn capacity_behind(cluster: &Cluster, blocked: &[&Demand]) -> Cluster {
    let mut kept = ReservedCapacity::default();
    for demand in blocked {
        kept.add(cluster, demand);
    }
    let mut capacity = cluster.clone();
    kept.limit(&mut capacity);
    capacity
}
