//! Writes the `NodeAgent` of one node.

#![expect(
    clippy::disallowed_methods,
    reason = "time limits of I/O in tokio's time, which tests can pause; no decision reads it"
)]

use std::convert::Infallible;
use std::error::Error as _;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use lockstep_api::node_agent::NodeAgentSpec;
use lockstep_api::{NodeAgent, NodeAgentStatus};
use lockstep_common::api_server::{ComeBack, retry_after};
use serde_json::json;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{debug, warn};

use crate::backoff::{Backoff, with_retry_after};
use crate::health::{Part, Readiness};
use crate::token_bucket::TokenBucket;

/// Deadline of a call. It exceeds the time that an API server keeps a request queued, a quarter of
/// its request timeout of one minute. A retry after a shorter deadline would join the first request
/// in the queue, and a write storm would feed itself.
const DEADLINE: Duration = Duration::from_secs(20);

/// Writes allowed at once; afterwards one per `ONE_WRITE`. Members that crash at their start can do
/// so several times a second. A restart in place takes two or three writes, so a failure soon
/// afterwards is still reported at once.
const BURST: u32 = 10;
const ONE_WRITE: Duration = Duration::from_secs(1);
/// Interval of reads while nothing changes, in case the object was deleted.
const CHECK_EVERY: Duration = Duration::from_mins(1);

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

