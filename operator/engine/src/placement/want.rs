//! What is wanted of each shape.

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
