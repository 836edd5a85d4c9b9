//! Stops in flight. They run beside the agent's loop, so that a runtime that hangs on one container
//! delays no other, and no container is asked to stop again while its stop is on its way or has
//! just come back.

#![expect(
    clippy::disallowed_methods,
    reason = "time limits of I/O in tokio's time, which tests can pause; no decision reads it"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::time::Instant;

use crate::runtime::RuntimeError;

/// How a stop ended.
pub(crate) struct Stopped {
    pub container_id: String,
    pub result: Result<(), RuntimeError>,
}

/// Stops by container.
pub(crate) struct Stops {
    running: FuturesUnordered<BoxFuture<'static, Stopped>>,
    /// Containers that are not stopped again before this time; None while their stop runs.
    asked: BTreeMap<String, Option<Instant>>,
    retry: Duration,
}

impl Stops {
    /// A container whose stop has come back is asked again after `retry`, if it still runs then.
    pub(crate) fn new(retry: Duration) -> Self {
        Self {
            running: FuturesUnordered::new(),
            asked: BTreeMap::new(),
            retry,
        }
    }

    /// Whether the container may be asked to stop now.
    pub(crate) fn is_due(&self, container_id: &str, now: Instant) -> bool {
        match self.asked.get(container_id) {
            None => true,
            Some(again) => again.is_some_and(|t| t <= now),
        }
    }

    /// Begins to stop a container.
    pub(crate) fn start(
        &mut self,
        container_id: &str,
        stop: impl Future<Output = Result<(), RuntimeError>> + Send + 'static,
    ) {
        let id = container_id.to_owned();
        self.asked.insert(id.clone(), None);
        self.running.push(
            async move {
                Stopped {
                    container_id: id,
                    result: stop.await,
                }
            }
            .boxed(),
        );
    }

    /// The next stop that ends; pending when none runs.
    pub(crate) async fn next(&mut self) -> Stopped {
        let Some(stopped) = self.running.next().await else {
            return std::future::pending().await;
        };
        let again = Instant::now() + self.retry;
        self.asked.insert(stopped.container_id.clone(), Some(again));
        stopped
    }

    /// Forgets what is not wanted any more; when the next of the wanted ones may be asked again.
    pub(crate) fn keep_only(&mut self, wanted: &[&str]) -> Option<Instant> {
        self.asked
            .retain(|id, again| again.is_none() || wanted.contains(&id.as_str()));
        self.asked.values().filter_map(|again| *again).min()
    }
}
