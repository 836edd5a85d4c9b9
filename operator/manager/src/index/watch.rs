use std::sync::Arc;
use std::time::Duration;

use kube::runtime::watcher;
use kube::{Api, Client};
use lockstep_api::names::labels;
use lockstep_common::watch::{self, WatchHandler, requested_wait};
use tokio::task::JoinSet;

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

impl Watching {
    /// The wait after a failure of a watch.
    pub(crate) fn wait(&self, error: &watcher::Error, failures: u32) -> Duration {
        requested_wait(error) + self.random.jittered(self.backoff.wait(failures))
    }
}

pub fn watch_all(index: &Arc<Index>, watching: &Watching, tasks: &mut JoinSet<()>) {
    let everything = watcher::Config::default();
    let ours = everything.clone().labels(labels::WORKLOAD_UID);
    macro_rules! spawn {
        ($($kind:ty),* $(,)?) => {
            $(tasks.spawn(follow::<$kind>(index.clone(), watching.clone(), everything.clone()));)*
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
    tasks.spawn(follow::<Services>(index.clone(), watching.clone(), ours));
}

/// Watches native groups, until the tasks are dropped.
pub fn watch_native(index: &Arc<Index>, watching: &Watching, tasks: &mut JoinSet<()>) {
    let all = watcher::Config::default();
    let (index, watching) = (index.clone(), watching.clone());
    tasks.spawn(follow::<NativeWorkloads>(
        index.clone(),
        watching.clone(),
        all.clone(),
    ));
    tasks.spawn(follow::<NativePodGroups>(index, watching, all));
}

async fn follow<W: Watched>(index: Arc<Index>, watching: Watching, config: watcher::Config) {
    let api = Api::<W::Received>::all(watching.client.clone());
    let handler = FeedHandler::<W> {
        feed: Feed::new(),
        index,
        watching,
    };
    match watch::watch(W::KIND.name(), api, config, handler).await {}
}

struct FeedHandler<W: Watched> {
    feed: Feed<W>,
    index: Arc<Index>,
    watching: Watching,
}

impl<W: Watched> WatchHandler<W::Received> for FeedHandler<W> {
    fn event(&mut self, event: watcher::Event<W::Received>) {
        self.feed.handle(&self.index, event);
    }

    fn failed(&mut self, error: &watcher::Error, failures: u32) -> Duration {
        self.watching.errors.count(W::KIND.name());
        self.watching.wait(error, failures)
    }
}
