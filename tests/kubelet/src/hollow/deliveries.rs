//! Delays of the orders' delivery to the agents.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::Arc;

use lockstep_agent::orders::Orders;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::clock::Clock;

/// Milliseconds from the failure that caused an attempt until an agent had the order, one value per
/// agent, by UID of the workload and attempt.
pub type Delays = BTreeMap<String, BTreeMap<i64, Vec<i64>>>;

/// Orders that the agents of the process received.
#[derive(Clone, Default)]
pub(super) struct Deliveries(Arc<Mutex<Delays>>);

impl Deliveries {
    pub(super) fn delays(&self) -> Delays {
        self.0.lock().clone()
    }

    /// Records the orders of an agent until dropped.
    pub(super) async fn follow(
        self,
        mut orders: watch::Receiver<Orders>,
        clock: Clock,
    ) -> Infallible {
        let mut heard: HashMap<(String, String), i64> = HashMap::new();
        loop {
            self.note(&mut heard, orders.borrow_and_update().held(), clock);
            if orders.changed().await.is_err() {
                // The agent has ended.
                std::future::pending::<()>().await;
            }
        }
    }

    fn note(
        &self,
        heard: &mut HashMap<(String, String), i64>,
        orders: Option<&lockstep_node::NamespacedOrders>,
        clock: Clock,
    ) {
        for ((_, uid), order) in orders.into_iter().flatten() {
            for domain in &order.domains {
                let key = (uid.clone(), domain.key.clone());
                let last = heard.insert(key, domain.attempt);
                // A new agent receives orders that were decided long ago.
                let news = last.is_some_and(|last| last < domain.attempt);
                if let Some(since) = domain.since.filter(|_| news) {
                    let delay = (clock.now() - since).num_milliseconds();
                    let mut delays = self.0.lock();
                    let attempts = delays.entry(uid.clone()).or_default();
                    attempts.entry(domain.attempt).or_default().push(delay);
                }
            }
        }
    }
}
