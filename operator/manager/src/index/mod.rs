//! The process's copy of the cluster's state: one watcher per kind updates one index (ADR 0015).
//!
//! The index is a set of tables behind one lock. Each change queues the workloads that it concerns,
//! and can wake the scheduler.

mod agents;
mod feeds;
mod gangs;
mod kinds;
mod kueue_table;
mod metrics;
mod outlook;
mod progress;
mod provisioning;
mod provisioning_table;
mod signals;
mod state;
#[cfg(test)]
mod tests;
mod view;
mod views;
mod watch;
mod watched_kind;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use kube::Resource as _;
use kube::runtime::watcher::Event;
use lockstep_api::NodeHealthMode;
use lockstep_api::node_signal::SignalRule;
use lockstep_api::scheduling::AutoscalerMode;
use lockstep_model::Admission;
use lockstep_model::{NativeGroup, NativeKind};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::{Notify, watch as signal};
use tracing::warn;

pub use feeds::Feeds;
pub use kinds::AgentSelector;
pub use kueue_table::OrphanedQuota;
pub use metrics::WatchErrors;
pub use progress::OwnWrites;
pub use state::{Key, State, controller_uid};
pub use view::ViewInputs;
pub use views::member;
pub use watch::{Watching, watch_all, watch_native};
pub(crate) use watch::{watch_kueue, watch_requests};
pub use watched_kind::WatchedKind;

use crate::clock::{Clock, Random};
use crate::queue::Queue;
use kinds::{NativePodGroups, NativeWorkloads, Watched};
use kueue_table::KueueTable;
use progress::{DeliveredVersions, version};
use state::Touched;

pub struct Index {
    state: RwLock<State>,
    agents: AgentSelector,
    delivered: DeliveredVersions,
    queue: Queue<Key>,
    clock: Arc<dyn Clock>,
    scheduler: Notify,
    /// Notified when the signals of a node have changed.
    signals: Notify,
    /// Notified when a node demand, or an object that serves one, has changed.
    provisioning: Notify,
    pending: signal::Sender<BTreeSet<WatchedKind>>,
}

