//! What a decision depends on, read from the API server.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use chrono::DateTime;
use k8s_openapi::api::core::v1 as core;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{DeserializeGuard, NamespaceResourceScope};
use kube::{Api, Client, Config, Resource, ResourceExt};
use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_model::quota_wire::NamespaceWire;
use lockstep_model::snapshot::PriorityClassRecord;
use lockstep_model::wire::{BudgetWire, NodeWire, PodWire, PriorityClassWire, Unreadable};
use lockstep_model::{Budget, Node, Pod, Weights};
use serde::de::DeserializeOwned;

use crate::args::Connection;
use crate::explain::{Happened, Story};

/// Longest wait for the answer to one request.
const DEADLINE: Duration = Duration::from_secs(30);
/// Objects asked for at once: a page of pods stays a few megabytes.
const PAGE: u32 = 1000;
/// Gangs of one workload whose events are looked up: each costs a request.
const GANGS_WITH_EVENTS: usize = 8;

/// The objects that a decision depends on, each sorted by namespace and name.
#[derive(Debug, Default)]
pub struct Objects {
    /// Nodes.
    pub nodes: Vec<Node>,
    /// Pods.
    pub pods: Vec<Pod>,
    /// Disruption budgets.
    pub budgets: Vec<Budget>,
    /// Priority classes.
    pub classes: Vec<PriorityClassRecord>,
    /// Pod groups.
    pub groups: Vec<PodGroup>,
    /// Workloads.
    pub workloads: Vec<TrainingWorkload>,
    /// Weights of namespaces in the queue.
    pub weights: Weights,
    /// Objects that could not be read and were left out, for people.
    pub unread: Vec<String>,
}

/// A connection to the cluster.
pub struct ClusterReader {
    client: Client,
}

impl ClusterReader {
    /// Connects as kubectl would.
    pub async fn connect(connection: &Connection) -> Result<Self> {
        let options = KubeConfigOptions {
            context: connection.context.clone(),
            ..KubeConfigOptions::default()
        };
        let mut config = match (&connection.kubeconfig, &connection.context) {
            (Some(path), _) => {
                Config::from_custom_kubeconfig(read_kubeconfig(path)?, &options).await?
            }
            (None, Some(_)) => Config::from_kubeconfig(&options).await?,
            (None, None) => Config::infer().await?,
        };
        config.read_timeout = Some(DEADLINE);
        Ok(Self {
            client: Client::try_from(config)?,
        })
    }

    /// Namespace of the context.
    pub fn namespace(&self) -> &str {
        self.client.default_namespace()
    }

    /// Everything that a decision depends on; pods and gangs of one namespace, or of all.
    pub async fn objects(&self, namespace: Option<&str>) -> Result<Objects> {
        let mut unread = Vec::new();
        let nodes: Vec<NodeWire> = list(Api::all(self.client.clone())).await?;
        let pods: Vec<PodWire> = list(self.scoped(namespace)).await?;
        let budgets: Vec<BudgetWire> = list(self.scoped(namespace)).await?;
        let classes: Vec<PriorityClassWire> = list(Api::all(self.client.clone())).await?;
        let groups: Vec<DeserializeGuard<PodGroup>> = list(self.scoped(namespace)).await?;
        let workloads: Vec<DeserializeGuard<TrainingWorkload>> =
            list(self.scoped(namespace)).await?;
        let weights = self.weights(namespace, &mut unread).await;
        let nodes = nodes.iter().map(|n| named("node", n, n.scheduling()));
        let pods = pods.iter().map(|p| named("pod", p, p.scheduling()));
        let budgets = budgets
            .iter()
            .map(|b| named("poddisruptionbudget", b, b.scheduling()));
        let classes = classes
            .iter()
            .map(|c| named("priorityclass", c, c.scheduling()));
        Ok(Objects {
            nodes: readable(nodes, &mut unread),
            pods: readable(pods, &mut unread),
            budgets: readable(budgets, &mut unread),
            classes: readable(classes, &mut unread)
                .into_iter()
                .map(PriorityClassRecord::from)
                .collect(),
            groups: readable(
                groups.into_iter().map(|g| guarded("podgroup", g)),
                &mut unread,
            ),
            workloads: readable(
                workloads
                    .into_iter()
                    .map(|w| guarded("trainingworkload", w)),
                &mut unread,
            ),
            weights,
            unread,
        })
    }

    /// Weights of this namespace, or of all. Who may not see namespaces takes all for equals.
    async fn weights(&self, namespace: Option<&str>, unread: &mut Vec<String>) -> Weights {
        let all: Result<Vec<NamespaceWire>> = list(Api::all(self.client.clone())).await;
        let all = all.unwrap_or_else(|error| {
            unread.push(format!("weights of namespaces: {error:#}"));
            Vec::new()
        });
        let named = all.iter().filter_map(|n| {
            let name = n.metadata.name.clone()?;
            Some((name, n.weight().ok()??))
        });
        named
            .filter(|(name, _)| namespace.is_none_or(|only| only == name))
            .collect()
    }

