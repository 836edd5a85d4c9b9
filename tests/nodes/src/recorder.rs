//! `make record-traces`: performs the steps of traces in `tests/kubelet/traces` on a cluster with real
//! nodes, without Lockstep, and writes the watch events of their pods to the same files. Its argument
//! is a list of scenarios with commas between them, in their order, or empty for all scenarios.

#![expect(
    clippy::disallowed_methods,
    reason = "a trace has the time of the machine"
)]

use std::cell::RefCell;
use std::fs;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::TryStreamExt;
use k8s_openapi::api::core::v1::{Node as NodeObject, Pod};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, EvictParams, ListParams, WatchEvent, WatchParams};
use lockstep_cluster::eventually;
use lockstep_kubelet::traces::{Line, Program, Seen, Step, Trace, What};
use lockstep_nodes::real_cluster::{Gates, LIMIT};
use lockstep_nodes::{Images, RealCluster};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

/// Nodes that the scenarios name.
const NODES: u8 = 3;
/// Longer than the period of the kubelet's housekeeping. Before its first housekeeping, a kubelet
/// reports a rejected pod as Pending.
const HOUSEKEEPING: Duration = Duration::from_secs(5);
/// Fields of a status that are not used in the traces.
const UNREAD: [&str; 10] = [
    "hostIP",
    "hostIPs",
    "image",
    "imageID",
    "lastProbeTime",
    "podIPs",
    "qosClass",
    "resources",
    "user",
    "volumeMounts",
];

#[tokio::main]
async fn main() -> Result<()> {
    let selected = std::env::args().nth(1).unwrap_or_default();
    let mut traces = Trace::all()?;
    if !selected.is_empty() {
        let named = |name: &str| {
            let found = traces.iter().find(|trace| trace.name == name);
            found
                .cloned()
                .with_context(|| format!("no file {name}.jsonl in tests/kubelet/traces"))
        };
        traces = selected.split(',').map(named).collect::<Result<_>>()?;
    }
    let real = RealCluster::start("record", NODES, Images::Scenarios, &Gates::new()).await?;
    tokio::time::sleep(HOUSEKEEPING).await;
    for trace in &mut traces {
        let context = trace.name.clone();
        record(&real, trace).await.context(context)?;
        eprintln!("{}: {} lines", trace.name, trace.lines.len());
    }
    Ok(())
}

/// Records a scenario and writes its file.
async fn record(real: &RealCluster, trace: &mut Trace) -> Result<()> {
    let client = real.cluster.client().await?;
    let node = Api::<NodeObject>::all(client.clone()).get("n1").await?;
    let info = node.status.and_then(|s| s.node_info).context("nodeInfo")?;
    let runtime = info.container_runtime_version;
    // For example containerd://2.4.2+unknown.
    let runtime = runtime.trim_start_matches("containerd://").split('+');
    trace.containerd = runtime.take(1).collect();
    trace.kubernetes = info.kubelet_version;

    let kubectl = &real.cluster;
    let namespace = trace.name.clone();
    kubectl
        .kubectl(&["create", "namespace", &namespace])
        .await?;
    let account = ["get", "serviceaccount", "default", "-n", &namespace];
    eventually("the service account of pods", LIMIT, async || {
        kubectl.kubectl(&account).await
    })
    .await?;
    let resource = ApiResource::erase::<Pod>(&());
    let recording = Recording {
        real,
        pods: Api::namespaced_with(client.clone(), &namespace, &resource),
        typed: Api::namespaced(client, &namespace),
        namespace,
        start: Instant::now(),
        lines: RefCell::default(),
    };
    let version = recording.pods.list(&ListParams::default()).await?;
    let version = version.metadata.resource_version.context("a version")?;
    tokio::select! {
        ended = recording.watch(&version) => ended?,
        performed = recording.perform_all(trace) => performed?,
    }
    recording.clean_up(trace).await?;
    let mut lines = recording.lines.into_inner();
    lines.sort_by_key(|line| line.ms);
    trace.lines = lines;
    trace.write()
}

/// A scenario that is recorded.
struct Recording<'a> {
    real: &'a RealCluster,
    namespace: String,
    pods: Api<DynamicObject>,
    typed: Api<Pod>,
    start: Instant,
    lines: RefCell<Vec<Line>>,
}

