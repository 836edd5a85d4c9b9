//! Writes the `NodeAgent` of one node.

use std::convert::Infallible;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use lockstep_api::node_agent::NodeAgentSpec;
use lockstep_api::{NodeAgent, NodeAgentStatus};
use serde_json::json;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

/// Longest time that one call may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// Pause after a failed call, doubling.
const RETRY: Duration = Duration::from_millis(100);
/// Longest pause.
const MAX_RETRY: Duration = Duration::from_secs(5);

/// Longest time that changes are gathered for one write while they do not cease.
const SLOWEST: Duration = Duration::from_secs(1);
/// Changes have ceased when there was none for this long.
const QUIET: Duration = Duration::from_secs(10);
/// How often the object is looked at while there is nothing to tell: somebody may have deleted it.
const LOOK: Duration = Duration::from_mins(10);

/// Why a write failed.
#[derive(Debug, Error)]
pub(crate) enum PublishError {
    #[error("API server did not answer in time")]
    Deadline,
    #[error("API server refused")]
    Api(#[from] kube::Error),
    #[error("the object of an earlier node of this name has not been collected yet")]
    EarlierNode,
    #[error("the node has no UID")]
    NoUid,
}

/// The object of one node.
pub(crate) struct Publisher {
    api: Api<NodeAgent>,
    nodes: Api<Node>,
    node: String,
    resource_version: Option<String>,
}

impl Publisher {
    /// Reads or makes the object; returns what it says.
    pub(crate) async fn open(client: Client, node: &str) -> (Self, NodeAgentStatus) {
        let nodes = Api::all(client.clone());
        let mut publisher = Self {
            api: Api::all(client),
            nodes,
            node: node.to_owned(),
            resource_version: None,
        };
        let mut pause = RETRY;
        loop {
            match publisher.read().await {
                Ok(status) => return (publisher, status),
                Err(error) => cannot_read(node, &error),
            }
            sleep(pause).await;
            pause = (pause * 2).min(MAX_RETRY);
        }
    }

    async fn read(&mut self) -> Result<NodeAgentStatus, PublishError> {
        let owner = self.owner().await?;
        let object = if let Some(object) = in_time(self.api.get_opt(&self.node)).await? {
            if object
                .metadata
                .owner_references
                .iter()
                .flatten()
                .any(|o| o.kind == owner.kind && o.uid != owner.uid)
            {
                return Err(PublishError::EarlierNode);
            }
            object
        } else {
            let mut new = NodeAgent::new(&self.node, NodeAgentSpec {});
            new.metadata.owner_references = Some(vec![owner]);
            in_time(self.api.create(&PostParams::default(), &new)).await?
        };
        self.resource_version = object.metadata.resource_version;
        Ok(object.status.unwrap_or_default())
    }

    /// The node, with which the object is garbage-collected.
    async fn owner(&self) -> Result<OwnerReference, PublishError> {
        let node = in_time(self.nodes.get_metadata(&self.node)).await?;
        node.owner_ref(&()).ok_or(PublishError::NoUid)
    }

    async fn write(&mut self, status: &NodeAgentStatus) -> Result<(), PublishError> {
        let patch =
            json!({"metadata": {"resourceVersion": self.resource_version}, "status": status});
        let patched = in_time(self.api.patch_status(
            &self.node,
            &PatchParams::default(),
            &Patch::Merge(patch),
        ))
        .await?;
        self.resource_version = patched.metadata.resource_version;
        Ok(())
    }

    /// Waits for something to tell: a change, or that the object has lost what was told. `wait`, the
    /// time to gather changes, grows while they do not cease: members that crash as soon as they are
    /// started may do so several times a second.
    async fn news(
        &mut self,
        wanted: &mut watch::Receiver<NodeAgentStatus>,
        wait: &mut Duration,
        debounce: Duration,
    ) {
        let mut patience = QUIET;
        loop {
            match timeout(patience, wanted.changed()).await {
                Ok(Ok(())) => return,
                // Nobody will want anything any more: the agent is being dropped.
                Ok(Err(_)) => std::future::pending::<()>().await,
                Err(_) => *wait = debounce,
            }
            if patience == LOOK {
                match self.read().await {
                    Ok(found) if found == *wanted.borrow() => {}
                    Ok(_) => return,
                    Err(error) => cannot_read(&self.node, &error),
                }
            }
            patience = LOOK;
        }
    }

    /// Writes each status that `wanted` shows, the latest when it changes faster than it can be
    /// written. Never gives up.
    pub(crate) async fn run(
        mut self,
        mut wanted: watch::Receiver<NodeAgentStatus>,
        debounce: Duration,
    ) -> Infallible {
        let mut wait = debounce;
        loop {
            self.news(&mut wanted, &mut wait, debounce).await;
            sleep(wait).await;
            wait = (wait * 2).min(SLOWEST);
            let mut pause = RETRY;
            loop {
                let status = wanted.borrow_and_update().clone();
                let Err(error) = self.write(&status).await else {
                    break;
                };
                let gone = matches!(&error, PublishError::Api(kube::Error::Api(s)) if s.is_conflict() || s.is_not_found());
                let node = self.node.clone();
                if gone {
                    debug!(
                        node,
                        "the agent's object was changed or deleted meanwhile, reading it again"
                    );
                    if let Err(error) = self.read().await {
                        cannot_read(&node, &error);
                    }
                } else {
                    warn!(
                        node,
                        error = &error as &dyn std::error::Error,
                        "cannot write the agent's status, retrying"
                    );
                }
                sleep(pause).await;
                pause = (pause * 2).min(MAX_RETRY);
            }
        }
    }
}

fn cannot_read(node: &str, error: &PublishError) {
    warn!(
        node,
        error = error as &dyn std::error::Error,
        "cannot read or make the agent's object, retrying"
    );
}

async fn in_time<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, PublishError> {
    Ok(timeout(DEADLINE, call)
        .await
        .map_err(|_| PublishError::Deadline)??)
}
