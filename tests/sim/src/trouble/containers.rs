//! Faults of containers.

use k8s_openapi::api::core::v1::Pod;

use super::users::any_member;
use crate::SimCluster;
use crate::pods::node_of;

const FAILURES: [i32; 6] = [1, 3, 9, 42, 137, 143];

pub(super) fn exit_failed(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let code = FAILURES[rng.usize(..FAILURES.len())];
    any_member(c, rng).is_some_and(|pod| c.exit_pod(&pod, code))
}

pub(super) fn exit_done(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    any_member(c, rng).is_some_and(|pod| c.exit_pod(&pod, 0))
}

pub(super) fn kubelet_evicts(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let Some(pod) = any_member(c, rng) else {
        return false;
    };
    let (Some(node), Some(uid)) = (node_of(&pod), &pod.metadata.uid) else {
        return false;
    };
    if rng.bool() {
        c.node(node).evict(uid);
    } else {
        c.node(node).evict_for_own_limit(uid);
    }
    true
}

pub(super) fn exit_all(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let Some(pod) = any_member(c, rng) else {
        return false;
    };
    let node = node_of(&pod);
    let code = FAILURES[rng.usize(..FAILURES.len())];
    let mut neighbours = c.list::<Pod>();
    neighbours.retain(|p| node.is_some() && node_of(p) == node);
    neighbours
        .iter()
        .fold(false, |any, pod| c.exit_pod(pod, code) | any)
}
