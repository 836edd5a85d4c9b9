//! The manager of a cluster: the real one, stepped, over a connection that can be cut.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use kube::runtime::watcher::Event;
use lockstep_api::NodeHealthMode;
use lockstep_api::key::Key;
use lockstep_api::node_signal::BUILT_IN;
use lockstep_api::scheduling::AutoscalerMode;
use lockstep_lifecycle::WorkloadView;
use lockstep_lifecycle::provisioning::ProvisioningSettings;
use lockstep_manager::clock::{Clock as _, Random};
use lockstep_manager::stepped::{CycleSummary, SteppedManager, SteppedParts, WatchedKind};
use lockstep_model::{NativeGroup, NativeKind};
use lockstep_scheduler::SchedulingInput;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::api::server::client;
use crate::api::{Line, Store};
use crate::clock::SimClock;
use crate::kueue::ALWAYS_WATCHED;
use crate::nodes::agent_selector;

/// Most consecutive passes; then the controller must have no work.
const MOST_PASSES: usize = 500;

pub(crate) struct Manager {
    stepped: SteppedManager,
    pub line: Arc<Mutex<Line>>,
    /// Kinds whose first list has not arrived. Until then the process does nothing.
    unlisted: BTreeSet<WatchedKind>,
    /// Time of the scheduler's next cycle without changes.
    wake: Option<DateTime<Utc>>,
    starts: u64,
    /// How far the clock of the next process is ahead.
    pub clock_ahead: TimeDelta,
    seed: u64,
    store: Arc<Mutex<Store>>,
    clock: SimClock,
    /// As the process reads it.
    own_clock: SimClock,
    lifecycle: Arc<lockstep_lifecycle::LifecycleSettings>,
    node_health: NodeHealthMode,
    provisioning: ProvisioningSettings,
    /// Time of the next pass over the demand for nodes without changes.
    provision_at: Option<DateTime<Utc>>,
    /// Served version of Kueue's API.
    pub kueue_version: Option<&'static str>,
    /// Last field, because its tasks are dropped first. Clients need a runtime; no task waits for
    /// time.
    runtime: Runtime,
}

impl Manager {
    pub fn start(
        seed: u64,
        store: &Arc<Mutex<Store>>,
        clock: &SimClock,
        lifecycle: lockstep_lifecycle::LifecycleSettings,
    ) -> Self {
        let runtime = Builder::new_current_thread()
            .build()
            .expect("a runtime without drivers");
        let lifecycle = Arc::new(lifecycle);
        let line = Arc::<Mutex<Line>>::default();
        let scheduler = lockstep_scheduler::SchedulerSettings::default();
        let provisioning = ProvisioningSettings::default();
        let settings = (lifecycle.clone(), scheduler, provisioning.clone());
        let stepped = stepped(&runtime, store, &line, clock, seed, settings);
        let mut manager = Self {
            stepped,
            line,
            unlisted: BTreeSet::new(),
            wake: None,
            starts: 0,
            clock_ahead: TimeDelta::zero(),
            seed,
            store: store.clone(),
            clock: clock.clone(),
            own_clock: clock.clone(),
            lifecycle,
            node_health: NodeHealthMode::default(),
            provisioning,
            provision_at: None,
            kueue_version: Some("v1beta2"),
            runtime,
        };
        manager.restart();
        manager
    }

    /// [`Self::restart`] with other settings of the workload controller.
    pub fn restart_with(&mut self, lifecycle: lockstep_lifecycle::LifecycleSettings) {
        self.lifecycle = Arc::new(lifecycle);
        self.restart();
    }

    /// [`Self::restart`] with a node autoscaler.
    pub fn restart_with_autoscaler(&mut self, provisioning: ProvisioningSettings) {
        self.scheduler_settings().autoscaler = provisioning.mode;
        self.lifecycle = Arc::new(lockstep_lifecycle::LifecycleSettings {
            protect_members: provisioning.mode != AutoscalerMode::Off,
            ..(*self.lifecycle).clone()
        });
        self.provisioning = provisioning;
        self.restart();
    }

    /// True if the demand for nodes is shown to an autoscaler.
    pub fn has_autoscaler(&self) -> bool {
        self.provisioning.mode != AutoscalerMode::Off
    }

