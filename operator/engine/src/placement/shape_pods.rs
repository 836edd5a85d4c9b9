//! Pods to place, by shape.

use super::instance::PlacementInstance;
use super::slots::slots_up_to;
use crate::problem::{NodeIx, ShapeIx};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShapePods {
    pub shape: ShapeIx,
    pub count: u32,
}

impl ShapePods {
    /// How many of these pods fit on a node with this free capacity.
    pub fn fitting(self, instance: &PlacementInstance<'_>, node: NodeIx, free: &[i64]) -> u32 {
        if instance.admits[self.shape].contains(node) {
            let request = &instance.demand.shapes[self.shape].request;
            slots_up_to(free, request, self.count)
        } else {
            0
        }
    }
}

pub(crate) fn by_shape(counts: &[u32]) -> Vec<ShapePods> {
    counts
        .iter()
        .enumerate()
        .filter(|&(_, &c)| c > 0)
        .map(|(shape, &count)| ShapePods { shape, count })
        .collect()
}

/// The pods, hardest shape first.
pub(crate) fn largest_first(
    instance: &PlacementInstance<'_>,
    pods: &[ShapePods],
) -> Vec<ShapePods> {
    let mut order = pods.to_vec();
    order.sort_by_key(|w| (std::cmp::Reverse(size(instance, w.shape)), w.shape));
    order
}

/// Difficulty of a shape: the fraction of its scarcest resource that one pod requests, then the sum
/// of the pod's requests.
fn size(instance: &PlacementInstance<'_>, shape: ShapeIx) -> (i128, i128) {
    let request = &instance.demand.shapes[shape].request;
    (
        instance.scarce[shape].part,
        request.iter().map(|&a| i128::from(a)).sum(),
    )
}
