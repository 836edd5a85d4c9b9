//! One agent with a runtime, a store and an API server in memory, which log all operations.

#![expect(clippy::disallowed_methods, reason = "the simulation's clock itself")]

mod agent;
mod cri;
mod metrics;
mod orders;
mod store;
mod supervisors;
mod writes;

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use lockstep_api::names::{annotations, labels};
use lockstep_api::restart_order::DomainOrder;
use lockstep_api::{RestartOrder, RestartOrderSpec};
use lockstep_node::{
    Exit, NodePod, ObservedContainer, Records, SupervisorMessage, SupervisorState,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::Agent;
use crate::health::Readiness;
use crate::metrics::Metrics;
use crate::orders::Orders;
use crate::runtime::{Runtime, RuntimeError, Sandbox};
use crate::store::{Store, StoreError};
use crate::supervisors::Supervisors;

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fault of its own")]
struct World {
    /// Operations in order: `save`, `stop ID`, `send POD COMMAND`, `write`.
    log: Vec<String>,
    sandboxes: Vec<Sandbox>,
    records: Option<Records>,
    object: Option<Value>,
    /// Number of earlier nodes with this name.
    nodes_before: u32,
    writes: Vec<Value>,
    version: u64,
    api_down: bool,
    /// Number of writes that succeed but whose responses are lost.
    lost_answers: u32,
    /// Retry-After of writes in seconds; such writes fail.
    come_back: Option<u32>,
    store_broken: bool,
    runtime_down: bool,
    runtime_hangs: bool,
    /// Number of upgrades of the runtime.
    upgrades: u32,
    stops_end: StopsEnd,
    /// Number of decisions with a look at supervisors.
    looks: u32,
    /// State of the supervisor of a supervised member.
    supervisor: Option<SupervisorState>,
    out_of_reach: Option<String>,
}

#[derive(Clone, Copy, Default)]
enum StopsEnd {
    #[default]
    Well,
    InError,
    Never,
}

impl World {
    fn loses_an_answer(&mut self) -> bool {
        let lost = self.lost_answers > 0;
        self.lost_answers = self.lost_answers.saturating_sub(1);
        lost
    }
}

#[derive(Clone)]
struct Shared {
    world: Arc<Mutex<World>>,
    changed: Arc<Notify>,
    /// Notified when a supervisor changes.
    heard: Arc<Notify>,
}

impl Runtime for Shared {
    async fn version(&mut self) -> Result<String, RuntimeError> {
        Ok(format!("test {}", 1 + self.world.lock().upgrades))
    }

    async fn list(&mut self) -> Result<Vec<Sandbox>, RuntimeError> {
        if self.world.lock().runtime_hangs {
            pending::<()>().await;
        }
        let world = self.world.lock();
        if world.runtime_down {
            return Err(RuntimeError::Refused {
                call: "list",
                message: "no such file".into(),
            });
        }
        Ok(world.sandboxes.clone())
    }

    fn stop(&self, container_id: &str) -> BoxFuture<'static, Result<(), RuntimeError>> {
        self.world.lock().log.push(format!("stop {container_id}"));
        let outcome = self.world.lock().stops_end;
        async move {
            match outcome {
                StopsEnd::Well => Ok(()),
                StopsEnd::InError => Err(RuntimeError::Refused {
                    call: "stop",
                    message: "no".into(),
                }),
                StopsEnd::Never => pending().await,
            }
        }
        .boxed()
    }

    async fn changed(&mut self) {
        self.changed.notified().await;
    }
}

impl Shared {
    fn recorded(&self, pod_uid: &str) -> Option<String> {
        Some(
            self.world
                .lock()
                .records
                .as_ref()?
                .pods
                .get(pod_uid)?
                .container_id
                .clone(),
        )
    }
}

impl Store for Shared {
    async fn load(&self) -> Result<Option<Records>, StoreError> {
        Ok(self.world.lock().records.clone())
    }

    async fn save(&self, records: &Records) -> Result<(), StoreError> {
        let mut world = self.world.lock();
        if world.store_broken {
            return Err(StoreError::Io {
                path: "records".into(),
                source: std::io::ErrorKind::StorageFull.into(),
            });
        }
        world.log.push("save".into());
        let intents: Vec<String> = records
            .pods
            .values()
            .filter(|r| r.stopping_since.is_some() && r.exited_at.is_none())
            .map(|r| format!("intent {}", r.container_id))
            .collect();
        world.log.extend(intents);
        world.records = Some(records.clone());
        Ok(())
    }
}

impl Supervisors for Shared {
    fn out_of_reach(&self) -> Option<String> {
        self.world.lock().out_of_reach.clone()
    }

