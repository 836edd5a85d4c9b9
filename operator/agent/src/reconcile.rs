//! The work of an agent between two responses of its runtime: decide on the last listing, persist,
//! notify supervisors, publish.

#![expect(
    clippy::disallowed_methods,
    reason = "time limits of I/O in tokio's time, which tests can pause; no decision reads it"
)]

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use lockstep_api::NodeAgentStatus;
use lockstep_api::node_agent::capabilities;
use lockstep_node::{NodePlan, NodePod, NodeView, Records, Stop, decide};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use crate::health::{Part, Readiness};
use crate::metrics::Metrics;
use crate::orders::Orders;
use crate::publish::News;
use crate::runtime::{RuntimeError, Sandbox, in_time};
use crate::stops::{Stopped, Stops};
use crate::store::{Store, StoreError};
use crate::supervisors::Supervisors;

/// Pause after a failure.
pub(crate) const RETRY: Duration = Duration::from_secs(1);

/// A runtime usually answers within this time, for which a decision waits.
const SOON: Duration = Duration::from_millis(50);

/// Reads the node's clock.
pub type Now = Arc<dyn Fn() -> DateTime<Utc> + Send + Sync>;

#[derive(Debug, Error)]
pub(crate) enum StepError {
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

pub(crate) struct Reconciler<S, V> {
    pub node: String,
    pub store: S,
    pub supervisors: V,
    pub orders: watch::Sender<Orders>,
    pub orders_changed: watch::Receiver<Orders>,
    pub now: Now,
    pub metrics: Metrics,
    pub readiness: Readiness,
    pub desired: watch::Sender<News>,
    pub state: ReconcilerState,
}

pub(crate) struct ReconcilerState {
    records: Records,
    /// Members' pods of the last listing; `None` before the first.
    pods: Option<Vec<NodePod>>,
    stops: Stops,
    stop_failed: bool,
    /// Error of the last turn. Each cause is logged once.
    failure: Option<String>,
    /// Time of the next decision without a change.
    decide_at: Option<Instant>,
}

impl ReconcilerState {
    pub fn new(records: Records) -> Self {
        Self {
            records,
            pods: None,
            stops: Stops::new(RETRY),
            stop_failed: false,
            failure: None,
            decide_at: None,
        }
    }
}

impl<S: Store, V: Supervisors> Reconciler<S, V> {
    /// Returns when an order, a stop, a supervisor or the timer requires a decision. After a drop,
    /// the caller must decide anyway.
    pub async fn changed(&mut self) {
        let decide_at = self.state.decide_at;
        tokio::select! {
            biased;
            changed = self.orders_changed.changed() => if changed.is_err() {
                // The process is ending.
                std::future::pending::<()>().await;
            },
            stopped = self.state.stops.next() => self.stopped(&stopped),
            () = self.supervisors.changed() => {}
            () = sleep_until(decide_at.unwrap_or_else(Instant::now)), if decide_at.is_some() => {}
        }
    }

    /// Waits for a response of the runtime. After 50 ms, each change causes a decision on the last
    /// listing, so a hung runtime delays only decisions that need it.
    pub async fn meanwhile<T>(
        &mut self,
        response: impl Future<Output = T>,
    ) -> Result<T, StoreError> {
        let mut response = pin!(response);
        if let Ok(response) = timeout(SOON, &mut response).await {
            return Ok(response);
        }
        loop {
            self.follow(false).await?;
            tokio::select! {
                biased;
                response = &mut response => return Ok(response),
                () = self.changed() => {}
            }
        }
    }

    pub fn listed(&mut self, sandboxes: Vec<Sandbox>) {
        self.readiness.done(Part::Runtime);
        let pods: Vec<NodePod> = sandboxes
            .into_iter()
            .filter_map(Sandbox::into_member)
            .collect();
        self.orders
            .send_if_modified(|orders| orders.set_pods(&self.node, &pods));
        self.state.pods = Some(pods);
    }

    /// Decides on the last listing, if there is one. `listed`: the listing is new. Without a new
    /// listing, the agent still pauses and releases supervisors, because peers of the members wait
    /// for them. Returns the containers to stop; none unless `listed`.
    pub async fn follow(&mut self, listed: bool) -> Result<Vec<Stop>, StoreError> {
        self.state.decide_at = None;
        let Some(pods) = &mut self.state.pods else {
            return Ok(Vec::new());
        };
        if listed {
            self.supervisors.observe(pods);
        } else {
            self.supervisors.observe_again(pods);
        }
        let plan = {
            let all = self.orders_changed.borrow_and_update();
            let Some(orders) = all.held() else {
                return Ok(Vec::new());
            };
            for pod in pods.iter_mut() {
                pod.awaits_order = all.is_awaited(pod);
            }
            let desired = self.desired.borrow();
            decide(
                &NodeView {
                    node: &self.node,
                    orders,
                    pods,
                    listed,
                    records: &self.state.records,
                    published: &desired.status,
                },
                (self.now)(),
            )
        };
        self.carry_out(plan).await
    }

