//! The cluster, and the choice of the next actor.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::NodeHealthMode;
use lockstep_api::key::Key;
use lockstep_api::names::labels;
use lockstep_lifecycle::{Plan, WorkloadView, decide};
use lockstep_manager::stepped::{CycleSummary, ProvisioningSettings, WatchedKind};
use lockstep_model::{NativeGroup, NativeKind};
use lockstep_scheduler::SchedulingInput;
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

use crate::api::{Line, Store, Write, quota};
use crate::clock::SimClock;
use crate::controllers::collect_garbage;
use crate::kube_scheduler;
use crate::manager::Manager;
use crate::nodes::{Life, SimNode};

/// Default number of rounds after which the cluster must be at rest.
const MOST_ROUNDS: usize = 3000;
/// Default number of consecutive deadlines without effect that count as rest: only periodic checks
/// remain.
const MOST_QUIET: usize = 40;

/// An actor that can take a turn.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Actor {
    /// Delivery of the manager's watch of a kind.
    Watch(WatchedKind),
    /// One pass over a workload that needs one.
    Controller,
    /// One cycle of Lockstep's scheduler, if it is due.
    Scheduler,
    /// One pass over the demand for nodes, if it is due.
    Provisioner,
    KubeScheduler,
    GarbageCollector,
    QuotaController,
    Kubelet(String),
    Agent(String),
}

pub struct SimCluster {
    clock: SimClock,
    store: Arc<Mutex<Store>>,
    manager: Manager,
    nodes: BTreeMap<String, SimNode>,
    ips: Arc<AtomicU32>,
    random: fastrand::Rng,
    /// Version that schedulers have seen, and their names.
    judged: Option<(u64, BTreeSet<String>)>,
    /// Longest wait of [`Self::settle`] for a deadline.
    pub patience: TimeDelta,
    /// Duration of a round with an effect.
    pub tick: TimeDelta,
    /// Rounds after which [`Self::settle`] must be at rest.
    pub most_rounds: usize,
    /// Consecutive deadlines without effect that [`Self::settle`] takes for rest.
    pub most_quiet: usize,
    /// Time without a change that [`Self::settle`] takes for rest, whatever periodic checks remain.
    pub longest_quiet: TimeDelta,
    /// Number of turns of all actors.
    pub turns: u64,
}

impl SimCluster {
    /// An empty cluster. The same seed and the same calls give the same log.
    pub fn new(seed: u64) -> Self {
        Self::with_settings(seed, lockstep_lifecycle::LifecycleSettings::default())
    }

    /// [`Self::new`] with settings of the workload controller.
    pub fn with_settings(seed: u64, lifecycle: lockstep_lifecycle::LifecycleSettings) -> Self {
        let origin = DateTime::from_timestamp(1_795_000_000, 0).expect("a time");
        let clock = SimClock::starting_at(origin);
        let store = Arc::new(Mutex::new(Store::new(clock.clone())));
        let manager = Manager::start(seed, &store, &clock, lifecycle);
        Self {
            clock,
            store,
            manager,
            nodes: BTreeMap::new(),
            ips: Arc::default(),
            random: fastrand::Rng::with_seed(seed),
            judged: None,
            patience: TimeDelta::seconds(60),
            tick: TimeDelta::seconds(1),
            most_rounds: MOST_ROUNDS,
            most_quiet: MOST_QUIET,
            longest_quiet: TimeDelta::MAX,
            turns: 0,
        }
    }

    pub fn now(&self) -> DateTime<Utc> {
        self.clock.now()
    }

    /// Advances the time only.
    pub fn later(&mut self, seconds: i64) {
        self.clock.advance(TimeDelta::seconds(seconds));
    }

    /// Advances the time only.
    pub fn advance(&mut self, by: TimeDelta) {
        self.clock.advance(by);
    }

