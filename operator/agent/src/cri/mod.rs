//! The container runtime of a node over CRI v1 and its unix socket.
//!
//! Listing is the truth; the runtime's event stream wakes the agent and tells of exits that are
//! removed before it looks. Where there is no stream (containerd 1.6 answers Unimplemented) or it
//! is lost, listing is repeated instead, and even with a stream now and then, because a runtime
//! drops events of slow readers. Calls go over one connection that is made when it is needed and
//! made again when the runtime has restarted.

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

/// Most calls in flight for the exits of one listing.
const STATUS_CALLS: usize = 8;
/// Most events taken in one go, so that a storm of them delays no order.
const EVENTS_AT_ONCE: usize = 256;

/// How long a change is followed by more of them: the end of one attempt by the start of the next.
const LIVELY: Duration = Duration::from_secs(30);

/// How often the runtime is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Intervals {
    /// Without a stream of events, while members run and for half a minute after containers have
    /// changed.
    pub poll: Duration,
    /// Without a stream of events, while members run and nothing changes.
    pub calm: Duration,
    /// Without a stream of events, while there are no members.
    pub idle: Duration,
    /// With a stream.
    pub relist: Duration,
    /// First pause before a stream is asked for again, doubling.
    pub resubscribe: Duration,
    /// Longest such pause, and the one where the runtime has no events.
    pub max_resubscribe: Duration,
    /// Longest time that one call may take.
    pub deadline: Duration,
}

impl Default for Intervals {
    fn default() -> Self {
        Self {
            // Each look costs half a millisecond of processor time: half a percent of one while
            // something moves, a tenth while nothing does.
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

/// The runtime behind one socket.
pub struct CriRuntime {
    calls: Calls,
    events: Events,
    exits: Exits,
    intervals: Intervals,
    /// Containers and their states at the last listing, sorted.
    listed: Vec<(String, i32)>,
    members: bool,
    /// Until when more changes are likely.
    lively_until: Instant,
    /// When to look without being woken.
    look_at: Instant,
    metrics: Metrics,
}

impl CriRuntime {
    /// A runtime that is connected when it is first called: the socket need not exist yet. Must be
    /// called within a tokio runtime.
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
            look_at: Instant::now(),
            metrics: metrics.clone(),
        }
    }

    /// When to look again after a listing.
    fn interval(&self) -> Duration {
        match (self.events.are_expected(), self.members) {
            (true, _) => self.intervals.relist,
            (false, true) if Instant::now() < self.lively_until => self.intervals.poll,
            (false, true) => self.intervals.calm,
            (false, false) => self.intervals.idle,
        }
    }

    /// Learns what an event says. Whether it concerns a member.
    fn take(&mut self, event: Event) -> bool {
        match event {
            Event::Container(event) => self.exits.learn(event),
            Event::Interrupted => true,
        }
    }

    /// Learns what the events say that have come already. Whether one of them concerns a member.
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

    /// Whether the runtime shows something else than at the last listing.
    async fn differs(&mut self) -> bool {
        match self.calls.list_containers().await {
            Ok(containers) => states(&containers) != self.listed,
            // The listing that follows says what is wrong.
            Err(_) => true,
        }
    }

    /// Asks for the exits that no event has told. One that is gone by now counts as removed.
    async fn learn_exits(
        &mut self,
        pods: &[view::Pod],
        containers: &[Container],
    ) -> Result<(), RuntimeError> {
        let mut unknown = Vec::new();
        for (pod, container) in view::join(pods, containers) {
            if container.state() == ContainerState::ContainerExited
                && !self.exits.knows(&pod.uid, &container.id)
            {
                unknown.push((pod.uid.clone(), container.id.clone()));
            }
        }
        let calls = &self.calls;
        let answers = stream::iter(unknown)
            .map(|(uid, id)| async move {
                calls
                    .container_status(&id)
                    .await
                    .map(|status| (uid, status))
            })
            .buffer_unordered(STATUS_CALLS);
        for (uid, status) in answers.try_collect::<Vec<_>>().await? {
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
        // What changes from here on is seen by the next look. Set first: a listing that fails is
        // not repeated at once.
        self.look_at = Instant::now() + self.interval();
        let pods = view::pods(self.calls.list_pod_sandboxes().await?);
        let containers = self.calls.list_containers().await?;
        // A container that was removed before this listing has ended before, too: its event is here
        // by now, and is the only one to tell its code.
        let news = self.take_waiting();
        self.exits
            .keep_only(&pods.iter().map(|p| p.uid.as_str()).collect());
        self.learn_exits(&pods, &containers).await?;
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
        // What those events told of may have happened after this listing.
        self.look_at = Instant::now()
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
                () = sleep_until(self.look_at) => {
                    self.look_at = Instant::now() + self.interval();
                    if self.events.are_expected() || self.differs().await {
                        return;
                    }
                }
            }
        }
    }
}

/// What a change shows in.
fn states(containers: &[Container]) -> Vec<(String, i32)> {
    let mut states: Vec<_> = containers.iter().map(|c| (c.id.clone(), c.state)).collect();
    states.sort_unstable();
    states
}
