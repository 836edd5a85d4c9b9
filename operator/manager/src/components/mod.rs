//! Applies objects that a bundle of the Operator Lifecycle Manager cannot contain (ADR 0037):
//! admission policies and flow control. If the runtime's socket is configured, also the DaemonSet
//! of the node agents.
//!
//! `lockstep-manager components` has its own service account, so that the manager needs no rights
//! on policies and DaemonSets. With kustomize, these objects are applied directly.

mod objects;

use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use tracing::{info, warn};

pub use self::objects::{
    AgentSettings, DAEMON_SET, RuntimeEndpoint, daemon_set, flow_control, policies,
};

const FIELD_MANAGER: &str = "lockstep-components";
/// Interval at which changes by other clients are reverted.
const INTERVAL: Duration = Duration::from_mins(5);
const RETRY: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct Components {
    /// Namespace of this process, its Deployment and the DaemonSet.
    pub namespace: String,
    /// Deployment of this process, owner of the DaemonSet.
    pub deployment: String,
    /// `None` deletes the DaemonSet of the node agents.
    pub agents: Option<AgentSettings>,
}

impl Components {
    /// Applies all objects periodically, without end.
    pub async fn run(&self, client: Client) {
        loop {
            let pause = match self.apply(&client).await {
                Ok(()) => {
                    info!(agents = self.agents.is_some(), "applied");
                    INTERVAL
                }
                Err(error) => {
                    warn!(error = %format_args!("{error:#}"), "not everything is applied, trying again");
                    RETRY
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Policies first: an agent does not act without its policy.
    async fn apply(&self, client: &Client) -> Result<()> {
        for object in policies()?.iter().chain(&flow_control(&self.namespace)?) {
            apply(client, None, object).await?;
        }
        let Some(agents) = &self.agents else {
            return self.remove_agents(client).await;
        };
        let deployments = Api::<Deployment>::namespaced(client.clone(), &self.namespace);
        let owner = deployments
            .get(&self.deployment)
            .await
            .with_context(|| format!("deployment {}", self.deployment))?;
        let object = daemon_set(agents, &self.namespace, &owner)?;
        apply(client, Some(&self.namespace), &object).await
    }

    async fn remove_agents(&self, client: &Client) -> Result<()> {
        let api = Api::<DaemonSet>::namespaced(client.clone(), &self.namespace);
        match api.delete(DAEMON_SET, &DeleteParams::default()).await {
            Ok(_) => info!("the node agents are taken away: no runtime endpoint is configured"),
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => return Err(error).context("delete the node agents"),
        }
        Ok(())
    }
}

async fn apply(client: &Client, namespace: Option<&str>, object: &DynamicObject) -> Result<()> {
    let types = object.types.as_ref().context("an object has a kind")?;
    let gvk = GroupVersionKind::try_from(types).context("an object has a kind")?;
    let resource = ApiResource::from_gvk(&gvk);
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let name = object.name_any();
    // Forced, to recover fields that another client has taken over.
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let result = api.patch(&name, &params, &Patch::Apply(object)).await;
    result.with_context(|| format!("apply {} {name}", gvk.kind))?;
    Ok(())
}