    /// Changes the mode of node signals, also for later processes.
    pub fn set_node_health(&mut self, mode: NodeHealthMode) {
        self.node_health = mode;
        self.stepped.set_node_health(mode);
    }

    pub fn node_health(&self) -> NodeHealthMode {
        self.node_health
    }

    /// True if everything was listed, and no write is about to be lost.
    pub fn is_well(&self) -> bool {
        let line = self.line.lock();
        let connected = line.cut_after.is_none() && line.lost_answers == 0;
        connected && self.unlisted.is_empty()
    }

    /// The process and its memory are lost. Another process leads, and lists everything.
    pub fn restart(&mut self) {
        self.starts += 1;
        {
            let mut line = self.line.lock();
            (line.cut_after, line.lost_answers) = (None, 0);
        }
        let settings = self.scheduler_settings().clone();
        self.own_clock = self.clock.ahead_by(self.clock_ahead);
        self.stepped = stepped(
            &self.runtime,
            &self.store,
            &self.line,
            &self.own_clock,
            self.seed.wrapping_add(self.starts),
            (self.lifecycle.clone(), settings, self.provisioning.clone()),
        );
        self.stepped.set_node_health(self.node_health);
        self.stepped
            .deliver_native_support(self.lifecycle.backend.has_native_groups());
        if self.lifecycle.kueue {
            self.stepped.deliver_kueue_version(self.kueue_version);
        }
        let mut store = self.store.lock();
        let watched = WatchedKind::ALL
            .into_iter()
            .filter(|kind| self.watches(*kind));
        self.unlisted = watched.collect();
        for kind in &self.unlisted {
            store.relist(*kind);
        }
        self.wake = Some(self.clock.now());
        self.provision_at = self.has_autoscaler().then(|| self.clock.now());
    }

    /// False for kinds of Kueue and of an autoscaler in an installation without them.
    pub fn watches(&self, kind: WatchedKind) -> bool {
        match kind {
            WatchedKind::ProvisioningRequest | WatchedKind::PodTemplate => self.has_autoscaler(),
            kind => self.lifecycle.kueue || ALWAYS_WATCHED.contains(&kind),
        }
    }

    /// Handles the delivered events of a kind. True if it stopped before the last one, so that other
    /// actors can see a pod between the last request for its deletion and its end.
    pub fn hear(&mut self, kind: WatchedKind) -> bool {
        loop {
            let event = self.store.lock().watches.next(kind, self.clock.now());
            let Some(event) = event else { return false };
            if matches!(event, Event::InitDone) {
                self.unlisted.remove(&kind);
            }
            let ends = |pod: &Value| pod["metadata"]["deletionGracePeriodSeconds"] == 0;
            let ending = matches!(&event, Event::Apply(object) if ends(object));
            self.stepped
                .deliver(kind, event)
                .unwrap_or_else(|error| panic!("{}: {error}", kind.as_str()));
            if ending {
                return true;
            }
        }
    }

    /// Tells this process which version of Kueue's API is served.
    pub fn deliver_kueue_version(&mut self, version: Option<&'static str>) {
        self.kueue_version = version;
        self.stepped.deliver_kueue_version(version);
    }

    /// Tells this process whether the API server supports native groups.
    pub fn deliver_native_support(&mut self, supported: bool) {
        self.stepped.deliver_native_support(supported);
    }

    /// Adds a group of kube-scheduler. A new process does not know it.
    pub fn deliver_native_group(&mut self, kind: NativeKind, key: &Key, group: NativeGroup) {
        self.stepped.deliver_native_group(kind, key, group);
    }

    /// Handles all delivered events.
    pub fn hear_all(&mut self) {
        for kind in WatchedKind::ALL {
            while self.hear(kind) {}
        }
    }

    /// Runs one pass over the next workload. False if no workload needs one.
    pub fn pass_next(&mut self) -> bool {
        if !self.unlisted.is_empty() {
            return false;
        }
        let passed = self.runtime.block_on(self.stepped.pass_next()).is_some();
        self.fall();
        passed
    }

    /// Runs passes until no workload needs one.
    pub fn control(&mut self) {
        for _ in 0..MOST_PASSES {
            self.hear_all();
            if !self.pass_next() {
                return;
            }
        }
        panic!("the controller passes again and again");
    }

