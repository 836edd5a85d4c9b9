//! Which pods mount a claim for a volume.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use super::Snapshot;
use crate::pod::Pod;

/// Pods that take capacity, by namespace and name of the claims that they mount.
pub(super) type Mounting = OnceLock<ByClaim>;

type ByClaim = HashMap<(String, String), Vec<Arc<Pod>>>;

impl Snapshot {
    /// Pods that take capacity and mount a claim.
    pub fn pods_mounting(&self, namespace: &str, claim: &str) -> &[Arc<Pod>] {
        let mounting = self.mounting.get_or_init(|| self.read_mounting());
        let claim = (namespace.to_owned(), claim.to_owned());
        mounting.get(&claim).map_or(&[], Vec::as_slice)
    }

    fn read_mounting(&self) -> ByClaim {
        let mut out = ByClaim::new();
        for pod in self.nodes.iter().flat_map(|node| &node.pods) {
            for claim in pod.claims.iter().flat_map(|claims| claims.iter()) {
                let claim = (pod.namespace.clone(), claim.clone());
                out.entry(claim).or_default().push(Arc::clone(pod));
            }
        }
        out
    }
}
