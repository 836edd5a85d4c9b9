//! Packing shapes onto a list of nodes.

use super::{Site, scarce};
use crate::{
    infeasible::Infeasible,
    problem::{NodeIx, Seat, ShapeIx},
};

/// Steps of the exhaustive search over several shapes before it gives up.
const SEARCH_STEPS: u64 = 20_000;
/// Orders of shapes that are tried before the exhaustive search.
const ORDERS: usize = 24;

/// Pods of one shape to be packed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub shape: ShapeIx,
    pub count: u32,
}

/// Places what the gang needs on these nodes, then what it would like besides.
pub(super) fn place_anywhere(site: &Site<'_>, free: &mut [i64], nodes: &[NodeIx]) -> Result<Vec<Seat>, Infeasible> {
    let needed = wants(&site.demand.needed());
    let mut seats = pack(site, free, nodes, &needed)?;
    fill(site, free, nodes, &mut seats);
    Ok(seats)
}

/// Adds as many of the pods that the gang would like besides as fit.
pub(super) fn fill(site: &Site<'_>, free: &mut [i64], nodes: &[NodeIx], seats: &mut Vec<Seat>) {
    for (shape, wanted) in site.demand.wanted().into_iter().enumerate() {
        let placed: u32 = seats.iter().filter(|s| s.shape == shape).map(|s| s.count).sum();
        let count = wanted.saturating_sub(placed);
        if count > 0 {
            seats.extend(best_fit(site, free, nodes, Want { shape, count }).0);
        }
    }
}

/// The shapes of which something is wanted.
pub(super) fn wants(counts: &[u32]) -> Vec<Want> {
    counts.iter().enumerate().filter(|&(_, &c)| c > 0).map(|(shape, &count)| Want { shape, count }).collect()
}

/// Packs all that is wanted onto the nodes, or leaves `free` as it was.
pub(super) fn pack(
    site: &Site<'_>,
    free: &mut [i64],
    nodes: &[NodeIx],
    wanted: &[Want],
) -> Result<Vec<Seat>, Infeasible> {
    for want in wanted {
        let shape = &site.demand.shapes[want.shape];
        let seats: u64 = nodes.iter().map(|&n| u64::from(site.seats(free, want.shape, shape, n))).sum();
        if seats < u64::from(want.count) {
            let missing = want.count - seats as u32;
            return Err(Infeasible::NoRoom(site.shortfall(free, want.shape, shape, nodes, missing)));
        }
    }
    let mut order = wanted.to_vec();
    order.sort_by_key(|w| (std::cmp::Reverse(size(site, w.shape)), w.shape));
    let chain = is_chain(site, &order);
    let mut first_miss = None;
    for attempt in 0..ORDERS {
        match pack_in_order(site, free, nodes, &order) {
            Ok(seats) => return Ok(seats),
            Err(miss) => first_miss = first_miss.or(Some(miss)),
        }
        // Where each shape is a multiple of the next, largest first is exact.
        if chain || !next_order(&mut order, attempt) {
            break;
        }
    }
    let short = |free: &[i64], (shape, missing): (ShapeIx, u32)| {
        Infeasible::NoRoom(site.shortfall(free, shape, &site.demand.shapes[shape], nodes, missing))
    };
    match first_miss {
        Some(miss) if chain => Err(short(free, miss)),
        Some(miss) => {
            order.sort_by_key(|w| (std::cmp::Reverse(size(site, w.shape)), w.shape));
            let mut search = Search { site, nodes, steps: 0, seats: Vec::new() };
            if search.run(free, &order, 0, order.first().map_or(0, |w| w.count)) {
                Ok(search.seats)
            } else if search.steps >= SEARCH_STEPS {
                Err(Infeasible::GaveUp { steps: search.steps })
            } else {
                Err(short(free, miss))
            }
        }
        None => Ok(Vec::new()),
    }
}

/// Amount of the shape's judged dimension, then the sum of all: how hard one pod is to place.
fn size(site: &Site<'_>, shape: ShapeIx) -> (i64, i128) {
    let shape = &site.demand.shapes[shape];
    (shape.request[scarce(shape)], shape.request.iter().map(|&a| i128::from(a)).sum())
}

/// Whether each shape asks for a whole multiple of the next in every dimension, and all may use the same nodes.
fn is_chain(site: &Site<'_>, order: &[Want]) -> bool {
    order.windows(2).all(|pair| {
        let (large, small) = (&site.demand.shapes[pair[0].shape].request, &site.demand.shapes[pair[1].shape].request);
        multiple_of(large, small).is_some() && site.admits[pair[0].shape] == site.admits[pair[1].shape]
    })
}

/// `Some(m)` when `large` is `m` times `small` in every dimension. A request asks for something, so `m` is not zero.
pub(crate) fn multiple_of(large: &[i64], small: &[i64]) -> Option<i64> {
    let (l, s) = large.iter().zip(small).find(|&(_, &s)| s > 0)?;
    let times = l / s;
    large.iter().zip(small).all(|(&l, &s)| l == times * s).then_some(times)
}

