//! Nodes: a kubelet over a simulated runtime, and the node's agent.

mod agent;
mod kubelet;
mod training;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::NodeAgentStatus;
use lockstep_api::key::Key;
use lockstep_api::node_agent::capabilities;
use lockstep_kubelet::latency::LatencyProfile;
use lockstep_kubelet::model::{FEATURE_RESTART_ALL, KubeletConfig};
use lockstep_kubelet::runtime::{Effect, Pretend, ReportedProgress, Table};
use lockstep_manager::stepped::{AgentSelector, WatchedKind};
use lockstep_node::{NamespacedOrders, Records};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::api::{Patch, Store};
use crate::clock::{SimClock, api_time};
use kubelet::Slot;
use training::Training;

pub use training::{First, Life, PROGRESS_STARTUP, PROGRESS_TIMEOUT, Pace, TELLS};

const NAMESPACE: &str = "lockstep-system";
const LABEL: (&str, &str) = ("app.kubernetes.io/name", "lockstep-agent");

/// Selects the agents' pods.
pub(crate) fn agent_selector() -> AgentSelector {
    AgentSelector {
        namespace: NAMESPACE.into(),
        label: (LABEL.0.into(), LABEL.1.into()),
    }
}

/// Faults of a node that a scenario switches on and off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fault of its own")]
pub struct NodeFaults {
    /// Kubelet and agent are silent; containers continue.
    pub lost: bool,
    /// When `lost` ends by itself.
    pub lost_until: Option<DateTime<Utc>>,
    /// Neither reaches the API server; both continue with their last state.
    pub cut_off: bool,
    pub no_agent: bool,
    /// The agent does nothing, although its pod is ready.
    pub silent_agent: bool,
    pub starts_nothing: bool,
    /// Containers survive a stop by the agent.
    pub hangs: bool,
    /// No signal ends a container.
    pub unkillable: bool,
    /// The kubelet rejects new pods.
    pub rejects: bool,
    /// Containers restart as soon as they have ended, before their end is shown.
    pub quick: bool,
    /// Delay of the agent's writes. The agent continues meanwhile.
    pub news_take: TimeDelta,
}

impl NodeFaults {
    /// True if the node is silent.
    fn silent(self) -> bool {
        self.lost || self.cut_off
    }
}

pub struct SimNode {
    name: String,
    clock: SimClock,
    pub faults: NodeFaults,
    /// Capabilities of its kubelet.
    pub config: KubeletConfig,
    /// How far its clock is ahead. Must not change while containers run.
    pub clock_ahead: TimeDelta,
    boots: u32,
    pub runtime: Pretend,
    /// Training processes that report progress.
    training: Training,
    ips: Arc<AtomicU32>,
    pods: BTreeMap<String, Slot>,
    later: Vec<(DateTime<Utc>, Effect)>,
    wake: Option<DateTime<Utc>>,
    records: Records,
    published: Option<NodeAgentStatus>,
    /// Last orders of the agent's watch.
    orders: NamespacedOrders,
    /// Pods and attempts of training processes that ran when the node fell silent. The cluster
    /// cannot know their state before the node returns.
    pub(crate) left_alone: BTreeSet<(String, u64)>,
    agent_wake: Option<DateTime<Utc>>,
    /// The agent's writes that the API server does not have yet, oldest first.
    under_way: VecDeque<(DateTime<Utc>, NodeAgentStatus)>,
}

