//! Whether the cluster serves the upstream scheduling kinds (`scheduling.k8s.io` PodGroup, KEP-4671).
//!
//! Our own kinds are used in either case; what is found is shown in a metric, in a condition of every workload and, when
//! it changes, in the log.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tracing::{debug, info};

use crate::clock::Random;
use crate::index::Index;
use crate::metrics::NativeScheduling;

const GROUP: &str = "scheduling.k8s.io";

/// What is served changes with upgrades of the API server only.
const INTERVAL: Duration = Duration::from_mins(10);

/// Looks at start and again from time to time.
pub async fn discover(client: Client, random: Random, metric: NativeScheduling, index: Arc<Index>) {
    let mut known: Option<Vec<String>> = None;
    loop {
        match served(&client).await {
            Ok(versions) => {
                if known.as_ref() != Some(&versions) {
                    info!(versions = %versions.join(","), "versions of {GROUP} that serve pod groups (not used)");
                    metric.set(&versions);
                    index.set_native(&versions);
                    known = Some(versions);
                }
            }
            Err(error) => debug!(%error, "cannot discover {GROUP}"),
        }
        tokio::time::sleep(random.jittered(INTERVAL)).await;
    }
}

/// Versions of the group that have pod groups.
async fn served(client: &Client) -> kube::Result<Vec<String>> {
    let groups = client.list_api_groups().await?;
    let mut versions = Vec::new();
    for group in groups.groups.into_iter().filter(|g| g.name == GROUP) {
        for version in group.versions {
            let resources = client.list_api_group_resources(&version.group_version).await?;
            if resources.resources.iter().any(|r| r.name == "podgroups") {
                versions.push(version.version);
            }
        }
    }
    Ok(versions)
}
