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
        let mut discovered = Discovered::default();
        let mut tasks = JoinSet::new();
        loop {
            match self.version(&watching.client).await {
                Ok(version) if !discovered.change(version) => {}
                Ok(version) => {
                    if let Some(version) = version {
                        info!(version, "the API server serves {kind} of {group}");
                    } else {
                        warn!("the API server serves no {kind} of {group}");
                    }
                    tasks.shutdown().await;
                    (self.watch)(&index, &watching, version, &mut tasks);
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

/// Versions in which the API server has served the API, one discovery after the other.
#[derive(Default)]
struct Discovered {
    /// False before the first discovery.
    any: bool,
    followed: Option<&'static str>,
    /// True if the last discovery lacked the followed version.
    lacking: bool,
}

impl Discovered {
    /// True if this version is to be followed from now on. A version has gone if two discoveries in
    /// succession lack it: an API server that starts lists the groups of definitions late.
    fn change(&mut self, version: Option<&'static str>) -> bool {
        let gone = version.is_none() && self.followed.is_some();
        let lacked = std::mem::replace(&mut self.lacking, gone);
        if self.any && (self.followed == version || gone && !lacked) {
            return false;
        }
        (self.any, self.followed) = (true, version);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::Discovered;

    #[test]
    fn a_version_has_gone_if_two_discoveries_in_succession_lack_it() {
        let mut discovered = Discovered::default();
        let [served, absent] = [Some("v1"), None];
        for (version, change) in [
            (absent, true),
            (absent, false),
            (served, true),
            (absent, false),
            (served, false),
            (absent, false),
            (absent, true),
            (absent, false),
            (Some("v1beta1"), true),
            (served, true),
        ] {
            assert_eq!(discovered.change(version), change);
        }
    }
}
