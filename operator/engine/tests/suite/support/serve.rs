//! A straightforward queue server, to test the guarantees of the queue.

use std::collections::BTreeMap;

use lockstep_engine::{
    Amounts, Blocker, Cluster, Demand, EvictionPolicy, GangPlacement, Infeasible, NodeIx,
    amounts_by_node, is_possible, place, queue::QueuePosition, reserve, starts_at,
};

/// Result of one round for one gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Served {
    /// Runs on these nodes.
    Placed(GangPlacement),
    /// Waits with a reservation that binds gangs behind it.
    Blocked(Infeasible),
    /// Waits, and would not fit even without all work that may end. Reserves nothing.
    Impossible(Infeasible),
}

/// Serves a queue from free capacity only. The flag in `queue`: whether the gang can be evicted
/// once it runs. `blockers`: running work. `reserved`: reservations so far, by gang. `end`: latest
/// end of a gang that starts now. Answers are in queue order.
pub fn serve(
    cluster: &Cluster,
    blockers: &[Blocker],
    queue: &[(QueuePosition<i64, usize>, &Demand, bool)],
    reserved: &mut BTreeMap<usize, GangPlacement>,
    end: impl Fn(usize) -> Option<i64>,
) -> Vec<(usize, Served)> {
    let mut order: Vec<&(QueuePosition<i64, usize>, &Demand, bool)> = queue.iter().collect();
    order.sort_unstable_by_key(|(position, ..)| *position);
    let (mut free, mut blockers) = (cluster.clone(), blockers.to_vec());
    let mut ahead: Vec<Ahead<'_>> = Vec::new();
    let mut before = std::mem::take(reserved);
    let mut served = Vec::new();
    for &&(position, demand, evictable) in &order {
        let end = end(position.id);
        let binds = |a: &&Ahead<'_>| !can_take_back(a.demand, demand.priority, evictable);
        let later = |a: &&Ahead<'_>| a.start.is_some_and(|start| end.is_some_and(|e| e <= start));
        let behind = |now: bool| {
            let binding = ahead.iter().filter(|a| binds(a) && (now || !later(a)));
            place(&without(&free, binding.map(|a| &a.kept)), demand)
        };
        let placed = behind(true).or_else(|short| behind(false).map_err(|_| short));
        let outcome = match placed {
            Ok(placement) => {
                free.reserve(&demand.shapes, &placement);
                blockers.extend(as_blockers(demand, &placement, end));
                Served::Placed(placement)
            }
            Err(reason) => {
                let left = without(&free, ahead.iter().map(|a| &a.kept));
                let kept = before
                    .remove(&position.id)
                    .filter(|k| is_possible(&left, &blockers, demand, k));
                match kept.or_else(|| reserve(&left, &blockers, demand)) {
                    Some(kept) => {
                        ahead.push(Ahead {
                            demand,
                            start: starts_at(&left, &blockers, &demand.shapes, &kept),
                            kept: amounts_by_node(&demand.shapes, &kept),
                        });
                        reserved.insert(position.id, kept);
                        Served::Blocked(reason)
                    }
                    None => Served::Impossible(reason),
                }
            }
        };
        served.push((position.id, outcome));
    }
    served
}

/// A waiting gang with its reservation.
struct Ahead<'d> {
    demand: &'d Demand,
    kept: BTreeMap<NodeIx, Amounts>,
    /// Latest start on the reservation, if known.
    start: Option<i64>,
}

/// Capacity of a running gang, as work that ends at this time.
pub fn as_blockers(demand: &Demand, placement: &GangPlacement, ends: Option<i64>) -> Vec<Blocker> {
    let held = amounts_by_node(&demand.shapes, placement).into_iter();
    held.map(|(node, request)| Blocker {
        node,
        request,
        ends,
    })
    .collect()
}

fn without<'k>(
    free: &Cluster,
    kept: impl Iterator<Item = &'k BTreeMap<NodeIx, Amounts>>,
) -> Cluster {
    let mut free = free.clone();
    for (&node, amounts) in kept.flatten() {
        free.add_pod(node, amounts);
    }
    free
}

/// True if a blocked gang can evict running work of this priority.
fn can_take_back(blocked: &Demand, priority: i32, evictable: bool) -> bool {
    evictable && priority < blocked.priority && blocked.preemption == EvictionPolicy::LowerPriority
}