    /// The API server's storage. Must not be locked while actors run.
    pub fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock()
    }

    pub fn line(&self) -> MutexGuard<'_, Line> {
        self.manager.line.lock()
    }

    pub fn add_node(&mut self, node: Value) {
        let node = SimNode::create(&mut self.store.lock(), node, &self.ips);
        self.nodes.insert(node.name().to_owned(), node);
    }

    /// # Panics
    ///
    /// The node does not exist.
    pub fn node(&mut self, name: &str) -> &mut SimNode {
        self.nodes
            .get_mut(name)
            .unwrap_or_else(|| panic!("there is no node {name}"))
    }

    /// Training processes that report progress, as they really were, by node.
    pub fn lives(&self) -> impl Iterator<Item = &Life> {
        self.nodes.values().flat_map(SimNode::lives)
    }

    pub fn node_names(&self) -> Vec<String> {
        self.nodes.keys().cloned().collect()
    }

    pub fn fault(&mut self, node: &str, change: impl FnOnce(&mut crate::nodes::NodeFaults)) {
        let node = self.nodes.get_mut(node).expect("the node exists");
        let before = node.alive();
        change(&mut node.faults);
        let mut store = self.store.lock();
        if before != node.alive() {
            node.show_lost(&mut store);
        }
        node.show_agent(&mut store);
    }

    /// The node falls silent, and the node controller has noticed.
    pub fn lose(&mut self, node: &str) {
        self.fault(node, |f| f.lost = true);
    }

    /// The node is connected again.
    pub fn find(&mut self, node: &str) {
        self.fault(node, |f| (f.lost, f.lost_until) = (false, None));
    }

    /// Runs one turn of an actor. Returns true if it had an effect.
    pub fn run(&mut self, actor: &Actor) -> bool {
        self.turns += 1;
        let before = self.store.lock().version();
        let busy = match actor {
            Actor::Watch(kind) => {
                self.manager.hear(*kind);
                false
            }
            Actor::Controller => {
                self.manager.pass_next();
                false
            }
            Actor::Scheduler => {
                self.manager.schedule_if_due();
                false
            }
            Actor::Provisioner => {
                self.manager.provision_if_due();
                false
            }
            Actor::KubeScheduler => self.kube_schedule(),
            Actor::GarbageCollector => collect_garbage(&mut self.store.lock()),
            Actor::QuotaController => quota::count(&mut self.store.lock()),
            Actor::Kubelet(node) => {
                let node = self.nodes.get_mut(node).expect("the node exists");
                node.kubelet(&mut self.store.lock())
            }
            Actor::Agent(node) => {
                let node = self.nodes.get_mut(node).expect("the node exists");
                node.agent(&mut self.store.lock())
            }
        };
        self.assert_attempts_apart();
        busy || self.store.lock().version() != before
    }

    /// kube-scheduler runs after a change since its last turn.
    fn kube_schedule(&mut self) -> bool {
        let mut store = self.store.lock();
        let seen = self.judged.as_ref();
        let all = store.attempts_per_turn.is_none();
        if seen.is_some_and(|(version, who)| {
            all && *version == store.version() && *who == store.schedulers
        }) {
            return false;
        }
        let wrote = kube_scheduler::turn(&mut store);
        self.judged = Some((store.version(), store.schedulers.clone()));
        wrote
    }

    /// Checks that supervisors keep two attempts of a restart domain apart (I1), and that no member
    /// runs twice, on connected nodes. Processes of a node that fell silent may still run when it
    /// returns, until its kubelet has received the changes.
    ///
    /// # Panics
    ///
    /// The check fails.
    fn assert_attempts_apart(&self) {
        let mut running: BTreeMap<(String, String), (u64, String)> = BTreeMap::new();
        let mut members: BTreeMap<(String, [String; 3]), String> = BTreeMap::new();
        for node in self.nodes.values().filter(|n| n.alive()) {
            let pods = node.runtime.table().all();
            for (uid, attempt) in node.runtime.children() {
                if node.left_alone.contains(&(uid.clone(), attempt)) {
                    continue;
                }
                let Some((pod, _)) = pods.iter().find(|(pod, _)| pod.uid == uid) else {
                    continue;
                };
                let label = |name| pod.labels.get(name).cloned().unwrap_or_default();
                let member = [labels::GROUP, labels::REPLICA, labels::INDEX].map(label);
                let member = (label(labels::WORKLOAD_UID), member);
                if let Some(other) = members.insert(member, pod.name.clone()) {
                    panic!("{other} and {} run:\n{}", pod.name, self.story(60));
                }
                let domain = (label(labels::WORKLOAD_UID), label(labels::DOMAIN));
                let (other, name) = running
                    .entry(domain)
                    .or_insert_with(|| (attempt, pod.name.clone()));
                assert_eq!(
                    *other,
                    attempt,
                    "{name} and {} run different attempts:\n{}",
                    pod.name,
                    self.story(60)
                );
            }
        }
    }

    /// All actors.
    pub fn actors(&self) -> Vec<Actor> {
        let autoscaler = self.manager.has_autoscaler();
        let kinds = WatchedKind::ALL
            .into_iter()
            .filter(|kind| self.manager.watches(*kind));
        let watches = kinds.map(Actor::Watch);
        let central = [
            Actor::Controller,
            Actor::Scheduler,
            Actor::KubeScheduler,
            Actor::GarbageCollector,
            Actor::QuotaController,
        ];
        let kubelets = self.nodes.keys().cloned().map(Actor::Kubelet);
        let agents = self.nodes.keys().cloned().map(Actor::Agent);
        watches
            .chain(central)
            .chain(autoscaler.then_some(Actor::Provisioner))
            .chain(kubelets)
            .chain(agents)
            .collect()
    }

    /// Runs one turn of an actor chosen by the seed, after some milliseconds.
    pub fn step(&mut self) -> Actor {
        let actors = self.actors();
        let actor = actors[self.random.usize(..actors.len())].clone();
        let wait = self.random.i64(0..200);
        self.clock.advance(TimeDelta::milliseconds(wait));
        self.end_flaps();
        self.run(&actor);
        actor
    }

    /// Connects the nodes again that were lost until now.
    fn end_flaps(&mut self) {
        let now = self.now();
        let is_over = |node: &&SimNode| node.faults.lost_until.is_some_and(|until| until <= now);
        let over: Vec<String> = self
            .nodes
            .values()
            .filter(is_over)
            .map(|node| node.name().to_owned())
            .collect();
        for name in over {
            self.find(&name);
        }
    }

    /// From now on, another seed chooses, whatever happened before.
    pub fn reseed(&mut self, seed: u64) {
        self.random = fastrand::Rng::with_seed(seed);
    }

    /// A number below `end`, chosen by the seed.
    pub fn pick(&mut self, end: usize) -> usize {
        self.random.usize(..end)
    }

    /// Runs every actor once, and the manager until it has no work. Returns true if there was an
    /// effect.
    pub fn round(&mut self) -> bool {
        let before = self.store.lock().version();
        self.end_flaps();
        self.control();
        self.manager.schedule_if_due();
        self.manager.hear_all();
        self.manager.provision_if_due();
        self.manager.hear_all();
        let mut busy = self.store.lock().version() != before;
        for actor in self.actors() {
            let ours = matches!(
                actor,
                Actor::Watch(_) | Actor::Controller | Actor::Scheduler | Actor::Provisioner
            );
            if !ours {
                busy |= self.run(&actor);
            }
        }
        busy
    }

    /// Runs until no actor has work and no deadline is near. Advances the time.
    ///
    /// # Panics
    ///
    /// The cluster does not come to rest.
    pub fn settle(&mut self) {
        if let Err(why) = self.try_settle() {
            panic!("{why}:\n{}", self.story(60));
        }
    }

    /// [`Self::settle`] with an error.
    ///
    /// # Errors
    ///
    /// The cluster does not come to rest.
    pub fn try_settle(&mut self) -> Result<(), &'static str> {
        let (mut quiet, mut changed) = (0, self.now());
        for _ in 0..self.most_rounds {
            if self.round() {
                (quiet, changed) = (0, self.now());
                self.clock.advance(self.tick);
                continue;
            }
            let now = self.now();
            let patience = now + self.patience;
            quiet += 1;
            let rests = quiet >= self.most_quiet || now - changed >= self.longest_quiet;
            match self.due().filter(|at| *at <= patience && !rests) {
                Some(at) => self
                    .clock
                    .advance((at - now).max(TimeDelta::milliseconds(1))),
                None => return Ok(()),
            }
        }
        Err("it does not come to rest")
    }

    /// Advances the time, and settles.
    pub fn wait(&mut self, seconds: i64) {
        self.later(seconds);
        self.settle();
    }

    /// Time at which an actor next acts without a change.
    fn due(&self) -> Option<DateTime<Utc>> {
        let nodes = self.nodes.values().filter_map(SimNode::due);
        let watches = self.store.lock().watches.due();
        nodes.chain(watches).chain(self.manager.due()).min()
    }

    /// Runs passes until no workload needs one.
    pub fn control(&mut self) {
        self.manager.control();
    }

    /// Runs one pass over a workload, whether due or not. Returns true if it wrote.
    pub fn pass(&mut self, key: &Key) -> bool {
        let before = self.line().writes;
        self.manager.pass(key);
        self.line().writes != before
    }

    /// Runs one cycle of Lockstep's scheduler, whether due or not.
    pub fn schedule(&mut self) -> CycleSummary {
        self.manager.schedule()
    }

    /// Runs one turn of kube-scheduler. Returns true if it wrote.
    pub fn bind(&mut self) -> bool {
        self.run(&Actor::KubeScheduler)
    }

    /// Runs one sync of a node's kubelet. Returns true if it had an effect.
    pub fn kubelet(&mut self, node: &str) -> bool {
        self.run(&Actor::Kubelet(node.to_owned()))
    }

    /// Runs one turn of a node's agent. Returns true if it had an effect.
    pub fn agent(&mut self, node: &str) -> bool {
        self.run(&Actor::Agent(node.to_owned()))
    }

    /// Runs all kubelets until they have no work.
    pub fn kubelets(&mut self) {
        let nodes = self.node_names();
        while nodes
            .iter()
            .fold(false, |busy, node| self.kubelet(node) | busy)
        {}
    }

    /// The manager's process and its memory are lost, and another process takes over.
    pub fn crash(&mut self) {
        self.manager.restart();
    }

    /// The same, with other settings of the workload controller.
    pub fn restart_with(&mut self, lifecycle: lockstep_lifecycle::LifecycleSettings) {
        self.manager.restart_with(lifecycle);
    }

    /// The same, with a node autoscaler.
    pub fn restart_with_autoscaler(&mut self, settings: ProvisioningSettings) {
        self.manager.restart_with_autoscaler(settings);
    }

    /// The same after this number of writes.
    pub fn crash_after(&mut self, writes: usize) {
        self.line().cut_after = Some(writes);
    }

    /// Sets how far the clock of the next manager process is ahead.
    pub fn set_manager_clock(&mut self, ahead: TimeDelta) {
        self.manager.clock_ahead = ahead;
    }

    /// True if the manager process watches this kind.
    pub fn watches(&self, kind: WatchedKind) -> bool {
        self.manager.watches(kind)
    }

    /// Tells the manager process which version of Kueue's API is served. It has read no object yet.
    pub fn deliver_kueue_version(&mut self, version: Option<&'static str>) {
        self.manager.deliver_kueue_version(version);
    }

    /// Tells the manager process whether the API server supports native groups. A new process tests
    /// the API server itself.
    pub fn native_support(&mut self, supported: bool) {
        self.manager.deliver_native_support(supported);
    }

    /// Adds a group of kube-scheduler. A new manager process does not know it.
    pub fn native_group(&mut self, kind: NativeKind, key: &Key, group: NativeGroup) {
        self.manager.deliver_native_group(kind, key, group);
    }

    /// Changes what the manager does about signals of nodes.
    pub fn set_node_health(&mut self, mode: NodeHealthMode) {
        self.manager.set_node_health(mode);
    }

    pub fn node_health(&self) -> NodeHealthMode {
        self.manager.node_health()
    }

    /// The time of day as the manager process reads it.
    pub fn manager_now(&self) -> DateTime<Utc> {
        self.manager.now()
    }

    /// True if the manager's connection is whole.
    pub fn is_manager_well(&self) -> bool {
        self.manager.is_well()
    }

    pub fn scheduler_settings(&mut self) -> &mut lockstep_scheduler::SchedulerSettings {
        self.manager.scheduler_settings()
    }

    /// The view of the next pass over a workload.
    pub fn view(&mut self, key: &Key) -> Option<WorkloadView> {
        self.manager.hear_all();
        self.manager.view(key)
    }

    /// A workload as the manager knows it, without events that it has not received.
    pub fn known(&self, key: &Key) -> Option<WorkloadView> {
        self.manager.view(key)
    }

    /// The input of the next cycle of the scheduler.
    pub fn scheduling_input(&mut self) -> SchedulingInput {
        self.manager.hear_all();
        self.manager.scheduling_input()
    }

    /// The manager's metrics, with series of every workload.
    pub fn scrape(&self) -> String {
        self.manager.scrape()
    }

    /// The plan of the next pass over a workload.
    pub fn plan(&mut self, key: &Key) -> Option<Plan> {
        let now = self.manager.now();
        Some(decide(&self.view(key)?, now).plan)
    }

    /// True if the controller has no work and no write for a workload.
    pub fn is_idle(&mut self, key: &Key) -> bool {
        let Some(view) = self.view(key) else {
            return true;
        };
        decide(&view, self.manager.now()).plan == Plan::Idle(Box::new(view.status()))
    }

    /// The last writes, one per line.
    pub fn story(&self, last: usize) -> String {
        let store = self.store.lock();
        let from = store.log.len().saturating_sub(last);
        let lines: Vec<String> = store.log[from..].iter().map(Write::line).collect();
        lines.join("\n")
    }
}
