use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::index::Index;

#[derive(Clone, Default)]
pub struct Health(Arc<Parts>);

#[derive(Default)]
struct Parts {
    index: OnceLock<Arc<Index>>,
    policies: Mutex<Policies>,
}

#[derive(Default)]
enum Policies {
    /// Not tested by this process, and ignored by readiness.
    #[default]
    Unasked,
    Pending,
    Allow,
    Deny(String),
}

impl Health {
    /// From now on, readiness depends on this index.
    pub fn follow(&self, index: &Arc<Index>) {
        // The first index stays.
        let _ = self.0.index.set(index.clone());
    }

    /// From now on, readiness waits for the test of the admission policies.
    pub fn await_policies(&self) {
        self.set_policies(Policies::Pending);
    }

    /// Records why the policies deny writes. `None`: they do not.
    pub fn policies(&self, denial: Option<String>) {
        self.set_policies(denial.map_or(Policies::Allow, Policies::Deny));
    }

    fn set_policies(&self, policies: Policies) {
        *self.0.policies.lock() = policies;
    }

    /// Ok once every kind has been listed, for followers too.
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
            Policies::Deny(why) => Err(format!("{why}\n")),
        }
    }
}
