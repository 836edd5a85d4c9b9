//! The kubelets of all nodes: a task with the workers of all pods.
//!
//! Pods are synced when their object changes, when the runtime changes (at the node's next relist,
//! or at once while the worker waits for a call to it), and at times that the model requested.

#![expect(
    clippy::disallowed_methods,
    reason = "hollow nodes run in the time of their own process"
)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use kube::Client;
use lockstep_model::pods::resources::{PODS, Resources, pod_requests};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

use super::nodes::NodeInfo;
use super::pods::PodEvent;
use super::writes::{Write, Written, write};
use crate::clock::Clock;
use crate::model::admission::{Rejection, admit};
use crate::model::{Action, FEATURE_RESTART_ALL, KubeletConfig, PodDesc, PodWorker};
use crate::runtime::{Changed, Runtime};

/// Maximum number of concurrent writes.
const WRITES: usize = 32;
/// Pause after a failed write.
const RETRY: Duration = Duration::from_millis(500);

/// The kubelet of a node.
pub(super) struct Kubelet {
    pub(super) info: Arc<NodeInfo>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) config: KubeletConfig,
    pub(super) allocatable: Resources,
    /// Reason with which all new pods are refused.
    pub(super) reject: Option<Rejection>,
}

/// A pod on a node.
struct Slot {
    node: usize,
    pod: Arc<PodDesc>,
    worker: PodWorker,
    requests: Resources,
    /// Status in the API server.
    published: Option<PodStatus>,
    /// Status to write.
    wanted: Option<PodStatus>,
    /// True if the object can be removed after the status is written.
    delete: bool,
    writing: bool,
    /// True if the worker waits for the runtime.
    blocked: bool,
    due: Option<Instant>,
}

/// Commands of a test. The response is sent after the command is executed.
pub(super) enum Command {
    /// Finds a pod by namespace and name: UID, node, and whether it exists.
    Find {
        namespace: String,
        name: String,
        reply: oneshot::Sender<Option<(usize, Arc<PodDesc>)>>,
    },
    /// The kubelet evicts the pod.
    Evict {
        uid: String,
        message: String,
        reply: oneshot::Sender<()>,
    },
    /// Refuses new pods with this reason, or accepts them again.
    Reject {
        node: usize,
        rejection: Option<Rejection>,
        reply: oneshot::Sender<()>,
    },
    /// The node has returned: everything on it is listed and reported again.
    Returned {
        node: usize,
        reply: oneshot::Sender<()>,
    },
    /// The kubelet restarts and rebuilds its memory from the API.
    RestartKubelet {
        node: usize,
        reply: oneshot::Sender<()>,
    },
}

/// All kubelets of the process.
pub(super) struct Kubelets {
    nodes: Vec<Kubelet>,
    relist: Duration,
    clock: Clock,
    client: Client,
    pods: BTreeMap<String, Slot>,
    by_node: Vec<BTreeSet<String>>,
    /// Scheduled syncs by time.
    due: BTreeSet<(Instant, String)>,
    origin: Instant,
    writes: JoinSet<(String, Write, Written)>,
    write_queue: VecDeque<String>,
    /// UIDs seen since the start of the last complete list. A list reports all pods before
    /// `Listed`.
    told: BTreeSet<String>,
}

impl Kubelets {
    pub(super) fn new(nodes: Vec<Kubelet>, relist: Duration, clock: Clock, client: Client) -> Self {
        Self {
            by_node: vec![BTreeSet::new(); nodes.len()],
            nodes,
            relist,
            clock,
            client,
            pods: BTreeMap::new(),
            due: BTreeSet::new(),
            origin: Instant::now(),
            writes: JoinSet::new(),
            write_queue: VecDeque::new(),
            told: BTreeSet::new(),
        }
    }

    /// Runs until a sender of events is dropped.
    pub(super) async fn run(
        mut self,
        mut events: mpsc::Receiver<PodEvent>,
        mut changes: mpsc::UnboundedReceiver<Changed>,
        mut commands: mpsc::Receiver<Command>,
    ) {
        loop {
            self.start_writes();
            let next = self.due.first().map(|(at, _)| *at);
            tokio::select! {
                biased;
                Some(command) = commands.recv() => self.command(command),
                Some(written) = self.writes.join_next(), if !self.writes.is_empty() => match written {
                    Ok((uid, what, outcome)) => self.written(&uid, &what, outcome),
                    Err(error) => warn!(%error, "a write panicked"),
                },
                Some(change) = changes.recv() => self.changed(&change),
                event = events.recv() => match event {
                    Some(event) => self.event(event),
                    None => return,
                },
                () = sleep_until(next.unwrap_or(self.origin)), if next.is_some() => self.sync_due(),
            }
        }
    }

    fn event(&mut self, event: PodEvent) {
        match event {
            PodEvent::Seen { node, pod, status } => {
                self.told.insert(pod.uid.clone());
                self.seen(node, pod, &status);
            }
            PodEvent::Gone { uid } => {
                self.told.remove(&uid);
                self.gone(&uid);
            }
            PodEvent::Listed => {
                let missing: Vec<_> = self
                    .pods
                    .keys()
                    .filter(|uid| !self.told.contains(*uid))
                    .cloned()
                    .collect();
                for uid in missing {
                    self.gone(&uid);
                }
                self.told.clear();
                self.told.extend(self.pods.keys().cloned());
            }
        }
    }

