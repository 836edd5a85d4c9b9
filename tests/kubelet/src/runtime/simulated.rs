//! The simulated runtime in tokio's time.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use lockstep_node::{SupervisorCommand, SupervisorState};

use super::later::Later;
use super::pretend::{Effect, Pretend};
use super::table::Table;
use super::{Fault, Runtime, Unsupported};
use crate::clock::Clock;
use crate::latency::LatencyProfile;
use crate::model::{Action, PodDesc, PodView};

/// The simulated runtime of a node.
#[derive(Debug)]
pub struct Simulated {
    runtime: Arc<Pretend>,
    clock: Clock,
    /// Tasks in progress, which end when the runtime is dropped.
    later: Arc<Later>,
}

impl Simulated {
    /// The runtime of node `node_name`. `ips` numbers the pods of all nodes.
    pub fn new(
        node_name: &str,
        table: Table,
        profile: LatencyProfile,
        clock: Clock,
        ips: Arc<AtomicU32>,
    ) -> Self {
        Self {
            runtime: Arc::new(Pretend::new(node_name, table, profile, ips)),
            clock,
            later: Arc::default(),
        }
    }

    fn after(&self, effects: impl IntoIterator<Item = (Duration, Effect)>) {
        follow(&self.later, &self.runtime, self.clock, effects);
    }
}

/// Applies effects after their delays, and the effects that follow.
fn follow(
    later: &Arc<Later>,
    runtime: &Arc<Pretend>,
    clock: Clock,
    effects: impl IntoIterator<Item = (Duration, Effect)>,
) {
    for (wait, effect) in effects {
        let (runtime, weak) = (runtime.clone(), Arc::downgrade(later));
        later.after(wait, move || {
            let effects = runtime.apply(&effect, clock.now());
            // Absent after the end of the node.
            if let Some(later) = weak.upgrade() {
                follow(&later, &runtime, clock, effects);
            }
        });
    }
}

impl Runtime for Simulated {
    fn act(&self, pod: &Arc<PodDesc>, action: &Action) {
        self.after(self.runtime.act(pod, action, self.clock.now()));
    }

    fn view(&self, uid: &str) -> PodView {
        self.runtime.table().view(uid)
    }

    fn forget(&self, uid: &str) {
        self.runtime.table().forget(uid);
    }

    fn kill(&self, container_id: &str) {
        self.after([self.runtime.kill(container_id)]);
    }

    fn table(&self) -> &Arc<Table> {
        self.runtime.table()
    }

    fn inject(&self, fault: &Fault) -> Result<(), Unsupported> {
        self.after(self.runtime.inject(fault, self.clock.now()));
        Ok(())
    }

    fn supervisor(&self, pod_uid: &str) -> Option<SupervisorState> {
        self.runtime.supervisor(pod_uid)
    }

    fn is_held(&self, container_id: &str) -> bool {
        self.runtime.is_held(container_id)
    }

    fn link(&self, linked: bool) {
        self.after(self.runtime.link(linked, self.clock.now()));
    }

    fn command(&self, pod_uid: &str, command: &SupervisorCommand) {
        self.after(self.runtime.command(pod_uid, command, self.clock.now()));
    }
}
