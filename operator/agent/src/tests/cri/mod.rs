//! The CRI client over a real socket, in real time. Tests await conditions; the limits only end
//! failed tests.

mod agent;
mod fake;
mod runtime;

use std::time::Duration;

use crate::cri::{CriRuntime, Intervals, Socket};
use crate::metrics::Metrics;
use crate::runtime::{Runtime, Sandbox};
use fake::Fake;

/// Generated from `proto/api.proto` by `make generate`.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated")]
mod server {
    include!("generated/runtime.v1.rs");
}

const NEVER: Duration = Duration::from_hours(1);
/// Time limit of a condition.
const LIMIT: Duration = Duration::from_secs(30);

/// Intervals for frequent listings, or for listings only after events.
fn intervals(wakes: bool) -> Intervals {
    let look = if wakes {
        NEVER
    } else {
        Duration::from_millis(5)
    };
    Intervals {
        poll: look,
        calm: look,
        idle: look,
        relist: NEVER,
        resubscribe: Duration::from_millis(5),
        ..Intervals::default()
    }
}

fn connect(fake: &Fake, intervals: Intervals) -> CriRuntime {
    let socket: Socket = fake.socket().to_str().unwrap().parse().unwrap();
    CriRuntime::new(&socket, intervals, &Metrics::default())
}

/// Lists after each change until the listing matches.
async fn listed(runtime: &mut CriRuntime, wanted: impl Fn(&[Sandbox]) -> bool) -> Vec<Sandbox> {
    let search = async {
        loop {
            if let Ok(sandboxes) = runtime.list().await
                && wanted(&sandboxes)
            {
                return sandboxes;
            }
            runtime.changed().await;
        }
    };
    tokio::time::timeout(LIMIT, search)
        .await
        .expect("the listing never became as wanted")
}

/// Polls a condition without notifications.
async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(LIMIT, wait)
        .await
        .unwrap_or_else(|_| panic!("never: {what}"));
}
