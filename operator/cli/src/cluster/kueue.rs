use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroupList;
use kube::api::{DynamicObject, ListParams};
use kube::core::{Duration, PartialObjectMeta};
use kube::{Api, ResourceExt};
use lockstep_api::TrainingWorkload;
use lockstep_api::kueue::{KUEUE_GROUP, QUEUE_LABEL, kueue_resource};
use serde_json::Value;

use super::ClusterReader;
use super::doctor::{absent, versions};
use super::workloads::permitted;
use crate::doctor_facts::{FRAMEWORK, KueueConfiguration, KueueFacts};
use crate::problem::Problem;

/// Namespace and name of Kueue's configuration, as shipped.
const CONFIGURATION: (&str, &str) = ("kueue-system", "kueue-manager-config");
/// `waitForPodsReady.timeout` of `v1beta1`, if absent.
const PODS_READY: &str = "5m";
/// Rights of the manager for Kueue: verb, group, resource, subresource.
const RIGHTS: [[&str; 4]; 7] = [
    ["watch", KUEUE_GROUP, "workloads", ""],
    ["create", KUEUE_GROUP, "workloads", ""],
    ["patch", KUEUE_GROUP, "workloads", ""],
    ["delete", KUEUE_GROUP, "workloads", ""],
    ["patch", KUEUE_GROUP, "workloads", "status"],
    ["watch", KUEUE_GROUP, "resourceflavors", ""],
    ["watch", KUEUE_GROUP, "workloadpriorityclasses", ""],
];

impl ClusterReader {
    /// How Kueue and the manager with this account work together.
    pub(super) async fn kueue(
        &self,
        groups: &APIGroupList,
        enabled: Option<bool>,
        account: Option<&str>,
    ) -> Result<KueueFacts, Problem> {
        let versions = versions(groups, KUEUE_GROUP);
        let mut facts = KueueFacts {
            versions,
            enabled,
            ..KueueFacts::default()
        };
        let Some(version) = facts.versions.first() else {
            return Ok(facts);
        };
        facts.configuration = self.kueue_configuration().await?;
        let workloads: Api<PartialObjectMeta<TrainingWorkload>> = Api::all(self.client.clone());
        let with_queue = absent(self.list(workloads, Some(QUEUE_LABEL)).await)?;
        facts.queued = with_queue.as_ref().map(Vec::len);
        if enabled == Some(true) {
            facts.missing_queues = match (with_queue, self.local_queues(version).await?) {
                (Some(workloads), Some(existing)) => Some(missing(&workloads, &existing)),
                _ => None,
            };
            facts.lacks = self.lacking(account, &RIGHTS).await?;
        }
        Ok(facts)
    }

    /// LocalQueues, as `namespace/name`.
    async fn local_queues(&self, version: &str) -> Result<Option<BTreeSet<String>>, Problem> {
        let kind = kueue_resource(version, "LocalQueue");
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind);
        let params = ListParams::default();
        let list = self.send(api.list_metadata(&params), "localqueues").await;
        let list = absent(list)?;
        Ok(list.map(|list| list.iter().map(|q| place(q, &q.name_any())).collect()))
    }

    async fn kueue_configuration(&self) -> Result<Option<KueueConfiguration>, Problem> {
        let api: Api<ConfigMap> = self.scoped(Some(CONFIGURATION.0));
        let map = self.send(api.get_opt(CONFIGURATION.1), "configmaps").await;
        let data = permitted(map)?.flatten().and_then(|map| map.data);
        let texts = data.iter().flat_map(|data| data.values());
        let mut parsed = texts.filter_map(|text| serde_saphyr::from_str::<Value>(text).ok());
        Ok(parsed.find(Value::is_object).map(|c| configuration(&c)))
    }
}

fn place<K: ResourceExt>(object: &K, name: &str) -> String {
    format!("{}/{name}", object.namespace().unwrap_or_default())
}

/// Queues of workloads that do not exist.
fn missing(
    workloads: &[PartialObjectMeta<TrainingWorkload>],
    queues: &BTreeSet<String>,
) -> Vec<String> {
    let named = workloads
        .iter()
        .filter_map(|w| Some(place(w, w.labels().get(QUEUE_LABEL)?)));
    let named: BTreeSet<String> = named.collect();
    named.difference(queues).cloned().collect()
}

fn configuration(found: &Value) -> KueueConfiguration {
    let frameworks = found["integrations"]["externalFrameworks"].as_array();
    let wait = &found["waitForPodsReady"];
    let older = found["apiVersion"]
        .as_str()
        .is_some_and(|v| v.ends_with("v1beta1"));
    let waits = wait.is_object() && (!older || wait["enable"] == true);
    let timeout = wait["timeout"].as_str().unwrap_or(PODS_READY);
    let timeout = timeout.parse::<Duration>().ok().filter(|_| waits);
    KueueConfiguration {
        takes_all: found["manageJobsWithoutQueueName"] == true,
        knows_workloads: frameworks.into_iter().flatten().any(|f| *f == *FRAMEWORK),
        pods_ready_seconds: timeout.map(|timeout| {
            let timeout = std::time::Duration::from(timeout);
            i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX)
        }),
    }
}
