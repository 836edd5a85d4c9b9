//! The loop of one agent: look, decide, persist, stop, publish.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::future::{Either, join_all, select};
use kube::Client;
use lockstep_api::NodeAgentStatus;
use lockstep_api::node_agent::capabilities;
use lockstep_lifecycle::node::{NodePod, NodeView, Records, Stop, decide};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{error, info, warn};

use crate::orders::Orders;
use crate::publish::Publisher;
use crate::runtime::{Runtime, RuntimeError, Sandbox};
use crate::store::{Store, StoreError};

/// Longest time that a call to the runtime may take.
const RUNTIME_DEADLINE: Duration = Duration::from_secs(10);
/// Pause after something failed.
const RETRY: Duration = Duration::from_secs(1);

/// Reads the node's clock.
pub type Clock = Arc<dyn Fn() -> DateTime<Utc> + Send + Sync>;

/// What one agent runs on.
pub struct Agent<R, S> {
    /// Name of the node.
    pub node: String,
    /// Its runtime.
    pub runtime: R,
    /// Where its records are kept.
    pub store: S,
    /// Client with the agent's own identity.
    pub client: Client,
    /// The orders of the cluster.
    pub orders: watch::Receiver<Orders>,
    /// The node's clock.
    pub now: Clock,
    /// Changes within this time are told in one write.
    pub debounce: Duration,
}

#[derive(Debug, Error)]
enum StepError {
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl<R: Runtime, S: Store> Agent<R, S> {
    /// Works until it is dropped. A crash at any point loses nothing: what matters is in the store before it shows.
    pub async fn run(mut self) -> Infallible {
        let runtime_version = loop {
            match in_time("version", self.runtime.version()).await {
                Ok(version) => break version,
                Err(error) => warn!(node = self.node, %error, "the runtime does not answer, retrying"),
            }
            sleep(RETRY).await;
        };
        let (publisher, found) = Publisher::open(self.client.clone(), &self.node).await;
        let told = NodeAgentStatus {
            agent_version: env!("CARGO_PKG_VERSION").into(),
            runtime: runtime_version,
            capabilities: vec![capabilities::REPORT.into(), capabilities::STOP.into()],
            ..found.clone()
        };
        let records = self.records(&found).await;
        info!(node = self.node, runtime = told.runtime, known = records.pods.len(), "agent started");
        let wanted = watch::Sender::new(found);
        let publish = publisher.run(wanted.subscribe(), self.debounce);
        tell(&wanted, told);
        let work = self.work(records, &wanted);
        match select(std::pin::pin!(work), std::pin::pin!(publish)).await {
            Either::Left((never, _)) | Either::Right((never, _)) => never,
        }
    }

    async fn records(&self, found: &NodeAgentStatus) -> Records {
        match self.store.load().await {
            Ok(Some(records)) => records,
            Ok(None) => Records::from_published(found),
            Err(error) => {
                // Without records nothing that runs is stopped for an order that was given before: the safe side.
                error!(node = self.node, error = &error as &dyn std::error::Error, "records are lost, starting anew");
                Records::from_published(found)
            }
        }
    }

    async fn work(mut self, mut records: Records, wanted: &watch::Sender<NodeAgentStatus>) -> Infallible {
        loop {
            let wake = match self.step(&mut records, wanted).await {
                Ok(wake) => wake,
                Err(error) => {
                    warn!(node = self.node, error = &error as &dyn std::error::Error, "step failed, retrying");
                    Some(RETRY)
                }
            };
            tokio::select! {
                biased;
                changed = self.orders.changed() => if changed.is_err() {
                    // The watch is gone with its process.
                    std::future::pending::<()>().await;
                },
                () = self.runtime.changed() => {}
                () = sleep(wake.unwrap_or_default()), if wake.is_some() => {}
            }
        }
    }

    /// One look and what follows from it; returns when to look again although nothing changed.
    async fn step(
        &mut self,
        records: &mut Records,
        wanted: &watch::Sender<NodeAgentStatus>,
    ) -> Result<Option<Duration>, StepError> {
        let pods: Vec<_> = in_time("list", self.runtime.list()).await?.into_iter().filter_map(node_pod).collect();
        let plan = {
            let orders = self.orders.borrow_and_update();
            let Some(orders) = orders.as_ref() else { return Ok(None) };
            let told = wanted.borrow();
            decide(&NodeView { orders, pods: &pods, records, published: &told }, (self.now)())
        };
        if let Some(new) = plan.records {
            self.store.save(&new).await?;
            *records = new;
        }
        let stopped = join_all(plan.stop.iter().map(|s| self.stop(s))).await;
        if let Some(status) = plan.status {
            tell(wanted, status);
        }
        let retry = stopped.contains(&false).then_some(RETRY);
        Ok([plan.wake_after, retry].into_iter().flatten().min())
    }

    async fn stop(&self, stop: &Stop) -> bool {
        info!(node = self.node, pod = stop.pod_uid, container = stop.container_id, "stopping a member for its restart");
        match in_time("stop", self.runtime.stop(&stop.container_id)).await {
            Ok(()) => true,
            Err(error) => {
                warn!(node = self.node, container = stop.container_id, %error, "cannot stop a member, retrying");
                false
            }
        }
    }
}

fn tell(wanted: &watch::Sender<NodeAgentStatus>, status: NodeAgentStatus) {
    wanted.send_if_modified(|told| {
        let different = *told != status;
        *told = status;
        different
    });
}

/// A member's pod with its training containers; None for other pods.
fn node_pod(mut sandbox: Sandbox) -> Option<NodePod> {
    let mut pod = NodePod::read(&sandbox.pod_uid, &sandbox.labels, &sandbox.annotations)?;
    pod.containers = sandbox.containers.remove(&pod.training).unwrap_or_default();
    Some(pod)
}

async fn in_time<T>(
    call: &'static str,
    answer: impl Future<Output = Result<T, RuntimeError>>,
) -> Result<T, RuntimeError> {
    timeout(RUNTIME_DEADLINE, answer).await.map_err(|_| RuntimeError::Deadline { call })?
}
