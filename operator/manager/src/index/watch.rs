//! The watchers: one task per kind, each with its own back-off.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use lockstep_api::names::labels;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::kinds::{
    Agents, Budgets, Claims, Namespaces, Nodes, Orders, PodGroups, Pods, PriorityClasses, Quotas,
    SchedulingWorkloads, Services, StorageClasses, Volumes, Watched, Workloads,
};
use super::{Feed, Index, WatchErrors};
use crate::clock::Random;
use crate::queue::RetryBackoff;

/// How kinds are watched.
#[derive(Clone)]
pub struct Watching {
    /// Client for reads.
    pub client: Client,
    /// Ask for the first list as a stream (KEP-3157); where the server does not know how, it is
    /// listed in pages.
    pub streaming_lists: bool,
    /// Wait after failures in a row.
    pub backoff: RetryBackoff,
    /// Jitter.
    pub random: Random,
    /// Counts failures.
    pub errors: WatchErrors,
}

/// Starts one watcher per kind.
pub fn watch_all(index: &Arc<Index>, watching: &Watching, tasks: &mut JoinSet<()>) {
    let everything = watcher::Config::default();
    let ours = everything.clone().labels(labels::WORKLOAD_UID);
    macro_rules! spawn {
        ($($kind:ty),* $(,)?) => {
            $(tasks.spawn(watch::<$kind>(index.clone(), watching.clone(), everything.clone()));)*
        };
    }
    spawn!(
        Workloads,
        Orders,
        Agents,
        SchedulingWorkloads,
        PodGroups,
        Pods,
        Nodes,
        PriorityClasses,
        Budgets,
        Claims,
        Volumes,
        StorageClasses,
        Quotas,
        Namespaces,
    );
    tasks.spawn(watch::<Services>(index.clone(), watching.clone(), ours));
}

async fn watch<W: Watched>(index: Arc<Index>, watching: Watching, config: watcher::Config) {
    let mut feed = Feed::<W>::new();
    let mut failures: u32 = 0;
    let mut streaming = watching.streaming_lists;
    loop {
        let config = if streaming {
            config.clone().streaming_lists()
        } else {
            config.clone()
        };
        let mut events = std::pin::pin!(watcher(
            Api::<W::Received>::all(watching.client.clone()),
            config
        ));
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    if !matches!(event, watcher::Event::Init) {
                        failures = 0;
                    }
                    feed.handle(&index, event);
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    watching.errors.count(W::KIND.name());
                    let wait = watching.random.jittered(watching.backoff.wait(failures));
                    warn!(kind = W::KIND.name(), %error, wait_ms = wait.as_millis() as u64, "watch failed");
                    if streaming && refuses_streaming(&error) {
                        info!(
                            kind = W::KIND.name(),
                            "listing in pages: the server does not stream lists"
                        );
                        streaming = false;
                        break;
                    }
                    tokio::time::sleep(wait).await;
                }
            }
        }
        // A watcher does not end by itself; should it, it starts anew, not at once.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Servers without streaming lists refuse the parameter as invalid.
fn refuses_streaming(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(s)) if s.is_invalid() || s.code == 400)
}
