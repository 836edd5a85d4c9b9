//! Slots: free capacity for one pod of a shape on a node.

use crate::cluster::Cluster;
use crate::problem::NodeIx;

impl Cluster {
    /// Number of pods with this request that fit into the free capacity of the node.
    pub fn slots(&self, node: NodeIx, request: &[i64]) -> u32 {
        slots(self.free(node), request)
    }
}

/// Number of pods with `request` that fit into `free`.
pub(crate) fn slots(free: &[i64], request: &[i64]) -> u32 {
    slots_up_to(free, request, u32::MAX)
}

/// As [`slots`], at most this number. Divides only where a resource limits it.
pub(crate) fn slots_up_to(free: &[i64], request: &[i64], most: u32) -> u32 {
    let mut most = i64::from(most);
    for (&available, &requested) in free.iter().zip(request) {
        if requested > 0 {
            if available < requested {
                return 0;
            }
            if available < requested.saturating_mul(most) {
                most = available / requested;
            }
        }
    }
    most as u32
}
