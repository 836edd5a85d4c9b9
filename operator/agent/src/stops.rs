//! Stops in flight. They run concurrently with the agent's loop, so a runtime that hangs on one
//! container delays no other. A container gets no second stop while the first is in flight or has
//! just returned.

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

pub(crate) struct Stopped {
    pub container_id: String,
    pub result: Result<(), RuntimeError>,
}

pub(crate) struct Stops {
    running: FuturesUnordered<BoxFuture<'static, Stopped>>,
    /// Earliest next stop of each container; `None` while a stop is in flight.
    again_at: BTreeMap<String, Option<Instant>>,
    retry: Duration,
}

impl Stops {
    /// `retry`: pause before a second stop of a container.
    pub(crate) fn new(retry: Duration) -> Self {
        Self {
            running: FuturesUnordered::new(),
            again_at: BTreeMap::new(),
            retry,
        }
    }

    pub(crate) fn is_due(&self, container_id: &str, now: Instant) -> bool {
        match self.again_at.get(container_id) {
            None => true,
            Some(again) => again.is_some_and(|t| t <= now),
        }
    }

    pub(crate) fn start(
        &mut self,
        container_id: &str,
        stop: impl Future<Output = Result<(), RuntimeError>> + Send + 'static,
    ) {
        let id = container_id.to_owned();
        self.again_at.insert(id.clone(), None);
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

    pub(crate) async fn next(&mut self) -> Stopped {
        let Some(stopped) = self.running.next().await else {
            return std::future::pending().await;
        };
        let again = Instant::now() + self.retry;
        self.again_at
            .insert(stopped.container_id.clone(), Some(again));
        stopped
    }

    /// Drops the entries of all other containers, except stops in flight. Returns the earliest time
    /// of a next stop.
    pub(crate) fn keep_only(&mut self, kept: &[&str]) -> Option<Instant> {
        self.again_at
            .retain(|id, again| again.is_none() || kept.contains(&id.as_str()));
        self.again_at.values().filter_map(|again| *again).min()
    }
}