impl Recording<'_> {
    fn note(&self, what: What) {
        let ms = i64::try_from(self.start.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.lines.borrow_mut().push(Line { ms, what });
    }

    /// Records the watch events of pods.
    async fn watch(&self, version: &str) -> Result<()> {
        let parameters = WatchParams::default().disable_bookmarks();
        let mut events = pin!(self.pods.watch(&parameters, version).await?);
        while let Some(event) = events.try_next().await? {
            self.note(What::Seen(Box::new(seen(&event)?)));
        }
        bail!("the watch ended")
    }

    /// Performs the steps. Each starts after the same delay as in the trace, or as soon as its
    /// container runs.
    async fn perform_all(&self, trace: &Trace) -> Result<()> {
        let (mut planned, mut started) = (0, self.start);
        for (ms, step) in trace.steps() {
            let pause = u64::try_from(ms - planned).unwrap_or_default();
            sleep_until(started + Duration::from_millis(pause)).await;
            if let Step::Exec { pod, container, .. } | Step::Kill { pod, container } = step {
                let what = format!("container {container} of {pod} to run");
                eventually(&what, LIMIT, async || self.running(pod, container).await).await?;
            }
            (planned, started) = (ms, Instant::now());
            self.note(What::Step(step.clone()));
            let context = || serde_json::to_string(step).unwrap_or_default();
            self.perform(step).await.with_context(context)?;
        }
        Ok(())
    }

    async fn perform(&self, step: &Step) -> Result<()> {
        match step {
            Step::Create(object) => self.on_objects("create", object).await?,
            Step::Kubectl(arguments) => {
                self.kubectl(&arguments.split(' ').collect::<Vec<_>>())
                    .await?;
            }
            Step::Evict(pod) => {
                self.typed.evict(pod, &EvictParams::default()).await?;
            }
            Step::Exec {
                pod,
                container,
                command,
            } => {
                self.kubectl(&["exec", pod, "-c", container, "--", "sh", "-c", command])
                    .await?;
            }
            Step::Kill { pod, container } => {
                let (node, id) = self.running(pod, container).await?;
                let kill = ["tasks", "kill", "--signal", "SIGKILL", &id];
                self.real.node(&node)?.ctr(&kill).await?;
            }
            Step::Pause(Program { node, program }) => {
                self.real.node(node)?.signal(program, Signal::STOP)?;
            }
            Step::Resume(Program { node, program }) => {
                self.real.node(node)?.signal(program, Signal::CONT)?;
            }
            Step::Hold(Program { node, program }) => self.real.node(node)?.hold(program)?,
            Step::Release(Program { node, program }) => self.real.node(node)?.release(program)?,
            Step::Reboot(node) => self.real.node(node)?.reboot().await?,
            Step::End => {}
        }
        Ok(())
    }

    /// Node of a pod, and the runtime's ID of a running container in it.
    async fn running(&self, pod: &str, container: &str) -> Result<(String, String)> {
        let pod = self.typed.get(pod).await?;
        let node = pod.spec.and_then(|s| s.node_name).context("no node")?;
        let status = pod.status.unwrap_or_default();
        let init = status.init_container_statuses.into_iter().flatten();
        let mut all = init.chain(status.container_statuses.into_iter().flatten());
        let found = all.find(|c| c.name == container).context("no status")?;
        let runs = found.state.is_some_and(|state| state.running.is_some());
        let id = found.container_id.filter(|_| runs).context("no process")?;
        Ok((node, id.trim_start_matches("containerd://").to_owned()))
    }

    async fn kubectl(&self, arguments: &[&str]) -> Result<()> {
        let namespace = ["-n", &*self.namespace];
        let arguments = [&namespace, arguments].concat();
        self.real.cluster.kubectl(&arguments).await.map(drop)
    }

    /// Runs `kubectl create` or `kubectl delete` on objects.
    async fn on_objects(&self, verb: &str, objects: &Value) -> Result<()> {
        let file = self.real.cluster.folder().join("objects.json");
        fs::write(&file, objects.to_string())?;
        let file = file.display().to_string();
        let mut arguments = vec![verb, "-f", &file];
        if verb == "delete" {
            arguments.extend(["--ignore-not-found", "--now"]);
        }
        self.kubectl(&arguments).await
    }

    /// Deletes the objects of the scenario and waits until the nodes are ready for the next one.
    async fn clean_up(&self, trace: &Trace) -> Result<()> {
        let created = trace.steps().filter_map(|(_, step)| match step {
            Step::Create(object) => Some(&**object),
            _ => None,
        });
        let items: Vec<_> = created.collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        for node in &self.real.nodes {
            self.real.ready(&node.name).await?;
        }
        self.on_objects("delete", &list).await?;
        let namespace = ["delete", "namespace", &self.namespace, "--wait=false"];
        self.kubectl(&namespace).await
    }
}

fn seen(event: &WatchEvent<DynamicObject>) -> Result<Seen> {
    let event = serde_json::to_value(event)?;
    let pod = &event["object"];
    let mut status = pod["status"].clone();
    prune(&mut status);
    let seen = serde_json::from_value(json!({
        "watch": event["type"],
        "pod": pod["metadata"]["name"],
        "nodeName": pod["spec"]["nodeName"],
        "deletionTimestamp": pod["metadata"]["deletionTimestamp"],
        "deletionGracePeriodSeconds": pod["metadata"]["deletionGracePeriodSeconds"],
        "status": status,
    }));
    seen.with_context(|| format!("a watch event: {event}"))
}

/// Removes fields that are not read or have no content.
fn prune(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(prune);
            fields.retain(|key, value| {
                let empty = value.is_null() || *value == json!({});
                !empty && !UNREAD.contains(&&**key)
            });
        }
        Value::Array(items) => items.iter_mut().for_each(prune),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_event_keeps_the_fields_that_are_read() {
        let condition = json!({"type": "Ready", "status": "True", "lastProbeTime": null});
        let container = json!({"name": "a", "image": "i", "lastState": {}, "restartCount": 0});
        let pod: DynamicObject = serde_json::from_value(json!({
            "metadata": {"name": "p", "deletionTimestamp": "2026-11-21T23:11:06Z"},
            "spec": {"nodeName": "n1"},
            "status": {"phase": "Running", "hostIP": "10.77.0.11", "conditions": [condition],
                "containerStatuses": [container]},
        }))
        .unwrap();
        let seen = seen(&WatchEvent::Modified(pod)).unwrap();
        let expected = json!({
            "watch": "MODIFIED",
            "pod": "p",
            "nodeName": "n1",
            "deletionTimestamp": "2026-11-21T23:11:06Z",
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "a", "restartCount": 0}]},
        });
        assert_eq!(json!(seen), expected);
    }
}
