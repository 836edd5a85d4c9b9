//! Detects what the API server supports of native groups (`scheduling.k8s.io` PodGroup, KEP-4671):
//! the versions that serve them, and whether pods keep `spec.schedulingGroup`.
//!
//! Both facts are exported as metrics, and tested again periodically, because an administrator may
//! restart the API server with other feature gates. Served groups are watched, because only they
//! report whether their pods can be evicted one by one (KEP-5710). Pods of an unknown group are
//! evicted together.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher::{Config, Error, Event};
use kube::{Api, Client};
use lockstep_api::key::Key;
use lockstep_api::native_group::{
    NATIVE_COMPOSITES, NATIVE_GROUP, NATIVE_POD_GROUPS, NATIVE_VERSION, NativeSupport, PodField,
    probe,
};
use lockstep_common::watch::{WatchHandler, watch};
use lockstep_model::{NativeGroup, NativeKind};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::task::JoinSet;
use tracing::{debug, info};

use crate::index::{Index, Watching, watch_native};

/// Longest time between two tests of the API server.
const INTERVAL: Duration = Duration::from_mins(10);
const RETRY: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Default)]
pub struct NativeMetrics {
    versions: Family<VersionLabel, Gauge>,
    pod_field: Family<StateLabel, Gauge>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct VersionLabel {
    version: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

impl NativeMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "lockstep_native_scheduling",
            "Versions of scheduling.k8s.io that serve pod groups",
            metrics.versions.clone(),
        );
        registry.register(
            "lockstep_native_scheduling_pod_field",
            "1 for what the API server does with spec.schedulingGroup of pods: kept, dropped or unknown",
            metrics.pod_field.clone(),
        );
        metrics
    }

    pub fn set(&self, support: &NativeSupport) {
        self.versions.clear();
        for version in &support.versions {
            let version = version.clone();
            self.versions
                .get_or_create(&VersionLabel { version })
                .set(1);
        }
        self.pod_field.clear();
        let state = support.pod_field.as_str();
        self.pod_field.get_or_create(&StateLabel { state }).set(1);
    }
}

/// The API server under test.
pub struct Discovery {
    pub watching: Watching,
    /// Namespace of the dry run.
    pub namespace: String,
    /// Time between two tests; zero: [`INTERVAL`].
    pub period: Duration,
}

impl Discovery {
    pub async fn follow(self, index: Arc<Index>, metrics: NativeMetrics) {
        let mut last = None;
        let mut tasks = JoinSet::new();
        let period = match self.period {
            Duration::ZERO => INTERVAL,
            period => period.min(INTERVAL),
        };
        loop {
            let wait = match self.support().await {
                Ok((support, composites)) => {
                    if last.as_ref() != Some(&(support.clone(), composites.clone())) {
                        let versions = support.versions.join(",");
                        let pod_field = support.pod_field.as_str();
                        info!(
                            versions,
                            pod_field, "support of {NATIVE_GROUP} by the API server"
                        );
                        metrics.set(&support);
                        let before = last
                            .as_ref()
                            .map(|(s, c): &(NativeSupport, _)| (&s.versions, c));
                        if before != Some((&support.versions, &composites)) {
                            tasks.shutdown().await;
                            index.forget_native_groups();
                            self.watch(
                                &support.versions,
                                composites.as_deref(),
                                &index,
                                &mut tasks,
                            );
                        }
                        index.set_native_support(support.missing().is_none());
                        last = Some((support, composites));
                    }
                    period
                }
                Err(error) => {
                    debug!(%error, "cannot discover {NATIVE_GROUP}");
                    period.min(RETRY)
                }
            };
            tokio::time::sleep(self.watching.random.jittered(wait)).await;
        }
    }

    /// The server lists its preferred version first. `composites`: version of composite pod groups.
    fn watch(
        &self,
        versions: &[String],
        composites: Option<&str>,
        index: &Arc<Index>,
        tasks: &mut JoinSet<()>,
    ) {
        let modes = |kind, version: &str| {
            watch_modes(
                self.watching.clone(),
                kind,
                version.to_owned(),
                index.clone(),
            )
        };
        if versions.iter().any(|v| v == NATIVE_VERSION) {
            watch_native(index, &self.watching, tasks);
        } else if let Some(version) = versions.first() {
            tasks.spawn(modes(NativeKind::PodGroup, version));
        }
        if let Some(version) = composites {
            tasks.spawn(modes(NativeKind::CompositePodGroup, version));
        }
    }

    /// The support, and the version that serves composite pod groups.
    async fn support(&self) -> kube::Result<(NativeSupport, Option<String>)> {
        let (versions, composites) = served(&self.watching.client).await?;
        let pod_field = if versions.is_empty() {
            PodField::Unknown
        } else {
            self.pod_field().await?
        };
        let support = NativeSupport {
            versions,
            pod_field,
        };
        Ok((support, composites))
    }

