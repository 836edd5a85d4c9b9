//! The container runtime of a node over CRI v1 and its unix socket.
//!
//! The listing is authoritative. The event stream wakes the agent, and reports exits of containers
//! that are removed before the next listing. containerd before 2.0 has no such stream, so the agent
//! polls. With a stream the agent still lists periodically, because a runtime drops events of slow
//! readers. All calls share one connection, opened on demand.

#![expect(
    clippy::disallowed_methods,
    reason = "time limits of I/O in tokio's time, which tests can pause; no decision reads it"
)]

pub mod api;
mod calls;
mod events;
mod exits;
mod view;

use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use tokio::time::{Instant, sleep_until};

pub use self::calls::{EndpointError, Socket};

use self::api::{Container, ContainerState};
use self::calls::Calls;
use self::events::{Event, Events};
use self::exits::Exits;
use crate::metrics::Metrics;
use crate::runtime::{Runtime, RuntimeError, Sandbox};

/// Most concurrent status calls for the exits of one listing.
const STATUS_CALLS: usize = 8;
/// Most events processed at once, so that a burst of events does not delay orders.
const EVENTS_AT_ONCE: usize = 256;

/// How long further changes are likely after a change: one attempt ends, the next one starts.
const LIVELY: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
pub struct Intervals {
    /// Polling interval without a stream, if members run and containers changed within the last 30
    /// s.
    pub poll: Duration,
    /// Polling interval without a stream, if members run and no container changes.
    pub calm: Duration,
    /// Polling interval without a stream and without members.
    pub idle: Duration,
    /// Listing interval with a stream.
    pub relist: Duration,
    /// First pause before a lost stream is requested again. It doubles with each failure.
    pub resubscribe: Duration,
    /// Longest such pause. Also the pause if the runtime has no event stream.
    pub max_resubscribe: Duration,
    pub deadline: Duration,
}

impl Default for Intervals {
    fn default() -> Self {
        Self {
            // A listing costs 0.5 ms of CPU time: 0.5 % of a CPU at `poll`, 0.1 % at `calm`.
            poll: Duration::from_millis(100),
            calm: Duration::from_millis(500),
            idle: Duration::from_secs(1),
            relist: Duration::from_secs(10),
            resubscribe: Duration::from_secs(1),
            max_resubscribe: Duration::from_mins(1),
            deadline: Duration::from_secs(5),
        }
    }
}

pub struct CriRuntime {
    calls: Calls,
    events: Events,
    exits: Exits,
    intervals: Intervals,
    listed: Vec<(String, i32)>,
    members: bool,
    /// End of the time in which further changes are likely.
    lively_until: Instant,
    /// Time of the next listing without an event.
    list_at: Instant,
    metrics: Metrics,
}

impl CriRuntime {
    /// Connects with the first call: the socket need not exist yet. Must be called within a tokio
    /// runtime.
    pub fn new(socket: &Socket, intervals: Intervals, metrics: &Metrics) -> Self {
        let calls = Calls::new(socket, intervals.deadline, metrics);
        Self {
            events: Events::new(
                calls.clone(),
                intervals.resubscribe,
                intervals.max_resubscribe,
            ),
            calls,
            exits: Exits::default(),
            intervals,
            listed: Vec::new(),
            members: false,
            lively_until: Instant::now(),
            list_at: Instant::now(),
            metrics: metrics.clone(),
        }
    }

    fn interval(&self) -> Duration {
        match (self.events.are_expected(), self.members) {
            (true, _) => self.intervals.relist,
            (false, true) if Instant::now() < self.lively_until => self.intervals.poll,
            (false, true) => self.intervals.calm,
            (false, false) => self.intervals.idle,
        }
    }

    fn take(&mut self, event: Event) -> bool {
        match event {
            Event::Container(event) => self.exits.record(event),
            Event::Interrupted => true,
        }
    }

    /// Records all events that have arrived. Returns true if one concerns a member.
    fn take_waiting(&mut self) -> bool {
        let mut concerns = false;
        for _ in 0..EVENTS_AT_ONCE {
            let Some(event) = self.events.next().now_or_never() else {
                break;
            };
            concerns |= self.take(event);
        }
        concerns
    }

    async fn differs(&mut self) -> bool {
        match self.calls.list_containers().await {
            Ok(containers) => states(&containers) != self.listed,
            // The next listing returns the error.
            Err(_) => true,
        }
    }

    /// Requests the exits that no event reported. A missing container counts as removed.
    async fn fetch_exits(
        &mut self,
        pods: &[view::Pod],
        containers: &[Container],
    ) -> Result<(), RuntimeError> {
        let mut unrecorded = Vec::new();
        for (pod, container) in view::join(pods, containers) {
            if container.state() == ContainerState::ContainerExited
                && !self.exits.contains(&pod.uid, &container.id)
            {
                unrecorded.push((pod.uid.clone(), container.id.clone()));
            }
        }
        let calls = &self.calls;
        let statuses = stream::iter(unrecorded)
            .map(|(uid, id)| async move {
                calls
                    .container_status(&id)
                    .await
                    .map(|status| (uid, status))
            })
            .buffer_unordered(STATUS_CALLS);
        for (uid, status) in statuses.try_collect::<Vec<_>>().await? {
            if let Some(status) = status {
                self.exits.insert(&uid, &status);
            }
        }
        Ok(())
    }
}

impl Runtime for CriRuntime {
    async fn version(&mut self) -> Result<String, RuntimeError> {
        self.calls.ready().await?;
        self.calls.version().await
    }

    async fn list(&mut self) -> Result<Vec<Sandbox>, RuntimeError> {
        // Set before the calls: changes during a listing belong to the next listing, and a failed
        // listing is not repeated at once.
        self.list_at = Instant::now() + self.interval();
        let pods = view::pods(self.calls.list_pod_sandboxes().await?);
        let containers = self.calls.list_containers().await?;
        // Only events have the exit codes of containers that were removed before this listing.
        // These events have arrived.
        let news = self.take_waiting();
        self.exits
            .keep_only(&pods.iter().map(|p| p.uid.as_str()).collect());
        self.fetch_exits(&pods, &containers).await?;
        self.members = !pods.is_empty();
        self.metrics.members.set(pods.len() as i64);
        self.metrics
            .subscribed
            .set(i64::from(self.events.are_expected()));
        let states = states(&containers);
        if states != self.listed {
            self.listed = states;
            self.lively_until = Instant::now() + LIVELY;
        }
        // These events may be newer than this listing.
        self.list_at = Instant::now()
            + if news {
                Duration::ZERO
            } else {
                self.interval()
            };
        Ok(view::sandboxes(pods, &containers, &self.exits))
    }

    fn stop(&self, container_id: &str) -> BoxFuture<'static, Result<(), RuntimeError>> {
        let (calls, id) = (self.calls.clone(), container_id.to_owned());
        async move { calls.stop_container(id).await }.boxed()
    }

    async fn changed(&mut self) {
        loop {
            tokio::select! {
                biased;
                event = self.events.next() => {
                    let concerns = self.take(event);
                    if self.take_waiting() || concerns {
                        return;
                    }
                }
                () = sleep_until(self.list_at) => {
                    self.list_at = Instant::now() + self.interval();
                    if self.events.are_expected() || self.differs().await {
                        return;
                    }
                }
            }
        }
    }
}

fn states(containers: &[Container]) -> Vec<(String, i32)> {
    let mut states: Vec<_> = containers.iter().map(|c| (c.id.clone(), c.state)).collect();
    states.sort_unstable();
    states
}
