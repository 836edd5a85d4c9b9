//! Three hollow nodes and an API server with the pods of a scenario.

#![expect(
    clippy::disallowed_methods,
    reason = "paused time, read as the nodes read it"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::super::kubelets::{Command, Kubelets};
use super::super::nodes::{self, NodeInfo};
use super::super::pods::PodEvent;
use super::super::{Node, Options, kubelets};
use super::script::{self, Effect};
use crate::clock::Clock;
use crate::latency::LatencyProfile;
use crate::model::admission::Rejection;
use crate::model::{PodDesc, State};
use crate::runtime::{Ended, Fault, Runtime, Simulated, Table};
use crate::traces::{Seen, Step, Trace};

/// A watch event of a pod.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) ms: i64,
    /// `ADDED`, `MODIFIED`, `DELETED`.
    pub(super) watch: &'static str,
    pub(super) pod: Value,
}

/// The nodes and the API server.
pub(super) struct Cluster {
    server: Arc<Server>,
    commands: mpsc::Sender<Command>,
    runtimes: Vec<Arc<dyn Runtime>>,
    infos: Vec<Arc<NodeInfo>>,
    /// Nodes whose kubelet is starting.
    starting: Mutex<BTreeSet<usize>>,
    clock: Clock,
    _task: JoinSet<()>,
}

/// The API server.
struct Server {
    started: Instant,
    events: mpsc::Sender<PodEvent>,
    pods: Mutex<BTreeMap<String, Value>>,
    shown: Mutex<Vec<(String, Shown)>>,
}

