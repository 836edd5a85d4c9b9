use std::sync::Arc;
use std::time::Duration;

use kube::core::{ApiResource, DynamicObject};
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use lockstep_api::kueue::kueue_resource;
use lockstep_api::names::labels;
use lockstep_api::provisioning::ProvisioningRequest;
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
            $(follow::<$kind>(index, watching, everything.clone(), tasks);)*
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
    follow::<Services>(index, watching, ours, tasks);
}

/// Watches native groups, until the tasks are dropped.
pub fn watch_native(index: &Arc<Index>, watching: &Watching, tasks: &mut JoinSet<()>) {
    let all = watcher::Config::default();
    follow::<NativeWorkloads>(index, watching, all.clone(), tasks);
    follow::<NativePodGroups>(index, watching, all, tasks);
}

/// Watches requests of Cluster Autoscaler in the served version, and the templates of Lockstep's,
/// until the tasks are dropped.
pub(crate) fn watch_requests(
    index: &Arc<Index>,
    watching: &Watching,
    version: Option<&'static str>,
    tasks: &mut JoinSet<()>,
) {
    index.set_requests_version(version);
    if let Some(version) = version {
        let ours = watcher::Config::default().labels(labels::WORKLOAD_UID);
        follow::<PodTemplates>(index, watching, ours, tasks);
        let resource = ProvisioningRequest::resource(version);
        follow_served::<ProvisioningRequests>(index, watching, &resource, tasks);
    }
}

/// Watches Kueue's objects in the served version, until the tasks are dropped.
pub(crate) fn watch_kueue(
    index: &Arc<Index>,
    watching: &Watching,
    version: Option<&'static str>,
    tasks: &mut JoinSet<()>,
) {
    index.set_kueue_version(version);
    if let Some(version) = version {
        let resource = |kind| kueue_resource(version, kind);
        follow_served::<KueueWorkloads>(index, watching, &resource("Workload"), tasks);
        follow_served::<Flavors>(index, watching, &resource("ResourceFlavor"), tasks);
        let classes = resource("WorkloadPriorityClass");
        follow_served::<WorkloadPriorityClasses>(index, watching, &classes, tasks);
    }
}

fn follow<W: Watched>(
    index: &Arc<Index>,
    watching: &Watching,
    config: watcher::Config,
    tasks: &mut JoinSet<()>,
) where
    W::Received: Resource<DynamicType = ()>,
{
    let api = Api::all(watching.client.clone());
    tasks.spawn(feed::<W>(api, index.clone(), watching.clone(), config));
}

/// The same for a kind without a Rust type.
fn follow_served<W: Watched<Received = DynamicObject>>(
    index: &Arc<Index>,
    watching: &Watching,
    resource: &ApiResource,
    tasks: &mut JoinSet<()>,
) {
    let api = Api::all_with(watching.client.clone(), resource);
    let everything = watcher::Config::default();
    tasks.spawn(feed::<W>(api, index.clone(), watching.clone(), everything));
}

async fn feed<W: Watched>(
    api: Api<W::Received>,
    index: Arc<Index>,
    watching: Watching,
    config: watcher::Config,
) {
    let handler = FeedHandler::<W> {
        feed: Feed::default(),
        index,
        watching,
    };
    match watch::watch(W::KIND.as_str(), api, config, handler).await {}
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
        self.watching.errors.count(W::KIND.as_str());
        self.watching.wait(error, failures)
    }
}
