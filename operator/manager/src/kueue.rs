//! Detects whether the API server serves Kueue's API, and watches its objects there.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use lockstep_api::kueue::{KUEUE_GROUP, KUEUE_VERSIONS};
use tokio::task::JoinSet;
use tracing::{debug, info};

use crate::index::{Index, Watching, watch_kueue};

/// Time between two tests of the API server.
const INTERVAL: Duration = Duration::from_secs(10);

pub async fn follow(index: Arc<Index>, watching: Watching) {
    let mut last = None;
    let mut tasks = JoinSet::new();
    loop {
        match served(&watching.client).await {
            Ok(version) => {
                if last.as_ref() != Some(&version) {
                    let shown = version.as_deref().unwrap_or("none");
                    info!(version = shown, "served version of {KUEUE_GROUP}");
                    tasks.shutdown().await;
                    index.set_kueue_version(version.clone());
                    if let Some(version) = &version {
                        watch_kueue(&index, &watching, version, &mut tasks);
                    }
                    last = Some(version);
                }
            }
            Err(error) => debug!(%error, "cannot discover {KUEUE_GROUP}"),
        }
        tokio::time::sleep(watching.random.jittered(INTERVAL)).await;
    }
}

/// The version to use; `None`: no known one is served.
async fn served(client: &Client) -> kube::Result<Option<String>> {
    let all = client.list_api_groups().await?.groups;
    let group = all.into_iter().find(|group| group.name == KUEUE_GROUP);
    let versions = group.map(|group| group.versions).unwrap_or_default();
    let mut known = KUEUE_VERSIONS.into_iter();
    let served = known.find(|known| versions.iter().any(|v| v.version == *known));
    Ok(served.map(str::to_owned))
}
