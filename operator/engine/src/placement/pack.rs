//! Packs shapes onto a list of nodes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::instance::PlacementInstance;
use super::mixture::{Effort, Mixture, MixtureFit};
use super::shape_pods::{ShapePods, by_shape, largest_first};
use crate::{
    infeasible::Infeasible,
    problem::{Assignment, NodeIx, ShapeIx},
};

/// Places needed pods on these nodes, then optional pods.
pub(super) fn place_anywhere(
    instance: &PlacementInstance<'_>,
    free: &mut [i64],
    nodes: &[NodeIx],
) -> Result<Vec<Assignment>, Infeasible> {
    let needed = by_shape(&instance.demand.needed());
    let mut assigned = pack(instance, free, nodes, &needed)?;
    fill(instance, free, nodes, &mut assigned);
    Ok(assigned)
}

pub(crate) fn fill(
    instance: &PlacementInstance<'_>,
    free: &mut [i64],
    nodes: &[NodeIx],
    assigned: &mut Vec<Assignment>,
) {
    for (shape, desired) in instance.demand.desired().into_iter().enumerate() {
        let placed: u32 = assigned
            .iter()
            .filter(|s| s.shape == shape)
            .map(|s| s.count)
            .sum();
        let count = desired.saturating_sub(placed);
        if count > 0 {
            assigned.extend(best_fit(instance, free, nodes, ShapePods { shape, count }).0);
        }
    }
}

/// Refuses a gang with one needed shape if [`pack`] would refuse it on all nodes. Visits only as
/// many nodes as necessary.
pub(super) fn refuse_one_shape(
    instance: &PlacementInstance<'_>,
    free: &[i64],
) -> Result<(), Infeasible> {
    let Some(ShapePods { shape, count }) = missing_of_one_shape(instance, free) else {
        return Ok(());
    };
    Err(too_few_slots(instance, free, &instance.nodes, shape, count))
}

fn too_few_slots(
    instance: &PlacementInstance<'_>,
    free: &[i64],
    nodes: &[NodeIx],
    shape: ShapeIx,
    missing: u32,
) -> Infeasible {
    Infeasible::InsufficientCapacity(instance.shortfall(free, shape, nodes, missing))
}

/// False if the only needed shape has too few slots.
pub(super) fn has_slots(instance: &PlacementInstance<'_>, free: &[i64]) -> bool {
    missing_of_one_shape(instance, free).is_none()
}

/// Pods without a slot, if the gang needs pods of one shape only.
fn missing_of_one_shape(instance: &PlacementInstance<'_>, free: &[i64]) -> Option<ShapePods> {
    let needed = by_shape(&instance.demand.needed());
    let &[mut missing] = &*needed else {
        return None;
    };
    for &node in &instance.nodes {
        missing.count -= missing.fitting(instance, node, instance.free_on(free, node));
        if missing.count == 0 {
            return None;
        }
    }
    Some(missing)
}

/// Packs all wanted pods onto the nodes, or leaves `free` unchanged.
pub(super) fn pack(
    instance: &PlacementInstance<'_>,
    free: &mut [i64],
    nodes: &[NodeIx],
    to_place: &[ShapePods],
) -> Result<Vec<Assignment>, Infeasible> {
    // One shape fits if there are enough slots.
    if let &[pods] = to_place {
        let fits = Fits::on(instance, free, nodes, pods);
        return match fits.missing() {
            0 => Ok(fits.put(instance, free, nodes).0),
            missing => Err(too_few_slots(instance, free, nodes, pods.shape, missing)),
        };
    }
    for pods in to_place {
        let shape = &instance.demand.shapes[pods.shape];
        let slots: u64 = nodes
            .iter()
            .map(|&n| u64::from(instance.slots_on(free, pods.shape, shape, n)))
            .sum();
        if slots < u64::from(pods.count) {
            let missing = pods.count - slots as u32;
            return Err(too_few_slots(instance, free, nodes, pods.shape, missing));
        }
    }
    let order = largest_first(instance, to_place);
    let (shape, missing) = match pack_in_order(instance, free, nodes, &order) {
        Ok(assigned) => return Ok(assigned),
        Err(miss) => miss,
    };
    // If each shape is a multiple of the next, largest first is exact.
    if is_chain(instance, &order) {
        return Err(too_few_slots(instance, free, nodes, shape, missing));
    }
    if instance.steps.left() == 0 {
        return Err(Infeasible::GaveUp { steps: 0 });
    }
    let mut mixture = Mixture::new(instance, to_place);
    for &node in nodes {
        let kind = mixture.kind(node, instance.free_on(free, node));
        mixture.set(node, kind);
    }
    let verdict = mixture.fits(instance.steps.left(), Effort::Full);
    instance.steps.spend(mixture.steps());
    match verdict {
        MixtureFit::Fits => {
            let assigned = mixture.assignments(free, nodes).unwrap_or_default();
            take_all(instance, free, &assigned, 1);
            Ok(assigned)
        }
        MixtureFit::DoesNotFit => Err(too_few_slots(instance, free, nodes, shape, missing)),
        MixtureFit::Undecided => Err(Infeasible::GaveUp {
            steps: mixture.steps(),
        }),
    }
}

