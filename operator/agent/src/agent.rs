//! The loop of one agent: look, decide, persist, stop and tell, publish.

#![expect(
    clippy::disallowed_methods,
    reason = "time limits of I/O in tokio's time, which tests can pause; no decision reads it"
)]

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::future::{Either, select};
use kube::Client;
use lockstep_api::NodeAgentStatus;
use lockstep_api::node_agent::capabilities;
use lockstep_lifecycle::node::{NodePlan, NodePod, NodeView, Records, Stop, decide};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::{error, info, warn};

use crate::health::{Part, Readiness};
use crate::metrics::Metrics;
use crate::orders::Orders;
use crate::publish::{News, Publisher};
use crate::runtime::{Runtime, RuntimeError, Sandbox};
use crate::stops::{Stopped, Stops};
use crate::store::{Store, StoreError};
use crate::supervisors::Supervisors;

/// Longest time that a call to the runtime may take.
const RUNTIME_DEADLINE: Duration = Duration::from_secs(10);
/// Pause after something failed.
const RETRY: Duration = Duration::from_secs(1);

/// Reads the node's clock.
pub type Now = Arc<dyn Fn() -> DateTime<Utc> + Send + Sync>;

/// What one agent runs on.
pub struct Agent<R, S, V> {
    /// Name of the node.
    pub node: String,
    /// Its runtime.
    pub runtime: R,
    /// Where its records are kept.
    pub store: S,
    /// The supervisors in the containers of its members.
    pub supervisors: V,
    /// Client with the agent's own identity.
    pub client: Client,
    /// The orders of the cluster.
    pub orders: watch::Receiver<Orders>,
    /// The node's clock.
    pub now: Now,
    /// Changes within this time are told in one write.
    pub debounce: Duration,
    /// What it counts.
    pub metrics: Metrics,
    /// What it waits for.
    pub readiness: Readiness,
}

#[derive(Debug, Error)]
pub(crate) enum StepError {
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What one agent knows of its node.
struct Known {
    records: Records,
    /// Members' pods, as the runtime was listed last; None: not yet.
    pods: Option<Vec<NodePod>>,
}

impl<R: Runtime, S: Store, V: Supervisors> Agent<R, S, V> {
    /// Works until it is dropped. A crash at any point loses nothing: what matters is in the store
    /// before it shows.
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
        let (publisher, found) = Publisher::open(self.client.clone(), &self.node).await;
        self.readiness.done(Part::Object);
        let told = NodeAgentStatus {
            agent_version: lockstep_version::VERSION.into(),
            runtime: runtime_version,
            capabilities: Vec::new(),
            ..found.clone()
        };
        let found_records = load_records(&self.store, &self.node).await;
        // Until it has seen what runs, it cannot say for which attempt.
        let remembers = found_records.is_some();
        let told = self.able(told, remembers);
        let records = found_records.unwrap_or_else(|| Records::from_published(&found));
        info!(
            node = self.node,
            runtime = told.runtime,
            known = records.pods.len(),
            "agent started"
        );
        let wanted = watch::Sender::new(News {
            status: found,
            ..News::default()
        });
        let publish = publisher.run(wanted.subscribe(), self.debounce);
        tell(&wanted, told, Duration::ZERO);
        let work = self.work(records, &wanted);
        match select(std::pin::pin!(work), std::pin::pin!(publish)).await {
            Either::Left((never, _)) | Either::Right((never, _)) => never,
        }
    }

    async fn work(mut self, records: Records, wanted: &watch::Sender<News>) -> Infallible {
        let mut known = Known {
            records,
            pods: None,
        };
        let mut stops = Stops::new(RETRY);
        let mut failure = None;
        // A runtime that restarts between two looks shows in a call that it did not answer alone.
        let mut unanswered = false;
        loop {
            let recovering = failure.is_some() || unanswered;
            let turn = self.turn(&mut known, wanted, &mut stops, recovering);
            let wake = match turn.await {
                Ok(wake) => {
                    (failure, unanswered) = (None, false);
                    wake
                }
                Err(error) => {
                    self.failed(&error, &mut failure);
                    Some(RETRY)
                }
            };
            tokio::select! {
                biased;
                changed = self.orders.changed() => if changed.is_err() {
                    // The watch is gone with its process.
                    std::future::pending::<()>().await;
                },
                stopped = stops.next() => {
                    unanswered |= stopped.result.is_err();
                    self.stopped(&stopped);
                }
                () = self.runtime.changed() => {}
                () = self.supervisors.changed() => {}
                () = sleep(wake.unwrap_or_default()), if wake.is_some() => {}
            }
        }
    }

    /// A step failed; says so once for each cause.
    fn failed(&self, error: &StepError, last: &mut Option<String>) {
        self.metrics.failed_steps.inc();
        let text = error.to_string();
        let part = match error {
            StepError::Runtime(_) => Part::Runtime,
            StepError::Store(_) => Part::Records,
        };
        self.readiness.waits_for(part, error);
        if last.as_ref() != Some(&text) {
            warn!(
                node = self.node,
                error = error as &dyn std::error::Error,
                "step failed, retrying"
            );
            *last = Some(text);
        }
    }

