//! The main loop of an agent: list containers, decide, persist, stop containers, notify
//! supervisors, publish.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::future::{Either, select};
use kube::Client;
use lockstep_api::NodeAgentStatus;
use lockstep_node::Records;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{error, info, warn};

use crate::health::{Part, Readiness};
use crate::metrics::Metrics;
use crate::orders::Orders;
use crate::publish::{News, Publisher};
use crate::reconcile::{RETRY, Reconciler, ReconcilerState, StepError};
use crate::runtime::{Runtime, in_time};
use crate::store::Store;
use crate::supervisors::Supervisors;

pub use crate::reconcile::Now;

pub struct Agent<R, S, V> {
    pub node: String,
    pub runtime: R,
    pub store: S,
    pub supervisors: V,
    /// Client with the agent's own identity.
    pub client: Client,
    pub orders: watch::Sender<Orders>,
    pub now: Now,
    /// Changes within this time share one write of the `NodeAgent`.
    pub debounce: Duration,
    pub metrics: Metrics,
    pub readiness: Readiness,
}

impl<R: Runtime, S: Store, V: Supervisors> Agent<R, S, V> {
    /// Runs until it is dropped. A crash loses nothing: the agent persists all decisions before it
    /// acts.
    pub async fn run(mut self) -> Infallible {
        let runtime_version = loop {
            match in_time("version", self.runtime.version()).await {
                Ok(version) => break version,
                Err(error) => {
                    self.readiness.waits_for(Part::Runtime, &error);
                    warn!(node = self.node, %error, "the runtime does not answer, retrying");
                }
            }
            sleep(RETRY).await;
        };
        let (publisher, last_status) = Publisher::open(self.client.clone(), &self.node).await;
        let initial = NodeAgentStatus {
            agent_version: lockstep_version::VERSION.into(),
            runtime: runtime_version,
            capabilities: Vec::new(),
            ..last_status.clone()
        };
        let stored_records = load_records(&self.store, &self.node).await;
        // Without records, the agent cannot match running containers to attempts before its first
        // listing.
        let remembers = stored_records.is_some();
        let records = stored_records.unwrap_or_else(|| Records::from_published(&last_status));
        info!(
            node = self.node,
            runtime = initial.runtime,
            known = records.pods.len(),
            "agent started"
        );
        let desired = watch::Sender::new(News {
            status: last_status,
            ..News::default()
        });
        let readiness = self.readiness.clone();
        let publish = publisher.run(desired.subscribe(), self.debounce, &readiness);
        let (runtime, reconciler) = self.reconciler(records, desired);
        if !reconciler.publish(initial, remembers, Duration::ZERO) {
            readiness.done(Part::Object);
        }
        let work = work(runtime, reconciler);
        match select(std::pin::pin!(work), std::pin::pin!(publish)).await {
            Either::Left((never, _)) | Either::Right((never, _)) => never,
        }
    }

    /// Splits the agent into its runtime and the part that works while the runtime handles a call.
    pub(crate) fn reconciler(
        self,
        records: Records,
        desired: watch::Sender<News>,
    ) -> (R, Reconciler<S, V>) {
        let reconciler = Reconciler {
            node: self.node,
            store: self.store,
            supervisors: self.supervisors,
            orders_changed: self.orders.subscribe(),
            orders: self.orders,
            now: self.now,
            metrics: self.metrics,
            readiness: self.readiness,
            desired,
            state: ReconcilerState::new(records),
        };
        (self.runtime, reconciler)
    }
}

async fn work<R: Runtime, S: Store, V: Supervisors>(
    mut runtime: R,
    mut node: Reconciler<S, V>,
) -> Infallible {
    let mut failed = false;
    loop {
        // If the runtime restarts between two listings, only stops in flight fail.
        let recovering = node.stop_failed() || failed;
        let turn = turn(&mut runtime, &mut node, recovering).await;
        failed = turn.is_err();
        node.ended(turn);
        tokio::select! {
            biased;
            () = node.changed() => {}
            () = runtime.changed() => {}
        }
    }
}

/// Runs one step. The first successful step after a failure reads the runtime's version again,
/// because an upgrade may have restarted the runtime.
async fn turn<R: Runtime, S: Store, V: Supervisors>(
    runtime: &mut R,
    node: &mut Reconciler<S, V>,
    recovering: bool,
) -> Result<(), StepError> {
    step(runtime, node).await?;
    if recovering {
        // No call of `meanwhile`: it consumes events that no later step would process.
        let version = in_time("version", runtime.version()).await?;
        node.works_again(version);
    }
    Ok(())
}

async fn step<R: Runtime, S: Store, V: Supervisors>(
    runtime: &mut R,
    node: &mut Reconciler<S, V>,
) -> Result<(), StepError> {
    match node.meanwhile(in_time("list", runtime.list())).await? {
        Ok(sandboxes) => {
            node.listed(sandboxes);
            let stops = node.follow(true).await?;
            node.stop(&stops, |id| runtime.stop(id));
            Ok(())
        }
        Err(error) => {
            node.follow(false).await?;
            Err(error.into())
        }
    }
}

async fn load_records(store: &impl Store, node: &str) -> Option<Records> {
    match store.load().await {
        Ok(records) => records,
        Err(error) => {
            error!(
                node,
                error = &error as &dyn std::error::Error,
                "records are lost, starting without them"
            );
            None
        }
    }
}