    fn observe(&mut self, pods: &mut [NodePod]) {
        let mut world = self.world.lock();
        world.looks += 1;
        for pod in pods.iter_mut().filter(|p| p.supervised) {
            pod.supervisor.clone_from(&world.supervisor);
        }
    }

    fn observe_again(&mut self, pods: &mut [NodePod]) {
        self.observe(pods);
    }

    fn send(&mut self, messages: &[SupervisorMessage]) -> Option<Duration> {
        let sent = messages
            .iter()
            .map(|m| format!("send {} {:?}", m.pod_uid, m.command));
        self.world.lock().log.extend(sent);
        (!messages.is_empty()).then_some(Duration::from_secs(1))
    }

    async fn changed(&mut self) {
        self.heard.notified().await;
    }
}

/// A running agent. Dropping it simulates a crash.
struct Rig {
    shared: Shared,
    orders: watch::Sender<Orders>,
    readiness: Readiness,
    task: tokio::task::JoinSet<()>,
}

impl Rig {
    fn new() -> Self {
        let mut rig = Self::without_agent();
        rig.start();
        rig
    }

    fn without_agent() -> Self {
        let shared = Shared {
            world: Arc::default(),
            changed: Arc::default(),
            heard: Arc::default(),
        };
        let mut orders = Orders::default();
        orders.replace(Orders::default());
        let readiness = Readiness::default();
        readiness.has_orders(true);
        Self {
            shared,
            orders: watch::Sender::new(orders),
            readiness,
            task: tokio::task::JoinSet::new(),
        }
    }

    /// Starts the agent, and stops a running one.
    fn start(&mut self) {
        self.start_with(self.shared.clone());
    }

    fn start_with(&mut self, runtime: impl Runtime + 'static) {
        self.kill();
        let agent = self.agent(runtime);
        self.task.spawn(async move { match agent.run().await {} });
    }

    fn agent<R>(&self, runtime: R) -> Agent<R, Shared, Shared> {
        let origin = Instant::now();
        Agent {
            node: "n1".into(),
            runtime,
            store: self.shared.clone(),
            supervisors: self.shared.clone(),
            client: self.client(),
            orders: self.orders.clone(),
            now: Arc::new(move || start_time() + TimeDelta::from_std(origin.elapsed()).unwrap()),
            debounce: Duration::from_millis(20),
            metrics: Metrics::default(),
            readiness: self.readiness.clone(),
        }
    }

    fn kill(&mut self) {
        self.task.abort_all();
    }

    /// Pending reason of the runtime.
    fn readiness_of_runtime(&self) -> Option<String> {
        self.readiness
            .pending()
            .filter(|p| p.contains("for container runtime"))
    }

