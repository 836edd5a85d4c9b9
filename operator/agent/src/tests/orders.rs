//! Which orders an agent keeps, and how soon it receives them.

use std::collections::VecDeque;

use lockstep_api::names::{annotations, labels};
use lockstep_node::NodePod;
use tower::BoxError;

use super::*;
use crate::orders::follow;

/// An API server with restart orders.
#[derive(Default)]
struct OrderWorld {
    orders: BTreeMap<String, RestartOrder>,
    version: u64,
    down: bool,
    /// Responses before any other, as the server is starting.
    first: VecDeque<Response<Body>>,
    /// Lines of changes for the watch.
    changes: Vec<String>,
    lists: u32,
    /// Requests of the order of one workload.
    requests: u32,
}

#[derive(Clone, Default)]
struct Server {
    world: Arc<Mutex<OrderWorld>>,
    changed: Arc<Notify>,
}

impl Server {
    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            let query = request.uri().query().unwrap_or_default().to_owned();
            async move { server.answer(&query).await }
        });
        Client::new(service, "default")
    }

    async fn answer(&self, query: &str) -> Result<Response<Body>, BoxError> {
        loop {
            let changed = self.changed.notified();
            {
                let mut world = self.world.lock();
                if world.down {
                    return Err("connection refused".into());
                }
                if let Some(response) = world.first.pop_front() {
                    return Ok(response);
                }
                if let Some((_, name)) = query.split_once("fieldSelector=metadata.name%3D") {
                    world.requests += 1;
                    let name = name.split('&').next().unwrap_or_default();
                    return Ok(list_of(&world.orders[name]));
                }
                if query.contains("sendInitialEvents=true") {
                    world.lists += 1;
                    world.changes.clear();
                    return Ok(world.list());
                }
                if !world.changes.is_empty() {
                    let lines = std::mem::take(&mut world.changes).concat();
                    return Ok(Response::new(Body::from(lines.into_bytes())));
                }
            }
            changed.await;
        }
    }

    fn put(&self, name: &str, domains: Vec<DomainOrder>) {
        {
            let mut world = self.world.lock();
            world.version += 1;
            let spec = RestartOrderSpec {
                workload_uid: name.into(),
                domains,
            };
            let mut order = RestartOrder::new(name, spec);
            order.metadata.namespace = Some("team".into());
            order.metadata.resource_version = Some(world.version.to_string());
            let line = json!({"type": "MODIFIED", "object": order}).to_string() + "\n";
            world.orders.insert(name.into(), order);
            world.changes.push(line);
        }
        self.changed.notify_waiters();
    }

    fn set_down(&self, down: bool) {
        self.world.lock().down = down;
        self.changed.notify_waiters();
    }
}

impl OrderWorld {
    fn list(&self) -> Response<Body> {
        let lines = self
            .orders
            .values()
            .map(|o| json!({"type": "ADDED", "object": o}).to_string() + "\n");
        let end = json!({"type": "BOOKMARK", "object": {"kind": "RestartOrder",
            "apiVersion": "training.lockstep.dev/v1alpha1", "metadata": {
                "resourceVersion": self.version.to_string(),
                "annotations": {"k8s.io/initial-events-end": "true"}}}});
        let text = lines.collect::<String>() + &end.to_string() + "\n";
        Response::new(Body::from(text.into_bytes()))
    }
}

fn list_of(order: &RestartOrder) -> Response<Body> {
    let list = json!({"kind": "RestartOrderList", "apiVersion": "training.lockstep.dev/v1alpha1",
        "metadata": {"resourceVersion": "9"}, "items": [order]});
    Response::new(Body::from(list.to_string().into_bytes()))
}

/// A response in the stream of a watch: the server no longer has the changes.
fn expired() -> Response<Body> {
    let error = json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1",
        "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"}});
    Response::new(Body::from((error.to_string() + "\n").into_bytes()))
}

fn domains(count: usize, attempt: i64, released: i64) -> Vec<DomainOrder> {
    let domain = |i| DomainOrder {
        key: format!("d{i}"),
        attempt,
        members: vec![format!("workers/{i}/0")],
        world: 1,
        released_attempt: released,
        deadline_seconds: Some(1_200),
        ..DomainOrder::default()
    };
    (0..count).map(domain).collect()
}

fn pod(workload: &str, domain: &str, attempt: i64) -> NodePod {
    let text = |pairs: &[(&str, &str)]| {
        let pairs = pairs.iter().map(|(k, v)| ((*k).into(), (*v).into()));
        pairs.collect::<BTreeMap<String, String>>()
    };
    let labels = text(&[
        (labels::WORKLOAD_UID, workload),
        (labels::GROUP, "workers"),
        (labels::REPLICA, "0"),
        (labels::INDEX, "0"),
        (labels::DOMAIN, domain),
    ]);
    let annotations = text(&[
        (annotations::ATTEMPT, &attempt.to_string()),
        (annotations::TIER, "supervised"),
        ("kubectl.kubernetes.io/default-container", "main"),
    ]);
    NodePod::read("p1", "team", &labels, &annotations).unwrap()
}

/// The watch of an agent whose node has these pods.
struct Watch {
    orders: watch::Sender<Orders>,
    readiness: Readiness,
    _task: tokio::task::JoinSet<()>,
}

impl Watch {
    fn of(server: &Server, pods: &[NodePod]) -> Self {
        let orders = watch::Sender::<Orders>::default();
        orders.send_modify(|o| {
            o.set_pods("n1", pods);
        });
        let mut task = tokio::task::JoinSet::new();
        let readiness = Readiness::default();
        let (client, to, ready) = (server.client(), orders.clone(), readiness.clone());
        task.spawn(async move { match follow(client, "n1", to, &ready).await {} });
        Self {
            orders,
            readiness,
            _task: task,
        }
    }