impl Index {
    pub fn new(agents: AgentSelector, queue: Queue<Key>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            state: RwLock::default(),
            agents,
            delivered: DeliveredVersions::default(),
            queue,
            clock,
            scheduler: Notify::new(),
            signals: Notify::new(),
            provisioning: Notify::new(),
            pending: signal::Sender::new(WatchedKind::always().collect()),
        })
    }

    /// Do not hold the lock across an await.
    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read()
    }

    /// Returns when an input of the scheduler has changed since the last call.
    pub async fn scheduler_dirty(&self) {
        self.scheduler.notified().await;
    }

    pub(crate) fn scheduler_woken(&self) -> bool {
        self.scheduler.notified().now_or_never().is_some()
    }

    /// Spreads the workloads over the last quarter of the period.
    pub(crate) fn resync_workloads(&self, random: &Random, period: Duration) {
        let keys: Vec<Key> = self.read().workloads.keys().cloned().collect();
        for key in keys {
            self.queue.add_after(key, random.jittered(period));
        }
    }

    pub(crate) fn wake_scheduler(&self) {
        self.scheduler.notify_one();
    }

    /// Stores whether the API server supports native groups, which every workload reads.
    pub(crate) fn set_native_support(&self, supported: bool) {
        let mut state = self.state.write();
        let previous = state.native_supported.replace(supported);
        let workloads = match previous {
            Some(previous) if previous == supported => BTreeSet::new(),
            _ => state.workloads.keys().cloned().collect(),
        };
        drop(state);
        self.dispatch(Touched {
            workloads,
            ..Touched::default()
        });
    }

    /// Forgets Kueue's objects. `version`: the one that is watched from now on; `None`: Kueue's API is
    /// not served.
    pub(crate) fn set_kueue_version(&self, version: Option<&'static str>) {
        let mut state = self.state.write();
        state.kueue = KueueTable::reset(version);
        let workloads = state.workloads.keys().cloned().collect();
        drop(state);
        self.dispatch(Touched {
            workloads,
            ..Touched::default()
        });
    }

    /// Forgets all native groups, before another version of them is watched.
    pub(crate) fn forget_native_groups(&self) {
        let mut state = self.state.write();
        let mut touched = Touched::default();
        for key in NativePodGroups::keys(&state) {
            NativePodGroups::delete(&mut state, &key, &mut touched);
        }
        for key in NativeWorkloads::keys(&state) {
            NativeWorkloads::delete(&mut state, &key, &mut touched);
        }
        drop(state);
        self.dispatch(touched);
        for kind in [NativeKind::PodGroup, NativeKind::CompositePodGroup] {
            self.keep_native_groups(kind, &HashSet::new());
        }
    }

    /// Stores a group of kube-scheduler. `None` deletes it.
    pub(crate) fn set_native_group(&self, kind: NativeKind, key: &Key, group: Option<NativeGroup>) {
        let mut state = self.state.write();
        let scheduler = state.model.set_native_group(kind, key, group);
        drop(state);
        self.dispatch(Touched {
            scheduler,
            ..Touched::default()
        });
    }

    pub(crate) fn keep_native_groups(&self, kind: NativeKind, listed: &HashSet<Key>) {
        let existing = self.state.read().model.native_groups(kind);
        for key in existing.iter().filter(|key| !listed.contains(key)) {
            self.set_native_group(kind, key, None);
        }
    }

    pub(crate) fn record_admitted(
        &self,
        workload: &Key,
        uid: &str,
        spec_hash: &str,
        pods: &BTreeMap<String, Admission>,
    ) {
        let mut touched = Touched::default();
        let mut state = self.state.write();
        if state.record_admitted(workload, uid, spec_hash, pods) {
            state.read_gangs_of(workload, &mut touched);
        }
        drop(state);
        self.dispatch(touched);
    }

    /// Sets the rules, before the first node is received.
    pub(crate) fn use_signal_rules(&self, rules: Vec<SignalRule>, mode: NodeHealthMode) {
        let signals = &mut self.state.write().signals;
        signals.rules = rules.into();
        signals.mode = mode;
    }

    pub(crate) fn set_node_health(&self, mode: NodeHealthMode) {
        self.state.write().signals.mode = mode;
        self.follow_signals();
    }

    /// Applies ended hold times, passed deadlines and the mode.
    pub(crate) fn follow_signals(&self) {
        let mut touched = Touched::default();
        let mut state = self.state.write();
        state.received_at = self.clock.wall();
        state.follow_signals(&mut touched);
        drop(state);
        self.dispatch(touched);
    }

    /// Time until a hold time or a deadline ends.
    pub(crate) fn next_signal_change(&self) -> Option<Duration> {
        let now = self.clock.wall();
        let next = self.read().signals.next_change(now)?;
        Some((next - now).to_std().unwrap_or_default())
    }

    /// Sets how demand is shown to a node autoscaler, before the first object is received.
    pub(crate) fn use_autoscaler(&self, mode: AutoscalerMode, namespace: &str) {
        let mut state = self.state.write();
        (state.provisioning.mode, state.provisioning.namespace) = (mode, namespace.to_owned());
    }

    /// Returns when a node demand, or an object that serves one, has changed since the last call.
    pub(crate) async fn provisioning_dirty(&self) {
        self.provisioning.notified().await;
    }

    /// `version`: in which `ProvisioningRequest`s are served; `None`: they are not.
    pub(crate) fn set_requests_version(&self, version: Option<&'static str>) {
        self.state.write().provisioning.version = version;
        self.provisioning.notify_one();
    }

    pub(crate) fn provisioning_woken(&self) -> bool {
        self.provisioning.notified().now_or_never().is_some()
    }

    /// Returns when the signals of a node have changed since the last call.
    pub(crate) async fn signals_changed(&self) {
        self.signals.notified().await;
    }

    /// Kinds whose first list is incomplete.
    pub fn pending(&self) -> Vec<&'static str> {
        self.pending.borrow().iter().map(|k| k.as_str()).collect()
    }

    pub async fn synced(&self) {
        // Waiting cannot fail, because self owns the sender.
        let _ = self.pending.subscribe().wait_for(BTreeSet::is_empty).await;
    }

    /// True if the watches have delivered all of these writes. Forgets delivered writes.
    pub fn caught_up(&self, writes: &mut OwnWrites) -> bool {
        writes.caught_up(&self.delivered, self.clock.monotonic())
    }

    fn dispatch(&self, touched: Touched) {
        for key in touched.workloads {
            self.queue.add(key);
        }
        for key in touched.urgent {
            self.queue.add_urgent(key);
        }
        if touched.scheduler {
            self.scheduler.notify_one();
        }
        if touched.signals {
            self.signals.notify_one();
        }
        if touched.provisioning {
            self.provisioning.notify_one();
        }
    }
}

