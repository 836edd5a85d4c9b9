use std::sync::Arc;
use std::time::Duration;

use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use lockstep_api::kueue::KUEUE_GROUP;
use lockstep_api::names::labels;
use lockstep_common::watch::{self, WatchHandler, requested_wait};
use tokio::task::JoinSet;

use super::kinds::{
    Agents, Budgets, Claims, Flavors, KueueWorkloads, Namespaces, NativePodGroups, NativeWorkloads,
    Nodes, Orders, PodGroups, PodTemplates, Pods, PriorityClasses, ProvisioningRequests, Quotas,
    SchedulingWorkloads, Services, StorageClasses, Volumes, Watched, WorkloadPriorityClasses,
    Workloads,
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

/// Watches requests of Cluster Autoscaler in a served version, and the templates of Lockstep's, until
/// the tasks are dropped.
pub(crate) fn watch_requests(
    index: &Arc<Index>,
    watching: &Watching,
    requests: &ApiResource,
    tasks: &mut JoinSet<()>,
) {
    let everything = watcher::Config::default();
    let ours = everything.clone().labels(labels::WORKLOAD_UID);
    let api = Api::<DynamicObject>::all_with(watching.client.clone(), requests);
    let (index, watching) = (index.clone(), watching.clone());
    tasks.spawn(follow::<PodTemplates>(
        index.clone(),
        watching.clone(),
        ours,
    ));
    tasks.spawn(follow_api::<ProvisioningRequests>(
        api, index, watching, everything,
    ));
}

/// Watches Kueue's objects in this version, until the tasks are dropped.
pub fn watch_kueue(
    index: &Arc<Index>,
    watching: &Watching,
    version: &str,
    tasks: &mut JoinSet<()>,
) {
    let api = |kind: &str| {
        let kind = GroupVersionKind::gvk(KUEUE_GROUP, version, kind);
        let resource = ApiResource::from_gvk(&kind);
        Api::<DynamicObject>::all_with(watching.client.clone(), &resource)
    };
    macro_rules! spawn {
        ($($watched:ty, $kind:literal;)*) => {
            $(tasks.spawn(follow_api::<$watched>(api($kind), index.clone(), watching.clone(), watcher::Config::default()));)*
        };
    }
    spawn!(
        KueueWorkloads, "Workload";
        Flavors, "ResourceFlavor";
        WorkloadPriorityClasses, "WorkloadPriorityClass";
    );
}

async fn follow<W: Watched>(index: Arc<Index>, watching: Watching, config: watcher::Config)
where
    W::Received: Resource<DynamicType = ()>,
{
    let api = Api::<W::Received>::all(watching.client.clone());
    follow_api::<W>(api, index, watching, config).await;
}

async fn follow_api<W: Watched>(
    api: Api<W::Received>,
    index: Arc<Index>,
    watching: Watching,
    config: watcher::Config,
) {
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
