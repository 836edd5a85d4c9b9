//! KEP-5710 as released in Kubernetes 1.37: remove every unit of lower priority, place the gang once, then give back
//! (reprieve) the units one by one, most important first, where they ran.

use std::cmp::Reverse;

use super::{
    Bound, Options, Preemption,
    field::{CandIx, Field, after_evicting},
};
use crate::{
    explain::Explanation,
    infeasible::Infeasible,
    placement::{place_in, seats},
    problem::{Demand, NodeIx, Placement, Seat, Unit},
};

pub(super) fn preempt(field: &Field<'_>, options: &Options) -> Result<Preemption, Infeasible> {
    let all: Vec<CandIx> = (0..field.cands.len()).collect();
    let (victims, placement) = if is_single_pod(field.demand) { for_pod(field, options).ok_or(()) } else { Err(()) }
        .or_else(|()| for_gang(field, options, &all))?;
    let victims = field.unit_ordinals(victims);
    let toll = field.units.toll(&victims);
    Ok(Preemption {
        victims,
        placement,
        toll,
        bound: Bound::default(),
        proven: false,
        explanation: Explanation::default(),
    })
}

/// The gang's one placement on the cluster without candidates, then reprieve.
fn for_gang(field: &Field<'_>, options: &Options, all: &[CandIx]) -> Result<(Vec<CandIx>, Placement), Infeasible> {
    let free = field.room_without(all.iter().copied());
    let placement = match (&options.node_order, field.demand.topology) {
        (Some(order), None) => first_fit(field, free.clone(), order).ok_or(()),
        _ => Err(()),
    };
    // First fit can miss a placement of several shapes; the best-fit search then decides, and words the reason.
    let placement = match placement {
        Ok(placement) => placement,
        Err(()) => place_in(field.site, free.clone()).map_err(after_evicting)?,
    };
    let victims = reprieve(field, free, &placement, all);
    Ok((victims, placement))
}

/// Members one by one to the first node with room: as many as wanted, at least as many as needed.
fn first_fit(field: &Field<'_>, mut free: Vec<i64>, order: &[NodeIx]) -> Option<Placement> {
    let mut placement = Placement::default();
    for (shape_ix, wanted) in field.demand.wanted().into_iter().enumerate() {
        let shape = &field.demand.shapes[shape_ix];
        let mut left = wanted;
        for &node in order {
            let count = field.site.seats(&free, shape_ix, shape, node).min(left);
            if count > 0 {
                field.site.take(&mut free, node, shape, i64::from(count));
                placement.seats.push(Seat { shape: shape_ix, replica: 0, node, count });
                left -= count;
            }
        }
        if wanted - left < field.demand.needed()[shape_ix] {
            return None;
        }
    }
    placement.seats.sort_unstable();
    Some(placement)
}

/// Importance of a unit, most important first: priority, gang over pod, larger gang, earlier start, ordinal.
fn importance(unit: &Unit, cand: CandIx) -> impl Ord + use<> {
    (Reverse(unit.priority), !unit.gang, Reverse(unit.pod_count()), unit.start, cand)
}

/// Which of `gone` cannot come back while the gang stays where it is placed. `free` is the room without all of them.
fn reprieve(field: &Field<'_>, mut free: Vec<i64>, placement: &Placement, gone: &[CandIx]) -> Vec<CandIx> {
    let mut seated = vec![false; field.site.cluster.node_count()];
    for seat in &placement.seats {
        seated[seat.node] = true;
        field.site.take(&mut free, seat.node, &field.demand.shapes[seat.shape], i64::from(seat.count));
    }
    let mut order = gone.to_vec();
    order.sort_by_cached_key(|&c| importance(field.unit(c), c));
    let (violating, plain) = by_pdb(field, &order);
    let mut victims = Vec::new();
    for cand in violating.into_iter().chain(plain) {
        let fits = field
            .uses(cand)
            .filter(|&(node, _)| seated[node])
            .all(|(node, held)| held.iter().zip(field.site.room(&free, node)).all(|(&h, &f)| h == 0 || f >= h));
        if fits {
            field.give(&mut free, cand, -1);
        } else {
            victims.push(cand);
        }
    }
    victims
}

/// Splits units, most important first, into those whose pods would take a budget below zero and the others.
fn by_pdb(field: &Field<'_>, order: &[CandIx]) -> (Vec<CandIx>, Vec<CandIx>) {
    let mut left: Vec<i64> = field.units.pdb_allowed.iter().map(|&a| i64::from(a)).collect();
    order.iter().partition(|&&cand| {
        let mut violates = false;
        for &(pdb, pods) in &field.unit(cand).pdbs {
            left[pdb] -= i64::from(pods);
            violates |= left[pdb] < 0;
        }
        violates
    })
}

fn is_single_pod(demand: &Demand) -> bool {
    demand.topology.is_none() && demand.wanted().iter().sum::<u32>() == 1
}

/// A single pod: every node is tried by itself, and the classic list chooses among them.
fn for_pod(field: &Field<'_>, options: &Options) -> Option<(Vec<CandIx>, Placement)> {
    let shape_ix = field.demand.wanted().iter().position(|&w| w > 0)?;
    let shape = &field.demand.shapes[shape_ix];
    let mut on_node: Vec<Vec<CandIx>> = vec![Vec::new(); field.site.cluster.node_count()];
    for cand in 0..field.cands.len() {
        for (node, _) in field.uses(cand) {
            on_node[node].push(cand);
        }
    }
    let ordinal: Vec<NodeIx> = (0..on_node.len()).collect();
    let order = options.node_order.as_ref().unwrap_or(&ordinal);
    let mut best = None;
    for &node in order.iter().filter(|&&n| field.site.admits[shape_ix].contains(n)) {
        let free = field.room_without(on_node[node].iter().copied());
        if seats(field.site.room(&free, node), &shape.request) == 0 {
            continue;
        }
        let placement = Placement { seats: vec![Seat { shape: shape_ix, replica: 0, node, count: 1 }] };
        let victims = reprieve(field, free, &placement, &on_node[node]);
        let score = node_score(field, &victims);
        if best.as_ref().is_none_or(|(top, _, _)| score < *top) {
            best = Some((score, victims, placement));
        }
    }
    best.map(|(_, victims, placement)| (victims, placement))
}

/// The classic list, smaller is better: PDB violations, highest victim priority, sum of priorities, pods, and the latest
/// start of the most important victim. The first node in order wins a tie.
fn node_score(field: &Field<'_>, victims: &[CandIx]) -> impl Ord + use<> {
    let mut order = victims.to_vec();
    order.sort_by_cached_key(|&c| importance(field.unit(c), c));
    let violations = by_pdb(field, &order).0.len();
    // Priorities may be negative; upstream shifts them so that more victims never sum to less.
    let shifted = |c: &CandIx| i64::from(field.unit(*c).priority) - i64::from(i32::MIN);
    (
        violations,
        order.first().map(shifted),
        order.iter().map(shifted).sum::<i64>(),
        order.iter().map(|&c| field.unit(c).pod_count()).sum::<u32>(),
        order.first().map(|&c| Reverse(field.unit(c).start)),
    )
}
