//! Cluster Autoscaler as a test plays it: the test answers `ProvisioningRequest`s step by step and adds
//! hollow nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::{Context, Result, ensure};
use chrono::{DateTime, SecondsFormat, Utc};
use k8s_openapi::api::core::v1::{Node, PodTemplate, PodTemplateSpec, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::cluster::{Cluster, repository};
use crate::manifests::POOL;
use crate::nodes::{Nodes, Shape};
use crate::scenario::{PATIENCE, Scenario};
use crate::wait::{eventually, time_of_day};

/// The definition of `ProvisioningRequest`, below the repository.
const DEFINITION: &str = "tests/autoscaler/provisioning_requests.yaml";
/// Accelerators of a node.
const EACH: i64 = 8;

/// What Cluster Autoscaler reports of a request: a condition that becomes True.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// It will try to provide the nodes.
    Accepted,
    /// The machines exist.
    Provisioned,
    /// It cannot provide the nodes.
    Failed,
    /// Pods have not used the nodes in time.
    BookingExpired,
    /// The nodes are being removed.
    CapacityRevoked,
}

impl Report {
    /// Type, reason and message of the condition.
    fn words(self) -> [&'static str; 3] {
        match self {
            Self::Accepted => [
                "Accepted",
                "Accepted",
                "Provisioning Request was successfully queued.",
            ],
            Self::Provisioned => [
                "Provisioned",
                "CapacityIsFound",
                "Capacity is found in the cluster.",
            ],
            Self::Failed => [
                "Failed",
                "FailedToCreatePods",
                "Provisioning Request exceeds the quota of accelerators in zone-0.",
            ],
            Self::BookingExpired => [
                "BookingExpired",
                "CapacityReservationTimeExpired",
                "Capacity reservation time has expired.",
            ],
            Self::CapacityRevoked => [
                "CapacityRevoked",
                "CapacityRevoked",
                "The nodes were reclaimed.",
            ],
        }
    }

    /// Message of the condition.
    pub fn message(self) -> &'static str {
        let [_, _, message] = self.words();
        message
    }
}

/// A `ProvisioningRequest` that a workload controls.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its object.
    pub object: DynamicObject,
    /// Its pod sets: their template and number of pods.
    pub pod_sets: Vec<(PodTemplateSpec, i64)>,
}

impl Request {
    /// Its name.
    pub fn name(&self) -> String {
        self.object.name_any()
    }

    /// Its class.
    pub fn class(&self) -> &str {
        let class = &self.object.data["spec"]["provisioningClassName"];
        class.as_str().unwrap_or_default()
    }

    /// A parameter of its class.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.object.data["spec"]["parameters"][name].as_str()
    }

    /// Number of nodes of [`Shape::default`] that hold the pods.
    pub fn nodes(&self) -> Result<i64> {
        let mut accelerators = 0;
        for (template, count) in &self.pod_sets {
            accelerators +=
                accelerators_of(template).context("a template without accelerators")? * count;
        }
        Ok((accelerators + EACH - 1) / EACH)
    }
}

/// Accelerators that a pod requests.
fn accelerators_of(template: &PodTemplateSpec) -> Option<i64> {
    let containers = &template.spec.as_ref()?.containers;
    let limits = containers.first()?.resources.as_ref()?.limits.as_ref()?;
    limits.get("nvidia.com/gpu")?.0.parse().ok()
}

/// Cluster Autoscaler of a scenario.
pub struct Autoscaler<'a> {
    scenario: &'a Scenario<'a>,
    requests: Api<DynamicObject>,
    /// UIDs of the requests that were returned.
    seen: Mutex<BTreeSet<String>>,
    /// The process that runs a node, by node.
    machines: Mutex<BTreeMap<String, Arc<Nodes>>>,
    /// Number of nodes so far.
    added: AtomicI64,
}

impl<'a> Autoscaler<'a> {
    /// Has the API server serve `ProvisioningRequest`s in these versions.
    pub async fn serve(cluster: &Cluster, versions: &[&str]) -> Result<()> {
        let shipped = std::fs::read_to_string(repository().join(DEFINITION))?;
        let mut definition: Value = serde_saphyr::from_str(&shipped)?;
        for version in definition["spec"]["versions"]
            .as_array_mut()
            .context("versions")?
        {
            let name = version["name"].as_str().unwrap_or_default().to_owned();
            version["served"] = json!(versions.contains(&&*name));
        }
        let path = cluster.folder().join("provisioning_requests.json");
        std::fs::write(&path, definition.to_string())?;
        let path = path.display().to_string();
        cluster.kubectl(&["apply", "-f", &path]).await?;
        cluster
            .established(&["crd/provisioningrequests.autoscaling.x-k8s.io"])
            .await
    }

    /// That of a scenario, for requests in this version.
    pub fn of(scenario: &'a Scenario<'a>, version: &str) -> Self {
        let kind = GroupVersionKind::gvk("autoscaling.x-k8s.io", version, "ProvisioningRequest");
        let kind = ApiResource::from_gvk(&kind);
        Self {
            scenario,
            requests: Api::namespaced_with(scenario.client.clone(), &scenario.name, &kind),
            seen: Mutex::default(),
            machines: Mutex::default(),
            added: AtomicI64::default(),
        }
    }

