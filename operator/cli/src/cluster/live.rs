//! The dashboard's view, kept up to date by one list and watch of each kind.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DeserializeGuard;
use kube::runtime::watcher;
use kube::runtime::watcher::{Config, Error, Event};
use kube::{Api, Resource};
use lockstep_model::Pod;
use lockstep_model::parse::partial::{PartialNode, PartialPod};
use serde::de::DeserializeOwned;
use tokio::sync::{RwLock, RwLockReadGuard, watch};
use tokio::task::JoinSet;

use super::ClusterReader;
use super::read::{guarded, named};
use crate::dashboard::view::{ClusterView, Leader, ObjectName, Read, ReaderFacts, name_of};
use crate::problem::Problem;

/// Time between lists of a kind that may not be watched.
const LIST_EVERY: Duration = Duration::from_secs(10);
/// Lists before the right to watch is tried again.
const LISTS: usize = 6;
/// Time before a refused kind is tried again.
const REFUSED: Duration = Duration::from_mins(1);
/// Time before a failed request is repeated.
const RETRY: Duration = Duration::from_secs(2);
/// Time between signs of life of the API server, and the patience for one.
const SIGN: Duration = Duration::from_secs(4);
/// Time between reads of the manager's configuration.
const CONFIGURATION: Duration = Duration::from_mins(1);
/// Kind that shows that the API server responds.
const LEASES: &str = "leases";
/// How long the first lists may take before pages are served.
const FIRST_LISTS: Duration = Duration::from_secs(30);

/// A view that watches keep up to date.
pub struct LiveView {
    /// Absent for a snapshot file.
    pub cluster: Option<Arc<ClusterReader>>,
    clock: fn() -> DateTime<Utc>,
    view: RwLock<ClusterView>,
    changed: watch::Sender<u64>,
}

/// How a kind gets from the API server into the view.
struct Kind<K, T> {
    api: Api<K>,
    /// The kept part of an object.
    keep: fn(K) -> Result<T, String>,
    key: fn(&T) -> ObjectName,
    list: fn(&mut ClusterView) -> &mut Option<Vec<T>>,
    /// Derives what depends on an object.
    note: fn(&mut ClusterView, &T),
    /// True once the kind is to be read.
    is_requested: fn(&ClusterView) -> bool,
}

/// Why a watch ended.
enum Ended {
    MayNotWatch(String),
    Problem(Problem),
}

impl LiveView {
    /// Starts to read one namespace, or all. Returns after the first lists, with the tasks that read.
    pub async fn start(
        cluster: ClusterReader,
        facts: ReaderFacts,
        namespace: Option<String>,
        clock: fn() -> DateTime<Utc>,
    ) -> (Arc<Self>, JoinSet<()>) {
        let cluster = Arc::new(cluster);
        let live = Arc::new(Self {
            view: RwLock::new(ClusterView {
                reader: facts,
                namespace: namespace.clone(),
                last_read: clock(),
                ..ClusterView::default()
            }),
            cluster: Some(Arc::clone(&cluster)),
            clock,
            changed: watch::Sender::new(0),
        });
        let one = namespace.as_deref();
        let client = cluster.client.clone();
        let mut tasks = Tasks {
            live: Arc::clone(&live),
            cluster: Arc::clone(&cluster),
            set: JoinSet::new(),
        };
        tasks.follow(Kind {
            note: ClusterView::note_workload,
            ..guard(cluster.scoped(one), |v| &mut v.workloads)
        });
        tasks.follow(guard(cluster.scoped(one), |v| &mut v.groups));
        tasks.follow(guard(Api::all(client.clone()), |v| &mut v.agents));
        tasks.follow(Kind {
            keep: |node: PartialNode| named("node", &node, node.scheduling()).map(|_| node.clone()),
            ..plain(Api::all(client.clone()), |v| &mut v.nodes)
        });
        tasks.follow(plain(Api::all(client.clone()), |v| &mut v.classes));
        tasks.follow(plain(Api::all(client), |v| &mut v.namespaces));
        tasks.follow(plain(cluster.scoped(one), |v| &mut v.budgets));
        tasks.follow(Kind {
            api: cluster.scoped(one),
            keep: |pod: PartialPod| named("pod", &pod, pod.scheduling()),
            key: |pod: &Pod| (pod.namespace.to_string(), pod.name.to_string()),
            list: |view| &mut view.pods,
            note: |_, _| {},
            is_requested: |view| view.pods_requested,
        });
        let Tasks { mut set, .. } = tasks;
        set.spawn(signs(Arc::clone(&live), Arc::clone(&cluster)));
        set.spawn(configuration(Arc::clone(&live), cluster));
        live.first_lists().await;
        (live, set)
    }

    /// A view that does not change.
    pub fn of_file(view: ClusterView, clock: fn() -> DateTime<Utc>) -> Self {
        Self {
            cluster: None,
            clock,
            view: RwLock::new(view),
            changed: watch::Sender::new(0),
        }
    }