impl Cluster {
    /// Nodes n1, n2 and n3 as in the recordings. The time of day starts with the recording's.
    pub(super) fn start(trace: &Trace) -> Self {
        let version = format!("--kubelet-version={}", trace.kubernetes);
        let args = ["lockstep-hollow", "--nodes=3", "--cpu=2", &*version];
        let options = <Options as clap::Parser>::parse_from(args);
        let clock = Clock::starting_at(trace.origin());
        let (change, changes) = mpsc::unbounded_channel();
        let ips = Arc::new(AtomicU32::new(0));
        // The image is already on the nodes.
        let profile = LatencyProfile {
            image_pull: Duration::ZERO,
            ..LatencyProfile::measured()
        };
        let node = |i: usize| {
            let name = format!("n{}", i + 1);
            let table = Table::new(i, change.clone());
            let runtime = Simulated::new(&name, table, profile.clone(), clock, ips.clone());
            Node {
                info: Arc::new(nodes::node_info(&options, i, name)),
                runtime: Arc::new(runtime),
                store: lockstep_agent::store::MemoryStore::default(),
            }
        };
        let all: Vec<Node> = (0..3).map(node).collect();
        let (events, event_queue) = mpsc::channel(64);
        let (commands, command_queue) = mpsc::channel(16);
        let server = Arc::new(Server {
            started: Instant::now(),
            events,
            pods: Mutex::default(),
            shown: Mutex::default(),
        });
        let serving = server.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = serving.clone();
            async move { server.answer(request).await }
        });
        let client = kube::Client::new(service, "default");
        let made = kubelets(&options, &all).expect("kubelets");
        let kubelets = Kubelets::new(made, profile.relist, clock, client);
        let mut task = JoinSet::new();
        task.spawn(kubelets.run(event_queue, changes, command_queue));
        Self {
            server,
            commands,
            runtimes: all.iter().map(|n| n.runtime.clone()).collect(),
            infos: all.iter().map(|n| n.info.clone()).collect(),
            starting: Mutex::default(),
            clock,
            _task: task,
        }
    }

    /// Waits until this number of milliseconds after the start.
    pub(super) async fn wait_until(&self, ms: i64) {
        let after = Duration::from_millis(u64::try_from(ms).unwrap_or_default());
        sleep_until(self.server.started + after).await;
    }

    async fn create(&self, name: &str, spec: &PodSpec) {
        if let (Some(reason), Some(node)) = (script::refusal(spec), &spec.node_name) {
            self.refuse(index(node), reason).await;
        }
        let mut spec = json!(script::with_behaviour(spec));
        if let Some(object) = spec.as_object_mut() {
            object.remove("nodeName");
        }
        let pod = json!({
            "metadata": {"namespace": "ns", "name": name, "uid": format!("uid-{name}")},
            "spec": spec,
            "status": {"phase": "Pending"},
        });
        self.server.pods.lock().insert(name.to_owned(), pod);
    }

    /// Applies changes that the kubelet does not make: the node, the deletion, the scheduler's
    /// conditions, DisruptionTarget, and Ready=False of a silent node.
    pub(super) async fn follow(&self, seen: &Seen) {
        let Some(mut pod) = self.server.pods.lock().get(&seen.pod).cloned() else {
            return;
        };
        let before = pod.clone();
        if let Some(node) = &seen.node_name {
            pod["spec"]["nodeName"] = json!(node);
        }
        let conditions = || seen.status["conditions"].as_array().into_iter().flatten();
        let silent = conditions().any(|c| c["type"] == "Ready" && !is_by_kubelet(c));
        if let Some(node) = seen.node_name.as_deref().filter(|_| !silent) {
            self.start_kubelet(index(node)).await;
        }
        if pod["metadata"]["deletionTimestamp"].is_null() && seen.deletion_timestamp.is_some() {
            pod["metadata"]["deletionTimestamp"] = json!(seen.deletion_timestamp);
            pod["metadata"]["deletionGracePeriodSeconds"] =
                json!(seen.deletion_grace_period_seconds);
        }
        for condition in conditions() {
            if !is_by_kubelet(condition) {
                merge_condition(&mut pod["status"], condition);
            }
        }
        if pod != before {
            self.server.put(&seen.pod, pod).await;
        }
    }

    /// Lets a node refuse all pods from now on.
    async fn refuse(&self, node: usize, reason: &str) {
        let rejection = Some(Rejection {
            reason: reason.to_owned(),
            message: format!("Predicate {reason} failed"),
        });
        self.ask(|reply| Command::Reject {
            node,
            rejection,
            reply,
        })
        .await;
    }

    async fn ask(&self, command: impl FnOnce(oneshot::Sender<()>) -> Command) {
        let (reply, done) = oneshot::channel();
        self.commands.send(command(reply)).await.expect("kubelets");
        done.await.expect("an answer");
    }

    /// Performs a step. For steps that use the API, the watch events of the recording contain the
    /// effect.
    pub(super) async fn perform(&self, step: &Step) -> Result<(), String> {
        match step {
            Step::Create(_) => {
                if let Some((name, spec)) = step.pod() {
                    self.create(&name, &spec).await;
                }
            }
            Step::Exec {
                pod,
                container,
                command,
            } => {
                let effect = script::effect(command);
                let effect = effect.ok_or_else(|| format!("unknown command {command}"))?;
                let (node, id) = self.running(pod, container)?;
                self.affect(node, id, effect);
            }
            Step::Kill { pod, container } => {
                let (node, id) = self.running(pod, container)?;
                self.runtimes[node].kill(&id);
            }
            Step::Pause(program) | Step::Hold(program) if program.program == "kubelet" => {
                self.info(&program.node).up.store(false, Ordering::Relaxed);
            }
            Step::Resume(program) if program.program == "kubelet" => {
                self.info(&program.node).up.store(true, Ordering::Relaxed);
                let node = index(&program.node);
                self.ask(|reply| Command::Returned { node, reply }).await;
            }
            Step::Release(program) if program.program == "kubelet" => {
                self.starting.lock().insert(index(&program.node));
            }
            Step::Reboot(node) => {
                self.info(node).up.store(false, Ordering::Relaxed);
                let table = self.runtimes[index(node)].table();
                table.reboot(self.clock.now());
                self.starting.lock().insert(index(node));
            }
            // Containers do not depend on containerd. The API server performs the other steps.
            Step::Pause(_)
            | Step::Resume(_)
            | Step::Hold(_)
            | Step::Release(_)
            | Step::Kubectl(_)
            | Step::Evict(_)
            | Step::End => {}
        }
        Ok(())
    }

    fn affect(&self, node: usize, id: String, effect: Effect) {
        let runtime = &self.runtimes[node];
        let now = self.clock.now();
        match effect {
            Effect::Exit(code) => {
                let ended = Ended::with_code(code);
                let fault = Fault::End { id, ended };
                runtime.inject(&fault).expect("a simulated runtime");
            }
            Effect::ProbesFail | Effect::ProbesSucceed => {
                runtime.table().update(&id, |c| {
                    c.unhealthy_since = matches!(effect, Effect::ProbesFail).then_some(now);
                    true
                });
            }
        }
    }

    /// Starts the kubelet of a node if the node has none. The duration of a start depends on the
    /// machine, so the kubelet starts when the recording shows its first status.
    async fn start_kubelet(&self, node: usize) {
        if self.starting.lock().remove(&node) {
            self.infos[node].up.store(true, Ordering::Relaxed);
            self.ask(|reply| Command::RestartKubelet { node, reply })
                .await;
        }
    }

    fn info(&self, node: &str) -> &NodeInfo {
        &self.infos[index(node)]
    }

    fn running(&self, pod: &str, container: &str) -> Result<(usize, String), String> {
        let uid = format!("uid-{pod}");
        let found = self.runtimes.iter().enumerate().find_map(|(i, r)| {
            let view = r.view(&uid);
            let latest = view.latest(container)?;
            matches!(latest.state, State::Running { .. }).then(|| (i, latest.id.clone()))
        });
        found.ok_or_else(|| format!("container {container} of {pod} does not run at a step"))
    }

    /// Watch events of a pod.
    pub(super) fn shown(&self, pod: &str) -> Vec<Shown> {
        let all = self.server.shown.lock();
        let of = all.iter().filter(|(name, _)| name == pod);
        of.map(|(_, shown)| shown.clone()).collect()
    }
}