/// Places all wanted pods, shape by shape, or leaves `free` unchanged. An error names the shape and
/// the number of missing pods.
fn pack_in_order(
    instance: &PlacementInstance<'_>,
    free: &mut [i64],
    nodes: &[NodeIx],
    order: &[ShapePods],
) -> Result<Vec<Assignment>, (ShapeIx, u32)> {
    let mut placed = Vec::new();
    for &pods in order {
        let fits = Fits::on(instance, free, nodes, pods);
        if fits.missing() > 0 {
            take_all(instance, free, &placed, -1);
            return Err((pods.shape, fits.missing()));
        }
        placed.extend(fits.put(instance, free, nodes).0);
    }
    Ok(placed)
}

/// Takes the capacity of assigned pods; with -1, releases it.
fn take_all(
    instance: &PlacementInstance<'_>,
    free: &mut [i64],
    assigned: &[Assignment],
    sign: i64,
) {
    for a in assigned {
        let shape = &instance.demand.shapes[a.shape];
        instance.take(free, a.node, shape, sign * i64::from(a.count));
    }
}

/// True if each request is a whole multiple of the next in every dimension, and all shapes have the
/// same eligible nodes.
fn is_chain(instance: &PlacementInstance<'_>, order: &[ShapePods]) -> bool {
    order.windows(2).all(|pair| {
        let (large, small) = (
            &instance.demand.shapes[pair[0].shape].request,
            &instance.demand.shapes[pair[1].shape].request,
        );
        multiple_of(large, small).is_some()
            && instance.admits[pair[0].shape] == instance.admits[pair[1].shape]
    })
}

/// `Some(m)` if `large` is `m` times `small` in every dimension. Requests are not empty, so `m` is
/// not zero.
pub(crate) fn multiple_of(large: &[i64], small: &[i64]) -> Option<i64> {
    let (l, s) = large.iter().zip(small).find(|&(_, &s)| s > 0)?;
    let times = l / s;
    large
        .iter()
        .zip(small)
        .all(|(&l, &s)| l == times * s)
        .then_some(times)
}

/// Suitability of a node, compared field by field; smaller is better.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Fit {
    /// True if the node has free accelerators, and the pod requests none.
    strands_accelerators: bool,
    /// Remaining amount of the scarcest resource if filled with pods.
    left_over: i64,
    /// Currently free amount. Among equal fits, the fuller node is used first.
    free: i64,
    position: usize,
}

/// Places as many pods of one shape as fit. Returns the number of missing pods.
pub(crate) fn best_fit(
    instance: &PlacementInstance<'_>,
    free: &mut [i64],
    nodes: &[NodeIx],
    pods: ShapePods,
) -> (Vec<Assignment>, u32) {
    Fits::on(instance, free, nodes, pods).put(instance, free, nodes)
}

struct Fits {
    pods: ShapePods,
    nodes: Vec<Reverse<(Fit, u32)>>,
    slots: u64,
}

impl Fits {
    fn on(
        instance: &PlacementInstance<'_>,
        free: &[i64],
        nodes: &[NodeIx],
        pods: ShapePods,
    ) -> Self {
        let shape = &instance.demand.shapes[pods.shape];
        let dim = instance.scarce[pods.shape].dim;
        let accelerators = instance.cluster.accelerators();
        let requests_any = accelerators.iter().any(|&dim| shape.request[dim] > 0);
        let mut fits = Self {
            pods,
            nodes: Vec::new(),
            slots: 0,
        };
        for (position, &node) in nodes.iter().enumerate() {
            let all_free = instance.free_on(free, node);
            let slots = pods.fitting(instance, node, all_free);
            if slots > 0 {
                let free = all_free[dim];
                let left_over = free - i64::from(slots) * shape.request[dim];
                let fit = Fit {
                    strands_accelerators: !requests_any
                        && accelerators.iter().any(|&dim| all_free[dim] > 0),
                    left_over,
                    free,
                    position,
                };
                fits.nodes.push(Reverse((fit, slots)));
                fits.slots += u64::from(slots);
            }
        }
        fits
    }

    fn missing(&self) -> u32 {
        u64::from(self.pods.count).saturating_sub(self.slots) as u32
    }

    /// As [`best_fit`], with `nodes` as in [`Fits::on`].
    fn put(
        self,
        instance: &PlacementInstance<'_>,
        free: &mut [i64],
        nodes: &[NodeIx],
    ) -> (Vec<Assignment>, u32) {
        let shape = &instance.demand.shapes[self.pods.shape];
        // Few pods use few of the nodes, which need no order then.
        let mut nodes_left = BinaryHeap::from(self.nodes);
        let mut missing = self.pods.count;
        let mut placed = Vec::new();
        while let Some(Reverse((fit, slots))) = nodes_left.pop() {
            let (fit, count) = if slots <= missing {
                (fit, slots)
            } else {
                // The last pods fill the node where the least capacity remains.
                let others = nodes_left.drain().map(|Reverse(other)| other);
                let roomy = others.chain([(fit, slots)]).filter(|(_, s)| *s >= missing);
                let best = roomy.min_by_key(|(f, _)| (f.strands_accelerators, f.free, f.position));
                let Some((fit, _)) = best else { break };
                (fit, missing)
            };
            let node = nodes[fit.position];
            instance.take(free, node, shape, i64::from(count));
            placed.push(Assignment {
                shape: self.pods.shape,
                replica: 0,
                node,
                count,
            });
            missing -= count;
            if missing == 0 {
                break;
            }
        }
        (placed, missing)
    }
}
