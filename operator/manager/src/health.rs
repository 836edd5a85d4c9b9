//! Whether this process can do its work.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::index::Index;

/// What the health endpoint asks. Clones share it.
#[derive(Clone, Default)]
pub struct Health(Arc<Parts>);

#[derive(Default)]
struct Parts {
    index: OnceLock<Arc<Index>>,
    policies: Mutex<Policies>,
}

/// What the check of the admission policies has found.
#[derive(Default)]
enum Policies {
    /// Readiness does not ask: nobody tests them here.
    #[default]
    Unasked,
    /// They are being tested for the first time.
    Pending,
    /// They let this process write.
    Allow,
    /// They do not, for this reason.
    Refuse(String),
}

impl Health {
    /// From now on readiness is that of this index.
    pub fn follow(&self, index: &Arc<Index>) {
        // A second manager in one process would be a mistake of the caller; the first one stays.
        let _ = self.0.index.set(index.clone());
    }

    /// From now on readiness waits for the test of the admission policies.
    pub fn await_policies(&self) {
        self.set_policies(Policies::Pending);
    }

    /// What the test has found: why this process may not write, if so.
    pub fn policies(&self, refusal: Option<String>) {
        self.set_policies(refusal.map_or(Policies::Allow, Policies::Refuse));
    }

    fn set_policies(&self, policies: Policies) {
        *self.0.policies.lock() = policies;
    }

    /// Ready (everything was listed once; a follower is ready too), or what is waited for.
    pub fn readiness(&self) -> Result<String, String> {
        let Some(index) = self.0.index.get() else {
            return Err("waiting for: start\n".into());
        };
        let pending = index.pending();
        if !pending.is_empty() {
            return Err(format!("waiting for: {}\n", pending.join(", ")));
        }
        match &*self.0.policies.lock() {
            Policies::Unasked | Policies::Allow => Ok("ok\n".into()),
            Policies::Pending => Err("waiting for: test of the admission policies\n".into()),
            Policies::Refuse(why) => Err(format!("{why}\n")),
        }
    }
}
