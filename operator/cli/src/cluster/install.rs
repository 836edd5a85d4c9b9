use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, ConfigMapVolumeSource, Pod};
use kube::{Api, ResourceExt};
use lockstep_api::NodeAgent;
use lockstep_model::CostModel;
use lockstep_model::parse::partial::PartialNode;

use super::ClusterReader;
use super::workloads::permitted;
use crate::problem::Problem;
use crate::version::{VersionReport, version_of};

/// Labels of the manager's Deployment and pods, for any name and namespace.
const MANAGERS: &str = "app.kubernetes.io/name=lockstep,app.kubernetes.io/component=manager";
/// Label of the pods of node agents.
const AGENTS: &str = "app.kubernetes.io/name=lockstep-agent";
/// Key of the manager's configuration in the mounted ConfigMap.
const CONFIG: &str = "config.yaml";
const GROUP: &str = "training.lockstep.dev";

#[derive(Clone, Debug, PartialEq)]
pub struct ManagerDeployment {
    pub namespace: String,
    pub account: String,
    /// ConfigMap with the configuration. Its name ends in a hash of its content.
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

/// Without a name, the account is `default`.
fn account_name(namespace: &str, account: Option<&str>) -> String {
    format!(
        "system:serviceaccount:{namespace}:{}",
        account.unwrap_or("default")
    )
}

impl ClusterReader {
    pub async fn versions(&self) -> Result<VersionReport, Problem> {
        let kubernetes = self
            .send(self.client.apiserver_version(), "version")
            .await?;
        let groups = self.send(self.client.list_api_groups(), "apis").await?;
        let served: BTreeSet<String> = groups
            .groups
            .iter()
            .filter(|g| g.name == GROUP)
            .flat_map(|g| g.versions.iter().map(|v| v.version.clone()))
            .collect();
        let managers = permitted(self.managers().await)?;
        let agents = match self.node_agents().await {
            Err(Problem::NotInstalled { .. }) => Some(Vec::new()),
            other => permitted(other)?,
        };
        Ok(VersionReport {
            kubernetes: Some(kubernetes.git_version),
            api: Some(served),
            managers: managers.map(|pods| image_versions(&pods)),
            agents: agents.map(agent_versions),
            ..VersionReport::of_client()
        })
    }

    pub(super) async fn managers(&self) -> Result<Vec<Pod>, Problem> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        self.list(pods, Some(MANAGERS)).await
    }

    pub(super) async fn manager_deployments(
        &self,
        namespace: Option<&str>,
    ) -> Result<Option<Vec<ManagerDeployment>>, Problem> {
        let deployments: Api<Deployment> = self.scoped(namespace);
        let found = permitted(self.list(deployments, Some(MANAGERS)).await)?;
        Ok(found.map(|all| all.iter().map(ManagerDeployment::from).collect()))
    }

    pub async fn agent_pods(&self, namespace: Option<&str>) -> Result<Option<Vec<Pod>>, Problem> {
        permitted(self.list(self.scoped(namespace), Some(AGENTS)).await)
    }

    pub async fn accelerators_of_nodes(&self) -> Result<Option<i64>, Problem> {
        let costs = CostModel::default();
        let nodes: Option<Vec<PartialNode>> =
            permitted(self.list(Api::all(self.client.clone()), None).await)?;
        let of =
            |node: &PartialNode| Some(costs.accelerators(&node.scheduling().ok()?.allocatable));
        Ok(nodes.map(|nodes| nodes.iter().filter_map(of).sum()))
    }

    pub async fn partial_nodes(&self) -> Result<Vec<PartialNode>, Problem> {
        self.list(Api::all(self.client.clone()), None).await
    }

    /// Namespace and configuration of the manager, from the ConfigMap that its Deployment mounts.
    /// `None` if it is missing or forbidden.
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
        let map = permitted(self.send(api.get_opt(&source.name), "configmaps").await)?;
        let text = match map {
            // The ConfigMap is optional and absent: the defaults apply.
            Some(None) if source.optional == Some(true) => Some(String::new()),
            map => map.flatten().and_then(|m| m.data?.remove(CONFIG)),
        };
        Ok(text.map(|text| (manager.namespace, text)))
    }

    pub async fn node_agents(&self) -> Result<Vec<NodeAgent>, Problem> {
        let (agents, _) = self.readable(Api::all(self.client.clone()), None).await?;
        Ok(agents)
    }
}

fn image_versions(pods: &[Pod]) -> BTreeSet<String> {
    let specs = pods.iter().filter_map(|p| p.spec.as_ref());
    let images = specs.filter_map(|s| s.containers.first()?.image.as_deref());
    images
        .filter_map(|i| Some(version_of(i)?.to_owned()))
        .collect()
}

fn agent_versions(agents: Vec<NodeAgent>) -> BTreeSet<String> {
    let statuses = agents.into_iter().filter_map(|a| a.status);
    let versions = statuses.map(|s| s.agent_version);
    versions.filter(|v| !v.is_empty()).collect()
}