/// Moves to another order of shapes: rotations first swap neighbours, so that few shapes see all orders.
fn next_order(order: &mut [Want], attempt: usize) -> bool {
    if order.len() < 2 || attempt + 1 >= ORDERS.min((1..=order.len()).product()) {
        return false;
    }
    let at = attempt % (order.len() - 1);
    order.swap(at, at + 1);
    true
}

fn pack_in_order(
    site: &Site<'_>,
    free: &mut [i64],
    nodes: &[NodeIx],
    order: &[Want],
) -> Result<Vec<Seat>, (ShapeIx, u32)> {
    let mut seats: Vec<Seat> = Vec::new();
    for &want in order {
        let (placed, missing) = best_fit(site, free, nodes, want);
        seats.extend(placed);
        if missing > 0 {
            for seat in &seats {
                site.take(free, seat.node, &site.demand.shapes[seat.shape], -i64::from(seat.count));
            }
            return Err((want.shape, missing));
        }
    }
    Ok(seats)
}

/// How well a node suits; smaller is better, compared in this order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Fit {
    /// Nodes that the gang knows come first.
    wish: std::cmp::Reverse<u32>,
    /// Amount of the judged dimension left over when as many pods as possible are put there.
    left_over: i64,
    /// Amount free now: of two equal fits the fuller node is used up and the emptier stays whole.
    free: i64,
    /// Position in the caller's order of nodes.
    position: usize,
}

/// Puts as many pods of one shape as wanted and possible; returns what is missing.
pub(super) fn best_fit(site: &Site<'_>, free: &mut [i64], nodes: &[NodeIx], want: Want) -> (Vec<Seat>, u32) {
    let shape = &site.demand.shapes[want.shape];
    let dim = scarce(shape);
    let mut fits: Vec<(Fit, u32)> = Vec::new();
    for (position, &node) in nodes.iter().enumerate() {
        let seats = site.seats(free, want.shape, shape, node).min(want.count);
        if seats > 0 {
            let room = site.room(free, node)[dim];
            let left_over = room - i64::from(seats) * shape.request[dim];
            fits.push((Fit { wish: std::cmp::Reverse(site.wish(node)), left_over, free: room, position }, seats));
        }
    }
    fits.sort_unstable();
    let mut missing = want.count;
    let mut placed = Vec::new();
    let mut put = |node: NodeIx, count: u32, missing: &mut u32| {
        site.take(free, node, shape, i64::from(count));
        placed.push(Seat { shape: want.shape, replica: 0, node, count });
        *missing -= count;
    };
    for (at, (fit, seats)) in fits.iter().enumerate() {
        if *seats <= missing {
            put(nodes[fit.position], *seats, &mut missing);
        } else {
            // The rest goes to the node that it fills best.
            let rest = missing;
            let last = fits[at..].iter().filter(|(_, s)| *s >= rest).min_by_key(|(f, _)| (f.wish, f.free, f.position));
            if let Some((fit, _)) = last {
                put(nodes[fit.position], rest, &mut missing);
            }
        }
        if missing == 0 {
            break;
        }
    }
    (placed, missing)
}

/// Depth-first search over shapes and nodes.
struct Search<'a> {
    site: &'a Site<'a>,
    nodes: &'a [NodeIx],
    steps: u64,
    seats: Vec<Seat>,
}

impl Search<'_> {
    /// Packs `left` pods of the first shape on the nodes from `at` on, then the other shapes.
    fn run(&mut self, free: &mut [i64], order: &[Want], at: usize, left: u32) -> bool {
        self.steps += 1;
        if self.steps >= SEARCH_STEPS {
            return false;
        }
        let Some(want) = order.first() else { return true };
        let shape = &self.site.demand.shapes[want.shape];
        if left == 0 {
            let rest = &order[1..];
            let possible = rest.iter().all(|w| self.seats_from(free, w.shape, 0) >= u64::from(w.count));
            return possible && self.run(free, rest, 0, rest.first().map_or(0, |w| w.count));
        }
        if self.seats_from(free, want.shape, at) < u64::from(left) {
            return false;
        }
        let node = self.nodes[at];
        for count in (0..=self.site.seats(free, want.shape, shape, node).min(left)).rev() {
            self.site.take(free, node, shape, i64::from(count));
            if count > 0 {
                self.seats.push(Seat { shape: want.shape, replica: 0, node, count });
            }
            if self.run(free, order, at + 1, left - count) {
                return true;
            }
            if count > 0 {
                self.seats.pop();
            }
            self.site.take(free, node, shape, -i64::from(count));
        }
        false
    }

    fn seats_from(&self, free: &[i64], shape: ShapeIx, at: usize) -> u64 {
        let spec = &self.site.demand.shapes[shape];
        self.nodes[at..].iter().map(|&n| u64::from(self.site.seats(free, shape, spec, n))).sum()
    }
}