    fn templates(&self) -> Api<PodTemplate> {
        Api::namespaced(self.scenario.client.clone(), &self.scenario.name)
    }

    /// Requests that a workload controls and that are not being deleted.
    pub async fn requests_of(&self, workload: &str) -> Result<Vec<DynamicObject>> {
        let mut all = self.requests.list(&ListParams::default()).await?.items;
        all.retain(|r| {
            let controls = |o: &OwnerReference| o.controller == Some(true) && o.name == workload;
            r.metadata.deletion_timestamp.is_none() && r.owner_references().iter().any(controls)
        });
        Ok(all)
    }

    /// Waits for the next request of a workload, which has to be its only one.
    pub async fn request(&self, workload: &str) -> Result<Request> {
        let what = format!("a request of {workload}");
        let object = eventually(&what, PATIENCE, async || {
            let mut all = self.requests_of(workload).await?;
            ensure!(all.len() == 1, "{} requests", all.len());
            let request = all.remove(0);
            let uid = request.uid().context("a UID")?;
            ensure!(self.seen.lock().await.insert(uid), "only the last one");
            Ok(request)
        });
        let object = object.await?;
        let sets = object.data["spec"]["podSets"].as_array().cloned();
        let mut pod_sets = Vec::new();
        for set in sets.context("pod sets")? {
            let name = set["podTemplateRef"]["name"]
                .as_str()
                .context("a template")?;
            let template = self.templates().get(name).await?.template;
            let count = set["count"].as_i64().context("a count")?;
            pod_sets.push((template.context("a template")?, count));
        }
        Ok(Request { object, pod_sets })
    }

    /// Reports this of a request.
    pub async fn report(&self, request: &Request, report: Report) -> Result<()> {
        self.report_since(request, report, time_of_day()).await
    }

    /// Reports this of a request as if it had happened at this time.
    pub async fn report_since(
        &self,
        request: &Request,
        report: Report,
        since: DateTime<Utc>,
    ) -> Result<()> {
        let name = request.name();
        let [type_, reason, message] = report.words();
        let there = self.requests.get(&name).await?;
        let conditions = there.data["status"]["conditions"].as_array().cloned();
        let mut conditions = conditions.unwrap_or_default();
        conditions.retain(|c| c["type"] != type_);
        conditions.push(json!({
            "type": type_, "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": since.to_rfc3339_opts(SecondsFormat::Secs, true),
        }));
        let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
        let params = PatchParams::default();
        self.requests.patch_status(&name, &params, &patch).await?;
        Ok(())
    }

    /// Adds this number of nodes to the pool of the scenario, with additional labels and with
    /// taints. Returns their names.
    pub async fn add_nodes(
        &self,
        number: i64,
        labels: Value,
        taints: &[Taint],
    ) -> Result<Vec<String>> {
        let pool = &self.scenario.name;
        let nodes: Api<Node> = Api::all(self.scenario.client.clone());
        let first = self.added.fetch_add(number, Ordering::Relaxed);
        let numbers = first..first + number;
        let names: Vec<String> = numbers.map(|i| format!("{pool}-new-{i:04}")).collect();
        for name in &names {
            let mut node = json!({
                "metadata": {"name": name, "labels": {POOL: pool, "kubernetes.io/hostname": name}},
                "spec": {"taints": taints},
            });
            crate::manifests::merge(&mut node["metadata"]["labels"], labels.clone());
            let node = serde_json::from_value(node)?;
            nodes.create(&PostParams::default(), &node).await?;
        }
        let shape = Shape {
            adopted: names.clone(),
            ..Shape::default()
        };
        let started = Nodes::start(self.scenario.cluster, pool, &shape).await?;
        let started = Arc::new(started);
        let mut machines = self.machines.lock().await;
        machines.extend(names.iter().map(|n| (n.clone(), started.clone())));
        Ok(names)
    }

    /// Removes all nodes that were added.
    pub async fn remove_nodes(&self) -> Result<()> {
        let all: Vec<String> = self.machines.lock().await.keys().cloned().collect();
        for name in all {
            self.remove_node(&name).await?;
        }
        Ok(())
    }

    /// Removes a node.
    pub async fn remove_node(&self, name: &str) -> Result<()> {
        let machine = self.machines.lock().await.remove(name);
        machine.context("no such node")?.vanish(name).await?;
        let nodes: Api<Node> = Api::all(self.scenario.client.clone());
        nodes.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until no request of a workload and no template of its requests is left.
    pub async fn nothing_left(&self, workload: &str) -> Result<()> {
        let what = format!("no request of {workload} to be left");
        eventually(&what, PATIENCE, async || {
            let requests = self.requests_of(workload).await?;
            let mut templates = self.templates().list(&ListParams::default()).await?.items;
            templates.retain(|t| t.owner_references().iter().any(|o| o.name == workload));
            ensure!(
                requests.is_empty() && templates.is_empty(),
                "{requests:?} {templates:?}"
            );
            Ok(())
        })
        .await
    }
}
