//! The restart orders of the cluster: one watch for all agents of the process.
//!
//! The orders of all tenants would exceed the memory of an agent. An agent keeps a digest of each
//! order, and the body only for pods on its node. Bodies arrive with the list and with each change.
//! A start of a gang needs no request for a body, because the digest has the content that all
//! domains share until their release, and the release is a change.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::time::Duration;

use futures_util::future::{Either, select};
use kube::api::{ListParams, VersionMatch};
use kube::runtime::watcher::{Config, Error, Event};
use kube::{Api, Client};
use lockstep_api::restart_order::DomainOrder;
use lockstep_api::{RestartOrder, RestartOrderSpec};
use lockstep_common::api_server::retry_after;
use lockstep_common::watch::{WatchHandler, requested_wait, status_of, watch};
use lockstep_node::{NamespacedOrders, NodePod};
use tokio::sync::watch as channel;
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::backoff::{Backoff, with_retry_after};
use crate::health::Readiness;

/// Orders in one page of a list that is not streamed. A page is decoded as a whole.
const PAGE: u32 = 50;
/// Longest wait for the pods of the node before the first list. Bodies of their orders arrive with
/// the list.
const FIRST_LISTING: Duration = Duration::from_secs(5);
/// Deadline of a request for a body.
const DEADLINE: Duration = Duration::from_secs(20);
/// Delay of such a request per member of the workload, at most.
const EACH: Duration = Duration::from_millis(1);

/// Namespace and UID of a workload.
type Key = (String, String);

/// The orders of the cluster, as the nodes of this process need them.
#[derive(Debug, Default)]
pub struct Orders {
    /// True after the first list.
    listed: bool,
    digests: BTreeMap<Key, Digest>,
    /// Orders of the pods: bodies, and outlines for pods that need no body yet.
    held: NamespacedOrders,
    /// Keys in `held` of bodies.
    bodies: BTreeSet<Key>,
    /// By the key of the order and the name of the node.
    pods: BTreeMap<Key, BTreeMap<String, BTreeSet<Pod>>>,
    /// True after the first listing of a node's pods.
    has_pods: bool,
}

/// All that is kept of an order without pods on the nodes.
#[derive(Clone, Debug)]
struct Digest {
    name: String,
    uid: String,
    version: u64,
    /// Members of all domains.
    members: u32,
    /// Content that all domains share until their release. `None` if they differ.
    outline: Option<Box<DomainOrder>>,
}

/// What determines whether a pod needs the body of its order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pod {
    domain: String,
    attempt: i64,
    supervised: bool,
}

impl Digest {
    fn of(order: &RestartOrder) -> Self {
        let version = order.metadata.resource_version.as_deref();
        let domains = &order.spec.domains;
        let worlds = domains
            .iter()
            .map(|d| u32::try_from(d.world).unwrap_or_default());
        let first = domains.first().and_then(outline);
        let shared = first.filter(|f| domains.iter().all(|d| outline(d).as_ref() == Some(f)));
        Self {
            name: order.metadata.name.clone().unwrap_or_default(),
            uid: order.metadata.uid.clone().unwrap_or_default(),
            // Versions of one resource can be compared (KEP-5504).
            version: version.and_then(|v| v.parse().ok()).unwrap_or_default(),
            members: worlds.fold(0, u32::saturating_add),
            outline: shared.map(Box::new),
        }
    }

    /// The order for pods that need no body yet.
    fn outline_for<'p>(
        &self,
        workload_uid: &str,
        pods: impl Iterator<Item = &'p Pod>,
    ) -> Option<RestartOrderSpec> {
        let outline = self.outline.as_deref()?;
        let released = outline.released_attempt >= outline.attempt;
        let mut domains: BTreeMap<&str, DomainOrder> = BTreeMap::new();
        for pod in pods {
            // An order for a later attempt names the members that restart in place, and a released
            // order has the peers.
            if pod.attempt < outline.attempt || pod.supervised && released {
                return None;
            }
            let key = pod.domain.clone();
            let domain = DomainOrder {
                key,
                ..outline.clone()
            };
            domains.insert(&pod.domain, domain);
        }
        Some(RestartOrderSpec {
            workload_uid: workload_uid.to_owned(),
            domains: domains.into_values().collect(),
        })
    }
}

/// What pods created for the attempt need until it is released.
fn outline(domain: &DomainOrder) -> Option<DomainOrder> {
    let is_plain = domain.alone.is_empty()
        && domain.exceptions.is_empty()
        && domain.replaced_pods.is_empty()
        && domain.coordinator.is_none();
    is_plain.then(|| DomainOrder {
        attempt: domain.attempt,
        world: domain.world,
        released_attempt: domain.released_attempt,
        restarts_seen: domain.restarts_seen,
        since: domain.since,
        deadline_seconds: domain.deadline_seconds,
        ..DomainOrder::default()
    })
}