impl PublishError {
    /// True if the object was deleted or has another resource version.
    fn is_about_another_version(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(s)) if s.is_conflict() || s.is_not_found())
    }

    fn is_overload(&self) -> bool {
        match self {
            Self::Deadline => true,
            Self::Api(error @ kube::Error::Api(status)) => {
                matches!(status.code, 429 | 504)
                    || status.code == 503 && !retry_after(error).is_zero()
            }
            Self::Api(error) => ComeBack::of(error).is_some(),
            Self::EarlierNode | Self::NoUid => false,
        }
    }

    fn retry_after_of(&self) -> Duration {
        match self {
            Self::Api(error) => retry_after(error),
            Self::Deadline | Self::EarlierNode | Self::NoUid => Duration::ZERO,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct News {
    pub status: NodeAgentStatus,
    /// Longest delay of the write: the slot of this node among nodes that report the same.
    pub slot: Duration,
    /// Number of changes that allow no delay.
    pub hurries: u64,
}

impl News {
    pub(crate) fn update(&mut self, status: NodeAgentStatus, slot: Duration) -> bool {
        let different = self.status != status;
        if different {
            let hurries = self.hurries + u64::from(slot.is_zero());
            *self = Self {
                status,
                slot,
                hurries,
            };
        }
        different
    }
}

pub(crate) struct Publisher {
    api: Api<NodeAgent>,
    nodes: Api<Node>,
    node: String,
    resource_version: Option<String>,
    backoff: Backoff,
    bucket: TokenBucket,
    /// Value of [`News::hurries`] at the last write.
    hurries: u64,
}

impl Publisher {
    pub(crate) async fn open(client: Client, node: &str) -> (Self, NodeAgentStatus) {
        let client = with_retry_after(client);
        let nodes = Api::all(client.clone());
        let mut publisher = Self {
            api: Api::all(client),
            nodes,
            node: node.to_owned(),
            resource_version: None,
            backoff: Backoff::of(node),
            bucket: TokenBucket::new(BURST, ONE_WRITE, Instant::now()),
            hurries: 0,
        };
        loop {
            match publisher.read().await {
                Ok(status) => {
                    publisher.backoff.reset();
                    return (publisher, status);
                }
                Err(error) => {
                    cannot_read(node, &error);
                    publisher.wait_after(&error).await;
                }
            }
        }
    }

    async fn wait_after(&mut self, error: &PublishError) {
        sleep(
            self.backoff
                .next(error.retry_after_of(), error.is_overload()),
        )
        .await;
    }

    async fn read(&mut self) -> Result<NodeAgentStatus, PublishError> {
        let stored = in_time(self.api.get_opt(&self.node)).await?;
        if let Some(object) = &stored
            && object.metadata.resource_version == self.resource_version
        {
            return Ok(object.status.clone().unwrap_or_default());
        }
        let owner = self.owner().await?;
        let object = if let Some(object) = stored {
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
        let object = self.without_managers(object).await?;
        self.resource_version = object.metadata.resource_version;
        Ok(object.status.unwrap_or_default())
    }

    /// Clears `managedFields`. Only the agent writes the object, and field ownership costs the
    /// server a quarter of each write. Once the list is empty, it stays empty
    /// (`skipNonAppliedManager` in `k8s.io/apimachinery/pkg/util/managedfields`).
    async fn without_managers(&self, object: NodeAgent) -> Result<NodeAgent, PublishError> {
        if object.metadata.managed_fields.is_none() {
            return Ok(object);
        }
        let version = &object.metadata.resource_version;
        let patch = json!({"metadata": {"resourceVersion": version, "managedFields": [{}]}});
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        in_time(self.api.patch(&self.node, &params, &patch)).await
    }

    async fn owner(&self) -> Result<OwnerReference, PublishError> {
        let node = in_time(self.nodes.get_metadata(&self.node)).await?;
        node.owner_ref(&()).ok_or(PublishError::NoUid)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the agent is the only writer, so a field that this version does not know is of another version"
    )]
    async fn write(&mut self, status: &NodeAgentStatus) -> Result<(), PublishError> {
        // An update instead of a patch: for a patch, the server decodes, merges and decodes again.
        // The agent is the only writer.
        let mut object = NodeAgent::new(&self.node, NodeAgentSpec {});
        object.metadata.resource_version = self.resource_version.clone();
        object.status = Some(status.clone());
        let params = PostParams::default();
        let written = in_time(self.api.replace_status(&self.node, &params, &object)).await?;
        self.resource_version = written.metadata.resource_version;
        Ok(())
    }

    /// Returns when `desired` has changed, or when the object's status differs from `desired`.
    async fn news(&mut self, desired: &mut watch::Receiver<News>) {
        loop {
            match timeout(CHECK_EVERY, desired.changed()).await {
                Ok(Ok(())) => return,
                // The agent is being dropped.
                Ok(Err(_)) => std::future::pending::<()>().await,
                Err(_) => match self.read().await {
                    Ok(found) if found == desired.borrow().status => {}
                    Ok(_) => return,
                    Err(error) => cannot_read(&self.node, &error),
                },
            }
        }
    }

    /// Collects changes for one write. Waits for `debounce`, for the rate limit, and for this
    /// node's slot. A hurried change skips the slot.
    async fn gather(&mut self, desired: &mut watch::Receiver<News>, debounce: Duration) {
        let begun = Instant::now();
        let earliest = (begun + debounce).max(self.bucket.next(begun));
        loop {
            let due = {
                let news = desired.borrow_and_update();
                let may_wait = news.hurries == self.hurries;
                let turn = may_wait.then(|| begun + news.slot);
                earliest.max(turn.unwrap_or(begun))
            };
            match timeout_at(due, desired.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => std::future::pending::<()>().await,
                Err(_) => return,
            }
        }
    }

    /// Writes each status in `desired`, one write at a time, and skips superseded statuses. Retries
    /// forever. The agent becomes ready after the first write: without known capabilities, pods
    /// that the manager creates get no supervisor.
    pub(crate) async fn run(
        mut self,
        mut desired: watch::Receiver<News>,
        debounce: Duration,
        readiness: &Readiness,
    ) -> Infallible {
        loop {
            self.news(&mut desired).await;
            self.gather(&mut desired, debounce).await;
            self.bucket.take(Instant::now());
            loop {
                let News {
                    status, hurries, ..
                } = desired.borrow_and_update().clone();
                self.hurries = hurries;
                let Err(error) = self.write(&status).await else {
                    break;
                };
                if self.is_stored(&status, &error).await {
                    break;
                }
                let cause = error.source().map(|cause| format!(": {cause}"));
                let why = format!("{error}{}", cause.unwrap_or_default());
                readiness.still_waits_for(Part::Object, &why);
                self.wait_after(&error).await;
            }
            readiness.done(Part::Object);
            self.backoff.reset();
        }
    }

    /// True if the object already has the wanted status: the response to an earlier write may be
    /// lost.
    async fn is_stored(&mut self, status: &NodeAgentStatus, error: &PublishError) -> bool {
        let node = self.node.clone();
        if !error.is_about_another_version() {
            warn!(
                node,
                error = error as &dyn std::error::Error,
                "cannot write the agent's status, retrying"
            );
            return false;
        }
        debug!(
            node,
            "the agent's object was changed or deleted, reading it again"
        );
        match self.read().await {
            Ok(found) => found == *status,
            Err(error) => {
                cannot_read(&node, &error);
                false
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
