//! The restart orders of the cluster: one watch for all agents of the process.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::pin;

use futures_util::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use lockstep_api::RestartOrder;
use lockstep_node::NamespacedOrders;
use tokio::sync::watch;
use tracing::warn;

/// `None` before the first list of all orders.
pub type Orders = Option<NamespacedOrders>;

/// Keeps `orders` equal to the API server's state. Retries failures with back-off.
pub async fn follow(client: Client, orders: watch::Sender<Orders>) -> Infallible {
    loop {
        let config = watcher::Config::default();
        let mut events =
            pin!(watcher(Api::<RestartOrder>::all(client.clone()), config).default_backoff());
        let mut listed: Option<NamespacedOrders> = None;
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed = Some(BTreeMap::new()),
                Ok(Event::InitApply(order)) => {
                    if let Some(listed) = &mut listed {
                        listed.insert(key(&order), order.spec);
                    }
                }
                Ok(Event::InitDone) => {
                    if let Some(listed) = listed.take() {
                        orders.send_replace(Some(listed));
                    }
                }
                Ok(Event::Apply(order)) => apply(&orders, order),
                Ok(Event::Delete(order)) => delete(&orders, &order),
                Err(error) => warn!(error = %error, "watch of restart orders failed, retrying"),
            }
        }
    }
}

fn key(order: &RestartOrder) -> (String, String) {
    let namespace = order.metadata.namespace.clone().unwrap_or_default();
    (namespace, order.spec.workload_uid.clone())
}

fn apply(orders: &watch::Sender<Orders>, order: RestartOrder) {
    let key = key(&order);
    orders.send_if_modified(|all| {
        let Some(all) = all else { return false };
        all.insert(key, order.spec.clone()) != Some(order.spec)
    });
}

fn delete(orders: &watch::Sender<Orders>, order: &RestartOrder) {
    orders.send_if_modified(|all| {
        all.as_mut()
            .is_some_and(|all| all.remove(&key(order)).is_some())
    });
}
