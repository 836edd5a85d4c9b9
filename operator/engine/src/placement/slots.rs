//! Slots: free capacity for one pod of a shape on a node.

/// Number of pods with `request` that fit into `free`.
pub(crate) fn slots(free: &[i64], request: &[i64]) -> u32 {
    let mut most = i64::from(u32::MAX);
    for (&have, &want) in free.iter().zip(request) {
        if want > 0 {
            if have < want {
                return 0;
            }
            most = most.min(have / want);
        }
    }
    most as u32
}