    fn seen(&mut self, node: usize, pod: Arc<PodDesc>, status: &PodStatus) {
        let uid = pod.uid.clone();
        if let Some(slot) = self.pods.get_mut(&uid) {
            let doubted = says_unready_without_reason(status);
            if doubted {
                slot.published = None;
            }
            if doubted || *slot.pod != *pod {
                slot.pod = pod;
                self.schedule(&uid, Instant::now());
            }
            return;
        }
        let requests = requests(&pod);
        let mut worker = PodWorker::new(Some(status), self.clock.now());
        let kubelet = &self.nodes[node];
        let known = !kubelet.runtime.view(&uid).containers.is_empty();
        if !worker.over() && !known && pod.deletion.is_none() {
            let verdict = match &kubelet.reject {
                Some(rejection) => Err(rejection.clone()),
                None => self.admit(node, &pod, &requests),
            };
            if let Err(rejection) = verdict {
                debug!(pod = pod.name, reason = rejection.reason, "pod rejected");
                worker.reject(&rejection);
            }
        }
        let slot = Slot {
            node,
            pod,
            worker,
            requests,
            published: None,
            wanted: None,
            delete: false,
            writing: false,
            blocked: false,
            due: None,
        };
        self.pods.insert(uid.clone(), slot);
        self.by_node[node].insert(uid.clone());
        self.schedule(&uid, Instant::now());
    }

    fn admit(&self, node: usize, pod: &PodDesc, requests: &Resources) -> Result<(), Rejection> {
        let kubelet = &self.nodes[node];
        let active = self.by_node[node]
            .iter()
            .filter_map(|uid| self.pods.get(uid))
            .filter(|slot| slot.worker.active(&kubelet.runtime.view(&slot.pod.uid)));
        let mut used: BTreeMap<&str, i64> = BTreeMap::new();
        for (name, amount) in active.flat_map(|slot| slot.requests.iter()) {
            *used.entry(name).or_default() += amount;
        }
        let features: &[String] = if kubelet.config.restart_all {
            &[FEATURE_RESTART_ALL.to_owned()]
        } else {
            &[]
        };
        admit(pod, requests, features, &kubelet.allocatable, &|name| {
            used.get(name).copied().unwrap_or(0)
        })
    }

    fn gone(&mut self, uid: &str) {
        if let Some(slot) = self.pods.get_mut(uid) {
            let mut pod = PodDesc::clone(&slot.pod);
            pod.gone = true;
            slot.pod = Arc::new(pod);
            slot.wanted = None;
            slot.delete = false;
            self.schedule(uid, Instant::now());
        }
    }

    /// A change in the runtime of a node is noticed at its next relist, or at once by a worker that
    /// waits for it.
    fn changed(&mut self, change: &Changed) {
        let Some(slot) = self.pods.get(&change.uid) else {
            return;
        };
        let at = if slot.blocked && !change.start_failed {
            Instant::now()
        } else {
            self.next_relist(change.node)
        };
        self.schedule(&change.uid, at);
    }

    /// Relists of different nodes are spread over the period.
    fn next_relist(&self, node: usize) -> Instant {
        if self.relist.is_zero() {
            return Instant::now();
        }
        let phase = self
            .relist
            .mul_f64((node as f64 * 0.618_033_988_749_895).fract());
        let past = self.origin.elapsed().saturating_sub(phase).as_nanos() / self.relist.as_nanos();
        self.origin + phase + self.relist * u32::try_from(past + 1).unwrap_or(u32::MAX)
    }

    fn schedule(&mut self, uid: &str, at: Instant) {
        let Some(slot) = self.pods.get_mut(uid) else {
            return;
        };
        if slot.due.is_some_and(|due| due <= at) {
            return;
        }
        if let Some(due) = slot.due.replace(at) {
            self.due.remove(&(due, uid.to_owned()));
        }
        self.due.insert((at, uid.to_owned()));
    }

