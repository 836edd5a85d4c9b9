//! Whether the cluster serves the upstream scheduling kinds (`scheduling.k8s.io` PodGroup,
//! KEP-4671).
//!
//! Our own kinds are used in either case; what is found is shown in a metric and, when it changes,
//! in the log.

use std::time::Duration;

use kube::Client;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tracing::{debug, info};

use crate::clock::Random;

const GROUP: &str = "scheduling.k8s.io";

/// What is served changes with upgrades of the API server only.
const INTERVAL: Duration = Duration::from_mins(10);

/// Versions of upstream's scheduling group that serve pod groups.
#[derive(Clone, Debug, Default)]
pub struct NativeScheduling(Family<VersionLabel, Gauge>);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VersionLabel {
    version: String,
}

impl NativeScheduling {
    /// A gauge that is shown in the registry.
    pub fn register(registry: &mut Registry) -> Self {
        let served = Self::default();
        registry.register(
            "lockstep_native_scheduling",
            "Versions of scheduling.k8s.io that serve pod groups",
            served.0.clone(),
        );
        served
    }

    /// What is served now.
    pub fn set(&self, versions: &[String]) {
        self.0.clear();
        for version in versions {
            self.0
                .get_or_create(&VersionLabel {
                    version: version.clone(),
                })
                .set(1);
        }
    }
}

/// Looks at start and again from time to time.
pub async fn discover(client: Client, random: Random, metric: NativeScheduling) {
    let mut known: Option<Vec<String>> = None;
    loop {
        match served(&client).await {
            Ok(versions) => {
                if known.as_ref() != Some(&versions) {
                    info!(versions = %versions.join(","), "versions of {GROUP} that serve pod groups (not used)");
                    metric.set(&versions);
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
            let resources = client
                .list_api_group_resources(&version.group_version)
                .await?;
            if resources.resources.iter().any(|r| r.name == "podgroups") {
                versions.push(version.version);
            }
        }
    }
    Ok(versions)
}
