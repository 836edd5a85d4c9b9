//! Reads the input of scheduling decisions, and the status and events of a workload.

use anyhow::Result;
use k8s_openapi::api::core::v1 as core;
use kube::api::ListParams;
use kube::core::DeserializeGuard;
use kube::{Api, Resource, ResourceExt};
use lockstep_api::time::{utc, utc_micro};
use lockstep_api::{PodGroup, TrainingWorkload};
use lockstep_model::Weights;
use lockstep_model::common::unreadable::Unreadable;
use lockstep_model::parse::partial::{
    PartialBudget, PartialNode, PartialPod, PartialPriorityClass,
};
use lockstep_model::parse::quota_partial::PartialNamespace;

use super::ClusterReader;
use crate::explain::{Happened, Story};
use crate::problem::Problem;
use crate::record::{Objects, weights};

/// Most gangs of one workload whose events are read: each costs a request.
const GANGS_WITH_EVENTS: usize = 8;

impl ClusterReader {
    /// All input of a decision. Pods and gangs are of one namespace, or of all.
    pub async fn objects(&self, namespace: Option<&str>) -> Result<Objects, Problem> {
        let mut unread = Vec::new();
        let nodes: Vec<PartialNode> = self.list(Api::all(self.client.clone()), None).await?;
        let pods: Vec<PartialPod> = self.list(self.scoped(namespace), None).await?;
        let budgets: Vec<PartialBudget> = self.list(self.scoped(namespace), None).await?;
        let classes: Vec<PartialPriorityClass> =
            self.list(Api::all(self.client.clone()), None).await?;
        let groups: Vec<DeserializeGuard<PodGroup>> =
            self.list(self.scoped(namespace), None).await?;
        let workloads: Vec<DeserializeGuard<TrainingWorkload>> =
            self.list(self.scoped(namespace), None).await?;
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
            classes: readable(classes, &mut unread),
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

    /// Weights of one namespace, or of all. Without access to namespaces, all weights are equal.
    async fn weights(&self, namespace: Option<&str>, unread: &mut Vec<String>) -> Weights {
        let all: Result<Vec<PartialNamespace>, Problem> =
            self.list(Api::all(self.client.clone()), None).await;
        let all = all.unwrap_or_else(|error| {
            unread.push(format!("weights of namespaces: {error}"));
            Vec::new()
        });
        weights(&all, namespace)
    }

    pub async fn story(&self, namespace: &str, name: &str) -> Result<Story, Problem> {
        let workload = self.workload(namespace, name).await?;
        let groups = self.groups_of(&workload).await?;
        let events = self.events_of(&workload, &groups).await?;
        Ok(Story {
            workload,
            groups,
            events,
        })
    }

    /// Events of a workload and its gangs.
    pub async fn events_of(
        &self,
        workload: &TrainingWorkload,
        groups: &[PodGroup],
    ) -> Result<Vec<Happened>, Problem> {
        let namespace = workload.namespace().unwrap_or_default();
        let own = workload.metadata.uid.clone();
        let of_groups = groups
            .iter()
            .filter_map(|g| g.metadata.uid.clone())
            .take(GANGS_WITH_EVENTS);
        let mut events = Vec::new();
        for uid in own.into_iter().chain(of_groups) {
            events.extend(self.events(&namespace, &uid).await?);
        }
        Ok(events)
    }

    async fn events(&self, namespace: &str, uid: &str) -> Result<Vec<Happened>, Problem> {
        let api: Api<core::Event> = Api::namespaced(self.client.clone(), namespace);
        let about = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        let events = self.send(api.list(&about), "events").await?;
        Ok(events
            .items
            .into_iter()
            .filter(|e| e.involved_object.uid.as_deref() == Some(uid))
            .map(happened)
            .collect())
    }
}

/// The readable objects. Messages about the rest go to `unread`.
pub(super) fn readable<T>(
    objects: impl Iterator<Item = Result<T, String>>,
    unread: &mut Vec<String>,
) -> Vec<T> {
    objects
        .filter_map(|object| object.map_err(|why| unread.push(why)).ok())
        .collect()
}

/// An error names the object.
pub(super) fn named<K, T>(kind: &str, object: &K, read: Result<T, Unreadable>) -> Result<T, String>
where
    K: Resource<DynamicType = ()>,
{
    let name = object.name_any();
    read.map_err(|why| match object.namespace() {
        Some(namespace) => format!("{kind} {namespace}/{name}: {why}"),
        None => format!("{kind} {name}: {why}"),
    })
}

/// An error names the object.
pub(super) fn guarded<K>(kind: &str, object: DeserializeGuard<K>) -> Result<K, String> {
    object.0.map_err(|e| {
        let name = e.metadata.name.as_deref().unwrap_or_default();
        match e.metadata.namespace.as_deref() {
            Some(namespace) => format!("{kind} {namespace}/{name}: {}", e.error),
            None => format!("{kind} {name}: {}", e.error),
        }
    })
}

fn happened(event: core::Event) -> Happened {
    let series = event.series.as_ref();
    let last = series
        .and_then(|s| s.last_observed_time.as_ref())
        .and_then(utc_micro)
        .or_else(|| event.last_timestamp.as_ref().and_then(utc));
    let first = event.event_time.as_ref();
    Happened {
        time: last.or_else(|| first.and_then(utc_micro)),
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