impl SimNode {
    /// Creates a node with its objects in the store: the node and its agent's pod.
    pub(crate) fn create(store: &mut Store, node: Value, ips: &Arc<AtomicU32>) -> Self {
        let name = node["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let clock = store.clock.clone();
        let who = kubelet::actor(&name);
        store
            .create(&who, WatchedKind::Node, node, false)
            .unwrap_or_else(|no| panic!("{}", no.message));
        let agent = json!({"metadata": {"name": agent_pod(&name), "namespace": NAMESPACE, "labels": {LABEL.0: LABEL.1}},
            "spec": {"nodeName": name, "containers": [{"name": "agent"}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        store
            .create("daemonset", WatchedKind::Pod, agent, false)
            .unwrap_or_else(|no| panic!("{}", no.message));
        Self {
            runtime: runtime(&name, ips),
            name,
            clock,
            faults: NodeFaults::default(),
            config: KubeletConfig::default(),
            clock_ahead: TimeDelta::zero(),
            boots: 0,
            training: Training::default(),
            ips: ips.clone(),
            pods: BTreeMap::new(),
            later: Vec::new(),
            wake: None,
            records: Records::default(),
            published: None,
            orders: BTreeMap::new(),
            left_alone: BTreeSet::new(),
            agent_wake: None,
            under_way: VecDeque::new(),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if kubelet and agent are connected.
    pub fn alive(&self) -> bool {
        !self.faults.silent()
    }

    /// Time of the next event on the node.
    pub(crate) fn due(&self) -> Option<DateTime<Utc>> {
        if self.faults.lost {
            return None;
        }
        let effects = self.later.iter().map(|(at, _)| *at);
        let news = self.under_way.front().filter(|_| !self.faults.cut_off);
        let news = news.map(|(at, _)| *at);
        let own = [self.wake, self.agent_wake, news];
        effects.chain(own.into_iter().flatten()).min()
    }

    /// The agent restarts without its file and starts from its published status.
    pub fn agent_loses_memory(&mut self) {
        self.records = Records::from_published(
            self.published
                .as_ref()
                .unwrap_or(&NodeAgentStatus::default()),
        );
    }

    /// The node reboots: no container runs, and the kubelet starts from the API server's state.
    pub fn reboot(&mut self) {
        self.catch_up();
        self.training.end();
        // IDs of containers are never used again.
        self.boots += 1;
        let name = format!("{}.{}", self.name, self.boots);
        self.runtime = runtime(&name, &self.ips);
        self.later.clear();
        self.restart_kubelet();
    }

    /// The kubelet restarts and rebuilds its memory from API and runtime.
    pub fn restart_kubelet(&mut self) {
        self.pods.clear();
    }

    /// Time by the node's own clock.
    pub(crate) fn wall(&self) -> DateTime<Utc> {
        self.clock.now() + self.clock_ahead
    }

    /// Training processes that report progress, as they really were, in the order of their starts.
    pub fn lives(&self) -> &[Life] {
        self.training.lives()
    }

    /// Sets the pace of a pod's training process. False if no steady process runs.
    pub fn set_pace(&mut self, pod_uid: &str, pace: Pace) -> bool {
        self.catch_up();
        self.training.set_pace(pod_uid, pace)
    }

    /// The next training process of a pod makes no step.
    pub fn never_begins(&mut self, pod_uid: &str) {
        self.training.never_begins(pod_uid);
    }

    /// Schedules the consequences of effects, and executes immediate ones.
    pub(crate) fn follow(
        &mut self,
        effects: impl IntoIterator<Item = (std::time::Duration, Effect)>,
    ) {
        let now = self.clock.now();
        self.follow_from(now, effects);
    }

    fn follow_from(
        &mut self,
        now: DateTime<Utc>,
        effects: impl IntoIterator<Item = (std::time::Duration, Effect)>,
    ) {
        for (wait, effect) in effects {
            if wait.is_zero() {
                let after = self.runtime.apply(&effect, now + self.clock_ahead);
                self.follow_from(now, after);
            } else {
                let at = now + TimeDelta::from_std(wait).unwrap_or(TimeDelta::MAX);
                self.later.push((at, effect));
            }
        }
    }

    /// Executes all due events in their order. Returns true if one was more than a training step.
    pub(crate) fn catch_up(&mut self) -> bool {
        let now = self.clock.now();
        let mut busy = false;
        self.training.bury(&self.runtime);
        loop {
            let effect = self.later.iter().enumerate();
            let effect = effect.min_by_key(|(_, (at, _))| *at);
            let effect = effect.map(|(index, (at, _))| (*at, index));
            let step = self.training.next();
            let first = effect.map(|(at, _)| at).into_iter().chain(step).min();
            let Some(at) = first.filter(|at| *at <= now) else {
                break;
            };
            match effect.filter(|(due, _)| *due == at) {
                Some((_, index)) => {
                    let (_, effect) = self.later.remove(index);
                    let after = self.runtime.apply(&effect, at + self.clock_ahead);
                    self.follow_from(at, after);
                    busy = true;
                }
                None => self.train(at),
            }
            self.training.observe(&self.runtime, at, self.clock_ahead);
        }
        self.training.observe(&self.runtime, now, self.clock_ahead);
        busy
    }

    /// A training process reports its progress.
    fn train(&mut self, at: DateTime<Utc>) {
        if let Some((uid, step, saved)) = self.training.step(at) {
            let wall = at + self.clock_ahead;
            let report = ReportedProgress::of(step, saved);
            let effects = self.runtime.progress(&uid, report, wall);
            self.follow_from(at, effects);
        }
    }

    /// Writes the node's connection state to the store, as the node controller does: Ready, the
    /// taint of unreachable nodes, and the readiness of its pods.
    pub(crate) fn show_lost(&mut self, store: &mut Store) {
        let (lost, now) = (!self.alive(), self.clock.now());
        if lost {
            self.left_alone.extend(self.runtime.children());
        }
        let key = Key::new("", &self.name);
        let who = "node-controller";
        let status = if lost { "Unknown" } else { "True" };
        let ready = json!({"type": "Ready", "status": status, "lastTransitionTime": api_time(now)});
        let taints = ["NoSchedule", "NoExecute"].map(
            |effect| json!({"key": "node.kubernetes.io/unreachable", "effect": effect, "timeAdded": api_time(now)}),
        );
        let taints = if lost { json!(taints) } else { Value::Null };
        let patches = [
            (
                Patch::Strategic(json!({"status": {"conditions": [ready]}})),
                true,
            ),
            (Patch::Merge(json!({"spec": {"taints": taints}})), false),
        ];
        for (patch, status) in patches {
            // A deleted node stays deleted.
            let _ = store.patch(who, WatchedKind::Node, &key, &patch, status);
        }
        let here: Vec<Key> = store
            .all(WatchedKind::Pod)
            .filter(|(_, pod)| {
                pod["spec"]["nodeName"] == *self.name && pod["status"]["phase"] == "Running"
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in here {
            if lost || *key.namespace == *NAMESPACE {
                self.show_ready(store, &key, !lost);
            }
        }
    }

    /// Sets the readiness of the agent's own pod.
    pub(crate) fn show_agent(&self, store: &mut Store) {
        let key = Key::new(NAMESPACE, agent_pod(&self.name));
        self.show_ready(store, &key, self.alive() && self.agent_runs());
    }

    fn agent_runs(&self) -> bool {
        !self.faults.lost && !self.faults.no_agent
    }

    fn show_ready(&self, store: &mut Store, pod: &Key, ready: bool) {
        let status = if ready { "True" } else { "False" };
        let condition = json!({"type": "Ready", "status": status, "lastTransitionTime": api_time(self.clock.now())});
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        let _ = store.patch("node-controller", WatchedKind::Pod, pod, &patch, true);
    }
}

fn runtime(name: &str, ips: &Arc<AtomicU32>) -> Pretend {
    // No actor is notified of changes: kubelet and agent read them at their turn.
    let (kubelet, _) = mpsc::unbounded_channel();
    Pretend::new(
        name,
        Table::new(0, kubelet),
        LatencyProfile::zero(),
        ips.clone(),
    )
}

fn agent_pod(node: &str) -> String {
    format!("lockstep-agent-{node}")
}

/// The agent's status before its first observation.
fn introduction() -> NodeAgentStatus {
    NodeAgentStatus {
        capabilities: [
            capabilities::REPORT,
            capabilities::STOP,
            capabilities::SUPERVISE,
            capabilities::CHECKPOINT,
        ]
        .map(str::to_owned)
        .into(),
        ..NodeAgentStatus::default()
    }
}

/// A ready node with these resources and labels.
pub fn node(name: &str, resources: &[(&str, &str)], labels: &Value) -> Value {
    let mut allocatable = json!({"cpu": "100", "memory": "1Ti", "pods": "110"});
    for (resource, amount) in resources {
        allocatable[*resource] = json!(amount);
    }
    let mut all = json!({"kubernetes.io/hostname": name});
    crate::api::merge(&mut all, labels);
    json!({"metadata": {"name": name, "labels": all},
        "status": {"allocatable": allocatable, "capacity": allocatable,
            "declaredFeatures": [FEATURE_RESTART_ALL],
            "nodeInfo": {"kubeletVersion": "v1.37.2", "architecture": "", "bootID": "", "containerRuntimeVersion": "",
                "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "linux", "osImage": "",
                "systemUUID": ""},
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
}
