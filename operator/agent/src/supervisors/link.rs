//! One link to a supervisor: connect, read, write, and reconnect after a failure.
//!
//! The peer is untrusted and can harm only its own pod. The link buffers one state and at most one
//! unfinished frame, limits the rate of frames, and limits each wait.

#![expect(
    clippy::disallowed_methods,
    reason = "time limits of I/O in tokio's time, which tests can pause; no decision reads it"
)]

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockstep_node::SupervisorState;
use lockstep_supervisor_protocol::{
    FrameError, FrameReader, FromAgent, FromSupervisor, VERSIONS, has_requests,
};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info, warn};

use super::frames::on_frame;
use super::socket::{SocketError, connect};
use crate::metrics::{LinkRefusal, Metrics};
use crate::token_bucket::TokenBucket;

/// Time limit from the connection to `Welcome`.
const HANDSHAKE: Duration = Duration::from_secs(5);
const WRITE: Duration = Duration::from_secs(5);
/// A supervisor on its way to a barrier sends nothing after `Welcome`. Until this time has passed,
/// its first frame may be in flight.
const SETTLE: Duration = Duration::from_millis(100);
/// Capacity of the queue of outgoing frames.
const QUEUE: usize = 16;
const READ: usize = 4096;
/// Frames accepted at once; afterwards one per `ONE_FRAME`. A supervisor sends a few frames per
/// second if its child exits right after each start.
const BURST: u32 = 100;
const ONE_FRAME: Duration = Duration::from_millis(100);
/// First pause before a reconnect: the supervisor will listen soon.
const PAUSE: Duration = Duration::from_millis(20);
/// Longest pause while no process listens.
const ABSENT_PAUSE: Duration = Duration::from_secs(2);
/// Longest pause after a refusal.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);
/// A link of this length resets the pause.
const LASTING: Duration = Duration::from_secs(10);

/// State of a link that the agent's loop reads.
#[derive(Debug)]
pub(super) struct Up {
    pub state: SupervisorState,
    pub outbox: mpsc::Sender<FromAgent>,
    pub number: u64,
}

/// The connection of one link; `None` without a welcomed connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Slot(Arc<Mutex<Option<Up>>>);