    /// One step; the first that succeeds after a failure looks whether the runtime is another
    /// version of itself.
    async fn turn(
        &mut self,
        known: &mut Known,
        wanted: &watch::Sender<News>,
        stops: &mut Stops,
        recovering: bool,
    ) -> Result<Option<Duration>, StepError> {
        let wake = self.step(known, wanted, stops).await?;
        if recovering {
            let runtime = in_time("version", self.runtime.version()).await?;
            info!(node = self.node, runtime, "working again");
            let status = NodeAgentStatus {
                runtime,
                ..wanted.borrow().status.clone()
            };
            tell(wanted, status, Duration::ZERO);
        }
        Ok(wake)
    }

    /// One look and what follows from it; returns when to look again although nothing changed.
    async fn step(
        &mut self,
        known: &mut Known,
        wanted: &watch::Sender<News>,
        stops: &mut Stops,
    ) -> Result<Option<Duration>, StepError> {
        let listed = in_time("list", self.runtime.list()).await;
        let away = match listed {
            Ok(sandboxes) => {
                self.readiness.done(Part::Runtime);
                let pods = sandboxes.into_iter().filter_map(Sandbox::into_member);
                known.pods = Some(pods.collect());
                None
            }
            Err(error) => Some(error),
        };
        let wake = self.follow(away.is_none(), known, wanted, stops).await?;
        away.map_or(Ok(wake), |error| Err(error.into()))
    }

    /// What follows from the last look; nothing where there was none yet. `listed`: it was just now.
    /// While the runtime is away supervisors can be held and released all the same, and their members'
    /// peers wait for that.
    async fn follow(
        &mut self,
        listed: bool,
        known: &mut Known,
        wanted: &watch::Sender<News>,
        stops: &mut Stops,
    ) -> Result<Option<Duration>, StepError> {
        let Some(pods) = &mut known.pods else {
            return Ok(None);
        };
        if listed {
            self.supervisors.look(pods);
        } else {
            self.supervisors.look_again(pods);
        }
        let plan = {
            let orders = self.orders.borrow_and_update();
            let Some(orders) = orders.as_ref() else {
                return Ok(None);
            };
            self.readiness.done(Part::Orders);
            let told = wanted.borrow();
            decide(
                &NodeView {
                    node: &self.node,
                    orders,
                    pods,
                    listed,
                    records: &known.records,
                    published: &told.status,
                },
                (self.now)(),
            )
        };
        self.carry_out(plan, &mut known.records, wanted, stops)
            .await
    }

    /// What was decided, in the order in which a crash loses nothing.
    pub(crate) async fn carry_out(
        &mut self,
        plan: NodePlan,
        records: &mut Records,
        wanted: &watch::Sender<News>,
        stops: &mut Stops,
    ) -> Result<Option<Duration>, StepError> {
        if let Some(new) = plan.records {
            self.store.save(&new).await?;
            *records = new;
        }
        self.readiness.done(Part::Records);
        let stop_again = self.stop(&plan.stop, stops);
        let tell_again = self.supervisors.tell(&plan.tell);
        let status = plan
            .status
            .unwrap_or_else(|| wanted.borrow().status.clone());
        tell(wanted, self.able(status, true), plan.slot);
        let wakes = [plan.wake_after, stop_again, tell_again];
        Ok(wakes.into_iter().flatten().min())
    }

    /// Begins to stop all of these at once; returns when the next of those that have been asked may
    /// be asked again.
    fn stop(&self, wanted: &[Stop], stops: &mut Stops) -> Option<Duration> {
        let now = Instant::now();
        for Stop {
            pod_uid,
            container_id,
        } in wanted
        {
            if stops.is_due(container_id, now) {
                info!(
                    node = self.node,
                    pod = pod_uid,
                    container = container_id,
                    "stopping a member for its restart"
                );
                let stop = self.runtime.stop(container_id);
                stops.start(container_id, async move { in_time("stop", stop).await });
            }
        }
        let ids: Vec<&str> = wanted.iter().map(|s| s.container_id.as_str()).collect();
        stops
            .keep_only(&ids)
            .map(|again| again.saturating_duration_since(now))
    }

    /// A status that says what the agent can do. `remembers`: it knows what runs on its node, from
    /// its records or because it has looked; until then members there are not to be stopped by it.
    fn able(&self, status: NodeAgentStatus, remembers: bool) -> NodeAgentStatus {
        let out_of_reach = self.supervisors.out_of_reach();
        let capabilities = [
            Some(capabilities::REPORT),
            remembers.then_some(capabilities::STOP),
            out_of_reach.is_none().then_some(capabilities::SUPERVISE),
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

    fn stopped(&self, stopped: &Stopped) {
        self.metrics.stopped(stopped.result.is_ok());
        if let Err(error) = &stopped.result {
            warn!(node = self.node, container = stopped.container_id, %error, "cannot stop a member, retrying");
        }
    }
}

/// What was persisted; None: nothing, or nothing that can be read.
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

fn tell(wanted: &watch::Sender<News>, status: NodeAgentStatus, slot: Duration) {
    wanted.send_if_modified(|told| told.update(status, slot));
}

async fn in_time<T>(
    call: &'static str,
    answer: impl Future<Output = Result<T, RuntimeError>>,
) -> Result<T, RuntimeError> {
    timeout(RUNTIME_DEADLINE, answer)
        .await
        .map_err(|_| RuntimeError::Deadline { call })?
}
