use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::{DeserializeGuard, GroupVersionKind, PartialObjectMeta};
use kube::{Api, Resource, ResourceExt};
use lockstep_api::names::labels;
use lockstep_api::workload::{TopologyLevel, TopologyMode};
use lockstep_api::{PodGroup, TrainingWorkload};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ClusterReader;
use super::read::{guarded, readable};
use crate::objects::owns;
use crate::problem::Problem;
use crate::status::{WorkloadObjects, domains};

impl ClusterReader {
    pub async fn workloads(
        &self,
        namespace: Option<&str>,
        labels: Option<&str>,
    ) -> Result<(Vec<TrainingWorkload>, Vec<String>), Problem> {
        self.readable(self.scoped(namespace), labels).await
    }

    /// Lists objects of a Lockstep kind, with a message for each unreadable one. An object of
    /// another version does not hide the rest.
    pub(super) async fn readable<K>(
        &self,
        api: Api<DeserializeGuard<K>>,
        labels: Option<&str>,
    ) -> Result<(Vec<K>, Vec<String>), Problem>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
    {
        let kind = K::kind(&()).to_lowercase();
        let all = self.list(api, labels).await?;
        let mut unread = Vec::new();
        let all = all.into_iter().map(|object| guarded(&kind, object));
        let all = readable(all, &mut unread);
        Ok((all, unread))
    }

    pub async fn workload(&self, namespace: &str, name: &str) -> Result<TrainingWorkload, Problem> {
        let api: Api<TrainingWorkload> = self.scoped(Some(namespace));
        let kind = TrainingWorkload::plural(&());
        let response = self.send(api.get_opt(name), &kind).await?;
        if let Some(response) = response {
            return Ok(response);
        }
        // A 404 for an object leaves open whether its kind exists. A list shows that.
        self.send(api.list_metadata(&ListParams::default().limit(1)), &kind)
            .await?;
        Err(Problem::NotFound {
            kind: TrainingWorkload::kind(&()).into_owned(),
            name: name.to_owned(),
            namespace: namespace.to_owned(),
        })
    }

    /// A runtime of Kubeflow Trainer, if it exists. Runtimes of a kind without the prefix `Cluster`
    /// are in a namespace.
    pub async fn training_runtime(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, Problem> {
        let group = GroupVersionKind::gvk("trainer.kubeflow.org", "v1alpha1", kind);
        let resource = ApiResource::from_gvk(&group);
        let api: Api<DynamicObject> = if kind.starts_with("Cluster") {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        };
        let response = self.send(api.get_opt(name), &resource.plural).await?;
        Ok(response.and_then(|runtime| serde_json::to_value(runtime).ok()))
    }

    /// Namespace and name of the workloads with these labels.
    pub async fn selected(
        &self,
        namespace: Option<&str>,
        labels: &str,
    ) -> Result<Vec<(String, String)>, Problem> {
        let params = ListParams::default().labels(labels);
        let api: Api<TrainingWorkload> = self.scoped(namespace);
        let kind = TrainingWorkload::plural(&());
        let response = self.send(api.list_metadata(&params), &kind).await?;
        let metadata = response.items.into_iter().map(|o| o.metadata);
        let names = metadata.filter_map(|m| Some((m.namespace?, m.name?)));
        Ok(names.collect())
    }

    pub async fn groups(&self, namespace: Option<&str>) -> Result<Vec<PodGroup>, Problem> {
        let (groups, _) = self.readable(self.scoped(namespace), None).await?;
        Ok(groups)
    }

    pub async fn namespaces(&self) -> Result<Vec<String>, Problem> {
        let all: Api<PartialObjectMeta<Namespace>> = Api::all(self.client.clone());
        let all = self.list(all, None).await?;
        Ok(all.iter().map(ResourceExt::name_any).collect())
    }

    pub async fn groups_of(&self, workload: &TrainingWorkload) -> Result<Vec<PodGroup>, Problem> {
        let groups = self
            .groups(workload.metadata.namespace.as_deref())
            .await?
            .into_iter();
        Ok(groups.filter(|group| owns(workload, group)).collect())
    }

    /// Lists the pods of a workload, terminating pods last.
    pub async fn pods_of(&self, workload: &TrainingWorkload) -> Result<Vec<Pod>, Problem> {
        let Some(uid) = &workload.metadata.uid else {
            return Ok(Vec::new());
        };
        let labels = format!("{}={uid}", labels::WORKLOAD_UID);
        let namespace = workload.metadata.namespace.as_deref();
        let pods: Vec<Pod> = self.list(self.scoped(namespace), Some(&labels)).await?;
        let mut pods: Vec<Pod> = pods.into_iter().filter(|p| owns(workload, p)).collect();
        pods.sort_by_key(|p| p.metadata.deletion_timestamp.is_some());
        Ok(pods)
    }

    /// The input of `status`, without forbidden pods and nodes.
    pub async fn of_workload(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<WorkloadObjects, Problem> {
        let workload = self.workload(namespace, name).await?;
        let groups = self.groups_of(&workload).await?;
        let pods = permitted(self.pods_of(&workload).await)?;
        let levels = workload.spec.scheduling.levels();
        let domains = if levels.is_empty() {
            BTreeMap::new()
        } else {
            permitted(self.domains(&levels).await)?.unwrap_or_default()
        };
        Ok(WorkloadObjects {
            workload,
            groups,
            pods,
            domains,
        })
    }

    /// Domains of the nodes that have the labels of all required levels.
    async fn domains(&self, levels: &[TopologyLevel]) -> Result<BTreeMap<String, String>, Problem> {
        let nodes: Api<PartialObjectMeta<Node>> = Api::all(self.client.clone());
        let required: Vec<&str> = levels
            .iter()
            .filter(|l| l.mode == TopologyMode::Required)
            .map(|level| level.key.as_str())
            .collect();
        let selector = Some(required.join(",")).filter(|s| !s.is_empty());
        let nodes = self.list(nodes, selector.as_deref()).await?;
        let labelled = nodes
            .iter()
            .filter_map(|n| Some((n.metadata.name.as_deref()?, n.labels())));
        Ok(domains(levels, labelled))
    }
}

/// Maps a forbidden answer to `None`; other problems stay.
pub(super) fn permitted<T>(response: Result<T, Problem>) -> Result<Option<T>, Problem> {
    match response {
        Err(Problem::NotAllowed { .. }) => Ok(None),
        other => other.map(Some),
    }
}