impl Slot {
    pub(super) fn get(&self) -> MutexGuard<'_, Option<Up>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Task that maintains one link.
pub(super) struct Linking {
    pub pods: PathBuf,
    pub pod_uid: String,
    pub slot: Slot,
    pub changed: Arc<Notify>,
    pub metrics: Metrics,
    pub random: fastrand::Rng,
}

#[derive(Debug, Error)]
enum LinkEnd {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("the supervisor has closed the connection")]
    Closed,
    #[error("the connection failed: {0}")]
    Broken(#[from] io::Error),
    #[error("no greeting in time")]
    Silent,
    #[error("the first frame is no greeting")]
    Ungreeted,
    #[error(
        "the supervisor supports protocol versions {oldest} to {newest}, and this agent none of them"
    )]
    Version { oldest: u16, newest: u16 },
    #[error("{0}")]
    Frame(#[from] FrameError),
    #[error("unexpected frame: {0}")]
    Nonsense(&'static str),
    #[error("too many frames")]
    Flood,
    #[error("the supervisor does not read")]
    Unread,
}

impl LinkEnd {
    /// Label for the metric of refusals; `None` if the peer is not at fault.
    fn refusal(&self) -> Option<LinkRefusal> {
        match self {
            Self::Socket(SocketError::Absent { .. } | SocketError::Failed { .. })
            | Self::Closed
            | Self::Broken(_) => None,
            Self::Socket(SocketError::Wrong { .. }) => Some(LinkRefusal::Path),
            Self::Silent | Self::Ungreeted => Some(LinkRefusal::Greeting),
            Self::Version { .. } => Some(LinkRefusal::Version),
            Self::Frame(_) | Self::Nonsense(_) => Some(LinkRefusal::Frame),
            Self::Flood => Some(LinkRefusal::Flood),
            Self::Unread => Some(LinkRefusal::Unread),
        }
    }
}

impl Linking {
    pub(super) async fn run(mut self) -> Infallible {
        let (mut pause, mut last_logged, mut number) = (PAUSE, String::new(), 0);
        loop {
            let began = Instant::now();
            let Err(end) = self.link(&mut number).await;
            self.ended(&end, &mut last_logged);
            if began.elapsed() >= LASTING {
                pause = PAUSE;
            }
            sleep(pause.mul_f64(1.0 + self.random.f64() / 2.0)).await;
            let longest = match end.refusal() {
                Some(_) => REFUSED_PAUSE,
                None => ABSENT_PAUSE,
            };
            pause = (pause * 2).min(longest);
        }
    }

    /// Counts and logs the end of a connection: a warning once per cause, debug for usual causes.
    fn ended(&self, end: &LinkEnd, last_logged: &mut String) {
        if let Some(reason) = end.refusal() {
            self.metrics.refused(reason);
        }
        let text = end.to_string();
        let usual = matches!(
            end,
            LinkEnd::Socket(SocketError::Absent { .. }) | LinkEnd::Closed | LinkEnd::Broken(_)
        );
        if usual || *last_logged == text {
            debug!(pod = self.pod_uid, why = text, "no link to the supervisor");
        } else {
            warn!(
                pod = self.pod_uid,
                why = text,
                "no link to the supervisor, trying again"
            );
            *last_logged = text;
        }
    }

    /// Runs one connection to its end. `number`: count of welcomed connections.
    async fn link(&mut self, number: &mut u64) -> Result<Infallible, LinkEnd> {
        let greeted = timeout(HANDSHAKE, Connection::greet(&self.pods, &self.pod_uid));
        let mut connection = greeted.await.map_err(|_| LinkEnd::Silent)??;
        *number += 1;
        if *number > 1 {
            self.metrics.relinks.inc();
        }
        info!(pod = self.pod_uid, number, "linked to the supervisor");
        let (outbox, mut frames) = mpsc::channel(QUEUE);
        let mut shown = Shown::new(self, outbox, *number);
        let mut state = SupervisorState {
            takes_requests: has_requests(connection.version),
            ..SupervisorState::default()
        };
        let mut survivors = None;
        let settled = Instant::now() + SETTLE;
        loop {
            tokio::select! {
                frame = connection.next() => {
                    let frame = frame?;
                    self.survivors(&frame, &mut survivors);
                    state = on_frame(&state, &frame)
                        .ok_or_else(|| LinkEnd::Nonsense(frame.name()))?;
                    if shown.up || state.held.is_some() || state.running.is_some() {
                        shown.show(&state);
                    }
                }
                Some(frame) = frames.recv() => connection.send(&frame).await?,
                () = sleep_until(settled), if !shown.up => shown.show(&state),
            }
        }
    }

    /// Counts and logs processes that survived SIGKILL. The supervisor repeats its report on each
    /// new link.
    fn survivors(&self, frame: &FromSupervisor, last: &mut Option<(u64, u32)>) {
        let FromSupervisor::Survivors {
            attempt,
            count,
            message,
        } = frame
        else {
            return;
        };
        self.metrics.survivors.inc();
        if last.replace((*attempt, *count)) != Some((*attempt, *count)) {
            // Debug format, because the text comes from the tenant.
            warn!(
                pod = self.pod_uid,
                attempt,
                count,
                processes = ?&**message,
                "processes have outlived SIGKILL"
            );
        }
    }
}

/// Publishes the state of a connection. Clears it on drop.
struct Shown {
    slot: Slot,
    changed: Arc<Notify>,
    metrics: Metrics,
    outbox: mpsc::Sender<FromAgent>,
    number: u64,
    up: bool,
}

impl Shown {
    fn new(linking: &Linking, outbox: mpsc::Sender<FromAgent>, number: u64) -> Self {
        Self {
            slot: linking.slot.clone(),
            changed: linking.changed.clone(),
            metrics: linking.metrics.clone(),
            outbox,
            number,
            up: false,
        }
    }

    fn show(&mut self, state: &SupervisorState) {
        let mut slot = self.slot.get();
        match &mut *slot {
            Some(up) if up.state == *state => return,
            Some(up) => up.state = state.clone(),
            none => {
                *none = Some(Up {
                    state: state.clone(),
                    outbox: self.outbox.clone(),
                    number: self.number,
                });
                self.up = true;
                self.metrics.links.inc();
            }
        }
        self.changed.notify_one();
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if self.up {
            *self.slot.get() = None;
            self.metrics.links.dec();
            self.changed.notify_one();
        }
    }
}

struct Connection {
    stream: UnixStream,
    reader: FrameReader,
    bucket: TokenBucket,
    version: u16,
}

impl Connection {
    async fn greet(pods: &Path, pod_uid: &str) -> Result<Self, LinkEnd> {
        let mut connection = Self {
            stream: connect(pods, pod_uid).await?,
            reader: FrameReader::default(),
            bucket: TokenBucket::new(BURST, ONE_FRAME, Instant::now()),
            version: VERSIONS.oldest,
        };
        let FromSupervisor::Hello { versions, .. } = connection.next().await? else {
            return Err(LinkEnd::Ungreeted);
        };
        let version = VERSIONS.agree(versions).ok_or(LinkEnd::Version {
            oldest: versions.oldest,
            newest: versions.newest,
        })?;
        connection.version = version;
        connection.send(&FromAgent::Welcome { version }).await?;
        Ok(connection)
    }

    /// Returns the next frame. Cancel safe.
    async fn next(&mut self) -> Result<FromSupervisor, LinkEnd> {
        loop {
            if let Some(frame) = self.reader.next_frame()? {
                return if self.bucket.take(Instant::now()) {
                    Ok(frame)
                } else {
                    Err(LinkEnd::Flood)
                };
            }
            let mut bytes = [0; READ];
            match self.stream.read(&mut bytes).await? {
                0 => return Err(LinkEnd::Closed),
                read => self.reader.push(&bytes[..read]),
            }
        }
    }

    async fn send(&mut self, message: &FromAgent) -> Result<(), LinkEnd> {
        let frame = message.encode_for(self.version).unwrap_or_default();
        timeout(WRITE, self.stream.write_all(&frame))
            .await
            .map_err(|_| LinkEnd::Unread)??;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lockstep_supervisor_protocol::Message;

    use super::*;

    fn connection() -> (Connection, UnixStream) {
        let (stream, other) = UnixStream::pair().unwrap();
        let connection = Connection {
            stream,
            reader: FrameReader::default(),
            bucket: TokenBucket::new(BURST, ONE_FRAME, Instant::now()),
            version: VERSIONS.newest,
        };
        (connection, other)
    }

    #[tokio::test(start_paused = true)]
    async fn a_supervisor_that_does_not_read_is_disconnected() {
        let (mut connection, _other) = connection();
        let mut sent = Ok(());
        while sent.is_ok() {
            sent = connection.send(&FromAgent::Hold { attempt: 1 }).await;
        }
        assert!(matches!(sent, Err(LinkEnd::Unread)), "{sent:?}");
    }

    #[tokio::test]
    async fn frames_in_pieces_are_put_together_and_the_last_one_counts_before_the_end() {
        let (mut connection, mut other) = connection();
        let frames = [
            FromSupervisor::Arrived { attempt: 1 },
            FromSupervisor::Started { attempt: 1 },
        ];
        let sending = async {
            for byte in frames.iter().flat_map(Message::encode) {
                other.write_all(&[byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
            drop(other);
        };
        let receiving = async {
            for frame in &frames {
                assert_eq!(&connection.next().await.unwrap(), frame);
            }
            assert!(matches!(connection.next().await, Err(LinkEnd::Closed)));
        };
        futures_util::join!(sending, receiving);
    }
}
