//! How long orders took to reach the agents.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::Arc;

use lockstep_agent::orders::Orders;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::clock::Clock;

/// Milliseconds from the failure behind an attempt until an agent had the order for it, one for each
/// agent, by UID of the workload and attempt.
pub type Delays = BTreeMap<String, BTreeMap<i64, Vec<i64>>>;

/// What all agents of the process have heard.
#[derive(Clone, Default)]
pub(super) struct Deliveries(Arc<Mutex<Delays>>);

impl Deliveries {
    pub(super) fn delays(&self) -> Delays {
        self.0.lock().clone()
    }

    /// Notes what one agent hears, for ever.
    pub(super) async fn follow(
        self,
        mut orders: watch::Receiver<Orders>,
        clock: Clock,
    ) -> Infallible {
        let mut heard: HashMap<(String, String), i64> = HashMap::new();
        loop {
            self.note(&mut heard, orders.borrow_and_update().as_ref(), clock);
            if orders.changed().await.is_err() {
                // The agent is gone.
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
                // An agent that has just begun hears of what was decided long ago.
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
