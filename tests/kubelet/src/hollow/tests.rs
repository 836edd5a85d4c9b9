//! The kubelets' task with the simulated runtime and an API server that records its requests.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use chrono::DateTime;
use http::{Method, Request, Response, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::kubelets::Command;
use super::pods::PodEvent;
use super::*;
use crate::latency::LatencyProfile;
use crate::model::PodDesc;
use crate::runtime::{Ended, Fault};

/// Method, path and body of a write.
type Call = (Method, String, Value);

struct Rig {
    events: mpsc::Sender<PodEvent>,
    commands: mpsc::Sender<Command>,
    runtime: Arc<dyn Runtime>,
    info: Arc<NodeInfo>,
    calls: Arc<Mutex<Vec<Call>>>,
    down: Arc<Mutex<bool>>,
    _task: JoinSet<()>,
}

/// A node of 8 CPUs with the measured profile.
fn rig() -> Rig {
    let options =
        <Options as clap::Parser>::parse_from(["lockstep-hollow", "--nodes=1", "--cpu=8"]);
    let clock = Clock::starting_at(DateTime::UNIX_EPOCH);
    let (change, changes) = mpsc::unbounded_channel();
    let table = Table::new(0, change);
    let ips = Arc::new(AtomicU32::new(0));
    let runtime: Arc<dyn Runtime> = Arc::new(Simulated::new(
        "n",
        table,
        LatencyProfile::measured(),
        clock,
        ips,
    ));
    let info = Arc::new(nodes::node_info(&options, 0, "n".into()));
    let node = Node {
        info: info.clone(),
        runtime: runtime.clone(),
        store: MemoryStore::default(),
    };
    let (calls, down) = (
        Arc::<Mutex<Vec<Call>>>::default(),
        Arc::new(Mutex::new(false)),
    );
    let (log, is_down) = (calls.clone(), down.clone());
    let service = tower::service_fn(move |request: Request<Body>| {
        let (log, is_down) = (log.clone(), is_down.clone());
        async move {
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let body = request.into_body().collect_bytes().await?;
            let mut response = Response::new(Body::from(b"{\"metadata\":{}}".to_vec()));
            if *is_down.lock() {
                *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            } else {
                log.lock().push((
                    method,
                    path,
                    serde_json::from_slice(&body).unwrap_or_default(),
                ));
            }
            Ok::<_, kube::Error>(response)
        }
    });
    let client = Client::new(service, "default");
    let (events, event_queue) = mpsc::channel(16);
    let (commands, command_queue) = mpsc::channel(16);
    let kubelets = Kubelets::new(
        kubelets(&options, &[node]).unwrap(),
        options.profile().relist,
        clock,
        client,
    );
    let mut task = JoinSet::new();
    task.spawn(kubelets.run(event_queue, changes, command_queue));
    Rig {
        events,
        commands,
        runtime,
        info,
        calls,
        down,
        _task: task,
    }
}

impl Rig {
    /// The watch shows the pod with `change` merged into it.
    async fn shows(&self, name: &str, change: Value) {
        self.shows_status(name, change, json!({})).await;
    }

    /// Like [`Rig::shows`], with this status.
    async fn shows_status(&self, name: &str, change: Value, status: Value) {
        let mut pod = json!({
            "metadata": {"namespace": "ns", "name": name, "uid": format!("uid-{name}")},
            "spec": {"nodeName": "n", "restartPolicy": "Never", "containers": [
                {"name": "c", "image": "i", "resources": {"requests": {"cpu": "5"}}}]},
        });
        for (key, value) in change.as_object().into_iter().flatten() {
            pod["metadata"][key] = value.clone();
        }
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let pod = Arc::new(PodDesc::from_api(pod).unwrap());
        self.events
            .send(PodEvent::Seen {
                node: 0,
                pod,
                status: serde_json::from_value(status).unwrap(),
            })
            .await
            .unwrap();
    }

    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// The writes since the last call, abbreviated: `Running`, `delete`, ...
    fn writes(&self) -> Vec<String> {
        let short = |(method, _, body): Call| match method {
            Method::DELETE => "delete".to_owned(),
            _ => body["status"]["phase"].as_str().unwrap_or("?").to_owned(),
        };
        std::mem::take(&mut *self.calls.lock())
            .into_iter()
            .map(short)
            .collect()
    }

    fn fail(&self, name: &str, code: i32) {
        let id = self.runtime.view(&format!("uid-{name}")).containers[0]
            .id
            .clone();
        self.runtime
            .inject(&Fault::End {
                id,
                ended: Ended::with_code(code),
            })
            .unwrap();
    }
}

const LONG: Duration = Duration::from_secs(10);

#[tokio::test(start_paused = true)]
async fn a_pod_is_pending_until_it_runs_and_its_exit_shows_at_the_next_relist() {
    let rig = rig();
    rig.shows("a", json!({})).await;
    rig.pass(LONG).await;
    assert_eq!(rig.writes().last().unwrap(), "Running");
    // Relists of the first node are at full seconds. This is half a second later.
    rig.pass(Duration::from_millis(500)).await;
    rig.fail("a", 3);
    rig.pass(Duration::from_millis(490)).await;
    assert!(rig.writes().is_empty());
    rig.pass(Duration::from_millis(20)).await;
    assert_eq!(rig.writes(), ["Running"], "its container has ended");
    rig.pass(Duration::from_secs(1)).await;
    assert_eq!(rig.writes(), ["Failed"]);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_is_reported_before_its_object_goes_by_uid_and_without_grace() {
    let rig = rig();
    rig.shows("a", json!({})).await;
    rig.pass(LONG).await;
    rig.writes();
    rig.shows(
        "a",
        json!({"deletionTimestamp": "2027-01-15T08:00:00Z", "deletionGracePeriodSeconds": 30}),
    )
    .await;
    rig.pass(LONG).await;
    let last = rig.calls.lock().last().cloned().unwrap();
    let writes = rig.writes();
    assert_eq!(writes[writes.len() - 2..], ["Failed", "delete"]);
    assert_eq!(last.1, "/api/v1/namespaces/ns/pods/a");
    assert_eq!(
        (
            &last.2["gracePeriodSeconds"],
            &last.2["preconditions"]["uid"]
        ),
        (&json!(0), &json!("uid-a"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_vanished_says_nothing_until_it_is_back() {
    let rig = rig();
    rig.shows("a", json!({})).await;
    rig.pass(LONG).await;
    rig.writes();
    rig.info
        .up
        .store(false, std::sync::atomic::Ordering::Relaxed);
    rig.fail("a", 1);
    rig.pass(LONG).await;
    assert!(rig.writes().is_empty());
    rig.info
        .up
        .store(true, std::sync::atomic::Ordering::Relaxed);
    let (reply, done) = oneshot::channel();
    rig.commands
        .send(Command::Returned { node: 0, reply })
        .await
        .unwrap();
    done.await.unwrap();
    rig.pass(LONG).await;
    assert_eq!(rig.writes().last().unwrap(), "Failed");
}

#[tokio::test(start_paused = true)]
async fn a_pod_marked_unready_by_the_node_controller_is_reported_ready_again() {
    let rig = rig();
    rig.shows("a", json!({})).await;
    rig.pass(LONG).await;
    rig.writes();
    // After a late Lease, without an outage of the node.
    let ready = json!({"conditions": [{"type": "Ready", "status": "False"}]});
    rig.shows_status("a", json!({}), ready).await;
    rig.pass(LONG).await;
    let (_, _, body) = rig.calls.lock()[0].clone();
    let ready = |c: &&Value| c["type"] == "Ready" && c["status"] == "True";
    assert!(
        body["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .any(|c| ready(&c))
    );
    assert_eq!(rig.writes().len(), 1, "told once");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_does_not_fit_beside_running_ones_is_rejected() {
    let rig = rig();
    rig.shows("a", json!({})).await;
    rig.pass(LONG).await;
    rig.writes();
    rig.shows("b", json!({})).await;
    rig.pass(LONG).await;
    let (_, path, body) = rig.calls.lock().pop().unwrap();
    assert_eq!(path, "/api/v1/namespaces/ns/pods/b/status");
    assert_eq!(
        (&body["status"]["phase"], &body["status"]["reason"]),
        (&json!("Failed"), &json!("OutOfcpu"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_status_that_could_not_be_written_is_written_when_the_api_server_is_back() {
    let rig = rig();
    *rig.down.lock() = true;
    rig.shows("a", json!({})).await;
    rig.pass(LONG).await;
    *rig.down.lock() = false;
    rig.pass(LONG).await;
    assert_eq!(rig.writes().last().unwrap(), "Running");
    rig.pass(LONG).await;
    assert!(
        rig.writes().is_empty(),
        "nothing changes, nothing is written"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_was_force_deleted_is_killed_and_nothing_is_written_about_it() {
    let rig = rig();
    rig.shows("a", json!({})).await;
    rig.pass(LONG).await;
    rig.writes();
    rig.events
        .send(PodEvent::Gone {
            uid: "uid-a".into(),
        })
        .await
        .unwrap();
    rig.pass(LONG).await;
    assert!(rig.writes().is_empty());
    assert!(rig.runtime.view("uid-a").containers.is_empty());
}
