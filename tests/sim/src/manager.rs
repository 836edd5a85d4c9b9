//! The manager of a cluster: the real one, stepped, over a line that can be cut.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use kube::runtime::watcher::Event;
use lockstep_api::key::Key;
use lockstep_lifecycle::WorkloadView;
use lockstep_manager::clock::Random;
use lockstep_manager::stepped::{CycleSummary, SteppedManager, SteppedParts, WatchedKind};
use lockstep_model::foreign::NativeGroup;
use lockstep_scheduler::SchedulingInput;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};

use crate::api::server::client;
use crate::api::{Line, Store};
use crate::clock::SimClock;
use crate::nodes::agent_selector;

/// Passes in a row after which the controller must have nothing to do.
const MOST_PASSES: usize = 500;

/// The manager process.
pub(crate) struct Manager {
    stepped: SteppedManager,
    pub line: Arc<Mutex<Line>>,
    /// Kinds whose first list has not arrived yet: until then the process does nothing.
    unlisted: BTreeSet<WatchedKind>,
    /// When the scheduler looks although nothing changed.
    wake: Option<DateTime<Utc>>,
    starts: u64,
    seed: u64,
    store: Arc<Mutex<Store>>,
    clock: SimClock,
    lifecycle: Arc<lockstep_lifecycle::LifecycleSettings>,
    /// Last: what runs in it goes first. Clients want one; nothing in it waits for time.
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
        let stepped = stepped(&runtime, store, &line, clock, seed, &lifecycle, scheduler);
        let mut manager = Self {
            stepped,
            line,
            unlisted: BTreeSet::new(),
            wake: None,
            starts: 0,
            seed,
            store: store.clone(),
            clock: clock.clone(),
            lifecycle,
            runtime,
        };
        manager.restart();
        manager
    }

    /// The process is lost with all that it remembers, and another leads: it lists everything.
    pub fn restart(&mut self) {
        self.starts += 1;
        {
            let mut line = self.line.lock();
            (line.cut_after, line.lost_answers) = (None, 0);
        }
        let settings = self.scheduler_settings().clone();
        self.stepped = stepped(
            &self.runtime,
            &self.store,
            &self.line,
            &self.clock,
            self.seed.wrapping_add(self.starts),
            &self.lifecycle,
            settings,
        );
        let mut store = self.store.lock();
        for kind in WatchedKind::ALL {
            store.relist(kind);
        }
        self.unlisted = WatchedKind::ALL.into_iter().collect();
        self.wake = Some(self.clock.now());
    }

    /// Takes in what the watch of a kind has delivered.
    pub fn hear(&mut self, kind: WatchedKind) {
        loop {
            let event = self.store.lock().watches.next(kind, self.clock.now());
            let Some(event) = event else { return };
            if matches!(event, Event::InitDone) {
                self.unlisted.remove(&kind);
            }
            self.stepped
                .hear(kind, event)
                .unwrap_or_else(|error| panic!("{}: {error}", kind.name()));
        }
    }

    /// A pod group of kube-scheduler's. Another process does not know it.
    pub fn hear_native_group(&mut self, key: &Key, group: NativeGroup) {
        self.stepped.hear_native_group(key, group);
    }

    /// Takes in what all watches have delivered.
    pub fn hear_all(&mut self) {
        for kind in WatchedKind::ALL {
            self.hear(kind);
        }
    }

    /// One pass over the next workload that needs one; false: none does.
    pub fn pass_next(&mut self) -> bool {
        if !self.unlisted.is_empty() {
            return false;
        }
        let passed = self.runtime.block_on(self.stepped.pass_next()).is_some();
        self.fall();
        passed
    }

    /// Passes until no workload needs one now.
    pub fn control(&mut self) {
        for _ in 0..MOST_PASSES {
            self.hear_all();
            if !self.pass_next() {
                return;
            }
        }
        panic!("the controller passes again and again");
    }

    /// One pass over a workload, whether it needs one or not; none before everything was listed.
    pub fn pass(&mut self, key: &Key) {
        self.hear_all();
        if !self.unlisted.is_empty() {
            return;
        }
        self.runtime.block_on(self.stepped.pass(key));
        self.fall();
        self.hear_all();
    }

    /// Whether something has changed for the scheduler, or its time has come.
    fn scheduler_due(&self) -> bool {
        let woken = self.stepped.scheduler_woken();
        woken || self.wake.is_some_and(|at| at <= self.clock.now())
    }

    /// One cycle of the scheduler, where it has to look.
    pub fn schedule_if_due(&mut self) -> bool {
        let due = self.unlisted.is_empty() && self.scheduler_due();
        if due {
            self.cycle();
        }
        due
    }

    /// One cycle of the scheduler over what the watches have delivered.
    pub fn schedule(&mut self) -> CycleSummary {
        self.hear_all();
        let summary = self.cycle();
        self.hear_all();
        summary
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

    /// Once its line is cut, the process is lost.
    fn fall(&mut self) {
        if self.line.lock().cut_after == Some(0) {
            self.restart();
        }
    }

    /// When it goes on by itself.
    pub fn due(&self) -> Option<DateTime<Utc>> {
        if !self.unlisted.is_empty() {
            return None;
        }
        let pass = self.stepped.next_pass().map(|at| self.clock.wall_at(at));
        pass.into_iter().chain(self.wake).min()
    }

    pub fn scheduler_settings(&mut self) -> &mut lockstep_scheduler::SchedulerSettings {
        self.stepped.scheduler_settings()
    }

    pub fn view(&self, key: &Key) -> Option<WorkloadView> {
        self.stepped.view(key)
    }

    pub fn scheduling_input(&self) -> SchedulingInput {
        self.stepped.scheduling_input()
    }

    /// The metrics that a leader would export, with series of every workload.
    pub fn scrape(&self) -> String {
        self.stepped.scrape(usize::MAX)
    }
}

fn stepped(
    runtime: &Runtime,
    store: &Arc<Mutex<Store>>,
    line: &Arc<Mutex<Line>>,
    clock: &SimClock,
    seed: u64,
    settings: &Arc<lockstep_lifecycle::LifecycleSettings>,
    scheduler_settings: lockstep_scheduler::SchedulerSettings,
) -> SteppedManager {
    let _entered = runtime.enter();
    SteppedManager::new(SteppedParts {
        controller: client(store, line, "controller"),
        scheduler: client(store, line, "scheduler"),
        clock: Arc::new(clock.clone()),
        random: Random::seeded(seed),
        agents: agent_selector(),
        settings: settings.clone(),
        scheduler_settings,
    })
}
