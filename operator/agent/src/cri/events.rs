//! The runtime's stream of container events. A lost stream is requested again.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep_until};
use tonic::{Code, Streaming};
use tracing::{debug, info};

use super::api::ContainerEventResponse;
use super::calls::{Calls, Failure};

pub(super) enum Event {
    Container(ContainerEventResponse),
    /// The stream was lost or refused: events may be missing.
    Interrupted,
}

enum State {
    /// Back-off until this time.
    Waiting(Instant),
    /// The request is sent. Some runtimes respond with their first event.
    Requested(BoxFuture<'static, Result<Streaming<ContainerEventResponse>, Failure>>),
    Open(Box<Streaming<ContainerEventResponse>>),
}

pub(super) struct Events {
    calls: Calls,
    state: State,
    first_pause: Duration,
    max_pause: Duration,
    pause: Duration,
}

impl Events {
    pub(super) fn new(calls: Calls, first_pause: Duration, max_pause: Duration) -> Self {
        Self {
            calls,
            state: State::Waiting(Instant::now()),
            first_pause,
            max_pause,
            pause: first_pause,
        }
    }

    /// False if the runtime has refused the stream.
    pub(super) fn are_expected(&self) -> bool {
        !matches!(self.state, State::Waiting(_))
    }

    /// Returns the next event. Cancel safe.
    pub(super) async fn next(&mut self) -> Event {
        loop {
            match &mut self.state {
                State::Waiting(until) => {
                    sleep_until(*until).await;
                    self.state = State::Requested(self.calls.clone().events().boxed());
                }
                State::Requested(response) => match response.await {
                    Ok(stream) => {
                        info!("the runtime streams container events");
                        self.pause = self.first_pause;
                        self.state = State::Open(Box::new(stream));
                    }
                    Err(failure) => return self.refused(&failure),
                },
                State::Open(stream) => match stream.message().await {
                    Ok(Some(event)) => return Event::Container(event),
                    Ok(None) => return self.lost("closed by the runtime"),
                    Err(status) => {
                        let message = status.message().to_owned();
                        return self.lost(&message);
                    }
                },
            }
        }
    }

    fn refused(&mut self, failure: &Failure) -> Event {
        if failure.code == Code::Unimplemented {
            self.pause = self.max_pause;
        }
        debug!(code = ?failure.code, message = failure.message, "no container events, listing repeatedly");
        self.wait();
        Event::Interrupted
    }

    fn lost(&mut self, why: &str) -> Event {
        info!(
            why,
            "the stream of container events is lost, listing repeatedly until it is back"
        );
        self.wait();
        Event::Interrupted
    }

    fn wait(&mut self) {
        self.state = State::Waiting(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(self.max_pause);
    }
}
