//! The plain way to serve a queue, for the promises that the queue makes.

use std::collections::BTreeMap;

use lockstep_engine::{
    Amounts, Blocker, Cluster, Demand, EvictionPolicy, GangPlacement, Infeasible, NodeIx,
    amounts_by_node, is_possible, place, queue::QueuePosition, reserve, starts_at,
};

/// What one round of the queue comes to for one gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Served {
    /// It runs here.
    Placed(GangPlacement),
    /// It waits, and those behind it leave what it reserves alone.
    Blocked(Infeasible),
    /// It waits, and would wait even without all work that may end: it reserves nothing.
    Impossible(Infeasible),
}

/// Serves a queue from free capacity alone: which gang runs where, and which waits. The flag says
/// of each gang whether it may be evicted once it runs. `blockers` is what runs, `reserved` what was
/// reserved so far, by gang; `end` says when a gang will have ended at the latest if it starts now.
/// The answers are in the order of the queue.
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
                let kept = before.remove(&position.id);
                let kept = kept.filter(|k| is_possible(&left, &blockers, demand, k));
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

/// A gang that waits, with what it reserves.
struct Ahead<'d> {
    demand: &'d Demand,
    kept: BTreeMap<NodeIx, Amounts>,
    /// When it can use that at the latest, if it is known.
    start: Option<i64>,
}

/// What a gang that runs holds, as work that ends then.
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

/// Whether a blocked gang can take back the capacity of work of this priority once it runs.
fn can_take_back(blocked: &Demand, priority: i32, evictable: bool) -> bool {
    evictable && priority < blocked.priority && blocked.preemption == EvictionPolicy::LowerPriority
}
