use std::time::Duration;

use k8s_openapi::apimachinery::pkg::version::Info;
use kube::Client;
use tokio::sync::watch;
use tracing::{debug, info};

use crate::clock::Random;

/// First version whose kube-scheduler keeps nominations of other controllers (KEP-5278).
const KEEPS_NOMINATIONS: (u32, u32) = (1, 34);
const INTERVAL: Duration = Duration::from_mins(10);
const RETRY: Duration = Duration::from_secs(10);

/// Publishes whether kube-scheduler keeps a nominatedNodeName set by another component, by the API
/// server's version. Until the first response, the scheduler assumes that it does not and waits
/// until victims are gone, which is correct for every version.
pub async fn follow(client: Client, random: Random, keeps_nominations: watch::Sender<bool>) {
    loop {
        let wait = match client.apiserver_version().await {
            Ok(version) => {
                let kept = keeps(&version);
                keeps_nominations.send_if_modified(|current| {
                    let changed = *current != kept;
                    if changed {
                        info!(
                            version = version.git_version,
                            kept,
                            "detected whether kube-scheduler keeps nominatedNodeName of other components"
                        );
                    }
                    *current = kept;
                    changed
                });
                INTERVAL
            }
            Err(error) => {
                debug!(%error, "cannot get the version of the API server");
                RETRY
            }
        };
        tokio::time::sleep(random.jittered(wait)).await;
    }
}

/// Some distributions report the minor version as `34+`. An unparsable version counts as new.
fn keeps(version: &Info) -> bool {
    let number = |text: &str| text.trim_end_matches('+').parse::<u32>().ok();
    let (major, minor) = (number(&version.major), number(&version.minor));
    let parsed = major.zip(minor);
    parsed.is_none_or(|version| version >= KEEPS_NOMINATIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nominations_are_kept_from_version_1_34_and_for_unreadable_versions() {
        for (major, minor, kept) in [
            ("1", "33", false),
            ("1", "33+", false),
            ("1", "34", true),
            ("1", "36+", true),
            ("2", "0", true),
            ("", "", true),
        ] {
            let version = Info {
                major: major.into(),
                minor: minor.into(),
                ..Info::default()
            };
            assert_eq!(keeps(&version), kept, "{major}.{minor}");
        }
    }
}