    /// Runs one pass over a workload, whether due or not; none before everything was listed.
    pub fn pass(&mut self, key: &Key) {
        self.hear_all();
        if !self.unlisted.is_empty() {
            return;
        }
        self.runtime.block_on(self.stepped.pass(key));
        self.fall();
        self.hear_all();
    }

    /// True after a relevant change for the scheduler, or at its time.
    fn scheduler_due(&self) -> bool {
        let woken = self.stepped.scheduler_woken();
        woken || self.wake.is_some_and(|at| at <= self.clock.now())
    }

    /// Runs one cycle of the scheduler, if it is due.
    pub fn schedule_if_due(&mut self) -> bool {
        let due = self.unlisted.is_empty() && self.scheduler_due();
        if due {
            self.cycle();
        }
        due
    }

    /// Runs one cycle of the scheduler over the delivered events.
    pub fn schedule(&mut self) -> CycleSummary {
        self.hear_all();
        let summary = self.cycle();
        self.hear_all();
        summary
    }

    /// Shows the demand for nodes, if a pass is due.
    pub fn provision_if_due(&mut self) -> bool {
        let in_time = self.provision_at.is_some_and(|at| at <= self.clock.now());
        let due = self.has_autoscaler()
            && self.unlisted.is_empty()
            && (self.stepped.provisioning_woken() || in_time);
        if due {
            let wait = self.runtime.block_on(self.stepped.provision());
            let wait = TimeDelta::from_std(wait).unwrap_or(TimeDelta::MAX);
            self.provision_at = self.clock.now().checked_add_signed(wait);
            self.fall();
        }
        due
    }

    fn cycle(&mut self) -> CycleSummary {
        let summary = self.runtime.block_on(self.stepped.schedule());
        let later = |wait: Duration| {
            let wait = TimeDelta::from_std(wait).unwrap_or(TimeDelta::MAX);
            self.clock.now().checked_add_signed(wait)
        };
        self.wake = summary.wake_after.and_then(later);
        self.fall();
        summary
    }

    /// Once its connection is cut, the process is lost.
    fn fall(&mut self) {
        if self.line.lock().cut_after == Some(0) {
            self.restart();
        }
    }

    /// Time at which the manager next acts without a change.
    pub fn due(&self) -> Option<DateTime<Utc>> {
        if !self.unlisted.is_empty() {
            return None;
        }
        let pass = self.stepped.next_pass().map(|at| self.clock.wall_at(at));
        let signals = self.stepped.next_signal_change();
        let signals = signals.and_then(|wait| {
            let wait = TimeDelta::from_std(wait).ok()?;
            self.clock.now().checked_add_signed(wait)
        });
        let timed = pass.into_iter().chain(self.wake).chain(signals);
        timed.chain(self.provision_at).min()
    }

    pub fn scheduler_settings(&mut self) -> &mut lockstep_scheduler::SchedulerSettings {
        self.stepped.scheduler_settings()
    }

    /// The time of day as the process reads it.
    pub fn now(&self) -> DateTime<Utc> {
        self.own_clock.wall()
    }

    pub fn view(&self, key: &Key) -> Option<WorkloadView> {
        self.stepped.view(key)
    }

    pub fn scheduling_input(&self) -> SchedulingInput {
        self.stepped.scheduling_input()
    }

    /// The metrics of a leader, with series of every workload.
    pub fn scrape(&self) -> String {
        self.stepped.scrape(usize::MAX)
    }
}

/// Settings of the controller, the scheduler, and the demand for nodes.
type Settings = (
    Arc<lockstep_lifecycle::LifecycleSettings>,
    lockstep_scheduler::SchedulerSettings,
    ProvisioningSettings,
);

fn stepped(
    runtime: &Runtime,
    store: &Arc<Mutex<Store>>,
    line: &Arc<Mutex<Line>>,
    clock: &SimClock,
    seed: u64,
    settings: Settings,
) -> SteppedManager {
    let (settings, scheduler_settings, provisioning) = settings;
    let _entered = runtime.enter();
    SteppedManager::new(SteppedParts {
        controller: client(store, line, "controller"),
        scheduler: client(store, line, "scheduler"),
        clock: Arc::new(clock.clone()),
        random: Random::seeded(seed),
        agents: agent_selector(),
        settings,
        scheduler_settings,
        node_health: NodeHealthMode::default(),
        signal_rules: BUILT_IN.to_vec(),
        provisioning,
    })
}