    /// Carries out a plan in an order in which a crash loses nothing. Returns the containers to
    /// stop.
    pub async fn carry_out(&mut self, plan: NodePlan) -> Result<Vec<Stop>, StoreError> {
        if let Some(new) = plan.records {
            self.store.save(&new).await?;
            self.state.records = new;
        }
        self.readiness.done(Part::Records);
        let send_again = self.supervisors.send(&plan.messages);
        let status = plan
            .status
            .unwrap_or_else(|| self.desired.borrow().status.clone());
        self.publish(status, true, plan.slot);
        let wakes = plan.wake_after.into_iter().chain(send_again);
        self.decide_by(wakes.min().map(|wait| Instant::now() + wait));
        Ok(plan.stop)
    }

    fn decide_by(&mut self, at: Option<Instant>) {
        self.state.decide_at = self.state.decide_at.into_iter().chain(at).min();
    }

    /// Stops these containers concurrently, except those whose stop is in flight or recent.
    pub fn stop(
        &mut self,
        requested: &[Stop],
        stop: impl Fn(&str) -> BoxFuture<'static, Result<(), RuntimeError>>,
    ) {
        let now = Instant::now();
        for Stop {
            pod_uid,
            container_id,
        } in requested
        {
            if self.state.stops.is_due(container_id, now) {
                info!(
                    node = self.node,
                    pod = pod_uid,
                    container = container_id,
                    "stopping a member for its restart"
                );
                let stop = in_time("stop", stop(container_id));
                self.state.stops.start(container_id, stop);
            }
        }
        let ids: Vec<&str> = requested.iter().map(|s| s.container_id.as_str()).collect();
        let again = self.state.stops.keep_only(&ids);
        self.decide_by(again);
    }

    /// Publishes a status with the agent's capabilities. `remembers`: the agent knows the
    /// containers of its node, from its records or a listing. Without them it lacks the capability
    /// to stop members. `slot`: longest delay of the write. Returns true if the status differs.
    pub fn publish(&self, status: NodeAgentStatus, remembers: bool, slot: Duration) -> bool {
        let status = self.able(status, remembers);
        self.desired
            .send_if_modified(|news| news.update(status, slot))
    }

    fn able(&self, status: NodeAgentStatus, remembers: bool) -> NodeAgentStatus {
        let out_of_reach = self.supervisors.out_of_reach();
        let capabilities = [
            Some(capabilities::REPORT),
            remembers.then_some(capabilities::STOP),
            out_of_reach.is_none().then_some(capabilities::SUPERVISE),
            out_of_reach.is_none().then_some(capabilities::CHECKPOINT),
        ];
        if self.readiness.without_supervisors(out_of_reach.as_deref()) {
            if let Some(why) = out_of_reach {
                info!(node = self.node, why, "working without supervisors");
            } else {
                info!(node = self.node, "working with supervisors");
            }
        }
        NodeAgentStatus {
            capabilities: capabilities
                .into_iter()
                .flatten()
                .map(str::to_owned)
                .collect(),
            ..status
        }
    }

    /// Logs each cause of failure once.
    pub fn ended(&mut self, turn: Result<(), StepError>) {
        let Err(error) = turn else {
            self.state.failure = None;
            return;
        };
        self.state.decide_at = Some(Instant::now() + RETRY);
        self.metrics.failed_steps.inc();
        let text = error.to_string();
        let part = match error {
            StepError::Runtime(_) => Part::Runtime,
            StepError::Store(_) => Part::Records,
        };
        self.readiness.waits_for(part, &error);
        if self.state.failure.as_ref() != Some(&text) {
            warn!(
                node = self.node,
                error = &error as &dyn std::error::Error,
                "step failed, retrying"
            );
            self.state.failure = Some(text);
        }
    }

    /// The runtime answers again after a failure. Publishes its version.
    pub fn works_again(&mut self, runtime: String) {
        info!(node = self.node, runtime, "working again");
        self.desired.send_if_modified(|news| {
            let status = NodeAgentStatus {
                runtime,
                ..news.status.clone()
            };
            news.update(status, Duration::ZERO)
        });
    }

    pub fn stop_failed(&mut self) -> bool {
        std::mem::take(&mut self.state.stop_failed)
    }

    fn stopped(&mut self, stopped: &Stopped) {
        self.state.stop_failed |= stopped.result.is_err();
        self.metrics.stopped(stopped.result.is_ok());
        if let Err(error) = &stopped.result {
            warn!(node = self.node, container = stopped.container_id, %error, "cannot stop a member, retrying");
        }
    }
}