    pub fn now(&self) -> DateTime<Utc> {
        (self.clock)()
    }

    pub async fn view(&self) -> RwLockReadGuard<'_, ClusterView> {
        self.view.read().await
    }

    /// Tells about changes of the view.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// From now on, the pods of all controllers are read.
    pub async fn load_pods(&self) {
        self.change(|view| view.pods_requested = view.snapshot.is_none())
            .await;
    }

    async fn first_lists(&self) {
        const KINDS: usize = 7;
        let mut changes = self.changes();
        let listed = async {
            while self
                .view()
                .await
                .reads
                .keys()
                .filter(|k| *k != LEASES)
                .count()
                < KINDS
            {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        // Pages say what is missing.
        let _ = tokio::time::timeout(FIRST_LISTS, listed).await;
    }

    async fn change(&self, change: impl FnOnce(&mut ClusterView)) {
        change(&mut *self.view.write().await);
        self.changed.send_modify(|n| *n += 1);
    }

    async fn set_read(&self, kind: &str, read: Read) {
        let differs = self.view().await.reads.get(kind) != Some(&read);
        if differs {
            let kind = kind.to_owned();
            self.change(|v| drop(v.reads.insert(kind, read))).await;
        }
    }
}

/// The tasks that read, as they are started.
struct Tasks {
    live: Arc<LiveView>,
    cluster: Arc<ClusterReader>,
    set: JoinSet<()>,
}

impl Tasks {
    fn follow<K, T>(&mut self, kind: Kind<K, T>)
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
        T: Send + Sync + 'static,
    {
        let (live, cluster) = (Arc::clone(&self.live), Arc::clone(&self.cluster));
        self.set.spawn(follow(live, cluster, kind));
    }
}

/// A kind of Lockstep. Objects of another version do not hide the rest.
fn guard<K>(
    api: Api<DeserializeGuard<K>>,
    list: fn(&mut ClusterView) -> &mut Option<Vec<K>>,
) -> Kind<DeserializeGuard<K>, K>
where
    K: Resource<DynamicType = ()> + Clone,
{
    Kind {
        api,
        keep: |object| {
            let kind = K::kind(&()).to_lowercase();
            let mut object = guarded(&kind, object)?;
            object.meta_mut().managed_fields = None;
            Ok(object)
        },
        key: name_of,
        list,
        note: |_, _| {},
        is_requested: |_| true,
    }
}

/// A kind of which only a part is read.
fn plain<K: Resource<DynamicType = ()>>(
    api: Api<K>,
    list: fn(&mut ClusterView) -> &mut Option<Vec<K>>,
) -> Kind<K, K> {
    Kind {
        api,
        keep: Ok,
        key: name_of,
        list,
        note: |_, _| {},
        is_requested: |_| true,
    }
}

async fn follow<K, T>(live: Arc<LiveView>, cluster: Arc<ClusterReader>, kind: Kind<K, T>)
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static,
    T: Send + Sync + 'static,
{
    let mut changes = live.changes();
    while !(kind.is_requested)(&*live.view().await) {
        if changes.changed().await.is_err() {
            return;
        }
    }
    loop {
        let problem = match watch_kind(&live, &cluster, &kind).await {
            Ended::MayNotWatch(message) => list_kind(&live, &cluster, &kind, message).await,
            Ended::Problem(problem) => Some(problem),
        };
        let Some(problem) = problem else {
            continue;
        };
        let message = problem.to_string();
        let (read, pause) = match problem {
            Problem::NotAllowed { message } => (Read::Refused { message }, REFUSED),
            Problem::NotInstalled { .. } => (Read::NotServed { message }, LIST_EVERY),
            _ => (Read::Failed { message }, RETRY),
        };
        // What may not be read any more is unknown.
        if !matches!(read, Read::Failed { .. }) {
            live.change(|view| *(kind.list)(view) = None).await;
        }
        live.set_read(&plural::<K>(), read).await;
        tokio::time::sleep(pause).await;
    }
}

async fn watch_kind<K, T>(live: &LiveView, cluster: &ClusterReader, kind: &Kind<K, T>) -> Ended
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + 'static,
    T: Send + Sync,
{
    let mut events = pin!(watcher(kind.api.clone(), Config::default()));
    let mut listed = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => listed.push(object),
            Ok(Event::InitDone) => {
                let all = std::mem::take(&mut listed);
                live.change(|view| replace(view, kind, all)).await;
                live.set_read(&plural::<K>(), Read::Watched).await;
            }
            Ok(Event::Apply(object)) => {
                let name = key_of(object.meta());
                live.change(|view| put(view, kind, &name, Some(object)))
                    .await;
            }
            Ok(Event::Delete(object)) => {
                let name = key_of(object.meta());
                live.change(|view| {
                    put(view, kind, &name, None);
                    view.forget_workloads();
                })
                .await;
            }
            Err(Error::InitialListFailed(error)) => {
                return Ended::Problem(cluster.problem(&error, &plural::<K>()));
            }
            Err(Error::WatchStartFailed(error)) => {
                return match cluster.problem(&error, &plural::<K>()) {
                    Problem::NotAllowed { message } => Ended::MayNotWatch(message),
                    other => Ended::Problem(other),
                };
            }
            // The next event lists again, or continues.
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
    Ended::Problem(Problem::Refused("the watch ended".to_owned()))
}

/// Lists some times; returns the problem of a failed list.
async fn list_kind<K, T>(
    live: &LiveView,
    cluster: &ClusterReader,
    kind: &Kind<K, T>,
    message: String,
) -> Option<Problem>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
    T: Send + Sync,
{
    for _ in 0..LISTS {
        match cluster.list(kind.api.clone(), None).await {
            Ok(all) => live.change(|view| replace(view, kind, all)).await,
            Err(problem) => return Some(problem),
        }
        let message = message.clone();
        live.set_read(&plural::<K>(), Read::Listed { message })
            .await;
        tokio::time::sleep(LIST_EVERY).await;
    }
    None
}

/// Name of a kind in documents.
fn plural<K: Resource<DynamicType = ()>>() -> String {
    K::plural(&()).into_owned()
}

fn replace<K, T>(view: &mut ClusterView, kind: &Kind<K, T>, all: Vec<K>)
where
    K: Resource<DynamicType = ()>,
{
    let name = plural::<K>();
    view.unreadable.retain(|(of, _), _| *of != name);
    *(kind.list)(view) = Some(Vec::new());
    let mut all: Vec<(ObjectName, K)> = all.into_iter().map(|o| (key_of(o.meta()), o)).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, object) in all {
        put(view, kind, &name, Some(object));
    }
    view.forget_workloads();
}