    fn client(&self) -> Client {
        let world = self.shared.world.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let world = world.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let (response, lost) = {
                    let mut world = world.lock();
                    let lost = head.method == Method::PUT && world.loses_an_answer();
                    let response = match head.uri.path() {
                        "/api/v1/nodes/n1" => node(&world),
                        _ => answer(&mut world, &head.method, &body),
                    };
                    (response, lost)
                };
                if lost {
                    pending::<()>().await;
                }
                Ok::<_, kube::Error>(response)
            }
        });
        Client::new(service, "default")
    }

    async fn pass(&self, millis: u64) {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }

    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.world.lock().log)
    }

    /// The status in the API server.
    fn status(&self) -> Value {
        self.shared
            .world
            .lock()
            .object
            .as_ref()
            .map(|o| o["status"].clone())
            .unwrap_or_default()
    }

    /// One member runs container `id`; earlier containers ended with these codes.
    fn runs(&self, id: &str, ended: &[(&str, i32)]) {
        let exits = ended.iter().enumerate().map(|(i, (id, code))| {
            let at = start_time() + TimeDelta::milliseconds(i as i64);
            let exit = Exit {
                code: *code,
                reason: "Error".into(),
                at,
            };
            ObservedContainer {
                id: (*id).to_owned(),
                restarts: i as i32,
                created_at: at,
                exit: Some(exit),
            }
        });
        let created_at = start_time() + TimeDelta::seconds(ended.len() as i64);
        let running = ObservedContainer {
            id: id.to_owned(),
            restarts: ended.len() as i32,
            created_at,
            exit: None,
        };
        let text = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect()
        };
        let sandbox = Sandbox {
            pod_uid: "p1".into(),
            namespace: "team".into(),
            labels: text(&[
                (labels::WORKLOAD_UID, "w1"),
                (labels::GROUP, "workers"),
                (labels::REPLICA, "0"),
                (labels::INDEX, "0"),
                (labels::DOMAIN, "workload"),
            ]),
            annotations: text(&[
                (annotations::ATTEMPT, "1"),
                ("kubectl.kubernetes.io/default-container", "main"),
            ]),
            containers: [("main".to_owned(), exits.chain([running]).collect())].into(),
        };
        self.shared.world.lock().sandboxes = vec![sandbox];
        self.shared.changed.notify_one();
    }

    /// Sets the state of the member's supervisor. The member is supervised from then on.
    fn supervisor(&self, state: SupervisorState) {
        let mut world = self.shared.world.lock();
        world.supervisor = Some(state);
        for sandbox in &mut world.sandboxes {
            let tier = (annotations::TIER.to_owned(), "supervised".to_owned());
            sandbox.annotations.extend([tier]);
        }
        drop(world);
        self.shared.heard.notify_one();
    }

    fn order(&self, attempt: i64) {
        self.order_for(attempt, 1);
    }

    fn order_for(&self, attempt: i64, world: i32) {
        let domain = DomainOrder {
            key: "workload".into(),
            attempt,
            members: vec!["workers/0/0".into()],
            world,
            released_attempt: attempt,
            since: (attempt > 1).then(start_time),
            ..DomainOrder::default()
        };
        let order = RestartOrderSpec {
            workload_uid: "w1".into(),
            domains: vec![domain],
        };
        let mut order = RestartOrder::new("w", order);
        order.metadata.namespace = Some("team".into());
        // The body arrives although the agent may not have listed the pod of this runtime yet.
        let sandboxes = self.shared.world.lock().sandboxes.clone();
        let pods: Vec<_> = sandboxes
            .into_iter()
            .filter_map(Sandbox::into_member)
            .collect();
        self.orders.send_modify(|orders| {
            if !pods.is_empty() {
                orders.set_pods("n1", &pods);
            }
            orders.put(order);
        });
    }
}

fn start_time() -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000, 0).unwrap()
}

fn node(world: &World) -> Response<Body> {
    if world.api_down {
        return failure(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable");
    }
    let node = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {"name": "n1", "uid": format!("node-{}", world.nodes_before)}});
    Response::new(Body::from(serde_json::to_vec(&node).unwrap()))
}

/// The API server: one object, with optimistic locking.
fn answer(world: &mut World, method: &Method, body: &[u8]) -> Response<Body> {
    if world.api_down {
        return failure(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable");
    }
    let mut sent: Value = serde_json::from_slice(body).unwrap_or_default();
    match *method {
        Method::GET if world.object.is_none() => return failure(StatusCode::NOT_FOUND, "NotFound"),
        Method::POST => {
            sent["metadata"]["managedFields"] = json!([{"manager": "agent"}]);
            world.object = Some(sent);
        }
        Method::PATCH if sent["metadata"]["managedFields"] == json!([{}]) => {
            if let Some(object) = &mut world.object {
                object["metadata"]["managedFields"] = Value::Null;
            }
        }
        Method::PUT => {
            world.log.push("write".into());
            if let Some(seconds) = world.come_back {
                return come_back(seconds);
            }
            let now = world
                .object
                .as_ref()
                .map(|o| o["metadata"]["resourceVersion"].clone())
                .unwrap_or_default();
            if sent["metadata"]["resourceVersion"] != now {
                return failure(StatusCode::CONFLICT, "Conflict");
            }
            world.writes.push(sent["status"].clone());
            if let Some(object) = &mut world.object {
                object["status"] = sent["status"].clone();
            }
        }
        _ => {}
    }
    if *method != Method::GET {
        touch(world);
    }
    let text = serde_json::to_vec(&world.object).unwrap();
    Response::new(Body::from(text))
}

/// Simulates a write by another client.
fn touch(world: &mut World) {
    world.version += 1;
    if let Some(object) = &mut world.object {
        object["metadata"]["resourceVersion"] = json!(world.version.to_string());
    }
}

fn failure(code: StatusCode, reason: &str) -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(),
        "reason": reason, "message": reason});
    let mut response = Response::new(Body::from(serde_json::to_vec(&status).unwrap()));
    *response.status_mut() = code;
    response
}

/// Response of the API server under API Priority and Fairness: no Status, and a Retry-After header.
fn come_back(seconds: u32) -> Response<Body> {
    let mut response = Response::new(Body::from(
        "Too many requests, please try again later."
            .to_owned()
            .into_bytes(),
    ));
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    let headers = response.headers_mut();
    headers.insert(http::header::RETRY_AFTER, seconds.into());
    response
}
