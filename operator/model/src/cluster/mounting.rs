//! Which pods mount a claim for a volume.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use crate::pod::Pod;

/// Pods by namespace and name of the claims that they mount.
type ByClaim = HashMap<(String, String), Vec<Arc<Pod>>>;

/// Pods that take capacity by their claims, once somebody has asked for them.
#[derive(Debug, Default)]
pub(super) struct Mounting(OnceLock<ByClaim>);

impl Mounting {
    /// Those of a claim, among all pods that take capacity.
    pub fn of<'a>(
        &self,
        (namespace, claim): (&str, &str),
        all: impl Iterator<Item = &'a Arc<Pod>>,
    ) -> &[Arc<Pod>] {
        let by_claim = self.0.get_or_init(|| read(all));
        let claim = (namespace.to_owned(), claim.to_owned());
        by_claim.get(&claim).map_or(&[], Vec::as_slice)
    }
}

fn read<'a>(all: impl Iterator<Item = &'a Arc<Pod>>) -> ByClaim {
    let mut out = ByClaim::new();
    for pod in all {
        for claim in pod.claims.iter().flat_map(|claims| claims.iter()) {
            let claim = (pod.namespace.clone(), claim.clone());
            out.entry(claim).or_default().push(Arc::clone(pod));
        }
    }
    out
}
