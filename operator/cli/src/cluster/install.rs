//! What is installed in the cluster.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, ConfigMapVolumeSource, Pod};
use kube::{Api, ResourceExt};
use lockstep_api::NodeAgent;
use lockstep_model::CostModel;
use lockstep_model::partial::PartialNode;

use super::ClusterReader;
use super::workloads::permitted;
use crate::problem::Problem;
use crate::version::{CLIENT, VersionReport, tag};

/// Labels of the manager's Deployment and pods, whatever they are called and wherever they are.
const MANAGERS: &str = "app.kubernetes.io/name=lockstep,app.kubernetes.io/component=manager";
/// Label of the pods of node agents.
const AGENTS: &str = "app.kubernetes.io/name=lockstep-agent";
/// Key of the manager's configuration in the ConfigMap that its pods mount.
const CONFIG: &str = "config.yaml";
/// The API group.
const GROUP: &str = "training.lockstep.dev";

/// A Deployment of managers.
#[derive(Clone, Debug, PartialEq)]
pub struct ManagerDeployment {
    /// Namespace.
    pub namespace: String,
    /// User name of its service account.
    pub account: String,
    /// ConfigMap with its configuration: its name ends in a hash of its content.
    config_map: Option<ConfigMapVolumeSource>,
}

impl From<&Deployment> for ManagerDeployment {
    fn from(deployment: &Deployment) -> Self {
        let namespace = deployment.namespace().unwrap_or_default();
        let pod = deployment.spec.template.spec.as_ref();
        let account = pod.and_then(|p| p.service_account_name.as_deref());
        let volumes = pod.into_iter().flat_map(|p| p.volumes.iter().flatten());
        let mut config_maps = volumes.filter_map(|v| v.config_map.as_ref());
        Self {
            account: account_name(&namespace, account),
            config_map: config_maps.next().cloned(),
            namespace,
        }
    }
}

/// User name of a service account; none is the account `default`.
fn account_name(namespace: &str, account: Option<&str>) -> String {
    format!(
        "system:serviceaccount:{namespace}:{}",
        account.unwrap_or("default")
    )
}

impl ClusterReader {
    /// The versions that meet here.
    pub async fn versions(&self) -> Result<VersionReport, Problem> {
        let kubernetes = self.ask(self.client.apiserver_version(), "version").await?;
        let groups = self.ask(self.client.list_api_groups(), "apis").await?;
        let served = groups.groups.iter().filter(|g| g.name == GROUP);
        let served = served.flat_map(|g| g.versions.iter().map(|v| v.version.clone()));
        let managers = permitted(self.managers().await)?;
        let agents = match self.node_agents().await {
            Err(Problem::NotInstalled { .. }) => Some(Vec::new()),
            other => permitted(other)?,
        };
        Ok(VersionReport {
            client: CLIENT.to_owned(),
            kubernetes: Some(kubernetes.git_version),
            api: Some(served.collect()),
            managers: managers.map(|pods| image_tags(&pods)),
            agents: agents.map(agent_versions),
        })
    }

    /// Pods of managers, in any namespace.
    pub(super) async fn managers(&self) -> Result<Vec<Pod>, Problem> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        self.list(pods, Some(MANAGERS)).await
    }

    /// Deployments of managers, in this namespace or in any; `None`: they may not be read.
    pub(super) async fn manager_deployments(
        &self,
        namespace: Option<&str>,
    ) -> Result<Option<Vec<ManagerDeployment>>, Problem> {
        let deployments: Api<Deployment> = self.scoped(namespace);
        let found = permitted(self.list(deployments, Some(MANAGERS)).await)?;
        Ok(found.map(|all| all.iter().map(ManagerDeployment::from).collect()))
    }

    /// Pods of the node agents, in this namespace or in any; `None`: they may not be read.
    pub async fn agent_pods(&self, namespace: Option<&str>) -> Result<Option<Vec<Pod>>, Problem> {
        permitted(self.list(self.scoped(namespace), Some(AGENTS)).await)
    }

    /// Accelerators that nodes have to give; `None`: nodes may not be read.
    pub async fn accelerators_of_nodes(&self) -> Result<Option<i64>, Problem> {
        let costs = CostModel::default();
        let nodes: Option<Vec<PartialNode>> =
            permitted(self.list(Api::all(self.client.clone()), None).await)?;
        let of =
            |node: &PartialNode| Some(costs.accelerators(&node.scheduling().ok()?.allocatable));
        Ok(nodes.map(|nodes| nodes.iter().filter_map(of).sum()))
    }

    /// The manager's namespace and configuration; `None`: it may not be read, or is not there. It is
    /// the one that its Deployment mounts, in this namespace or in any.
    pub async fn manager_config(
        &self,
        namespace: Option<&str>,
    ) -> Result<Option<(String, String)>, Problem> {
        let managers = self.manager_deployments(namespace).await?;
        let Some(manager) = managers.into_iter().flatten().next() else {
            return Ok(None);
        };
        let Some(source) = &manager.config_map else {
            return Ok(None);
        };
        let api: Api<ConfigMap> = self.scoped(Some(&manager.namespace));
        let map = permitted(self.ask(api.get_opt(&source.name), "configmaps").await)?;
        let text = match map {
            // Nothing is configured.
            Some(None) if source.optional == Some(true) => Some(String::new()),
            map => map.flatten().and_then(|m| m.data?.remove(CONFIG)),
        };
        Ok(text.map(|text| (manager.namespace, text)))
    }

    /// What node agents have written; what cannot be read is left out.
    pub async fn node_agents(&self) -> Result<Vec<NodeAgent>, Problem> {
        let (agents, _) = self.readable(Api::all(self.client.clone()), None).await?;
        Ok(agents)
    }
}

/// Tags of the images of the pods' first containers.
fn image_tags(pods: &[Pod]) -> BTreeSet<String> {
    let specs = pods.iter().filter_map(|p| p.spec.as_ref());
    let images = specs.filter_map(|s| s.containers.first()?.image.as_deref());
    images.filter_map(|i| Some(tag(i)?.to_owned())).collect()
}

/// Versions that agents say they have.
fn agent_versions(agents: Vec<NodeAgent>) -> BTreeSet<String> {
    let statuses = agents.into_iter().filter_map(|a| a.status);
    let versions = statuses.map(|s| s.agent_version);
    versions.filter(|v| !v.is_empty()).collect()
}