impl Server {
    async fn answer(&self, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        let method = request.method().clone();
        let path = request.uri().path().to_owned();
        let name = path
            .trim_end_matches("/status")
            .rsplit('/')
            .next()
            .unwrap_or_default();
        let body = request.into_body().collect_bytes().await?;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let mut response = Response::new(Body::from(b"{\"metadata\":{}}".to_vec()));
        let found = self.pods.lock().get(name).cloned();
        match (found, method) {
            (None, _) => *response.status_mut() = StatusCode::NOT_FOUND,
            (Some(mut pod), Method::DELETE) => {
                pod["metadata"]["deletionGracePeriodSeconds"] = json!(0);
                self.show(name, "MODIFIED", &pod);
                self.pods.lock().remove(name);
                self.show(name, "DELETED", &pod);
                let uid = pod["metadata"]["uid"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                // A kubelet that has ended needs no events.
                let _ = self.events.send(PodEvent::Gone { uid }).await;
            }
            (Some(mut pod), _) => {
                merge_status(&mut pod["status"], &body["status"]);
                self.put(name, pod).await;
            }
        }
        Ok(response)
    }

    /// Stores a pod and notifies all watchers.
    async fn put(&self, name: &str, pod: Value) {
        self.show(name, "MODIFIED", &pod);
        self.pods.lock().insert(name.to_owned(), pod.clone());
        let Some(node) = pod["spec"]["nodeName"].as_str().map(index) else {
            return;
        };
        let object: Pod = serde_json::from_value(pod).expect("a pod");
        let status = Box::new(object.status.clone().unwrap_or_default());
        let pod = Arc::new(PodDesc::from_api(object).expect("a pod with its identity"));
        let seen = PodEvent::Seen { node, pod, status };
        // A kubelet that has ended needs no events.
        let _ = self.events.send(seen).await;
    }

    fn show(&self, name: &str, watch: &'static str, pod: &Value) {
        let ms = i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX);
        let shown = Shown {
            ms,
            watch,
            pod: pod.clone(),
        };
        self.shown.lock().push((name.to_owned(), shown));
    }
}

/// Index of node `n1` and up, from 0.
fn index(node: &str) -> usize {
    let number: usize = node.trim_start_matches('n').parse().expect("a node");
    number - 1
}

fn is_by_kubelet(condition: &Value) -> bool {
    match condition["type"].as_str().unwrap_or_default() {
        "PodScheduled" => false,
        "DisruptionTarget" => condition["reason"] == "TerminationByKubelet",
        // The kubelet gives a reason. The node controller, which sets the condition for all pods of
        // a silent node, does not.
        "Ready" => condition["status"] != "False" || !condition["reason"].is_null(),
        _ => true,
    }
}

/// A strategic merge of a status: conditions by type, other fields as a whole.
fn merge_status(status: &mut Value, patch: &Value) {
    for (key, value) in patch.as_object().into_iter().flatten() {
        if key == "conditions" {
            for condition in value.as_array().into_iter().flatten() {
                merge_condition(status, condition);
            }
        } else if value.is_null() {
            status.as_object_mut().and_then(|s| s.remove(key));
        } else {
            status[key] = value.clone();
        }
    }
}

fn merge_condition(status: &mut Value, condition: &Value) {
    if status["conditions"].is_null() {
        status["conditions"] = json!([]);
    }
    let all = status["conditions"].as_array_mut().expect("a list");
    let mut condition = condition.clone();
    if let Some(fields) = condition.as_object_mut() {
        fields.retain(|_, v| !v.is_null());
    }
    match all.iter_mut().find(|c| c["type"] == condition["type"]) {
        Some(old) => *old = condition,
        None => all.push(condition),
    }
}