    /// What status and events say about a workload.
    pub async fn story(&self, namespace: &str, name: &str) -> Result<Story> {
        let workloads: Api<TrainingWorkload> = Api::namespaced(self.client.clone(), namespace);
        let found = in_time(workloads.get_opt(name), "trainingworkloads").await?;
        let workload =
            found.ok_or_else(|| anyhow!("there is no TrainingWorkload {namespace}/{name}"))?;
        let uid = workload.metadata.uid.clone().unwrap_or_default();
        let groups: Vec<DeserializeGuard<PodGroup>> = list(self.scoped(Some(namespace))).await?;
        let ours = |g: &PodGroup| {
            g.owner_references()
                .iter()
                .any(|o| o.controller == Some(true) && o.uid == uid)
        };
        let groups: Vec<PodGroup> = groups
            .into_iter()
            .filter_map(|g| g.0.ok())
            .filter(ours)
            .collect();
        let mut events = Vec::new();
        let of_groups = groups
            .iter()
            .filter_map(|g| g.metadata.uid.clone())
            .take(GANGS_WITH_EVENTS);
        for uid in std::iter::once(uid).chain(of_groups) {
            events.extend(self.events(namespace, &uid).await?);
        }
        Ok(Story {
            workload,
            groups,
            events,
        })
    }

    async fn events(&self, namespace: &str, uid: &str) -> Result<Vec<Happened>> {
        let api: Api<core::Event> = Api::namespaced(self.client.clone(), namespace);
        let about = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        let events = in_time(api.list(&about), "events").await?;
        Ok(events
            .items
            .into_iter()
            .filter(|e| e.involved_object.uid.as_deref() == Some(uid))
            .map(happened)
            .collect())
    }

    fn scoped<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(
        &self,
        namespace: Option<&str>,
    ) -> Api<K> {
        match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }
}

fn read_kubeconfig(path: &Path) -> Result<Kubeconfig> {
    Kubeconfig::read_from(path).with_context(|| format!("kubeconfig {}", path.display()))
}

/// All objects of a kind, by namespace and name.
async fn list<K>(api: Api<K>) -> Result<Vec<K>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
{
    let mut all = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = in_time(api.list(&params), &K::plural(&())).await?;
        all.extend(page.items);
        params = match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token(&token),
            None => break,
        };
    }
    all.sort_by_cached_key(|o| (o.namespace(), o.name_any()));
    Ok(all)
}

/// The answer to a request, or an error that names the kind that was asked for.
async fn in_time<T>(request: impl Future<Output = kube::Result<T>>, kind: &str) -> Result<T> {
    let answer = tokio::time::timeout(DEADLINE, request).await;
    let answer =
        answer.map_err(|_| anyhow!("cannot read {kind}: no answer within {DEADLINE:?}"))?;
    let missing = matches!(&answer, Err(kube::Error::Api(status)) if status.code == 404);
    let hint = if missing {
        " (are the resource definitions of Lockstep installed?)"
    } else {
        ""
    };
    answer.with_context(|| format!("cannot read {kind}{hint}"))
}

fn readable<T>(
    objects: impl Iterator<Item = Result<T, String>>,
    unread: &mut Vec<String>,
) -> Vec<T> {
    objects
        .filter_map(|object| object.map_err(|why| unread.push(why)).ok())
        .collect()
}

/// What an object was read as, or which object it is that cannot be read, and why.
fn named<K, T>(kind: &str, object: &K, read: Result<T, Unreadable>) -> Result<T, String>
where
    K: Resource<DynamicType = ()>,
{
    let name = object.name_any();
    read.map_err(|why| match object.namespace() {
        Some(namespace) => format!("{kind} {namespace}/{name}: {why}"),
        None => format!("{kind} {name}: {why}"),
    })
}

fn guarded<K>(kind: &str, object: DeserializeGuard<K>) -> Result<K, String> {
    object.0.map_err(|e| {
        let name = e.metadata.name.as_deref().unwrap_or_default();
        format!(
            "{kind} {}/{name}: {}",
            e.metadata.namespace.as_deref().unwrap_or_default(),
            e.error
        )
    })
}

fn happened(event: core::Event) -> Happened {
    let series = event.series.as_ref();
    let last = series
        .and_then(|s| s.last_observed_time.as_ref())
        .map(|t| t.0);
    let last = last
        .or(event.last_timestamp.as_ref().map(|t| t.0))
        .or(event.event_time.as_ref().map(|t| t.0));
    Happened {
        time: last.and_then(|t| {
            DateTime::from_timestamp(t.as_second(), t.subsec_nanosecond().unsigned_abs())
        }),
        kind: event
            .involved_object
            .kind
            .unwrap_or_default()
            .to_lowercase(),
        name: event.involved_object.name.unwrap_or_default(),
        warning: event.type_.as_deref() == Some("Warning"),
        reason: event.reason.unwrap_or_default(),
        message: event.message.unwrap_or_default(),
        count: series.and_then(|s| s.count).or(event.count).unwrap_or(1),
    }
}