struct Feed<W: Watched> {
    /// During a list: known objects that are not delivered yet, and the highest version so far
    /// (lists are unordered).
    listing: Option<(BTreeSet<Key>, Option<u64>)>,
    kind: std::marker::PhantomData<fn() -> W>,
}

impl<W: Watched> Default for Feed<W> {
    fn default() -> Self {
        Self {
            listing: None,
            kind: std::marker::PhantomData,
        }
    }
}

impl<W: Watched> Feed<W> {
    fn handle(&mut self, index: &Index, event: Event<W::Received>) {
        let mut touched = Touched::default();
        match event {
            Event::Init => self.listing = Some((Self::stored_keys(index), None)),
            Event::InitApply(object) => {
                if let Some((missing, highest)) = &mut self.listing {
                    missing.remove(&Key::of(&object));
                    *highest = version(object.meta().resource_version.as_deref()).max(*highest);
                }
                drop(Self::apply(index, object, &mut touched));
            }
            Event::InitDone => {
                let (missing, highest) = self.listing.take().unwrap_or_default();
                let mut state = Self::begin_update(index);
                for key in missing {
                    W::delete(&mut state, &key, &mut touched);
                    state.unreadable.remove(&(W::KIND, key));
                }
                W::follow(&mut state, &mut touched);
                drop(state);
                index.delivered.note(W::KIND, highest);
                index
                    .pending
                    .send_if_modified(|pending| pending.remove(&W::KIND));
            }
            Event::Apply(object) => {
                let version = version(object.meta().resource_version.as_deref());
                W::follow(&mut Self::apply(index, object, &mut touched), &mut touched);
                index.delivered.note(W::KIND, version);
            }
            Event::Delete(object) => {
                let key = Key::of(&object);
                let mut state = Self::begin_update(index);
                state.unreadable.remove(&(W::KIND, key.clone()));
                W::delete(&mut state, &key, &mut touched);
                W::follow(&mut state, &mut touched);
                drop(state);
                index
                    .delivered
                    .note(W::KIND, version(object.meta().resource_version.as_deref()));
            }
        }
        index.dispatch(touched);
    }

    /// Includes unreadable objects.
    fn stored_keys(index: &Index) -> BTreeSet<Key> {
        let state = index.state.read();
        let unreadable = state
            .unreadable
            .keys()
            .filter(|(kind, _)| *kind == W::KIND)
            .map(|(_, key)| key.clone());
        W::keys(&state).into_iter().chain(unreadable).collect()
    }

    fn begin_update(index: &Index) -> RwLockWriteGuard<'_, State> {
        let mut state = index.state.write();
        state.received_at = index.clock.wall();
        state
    }

    /// Stores an object. An unreadable object is removed and recorded, and affects no other object.
    fn apply<'i>(
        index: &'i Index,
        received: W::Received,
        touched: &mut Touched,
    ) -> RwLockWriteGuard<'i, State> {
        let key = Key::of(&received);
        let read = W::read(received);
        let mut state = Self::begin_update(index);
        match read {
            Ok(object) => {
                if !state.unreadable.is_empty() {
                    state.unreadable.remove(&(W::KIND, key.clone()));
                }
                W::apply(&mut state, &index.agents, key, object, touched);
            }
            Err(error) => {
                warn!(object = %key, kind = W::KIND.as_str(), error, "unreadable object left alone");
                W::delete(&mut state, &key, touched);
                state.unreadable.insert((W::KIND, key), error);
            }
        }
        state
    }
}