impl Orders {
    /// The orders of the pods on the nodes; `None` before the first list of all orders.
    pub fn held(&self) -> Option<&NamespacedOrders> {
        self.listed.then_some(&self.held)
    }

    /// True if the order of this pod exists, and its body is missing and needed.
    pub(crate) fn is_awaited(&self, pod: &NodePod) -> bool {
        self.lacks_body(&key_of(pod))
    }

    fn lacks_body(&self, key: &Key) -> bool {
        self.digests.contains_key(key) && !self.held.contains_key(key)
    }

    fn awaited(&self) -> impl Iterator<Item = (&Key, &Digest)> {
        let needed = self.pods.keys().filter(|key| self.lacks_body(key));
        needed.filter_map(|key| self.digests.get_key_value(key))
    }

    /// Sets the pods of a node. Returns false if no order changes for them.
    pub fn set_pods(&mut self, node: &str, pods: &[NodePod]) -> bool {
        let mut by_key: BTreeMap<Key, BTreeSet<Pod>> = BTreeMap::new();
        for pod in pods {
            by_key.entry(key_of(pod)).or_default().insert(Pod {
                domain: pod.domain.clone(),
                attempt: pod.attempt,
                supervised: pod.supervised,
            });
        }
        let mut changed = !std::mem::replace(&mut self.has_pods, true);
        let previous = self
            .pods
            .iter()
            .filter(|(_, nodes)| nodes.contains_key(node));
        let mut keys: BTreeSet<Key> = previous.map(|(key, _)| key.clone()).collect();
        keys.extend(by_key.keys().cloned());
        for key in keys {
            let now = by_key.remove(&key);
            if self.pods.get(&key).and_then(|nodes| nodes.get(node)) == now.as_ref() {
                continue;
            }
            changed = true;
            let nodes = self.pods.entry(key.clone()).or_default();
            match now {
                Some(pods) => nodes.insert(node.to_owned(), pods),
                None => nodes.remove(node),
            };
            if nodes.is_empty() {
                self.pods.remove(&key);
            }
            self.resolve(&key);
        }
        changed
    }

    /// Drops a body without pods. Without a body, the digest provides an outline if that suffices.
    fn resolve(&mut self, key: &Key) {
        let (digest, pods) = (self.digests.get(key), self.pods.get(key));
        if self.bodies.contains(key) && digest.is_some() && pods.is_some() {
            return;
        }
        self.bodies.remove(key);
        let pods = pods.map(|nodes| nodes.values().flatten());
        let outline = digest
            .zip(pods)
            .and_then(|(d, pods)| d.outline_for(&key.1, pods));
        match outline {
            Some(outline) => self.held.insert(key.clone(), outline),
            None => self.held.remove(key),
        };
    }

    /// Takes an order from the watch or from a request. Returns false if no pod needs it.
    pub fn put(&mut self, order: RestartOrder) -> bool {
        let key = key(&order);
        let digest = Digest::of(&order);
        let stored = self.digests.get(&key);
        // The response to a request can be newer than the next event.
        if stored.is_some_and(|stored| stored.uid == digest.uid && stored.version > digest.version)
        {
            return false;
        }
        self.digests.insert(key.clone(), digest);
        if !self.pods.contains_key(&key) {
            return false;
        }
        self.bodies.insert(key.clone());
        self.held.insert(key, order.spec.clone()) != Some(order.spec)
    }

    fn remove(&mut self, order: &RestartOrder) -> bool {
        let key = key(order);
        self.digests.remove(&key);
        self.bodies.remove(&key);
        self.held.remove(&key).is_some()
    }

    /// Replaces all orders by those of a list, which was received for the same pods or fewer.
    pub(crate) fn replace(&mut self, listed: Self) {
        self.listed = true;
        self.digests = listed.digests;
        self.bodies = listed.bodies;
        self.held = listed.held;
        let keys: Vec<Key> = self.pods.keys().cloned().collect();
        let surplus: Vec<Key> = self.bodies.iter().cloned().collect();
        for key in keys.iter().chain(&surplus) {
            self.resolve(key);
        }
    }
}

fn key(order: &RestartOrder) -> Key {
    let namespace = order.metadata.namespace.clone().unwrap_or_default();
    (namespace, order.spec.workload_uid.clone())
}

fn key_of(pod: &NodePod) -> Key {
    (pod.namespace.clone(), pod.workload_uid.clone())
}