/// Sets an object, or removes it.
fn put<K, T>(view: &mut ClusterView, kind: &Kind<K, T>, name: &ObjectName, object: Option<K>)
where
    K: Resource<DynamicType = ()>,
{
    let unread = (plural::<K>(), name.clone());
    view.unreadable.remove(&unread);
    let object = match object.map(kind.keep) {
        Some(Err(why)) => {
            view.unreadable.insert(unread, why);
            None
        }
        Some(Ok(object)) => Some(object),
        None => None,
    };
    if let Some(object) = &object {
        (kind.note)(view, object);
    }
    let list = (kind.list)(view).get_or_insert_default();
    let at = list.binary_search_by(|at| (kind.key)(at).cmp(name));
    match (at, object) {
        (Ok(at), Some(object)) => list[at] = object,
        (Err(at), Some(object)) => list.insert(at, object),
        (Ok(at), None) => drop(list.remove(at)),
        (Err(_), None) => {}
    }
}

fn key_of(metadata: &ObjectMeta) -> ObjectName {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    (text(&metadata.namespace), text(&metadata.name))
}

/// Reads the manager's lease, which also shows that the API server responds.
async fn signs(live: Arc<LiveView>, cluster: Arc<ClusterReader>) {
    let namespace = cluster.lease_namespace().await;
    loop {
        let lease = cluster.lease(&namespace);
        let response = tokio::time::timeout(SIGN, lease).await;
        let response = response.unwrap_or_else(|_| {
            let server = cluster.server().to_owned();
            let after = SIGN;
            Err(Problem::NoResponse { server, after })
        });
        let (leader, read) = match response {
            Ok(lease) => (lease, Read::Watched),
            Err(Problem::NotAllowed { message }) => (None, Read::Refused { message }),
            Err(Problem::NotInstalled { .. }) => (None, Read::Watched),
            Err(other) => {
                let message = other.to_string();
                live.set_read(LEASES, Read::Failed { message }).await;
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        let now = live.now();
        live.change(|view| {
            view.leader = leader.map(|l| Leader {
                holder: l.holder,
                renewed_at: l.renewed,
                duration_seconds: l.duration_seconds,
            });
            view.reads.insert(LEASES.to_owned(), read);
            let failed = |read: &Read| matches!(read, Read::Failed { .. });
            if !view.reads.values().any(failed) {
                view.last_read = now;
            }
        })
        .await;
        tokio::time::sleep(SIGN).await;
    }
}

async fn configuration(live: Arc<LiveView>, cluster: Arc<ClusterReader>) {
    loop {
        if let Ok(found) = cluster.manager_config(None).await {
            live.change(|view| view.configuration = found).await;
        }
        tokio::time::sleep(CONFIGURATION).await;
    }
}

impl ClusterReader {
    /// Pods of all members in a namespace, or in all.
    pub async fn member_pods(&self, namespace: Option<&str>) -> Result<Vec<Pod>, Problem> {
        let label = lockstep_api::names::labels::WORKLOAD_UID;
        let pods: Vec<PartialPod> = self.list(self.scoped(namespace), Some(label)).await?;
        Ok(pods.iter().filter_map(|p| p.scheduling().ok()).collect())
    }
}
