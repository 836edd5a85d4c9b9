//! Detects in which version the API server serves an API of another project, and watches its objects
//! in that version.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use lockstep_api::kueue::{KUEUE_GROUP, KUEUE_VERSIONS};
use lockstep_api::provisioning::{AUTOSCALING_GROUP, AUTOSCALING_VERSIONS};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::index::{Index, Watching, watch_kueue, watch_requests};

/// Time between two tests of the API server.
const INTERVAL: Duration = Duration::from_secs(10);

/// An API that the API server may serve, and no longer serve.
pub(crate) struct OptionalApi {
    group: &'static str,
    /// Known versions, the preferred one first.
    versions: [&'static str; 2],
    /// The kind that must be served. The group can have others.
    kind: &'static str,
    watch: fn(&Arc<Index>, &Watching, Option<&'static str>, &mut JoinSet<()>),
}

pub(crate) const KUEUE: OptionalApi = OptionalApi {
    group: KUEUE_GROUP,
    versions: KUEUE_VERSIONS,
    kind: "Workload",
    watch: watch_kueue,
};

pub(crate) const PROVISIONING_REQUESTS: OptionalApi = OptionalApi {
    group: AUTOSCALING_GROUP,
    versions: AUTOSCALING_VERSIONS,
    kind: "ProvisioningRequest",
    watch: watch_requests,
};

impl OptionalApi {
    pub async fn follow(self, index: Arc<Index>, watching: Watching) {
        let (group, kind) = (self.group, self.kind);
        let mut last = None;
        let mut tasks = JoinSet::new();
        loop {
            match self.version(&watching.client).await {
                Ok(version) if last == Some(version) => {}
                Ok(version) => {
                    if let Some(version) = version {
                        info!(version, "the API server serves {kind} of {group}");
                    } else {
                        warn!("the API server serves no {kind} of {group}");
                    }
                    tasks.shutdown().await;
                    (self.watch)(&index, &watching, version, &mut tasks);
                    last = Some(version);
                }
                Err(error) => warn!(%error, "cannot discover {group}"),
            }
            tokio::time::sleep(watching.random.jittered(INTERVAL)).await;
        }
    }

    /// The version to use; `None`: no known one is served.
    async fn version(&self, client: &Client) -> kube::Result<Option<&'static str>> {
        let groups = client.list_api_groups().await?.groups;
        let group = groups.into_iter().find(|g| g.name == self.group);
        let served = group.map(|g| g.versions).unwrap_or_default();
        for version in self.versions {
            let Some(found) = served.iter().find(|v| v.version == version) else {
                continue;
            };
            let list = client.list_api_group_resources(&found.group_version);
            if list.await?.resources.iter().any(|r| r.kind == self.kind) {
                return Ok(Some(version));
            }
        }
        Ok(None)
    }
}