/// Keeps `orders` equal to the API server's state. Retries failures with the back-off of the
/// agent's writes.
pub async fn follow(
    client: Client,
    node: &str,
    orders: channel::Sender<Orders>,
    readiness: &Readiness,
) -> Infallible {
    let client = with_retry_after(client);
    let mut changes = orders.subscribe();
    // Without the runtime, the orders follow without its pods.
    let _ = timeout(FIRST_LISTING, changes.wait_for(|o| o.has_pods)).await;
    let watching = watch_orders(&client, node, &orders, readiness);
    let requesting = request_bodies(&client, node, &orders);
    match select(std::pin::pin!(watching), std::pin::pin!(requesting)).await {
        Either::Left((never, _)) | Either::Right((never, _)) => never,
    }
}

async fn watch_orders(
    client: &Client,
    node: &str,
    orders: &channel::Sender<Orders>,
    readiness: &Readiness,
) -> Infallible {
    let handler = OrderHandler {
        orders,
        listing: Orders::default(),
        backoff: Backoff::of(node),
        readiness,
    };
    let api = Api::all(client.clone());
    let config = Config::default().page_size(PAGE);
    watch("RestartOrder", api, config, handler).await
}

struct OrderHandler<'a> {
    orders: &'a channel::Sender<Orders>,
    /// A list in progress.
    listing: Orders,
    backoff: Backoff,
    readiness: &'a Readiness,
}

impl WatchHandler<RestartOrder> for OrderHandler<'_> {
    fn event(&mut self, event: Event<RestartOrder>) {
        match event {
            Event::Init => {
                self.listing = Orders {
                    pods: self.orders.borrow().pods.clone(),
                    ..Orders::default()
                };
            }
            Event::InitApply(order) => {
                self.listing.put(order);
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listing);
                self.orders.send_modify(|all| all.replace(listed));
                self.recovered();
            }
            Event::Apply(order) => {
                self.orders.send_if_modified(|all| all.put(order));
            }
            Event::Delete(order) => {
                self.orders.send_if_modified(|all| all.remove(&order));
            }
        }
    }

    fn failed(&mut self, error: &Error, failures: u32) -> Duration {
        if failures == 1 {
            self.backoff.reset();
        }
        self.readiness.lacks_orders(error, is_refused(error));
        let retry_after = requested_wait(error);
        self.backoff.next(retry_after, !retry_after.is_zero())
    }

    fn recovered(&mut self) {
        self.readiness.has_orders(self.orders.borrow().listed);
    }
}

/// True if the server answers and a retry alone does not help. An outage is no refusal: it concerns
/// all agents, and their pods must stay ready for restarts in place after it.
fn is_refused(error: &Error) -> bool {
    status_of(error)
        .is_some_and(|code| matches!(code, 400..500) && !matches!(code, 408 | 410 | 429))
}

/// Requests the bodies that neither the list nor a change has brought. A change that arrives during
/// the delay makes the request unnecessary.
async fn request_bodies(
    client: &Client,
    node: &str,
    orders: &channel::Sender<Orders>,
) -> Infallible {
    let mut changes = orders.subscribe();
    let mut random = fastrand::Rng::new();
    let mut backoff = Backoff::of(node);
    loop {
        let awaited = changes.wait_for(|o| o.awaited().next().is_some()).await;
        let members = awaited.map_or(0, |o| {
            o.awaited().map(|(_, d)| d.members).max().unwrap_or(0)
        });
        sleep((EACH * members).mul_f64(random.f64())).await;
        let awaited = orders
            .borrow()
            .awaited()
            .map(|(k, d)| (k.clone(), d.clone()))
            .collect();
        let result = request_all(client, orders, awaited).await;
        if orders.borrow().awaited().next().is_none() {
            backoff.reset();
            continue;
        }
        let mut wait = Duration::ZERO;
        if let Err(error) = result {
            warn!(node, %error, "cannot read a restart order, retrying");
            wait = retry_after(&error);
        }
        sleep(backoff.next(wait, !wait.is_zero())).await;
    }
}

async fn request_all(
    client: &Client,
    all: &channel::Sender<Orders>,
    awaited: Vec<(Key, Digest)>,
) -> kube::Result<()> {
    for ((namespace, _), digest) in awaited {
        let api = Api::<RestartOrder>::namespaced(client.clone(), &namespace);
        // A list, which the role of the agent allows, from the cache of the API server.
        let of_name = ListParams::default()
            .fields(&format!("metadata.name={}", digest.name))
            .at(&digest.version.to_string())
            .matching(VersionMatch::NotOlderThan);
        let orders = timeout(DEADLINE, api.list(&of_name))
            .await
            .map_err(|elapsed| kube::Error::Service(elapsed.into()))??;
        for order in orders {
            all.send_if_modified(|all| all.put(order));
        }
    }
    Ok(())
}