    fn has_pods(&self, pods: &[NodePod]) {
        self.orders.send_if_modified(|o| o.set_pods("n1", pods));
    }

    /// Number of domains of each order that the agent holds.
    fn held(&self) -> BTreeMap<String, usize> {
        let orders = self.orders.borrow();
        let held = orders.held().into_iter().flatten();
        held.map(|((_, uid), o)| (uid.clone(), o.domains.len()))
            .collect()
    }

    fn attempt(&self, uid: &str) -> Option<i64> {
        let orders = self.orders.borrow();
        let order = orders.held()?.get(&("team".to_owned(), uid.to_owned()))?;
        order.domains.iter().map(|d| d.attempt).max()
    }

    async fn eventually(&self, condition: impl Fn(&Self) -> bool) {
        let mut changes = self.orders.subscribe();
        while !condition(self) {
            changes.changed().await.unwrap();
        }
    }
}

fn held<const N: usize>(orders: [(&str, usize); N]) -> BTreeMap<String, usize> {
    orders
        .map(|(uid, domains)| (uid.to_owned(), domains))
        .into()
}

#[tokio::test(start_paused = true)]
async fn an_agent_keeps_the_bodies_of_orders_with_a_pod_on_its_node_only() {
    let server = Server::default();
    for workload in ["a", "b", "c"] {
        server.put(workload, domains(500, 2, 2));
    }
    let watch = Watch::of(&server, &[pod("a", "d7", 1)]);
    watch.eventually(|w| w.held() == held([("a", 500)])).await;
    server.put("b", domains(500, 3, 3));
    server.put("a", domains(499, 3, 3));
    watch.eventually(|w| w.held() == held([("a", 499)])).await;
    watch.has_pods(&[]);
    assert_eq!(watch.held(), held([]));
    assert_eq!(server.world.lock().requests, 0);
}

#[tokio::test(start_paused = true)]
async fn the_start_of_a_gang_needs_no_request_for_its_order() {
    let server = Server::default();
    server.put("a", domains(500, 4, 3));
    let watch = Watch::of(&server, &[]);
    watch
        .eventually(|w| w.orders.borrow().held().is_some())
        .await;
    let new = pod("a", "d7", 4);
    watch.has_pods(std::slice::from_ref(&new));
    {
        let orders = watch.orders.borrow();
        assert!(!orders.is_awaited(&new));
        let order = &orders.held().unwrap()[&("team".to_owned(), "a".to_owned())];
        assert_eq!(order.domains.len(), 1);
        let (key, deadline) = (&*order.domains[0].key, order.domains[0].deadline_seconds);
        assert_eq!((key, deadline), ("d7", Some(1_200)));
    }
    server.put("a", domains(500, 4, 4));
    watch.eventually(|w| w.held() == held([("a", 500)])).await;
    assert_eq!(server.world.lock().requests, 0);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_appears_after_its_order_gets_the_body_by_one_request() {
    for (attempt, released) in [(1, 1), (2, 1)] {
        let server = Server::default();
        server.put("a", domains(500, attempt, released));
        let watch = Watch::of(&server, &[]);
        watch
            .eventually(|w| w.orders.borrow().held().is_some())
            .await;
        let new = pod("a", "d7", 1);
        watch.has_pods(std::slice::from_ref(&new));
        assert!(watch.orders.borrow().is_awaited(&new));
        watch.eventually(|w| w.held() == held([("a", 500)])).await;
        assert!(!watch.orders.borrow().is_awaited(&new));
        tokio::time::sleep(Duration::from_mins(10)).await;
        assert_eq!(server.world.lock().requests, 1);
    }
}

/// An agent that has the first order, 100 s after the API server went away.
async fn during_an_outage() -> (Server, Watch) {
    let server = Server::default();
    server.put("a", domains(1, 1, 1));
    let watch = Watch::of(&server, &[pod("a", "d0", 1)]);
    watch.eventually(|w| w.attempt("a") == Some(1)).await;
    server.set_down(true);
    tokio::time::sleep(Duration::from_secs(100)).await;
    (server, watch)
}

#[tokio::test(start_paused = true)]
async fn orders_arrive_soon_after_an_outage_of_the_api_server() {
    let (server, watch) = during_an_outage().await;
    assert!(
        watch
            .readiness
            .remarks()
            .contains("without new restart orders")
    );
    server.put("a", domains(1, 2, 1));
    let busy = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 429,
        "reason": "TooManyRequests", "message": "storage is (re)initializing",
        "details": {"retryAfterSeconds": 1}});
    let mut busy = Response::new(Body::from(busy.to_string().into_bytes()));
    *busy.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    server.world.lock().first = [busy, expired()].into();
    let lists = server.world.lock().lists;
    let back = Instant::now();
    server.set_down(false);
    watch.eventually(|w| w.attempt("a") == Some(2)).await;
    // The wait at the return, and the wait that the server requests; none after the 410.
    let longest = Duration::from_millis(5_000 + 1_000 + 5_000 + 500);
    assert!(back.elapsed() <= longest, "{:?}", back.elapsed());
    assert_eq!(server.world.lock().lists, lists + 1);
    assert_eq!(watch.readiness.remarks(), "");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_resumes_without_events_ends_the_back_off() {
    let (server, watch) = during_an_outage().await;
    server.set_down(false);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(watch.readiness.remarks(), "");
    server.set_down(true);
    tokio::time::sleep(Duration::from_millis(1)).await;
    server.put("a", domains(1, 2, 1));
    let back = Instant::now();
    server.set_down(false);
    watch.eventually(|w| w.attempt("a") == Some(2)).await;
    assert!(back.elapsed() <= Duration::from_millis(100));
}
