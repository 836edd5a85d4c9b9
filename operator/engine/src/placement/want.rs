//! What is wanted of each shape.

use super::instance::PlacementInstance;
use crate::problem::ShapeIx;

/// Pods of one shape to be packed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub shape: ShapeIx,
    pub count: u32,
}

/// The shapes of which something is wanted.
pub(crate) fn wants(counts: &[u32]) -> Vec<Want> {
    counts
        .iter()
        .enumerate()
        .filter(|&(_, &c)| c > 0)
        .map(|(shape, &count)| Want { shape, count })
        .collect()
}

/// The hardest to place first: the order in which several shapes are looked at.
pub(crate) fn largest_first(instance: &PlacementInstance<'_>, wanted: &[Want]) -> Vec<Want> {
    let mut order = wanted.to_vec();
    order.sort_by_key(|w| (std::cmp::Reverse(size(instance, w.shape)), w.shape));
    order
}

/// What one pod takes of its scarcest resource, then the sum of all: how hard it is to place.
fn size(instance: &PlacementInstance<'_>, shape: ShapeIx) -> (i128, i128) {
    let request = &instance.demand.shapes[shape].request;
    (
        instance.scarce[shape].part,
        request.iter().map(|&a| i128::from(a)).sum(),
    )
}
