//! Lists and watches of one kind. Every failure has a retry, whose wait the process determines.

use std::convert::Infallible;
use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use http::StatusCode;
use kube::runtime::watcher::{Config, Error, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::api_server::retry_after;

/// Pause between two lists.
const BETWEEN_LISTS: Duration = Duration::from_millis(100);
/// A resumed watch without events and errors for this time works: kube reports no other sign.
const LASTED: Duration = Duration::from_secs(10);

/// What a process does with a list and its watch.
pub trait WatchHandler<K> {
    fn event(&mut self, event: Event<K>);
    /// The wait before the retry. `failures`: since the last successful list or watch.
    fn failed(&mut self, error: &Error, failures: u32) -> Duration;
    /// The first success after failures.
    fn recovered(&mut self) {}
}

/// Passes the events of a kind to `handler` until it is dropped.
///
/// Lists are streamed (KEP-3157) unless the previous list failed, as in client-go. `config` is for
/// lists in pages. If the server no longer has the changes since the version of the watch (410), the
/// next list follows at once: the server works, and events are missing.
pub async fn watch<K>(
    kind: &'static str,
    api: Api<K>,
    config: Config,
    mut handler: impl WatchHandler<K>,
) -> Infallible
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut failures = Failures::default();
    let mut streamed = true;
    loop {
        let config = if streamed {
            config.clone().streaming_lists()
        } else {
            config.clone()
        };
        let mut events = pin!(watcher(api.clone(), config));
        let (mut begun, mut complete) = (false, false);
        while let Some(event) = failures.next(&mut events, &mut handler).await {
            match event {
                // The watcher lists again if the server closes a streamed list early.
                Ok(Event::Init) if begun => break,
                Ok(event) => {
                    begun = true;
                    complete |= matches!(event, Event::InitDone);
                    handler.event(event);
                }
                Err(error) => {
                    let lists_at_once = failures.count(&error);
                    let wait = handler.failed(&error, failures.number);
                    let wait = if lists_at_once { Duration::ZERO } else { wait };
                    warn!(kind, %error, wait_ms = wait.as_millis() as u64, "watch failed");
                    if streamed && !complete {
                        break;
                    }
                    sleep(wait).await;
                    if is_expired(&error) {
                        break;
                    }
                }
            }
        }
        if streamed && !complete {
            info!(kind, "the streamed list failed: listing in pages");
        }
        streamed = complete;
        sleep(BETWEEN_LISTS).await;
    }
}

/// Failures since the last success.
#[derive(Default)]
struct Failures {
    number: u32,
    /// True if the last failure was a 410.
    expired: bool,
}

impl Failures {
    async fn next<K>(
        &mut self,
        events: &mut (impl Stream<Item = Result<Event<K>, Error>> + Unpin),
        handler: &mut impl WatchHandler<K>,
    ) -> Option<Result<Event<K>, Error>> {
        let event = if self.number == 0 {
            Some(events.next().await)
        } else {
            timeout(LASTED, events.next()).await.ok()
        };
        // A list has begun, without a response.
        let is_success = !matches!(event, Some(Some(Ok(Event::Init) | Err(_)) | None));
        if is_success && self.number > 0 {
            *self = Self::default();
            handler.recovered();
        }
        match event {
            Some(event) => event,
            None => events.next().await,
        }
    }

    /// Returns true if a list must follow at once: a first 410.
    fn count(&mut self, error: &Error) -> bool {
        self.number = self.number.saturating_add(1);
        let expired = is_expired(error);
        let repeated = std::mem::replace(&mut self.expired, expired);
        expired && !repeated
    }
}

/// The HTTP status, if the server answered.
pub fn status_of(error: &Error) -> Option<u16> {
    match error {
        Error::WatchError(status)
        | Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::WatchFailed(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

/// Wait that the server requests before a retry; zero by default.
pub fn requested_wait(error: &Error) -> Duration {
    match error {
        Error::WatchError(status) => retry_after(&kube::Error::Api(status.clone())),
        Error::InitialListFailed(error)
        | Error::WatchStartFailed(error)
        | Error::WatchFailed(error) => retry_after(error),
        Error::NoResourceVersion => Duration::ZERO,
    }
}

fn is_expired(error: &Error) -> bool {
    status_of(error) == Some(StatusCode::GONE.as_u16())
}
