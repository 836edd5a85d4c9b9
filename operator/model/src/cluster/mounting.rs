//! Index of pods by mounted volume claim.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use lockstep_api::key::Key;

use crate::pods::pod::Pod;

type ByClaim = HashMap<Key, Vec<Arc<Pod>>>;

/// Pods that hold capacity, by claim. Built on first use.
#[derive(Debug, Default)]
pub(super) struct Mounting(OnceLock<ByClaim>);

impl Mounting {
    /// `all`: all pods that hold capacity.
    pub fn of<'a>(
        &self,
        (namespace, claim): (&str, &str),
        all: impl Iterator<Item = &'a Arc<Pod>>,
    ) -> &[Arc<Pod>] {
        let by_claim = self.0.get_or_init(|| read(all));
        by_claim
            .get(&Key::new(namespace, claim))
            .map_or(&[], Vec::as_slice)
    }
}

fn read<'a>(all: impl Iterator<Item = &'a Arc<Pod>>) -> ByClaim {
    let mut out = ByClaim::new();
    for pod in all {
        for claim in pod.claims.iter().flat_map(|claims| claims.iter()) {
            let claim = Key {
                namespace: Arc::clone(&pod.namespace),
                name: claim.as_str().into(),
            };
            out.entry(claim).or_default().push(Arc::clone(pod));
        }
    }
    out
}
