use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use lockstep_api::names::labels;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::kinds::{
    Agents, Budgets, Claims, Namespaces, NativePodGroups, NativeWorkloads, Nodes, Orders,
    PodGroups, Pods, PriorityClasses, Quotas, SchedulingWorkloads, Services, StorageClasses,
    Volumes, Watched, Workloads,
};
use super::{Feed, Index, WatchErrors};
use crate::clock::Random;
use crate::queue::RetryBackoff;

#[derive(Clone)]
pub struct Watching {
    pub client: Client,
    pub backoff: RetryBackoff,
    pub random: Random,
    pub errors: WatchErrors,
}

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

/// Watches native groups, until the tasks are dropped.
pub fn watch_native(index: &Arc<Index>, watching: &Watching, tasks: &mut JoinSet<()>) {
    let all = watcher::Config::default();
    let (index, watching) = (index.clone(), watching.clone());
    tasks.spawn(watch::<NativeWorkloads>(
        index.clone(),
        watching.clone(),
        all.clone(),
    ));
    tasks.spawn(watch::<NativePodGroups>(index, watching, all));
}

/// Each iteration is one list and the watch after it. Lists are streamed (KEP-3157) unless the
/// previous list failed, as in client-go.
async fn watch<W: Watched>(index: Arc<Index>, watching: Watching, config: watcher::Config) {
    let mut feed = Feed::<W>::new();
    let mut failures: u32 = 0;
    let mut streamed = true;
    loop {
        let config = if streamed {
            config.clone().streaming_lists()
        } else {
            config.clone()
        };
        let mut events = std::pin::pin!(watcher(
            Api::<W::Received>::all(watching.client.clone()),
            config
        ));
        let (mut begun, mut complete) = (false, false);
        while let Some(event) = events.next().await {
            match event {
                // The watcher lists again if the server closes a streamed list early.
                Ok(watcher::Event::Init) if begun => break,
                Ok(event) => {
                    begun = true;
                    complete |= matches!(event, watcher::Event::InitDone);
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
                    if streamed && !complete {
                        break;
                    }
                    tokio::time::sleep(wait).await;
                    if needs_list(&error) {
                        break;
                    }
                }
            }
        }
        if streamed && !complete {
            let kind = W::KIND.name();
            info!(kind, "the streamed list failed: listing in pages");
        }
        streamed = complete;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// True if the watch cannot resume: the server no longer has the changes since its version.
fn needs_list(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchError(status) if status.code == 410)
}
