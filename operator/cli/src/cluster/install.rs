//! What is installed in the cluster.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;
use lockstep_api::NodeAgent;
use lockstep_model::CostModel;
use lockstep_model::wire::NodeWire;

use super::ClusterReader;
use super::workloads::permitted;
use crate::problem::Problem;
use crate::version::{CLIENT, VersionReport, tag};

/// Label of the manager's pods, whatever namespace they are installed in.
const MANAGERS: &str = "app.kubernetes.io/name=lockstep,app.kubernetes.io/component=manager";
/// Label of the pods of node agents.
const AGENTS: &str = "app.kubernetes.io/name=lockstep-agent";
/// Name and key of the manager's configuration.
const CONFIG: (&str, &str) = ("lockstep-manager", "config.yaml");
/// The API group.
const GROUP: &str = "training.lockstep.dev";

impl ClusterReader {
    /// The versions that meet here.
    pub async fn versions(&self) -> Result<VersionReport, Problem> {
        let kubernetes = self.ask(self.client.apiserver_version(), "version").await?;
        let groups = self.ask(self.client.list_api_groups(), "apis").await?;
        let served = groups.groups.iter().filter(|g| g.name == GROUP);
        let served = served.flat_map(|g| g.versions.iter().map(|v| v.version.clone()));
        let managers = permitted(self.managers().await)?;
        let tags = |pods: &Vec<Pod>| -> BTreeSet<String> {
            let containers = pods.iter().filter_map(|p| p.spec.as_ref());
            let images = containers.filter_map(|s| s.containers.first()?.image.as_deref());
            images.filter_map(|i| Some(tag(i)?.to_owned())).collect()
        };
        let agents = match self.node_agents().await {
            Err(Problem::NotInstalled { .. }) => Some(Vec::new()),
            other => permitted(other)?,
        };
        let versions = |agents: Vec<NodeAgent>| -> BTreeSet<String> {
            let statuses = agents.into_iter().filter_map(|a| a.status);
            let versions = statuses.map(|s| s.agent_version);
            versions.filter(|v| !v.is_empty()).collect()
        };
        Ok(VersionReport {
            client: CLIENT.to_owned(),
            kubernetes: Some(kubernetes.git_version),
            api: Some(served.collect()),
            managers: managers.as_ref().map(tags),
            agents: agents.map(versions),
        })
    }

    /// Pods of managers, in any namespace.
    pub(super) async fn managers(&self) -> Result<Vec<Pod>, Problem> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        self.list(pods, Some(MANAGERS)).await
    }

    /// Pods of the node agents; `None`: they may not be read.
    pub async fn agent_pods(&self, namespace: &str) -> Result<Option<Vec<Pod>>, Problem> {
        permitted(self.list(self.scoped(Some(namespace)), Some(AGENTS)).await)
    }

    /// Accelerators that nodes have to give; `None`: nodes may not be read.
    pub async fn accelerators_of_nodes(&self) -> Result<Option<i64>, Problem> {
        let costs = CostModel::default();
        let nodes: Option<Vec<NodeWire>> =
            permitted(self.list(Api::all(self.client.clone()), None).await)?;
        let of = |node: &NodeWire| Some(costs.accelerators(&node.scheduling().ok()?.allocatable));
        Ok(nodes.map(|nodes| nodes.iter().filter_map(of).sum()))
    }

    /// The manager's configuration; `None`: it may not be read, or is not there.
    pub async fn manager_config(&self, namespace: &str) -> Result<Option<String>, Problem> {
        let api: Api<ConfigMap> = self.scoped(Some(namespace));
        let map = permitted(self.ask(api.get_opt(CONFIG.0), "configmaps").await)?.flatten();
        Ok(map.and_then(|m| m.data?.remove(CONFIG.1)))
    }

    /// What node agents have written.
    pub async fn node_agents(&self) -> Result<Vec<NodeAgent>, Problem> {
        self.list(Api::all(self.client.clone()), None).await
    }
}
