//! Detects whether the cluster serves the upstream scheduling kinds (`scheduling.k8s.io` PodGroup,
//! KEP-4671).
//!
//! Gangs use Lockstep's own kinds in either case. Served versions are exported as a metric. Served
//! pod groups are watched, because only they report whether their pods can be evicted one by one
//! (KEP-5710). Pods of an unknown group are evicted together.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use lockstep_api::key::Key;
use lockstep_model::foreign::NativeGroup;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::clock::Random;
use crate::index::Index;

const GROUP: &str = "scheduling.k8s.io";

const INTERVAL: Duration = Duration::from_mins(10);
const RETRY: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Default)]
pub struct NativeScheduling(Family<VersionLabel, Gauge>);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VersionLabel {
    version: String,
}

impl NativeScheduling {
    pub fn register(registry: &mut Registry) -> Self {
        let served = Self::default();
        registry.register(
            "lockstep_native_scheduling",
            "Versions of scheduling.k8s.io that serve pod groups",
            served.0.clone(),
        );
        served
    }

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

pub async fn follow(client: Client, index: Arc<Index>, random: Random, metric: NativeScheduling) {
    let mut known: Option<Vec<String>> = None;
    let mut watching = JoinSet::new();
    loop {
        match served(&client).await {
            Ok(versions) => {
                if known.as_ref() != Some(&versions) {
                    info!(versions = %versions.join(","), "versions of {GROUP} that serve pod groups");
                    metric.set(&versions);
                    watching.shutdown().await;
                    // The server lists its preferred version first.
                    match versions.first() {
                        Some(version) => {
                            let (client, random) = (client.clone(), random.clone());
                            watching.spawn(watch(client, version.clone(), index.clone(), random));
                        }
                        None => index.keep_native_groups(&HashSet::new()),
                    }
                    known = Some(versions);
                }
            }
            Err(error) => debug!(%error, "cannot discover {GROUP}"),
        }
        tokio::time::sleep(random.jittered(INTERVAL)).await;
    }
}

async fn watch(client: Client, version: String, index: Arc<Index>, random: Random) {
    let kind = GroupVersionKind::gvk(GROUP, &version, "PodGroup");
    let api = Api::<DynamicObject>::all_with(client, &ApiResource::from_gvk(&kind));
    let mut listed = HashSet::new();
    let mut events = pin!(watcher(api, watcher::Config::default()));
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(group)) => {
                listed.insert(Key::of(&group));
                index.set_native_group(&Key::of(&group), Some(read(&group)));
            }
            Ok(Event::InitDone) => index.keep_native_groups(&std::mem::take(&mut listed)),
            Ok(Event::Apply(group)) => {
                index.set_native_group(&Key::of(&group), Some(read(&group)));
            }
            Ok(Event::Delete(group)) => index.set_native_group(&Key::of(&group), None),
            Err(error) => {
                warn!(%error, "watch of pod groups of {GROUP} failed");
                tokio::time::sleep(random.jittered(RETRY)).await;
            }
        }
    }
}

/// Single is the default. In alpha versions, the mode is a string.
fn read(group: &DynamicObject) -> NativeGroup {
    let spec = &group.data["spec"];
    let mode = &spec["disruptionMode"];
    if spec["schedulingPolicy"]["gang"].is_null() {
        NativeGroup::Basic
    } else if !mode["all"].is_null() || *mode == "PodGroup" {
        NativeGroup::All
    } else {
        NativeGroup::Single
    }
}

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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn said(spec: &Value) -> NativeGroup {
        let group = json!({"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup",
            "metadata": {"name": "pg", "namespace": "ml"}, "spec": spec});
        read(&serde_json::from_value(group).unwrap())
    }

    #[test]
    fn pods_of_a_gang_go_one_by_one_unless_its_mode_is_all() {
        let gang = json!({"gang": {"minCount": 2}});
        for (mode, expected) in [
            (Value::Null, NativeGroup::Single),
            (json!({"single": {}}), NativeGroup::Single),
            (json!("Pod"), NativeGroup::Single),
            (json!({"all": {}}), NativeGroup::All),
            (json!("PodGroup"), NativeGroup::All),
        ] {
            let spec = json!({"schedulingPolicy": gang, "disruptionMode": mode});
            assert_eq!(said(&spec), expected);
        }
        let basic = json!({"schedulingPolicy": {"basic": {}}});
        assert_eq!(said(&basic), NativeGroup::Basic);
    }
}