    fn sync_due(&mut self) {
        let now = Instant::now();
        while self.due.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, uid)) = self.due.pop_first() else {
                return;
            };
            if let Some(slot) = self.pods.get_mut(&uid) {
                slot.due = None;
            }
            self.sync(&uid);
        }
    }

    fn sync(&mut self, uid: &str) {
        let Some(slot) = self.pods.get_mut(uid) else {
            return;
        };
        let kubelet = &self.nodes[slot.node];
        if !kubelet.info.up.load(Ordering::Relaxed) {
            return;
        }
        let view = kubelet.runtime.view(uid);
        let outcome = slot
            .worker
            .sync(&slot.pod, &view, &kubelet.config, self.clock.now());
        slot.blocked = outcome.blocked;
        let waits = outcome.actions.iter().all(|a| *a == Action::DeletePod) && !outcome.blocked;
        if slot.pod.gone {
            if waits && !view.any_alive() {
                kubelet.runtime.forget(uid);
                self.remove(uid);
                return;
            }
        } else {
            if slot.published.as_ref() != Some(&outcome.status) {
                slot.wanted = Some(outcome.status);
            }
            slot.delete |= outcome.actions.contains(&Action::DeletePod);
            if (slot.wanted.is_some() || slot.delete) && !slot.writing {
                self.write_queue.push_back(uid.to_owned());
            }
        }
        let (pod, runtime) = (slot.pod.clone(), kubelet.runtime.clone());
        for action in &outcome.actions {
            runtime.act(&pod, action);
        }
        if let Some(wake) = outcome.wake {
            self.schedule(uid, self.clock.instant(wake));
        }
    }

    fn remove(&mut self, uid: &str) {
        if let Some(slot) = self.pods.remove(uid) {
            self.by_node[slot.node].remove(uid);
            if let Some(due) = slot.due {
                self.due.remove(&(due, uid.to_owned()));
            }
        }
    }

    fn start_writes(&mut self) {
        while self.writes.len() < WRITES {
            let Some(uid) = self.write_queue.pop_front() else {
                return;
            };
            let Some(slot) = self.pods.get_mut(&uid) else {
                continue;
            };
            if slot.writing || !self.nodes[slot.node].info.up.load(Ordering::Relaxed) {
                continue;
            }
            let what = match slot.wanted.take() {
                Some(status) => Write::Status(Box::new(status)),
                None if slot.delete => Write::Delete,
                None => continue,
            };
            slot.writing = true;
            let (client, pod) = (self.client.clone(), slot.pod.clone());
            self.writes.spawn(async move {
                let outcome = write(client, pod, what.clone()).await;
                (uid, what, outcome)
            });
        }
    }

    fn written(&mut self, uid: &str, what: &Write, outcome: Written) {
        let Some(slot) = self.pods.get_mut(uid) else {
            return;
        };
        slot.writing = false;
        match (outcome, what) {
            (Written::Done, Write::Status(status)) => {
                slot.published = Some(PodStatus::clone(status));
            }
            // The watch reports its removal, which a finalizer can delay.
            (Written::Done, Write::Delete) => slot.delete = false,
            (Written::Gone, _) => return self.gone(uid),
            (Written::Failed(error), _) => {
                warn!(
                    pod = slot.pod.name,
                    error, "cannot write about a pod, retrying"
                );
                slot.published = None;
                return self.schedule(uid, Instant::now() + RETRY);
            }
        }
        if slot.wanted.is_some() || slot.delete {
            self.write_queue.push_back(uid.to_owned());
        }
    }

    fn command(&mut self, command: Command) {
        // A client that has disconnected misses its response.
        match command {
            Command::Find {
                namespace,
                name,
                reply,
            } => {
                let named =
                    |s: &&Slot| s.pod.namespace == namespace && s.pod.name == name && !s.pod.gone;
                let found = self
                    .pods
                    .values()
                    .find(named)
                    .map(|s| (s.node, s.pod.clone()));
                let _ = reply.send(found);
            }
            Command::Evict {
                uid,
                message,
                reply,
            } => {
                if let Some(slot) = self.pods.get_mut(&uid) {
                    slot.worker.evict(&message);
                    self.schedule(&uid, Instant::now());
                }
                let _ = reply.send(());
            }
            Command::Reject {
                node,
                rejection,
                reply,
            } => {
                self.nodes[node].reject = rejection;
                let _ = reply.send(());
            }
            Command::Returned { node, reply } => {
                for uid in self.by_node[node].clone() {
                    if let Some(slot) = self.pods.get_mut(&uid) {
                        slot.published = None;
                    }
                    self.schedule(&uid, Instant::now());
                }
                let _ = reply.send(());
            }
            Command::RestartKubelet { node, reply } => {
                for uid in self.by_node[node].clone() {
                    let Some(slot) = self.pods.get_mut(&uid) else {
                        continue;
                    };
                    slot.worker = PodWorker::new(slot.published.as_ref(), self.clock.now());
                    self.schedule(&uid, Instant::now());
                }
                let _ = reply.send(());
            }
        }
    }
}

/// True if the API server has Ready=False without a reason. A kubelet always gives a reason. The
/// node controller, which sets the condition for all pods of a node with a late Lease, gives none,
/// and the kubelet corrects it at once (kubelet-stops-and-returns).
fn says_unready_without_reason(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|c| {
        c.type_ == "Ready" && c.status == "False" && c.reason.as_deref().unwrap_or("").is_empty()
    })
}

/// Resources of a pod on its node. Only the pod itself if its quantities do not parse, which the
/// API server prevents.
fn requests(pod: &PodDesc) -> Resources {
    let view = serde_json::to_value(&pod.spec).and_then(serde_json::from_value);
    let one = || {
        Resources::parse(
            &[(
                PODS.to_owned(),
                k8s_openapi::apimachinery::pkg::api::resource::Quantity("1".into()),
            )]
            .into(),
        )
    };
    view.ok()
        .and_then(|spec| pod_requests(&spec).ok())
        .or_else(|| one().ok())
        .unwrap_or_default()
}
