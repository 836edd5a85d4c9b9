use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::core::{ApiResource, GroupVersionKind};
use lockstep_api::provisioning::{AUTOSCALING_GROUP, AUTOSCALING_VERSIONS};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::index::{Index, Watching, watch_requests};

const INTERVAL: Duration = Duration::from_mins(10);
/// While no version is served, or the API server does not answer.
const RETRY: Duration = Duration::from_secs(10);

/// Resource of requests in a version.
pub(crate) fn resource(version: &str) -> ApiResource {
    let kind = GroupVersionKind::gvk(AUTOSCALING_GROUP, version, "ProvisioningRequest");
    ApiResource::from_gvk(&kind)
}

/// Publishes in which version requests are served, and watches them.
pub(crate) async fn follow(
    index: Arc<Index>,
    watching: Watching,
    served: watch::Sender<Option<ApiResource>>,
) {
    let mut tasks = JoinSet::new();
    let mut last = None;
    loop {
        let wait = match served_version(&watching.client).await {
            Ok(version) => {
                if last != Some(version) {
                    last = Some(version);
                    tasks.shutdown().await;
                    if let Some(version) = version {
                        info!(version, "ProvisioningRequest is served");
                        watch_requests(&index, &watching, &resource(version), &mut tasks);
                    } else {
                        warn!(
                            "the API server serves no ProvisioningRequest: no nodes are requested"
                        );
                    }
                    served.send_replace(version.map(resource));
                    index.wake_provisioning();
                }
                if version.is_some() { INTERVAL } else { RETRY }
            }
            Err(error) => {
                warn!(%error, "cannot discover {AUTOSCALING_GROUP}");
                RETRY
            }
        };
        tokio::time::sleep(watching.random.jittered(wait)).await;
    }
}

async fn served_version(client: &Client) -> kube::Result<Option<&'static str>> {
    let groups = client.list_api_groups().await?.groups;
    let group = groups.into_iter().find(|g| g.name == AUTOSCALING_GROUP);
    let versions = group.map(|g| g.versions).unwrap_or_default();
    for version in AUTOSCALING_VERSIONS {
        let Some(found) = versions.iter().find(|v| v.version == version) else {
            continue;
        };
        let kinds = client
            .list_api_group_resources(&found.group_version)
            .await?;
        // Capacity buffers are in the same group.
        if kinds
            .resources
            .iter()
            .any(|r| r.kind == "ProvisioningRequest")
        {
            return Ok(Some(version));
        }
    }
    Ok(None)
}