    async fn pod_field(&self) -> kube::Result<PodField> {
        let pods = Api::<Pod>::namespaced(self.watching.client.clone(), &self.namespace);
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        match pods.create(&dry, &probe()).await {
            Ok(stored) => Ok(PodField::read(&stored)),
            // A quota or a policy of the namespace.
            Err(kube::Error::Api(status)) if status.is_forbidden() || status.is_invalid() => {
                info!(%status, "the dry run of a pod with spec.schedulingGroup was refused");
                Ok(PodField::Unknown)
            }
            Err(error) => Err(error),
        }
    }
}

/// Watches groups of a kind and version in which Lockstep creates none, for their disruption modes.
async fn watch_modes(watching: Watching, kind: NativeKind, version: String, index: Arc<Index>) {
    let name = match kind {
        NativeKind::PodGroup => "PodGroup",
        NativeKind::CompositePodGroup => "CompositePodGroup",
    };
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(NATIVE_GROUP, &version, name));
    let api = Api::<DynamicObject>::all_with(watching.client.clone(), &resource);
    let handler = ModeHandler {
        index,
        kind,
        listed: HashSet::new(),
        watching,
    };
    match watch(name, api, Config::default(), handler).await {}
}

struct ModeHandler {
    index: Arc<Index>,
    kind: NativeKind,
    listed: HashSet<Key>,
    watching: Watching,
}

impl WatchHandler<DynamicObject> for ModeHandler {
    fn event(&mut self, event: Event<DynamicObject>) {
        let (index, kind) = (&self.index, self.kind);
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(group) => {
                self.listed.insert(Key::of(&group));
                index.set_native_group(kind, &Key::of(&group), Some(read(&group)));
            }
            Event::InitDone => index.keep_native_groups(kind, &std::mem::take(&mut self.listed)),
            Event::Apply(group) => {
                index.set_native_group(kind, &Key::of(&group), Some(read(&group)));
            }
            Event::Delete(group) => index.set_native_group(kind, &Key::of(&group), None),
        }
    }

    fn failed(&mut self, error: &Error, failures: u32) -> Duration {
        self.watching.wait(error, failures)
    }
}

/// Single is the default. In alpha versions, the mode is a string.
fn read(group: &DynamicObject) -> NativeGroup {
    let spec = &group.data["spec"];
    let mode = &spec["disruptionMode"];
    let priority = spec["priority"].as_i64();
    NativeGroup {
        gang: !spec["schedulingPolicy"]["gang"].is_null(),
        all: !mode["all"].is_null() || *mode == "PodGroup",
        parent: spec["parentCompositePodGroupName"].as_str().map(Arc::from),
        priority: priority.and_then(|p| i32::try_from(p).ok()),
    }
}

/// Versions that serve pod groups, and the first one that serves composite pod groups.
async fn served(client: &Client) -> kube::Result<(Vec<String>, Option<String>)> {
    let groups = client.list_api_groups().await?;
    let (mut versions, mut composites) = (Vec::new(), None);
    for group in groups.groups.into_iter().filter(|g| g.name == NATIVE_GROUP) {
        for version in group.versions {
            let resources = client
                .list_api_group_resources(&version.group_version)
                .await?;
            let serves = |name: &str| resources.resources.iter().any(|r| r.name == name);
            if serves(NATIVE_COMPOSITES) && composites.is_none() {
                composites = Some(version.version.clone());
            }
            if serves(NATIVE_POD_GROUPS) {
                versions.push(version.version);
            }
        }
    }
    Ok((versions, composites))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read_spec(spec: &Value) -> NativeGroup {
        let group = json!({"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup",
            "metadata": {"name": "pg", "namespace": "ml"}, "spec": spec});
        read(&serde_json::from_value(group).unwrap())
    }

    #[test]
    fn pods_of_a_gang_go_one_by_one_unless_its_mode_is_all() {
        let gang = json!({"gang": {"minCount": 2}});
        for (mode, all) in [
            (Value::Null, false),
            (json!({"single": {}}), false),
            (json!("Pod"), false),
            (json!({"all": {}}), true),
            (json!("PodGroup"), true),
        ] {
            let spec = json!({"schedulingPolicy": gang, "disruptionMode": mode});
            let group = read_spec(&spec);
            assert_eq!((group.gang, group.all), (true, all));
        }
        let whole = json!({"schedulingPolicy": {"basic": {}}, "disruptionMode": {"all": {}}});
        let group = read_spec(&whole);
        assert_eq!((group.gang, group.all), (false, true));
    }

    #[test]
    fn a_group_has_the_priority_and_the_parent_of_its_spec() {
        let spec = json!({"schedulingPolicy": {"basic": {}}, "priority": 7,
            "parentCompositePodGroupName": "set"});
        let expected = NativeGroup {
            parent: Some("set".into()),
            priority: Some(7),
            ..NativeGroup::default()
        };
        assert_eq!(read_spec(&spec), expected);
    }
}
