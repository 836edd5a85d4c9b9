//! A test with its own namespace and nodes on a shared cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind, TypeMeta};
use kube::{Api, Client, ResourceExt};
use lockstep_api::condition::ConditionStatus;
use lockstep_api::workload::{CheckpointRequest, Phase, TrainingWorkloadStatus};
use lockstep_api::{PodGroup, TrainingWorkload, condition, names};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::manifests::{POOL, pin_to_pool};
use crate::nodes::{Nodes, Shape};
use crate::wait::eventually;
use crate::{audit, install, reaper};

/// Long enough for a busy machine. A wait ends as soon as its condition is met.
pub const PATIENCE: Duration = Duration::from_mins(1);
const TAIL: usize = 60;

/// Environment of a test.
pub struct Scenario<'a> {
    /// The shared cluster.
    pub cluster: &'a Cluster,
    /// Namespace, and prefix of the nodes' names.
    pub name: String,
    /// Client of the administrator.
    pub client: Client,
    /// Nodes of the test.
    pub nodes: Nodes,
}

/// Runs a test in a namespace with its own nodes. If it fails, prints the state of the cluster and
/// keeps the logs.
pub async fn scenario(
    cluster: &Cluster,
    name: &str,
    shape: &Shape,
    body: impl AsyncFnOnce(&Scenario<'_>) -> Result<()>,
) -> Result<()> {
    if !cluster.has_nodes(name) {
        return Ok(());
    }
    let nodes = Nodes::start(cluster, name, shape).await?;
    let outcome = scenario_on(cluster, name, nodes, body).await;
    // The nodes have ended. If they stayed NotReady, they would count as an outage of the zone that
    // all scenarios of a cluster share.
    let nodes: Api<Node> = Api::all(cluster.client().await?);
    let own = ListParams::default().labels(&format!("{POOL}={name}"));
    let deleted = nodes
        .delete_collection(&DeleteParams::default(), &own)
        .await
        .context("delete the nodes");
    outcome.and(deleted.map(drop))
}

/// Like [`scenario`], on nodes that are already running.
pub async fn scenario_on(
    cluster: &Cluster,
    name: &str,
    nodes: Nodes,
    body: impl AsyncFnOnce(&Scenario<'_>) -> Result<()>,
) -> Result<()> {
    let client = cluster.client().await?;
    let namespace = Namespace {
        metadata: kube::core::ObjectMeta {
            name: Some(name.into()),
            ..Default::default()
        },
        ..Default::default()
    };
    Api::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await
        .context("namespace")?;
    let scenario = Scenario {
        cluster,
        name: name.to_owned(),
        client,
        nodes,
    };
    let outcome = body(&scenario).await;
    if outcome.is_err() {
        scenario.report().await;
    }
    // Not awaited, because the remaining pods are on nodes that no other scenario uses.
    let namespaces: Api<Namespace> = Api::all(scenario.client.clone());
    namespaces
        .delete(name, &DeleteParams::default())
        .await
        .context("delete the namespace")?;
    outcome
}

impl Scenario<'_> {
    /// Creates an object whose pods stay on this scenario's nodes.
    pub async fn create(&self, mut manifest: Value) -> Result<DynamicObject> {
        pin_to_pool(&mut manifest, &self.name);
        let object: DynamicObject = serde_json::from_value(manifest).context("a manifest")?;
        Ok(self
            .api_of(&object)?
            .create(&PostParams::default(), &object)
            .await?)
    }

    /// Changes an object by a JSON merge patch, as the administrator.
    pub async fn patch(
        &self,
        kind: &str,
        api_version: &str,
        name: &str,
        patch: Value,
    ) -> Result<DynamicObject> {
        let types = Some(TypeMeta {
            api_version: api_version.into(),
            kind: kind.into(),
        });
        let object = DynamicObject {
            types,
            metadata: kube::core::ObjectMeta::default(),
            data: Value::Null,
        };
        Ok(self
            .api_of(&object)?
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?)
    }

    /// Changes a workload's spec by a JSON merge patch.
    pub async fn patch_spec(&self, name: &str, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.workloads()
            .patch(name, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    fn api_of(&self, object: &DynamicObject) -> Result<Api<DynamicObject>> {
        let types = object
            .types
            .as_ref()
            .context("a manifest has kind and apiVersion")?;
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
        Ok(match types.kind.as_str() {
            "CSINode"
            | "PersistentVolume"
            | "PriorityClass"
            | "MutatingAdmissionPolicy"
            | "MutatingAdmissionPolicyBinding"
            | "ValidatingAdmissionPolicy"
            | "ValidatingAdmissionPolicyBinding" => Api::all_with(self.client.clone(), &resource),
            _ => Api::namespaced_with(self.client.clone(), &self.name, &resource),
        })
    }

    /// The workloads of this scenario.
    pub fn workloads(&self) -> Api<TrainingWorkload> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// The pod groups of this scenario.
    pub fn pod_groups(&self) -> Api<PodGroup> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// The pods of this scenario.
    pub fn all_pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Spec of the managers' Lease.
    pub async fn lease(&self) -> Result<LeaseSpec> {
        let (namespace, _) = install::MANAGER;
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
        leases.get(names::LEASE).await?.spec.context("a spec")
    }

    /// The only pod group of a workload whose gang is the whole workload.
    pub async fn pod_group(&self, workload: &str) -> Result<PodGroup> {
        let owner = self.workloads().get(workload).await?;
        let uid = owner.uid().context("uid")?;
        Ok(self
            .pod_groups()
            .get(&names::pod_group_name(workload, &uid, names::WHOLE))
            .await?)
    }

    /// Pods of a workload without deletion timestamp, by hostname.
    pub async fn pods(&self, workload: &str) -> Result<Vec<Pod>> {
        let selected =
            ListParams::default().labels(&format!("{}={workload}", names::labels::WORKLOAD));
        let mut pods = self.all_pods().list(&selected).await?.items;
        pods.retain(|p| p.metadata.deletion_timestamp.is_none());
        pods.sort_by_key(hostname);
        Ok(pods)
    }

    /// Waits until a workload passes `check`, whose errors describe what is missing.
    pub async fn workload(
        &self,
        name: &str,
        what: &str,
        check: impl Fn(&TrainingWorkload) -> Result<()>,
    ) -> Result<TrainingWorkload> {
        eventually(&format!("{name} {what}"), PATIENCE, async || {
            let workload = self.workloads().get(name).await?;
            check(&workload).with_context(|| format!("status: {:?}", workload.status))?;
            Ok(workload)
        })
        .await
    }

    /// Waits until all members of a workload run and no incident is open. Returns the pods.
    pub async fn running(&self, name: &str) -> Result<Vec<Pod>> {
        self.workload(name, "to run", |w| {
            let status = w.status.as_ref().context("no status yet")?;
            ensure!(
                status.phase == Some(Phase::Running),
                "phase {:?}",
                status.phase
            );
            ensure!(
                condition::is_true(&status.conditions, condition::types::READY),
                "not ready"
            );
            ensure!(
                status.domains.iter().all(|d| !d.is_restarting()),
                "an incident is open"
            );
            Ok(())
        })
        .await?;
        self.pods(name).await
    }

    /// Waits until a condition of a workload is True and returns its reason and message.
    pub async fn condition(&self, name: &str, type_: &str) -> Result<(String, String)> {
        let workload = self
            .workload(name, &format!("to be {type_}"), |w| {
                let conditions = w.status.as_ref().map_or(&[][..], |s| &s.conditions);
                ensure!(condition::is_true(conditions, type_), "not {type_}");
                Ok(())
            })
            .await?;
        let status = workload.status.context("status")?;
        let found = condition::find(&status.conditions, type_).context("condition")?;
        Ok((found.reason.clone(), found.message.clone()))
    }

    /// Waits until a condition has this status and reason, and returns its message.
    pub async fn condition_is(
        &self,
        name: &str,
        type_: &str,
        status: bool,
        reason: &str,
    ) -> Result<String> {
        let wanted = ConditionStatus::from(status);
        let workload = self
            .workload(name, &format!("to have {type_} {wanted:?} {reason}"), |w| {
                let found = w
                    .status
                    .as_ref()
                    .and_then(|s| condition::find(&s.conditions, type_));
                let found = found.with_context(|| format!("no condition {type_}"))?;
                ensure!(
                    found.status == wanted && found.reason == reason,
                    "{found:?}"
                );
                Ok(())
            })
            .await?;
        let status = workload.status.context("status")?;
        Ok(condition::find(&status.conditions, type_)
            .context("condition")?
            .message
            .clone())
    }

    /// Waits until this number of restarts is complete, and returns the status.
    pub async fn restarted(&self, name: &str, restarts: i64) -> Result<TrainingWorkloadStatus> {
        let workload = self
            .workload(name, &format!("to have restarted {restarts} times"), |w| {
                let status = w.status.as_ref().context("no status yet")?;
                ensure!(
                    status.restarts.total == restarts,
                    "{} restarts",
                    status.restarts.total
                );
                ensure!(
                    status.domains.iter().all(|d| !d.is_restarting()),
                    "an incident is open"
                );
                Ok(())
            })
            .await?;
        workload.status.context("status")
    }

    /// The last request for a checkpoint, with its outcome.
    pub async fn checkpoint_request(&self, name: &str) -> Result<CheckpointRequest> {
        let status = self.workloads().get(name).await?.status;
        let status = status.context("a status")?;
        let (_, last) = status.checkpoint_requests().next().context("no request")?;
        ensure!(!last.is_open(), "the request is open");
        Ok(last.clone())
    }

    /// Waits until no pod of a workload is left.
    pub async fn no_pods(&self, name: &str) -> Result<()> {
        eventually(
            &format!("no pod of {name} to be left"),
            PATIENCE,
            async || {
                let left = self.pods(name).await?.len();
                ensure!(left == 0, "{left} pods");
                Ok(())
            },
        )
        .await
    }

    /// Waits until every pod of a workload has ended or is gone. Pods that ended are kept for their
    /// logs.
    pub async fn none_runs(&self, name: &str) -> Result<()> {
        eventually(&format!("no pod of {name} to run"), PATIENCE, async || {
            let pods = self.pods(name).await?;
            let live = pods.iter().filter(|p| {
                let phase = p.status.as_ref().and_then(|s| s.phase.as_deref());
                !matches!(phase, Some("Succeeded" | "Failed"))
            });
            let live = live.count();
            ensure!(live == 0, "{live} pods");
            Ok(())
        })
        .await
    }

    /// Waits until the controller of disruption budgets has counted the pods of a budget.
    pub async fn budget_counted(&self, name: &str) -> Result<()> {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), &self.name);
        eventually("the budget to be counted", PATIENCE, async || {
            let status = budgets.get(name).await?.status.context("no status yet")?;
            ensure!(status.expected_pods > Some(0), "no pods yet");
            Ok(())
        })
        .await
    }

    /// Waits until admission refuses a pod of this name, because policies take effect with a delay.
    pub async fn until_refused(&self, pod: &str) -> Result<()> {
        let probe: Pod = serde_json::from_value(json!({"metadata": {"name": pod},
            "spec": {"containers": [{"name": "c", "image": "registry.example/probe:1"}]}}))?;
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        eventually("the policy to take effect", PATIENCE, async || {
            ensure!(
                self.all_pods().create(&dry_run, &probe).await.is_err(),
                "still accepted"
            );
            Ok(())
        })
        .await
    }

    /// Ends the training process of a pod with an exit code, as soon as it runs.
    pub async fn exit(&self, pod: &Pod, code: i32) -> Result<()> {
        let name = pod.name_any();
        eventually(&format!("{name} to end"), PATIENCE, async || {
            self.nodes.exit(&self.name, &name, "trainer", code).await
        })
        .await
    }

    /// Reasons of the events on an object, oldest first.
    pub async fn event_reasons(&self, object: &str) -> Result<Vec<String>> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.name);
        let mut events = events.list(&ListParams::default()).await?.items;
        events.retain(|e| e.regarding.as_ref().and_then(|r| r.name.as_deref()) == Some(object));
        events.sort_by(|a, b| a.event_time.cmp(&b.event_time));
        Ok(events.into_iter().filter_map(|e| e.reason).collect())
    }

    /// Runs kubectl in this scenario's namespace.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.cluster
            .kubectl(&[args, &["-n", &self.name]].concat())
            .await
    }

    /// Makes a user administrator of this scenario's namespace.
    pub async fn grant_all(&self, user: &str) -> Result<()> {
        let subject = format!("--user={user}");
        let role = "--clusterrole=cluster-admin";
        let grant = ["create", "rolebinding", user, role, &subject];
        self.kubectl(&grant).await.map(drop)
    }

    /// Runs `kubectl lockstep` in this scenario's namespace.
    pub async fn lockstep(&self, args: &[&str]) -> Result<String> {
        self.cluster
            .lockstep(&[args, &["-n", &self.name]].concat())
            .await
    }

    /// Writes that the manager made in this scenario's namespace.
    pub fn manager_writes(&self) -> Result<Vec<audit::Write>> {
        let all = self.cluster.audit.writes_by(audit::MANAGER)?;
        Ok(all
            .into_iter()
            .filter(|w| w.namespace == self.name)
            .collect())
    }

    /// Prints information for the analysis of a failure.
    async fn report(&self) {
        // An error in the report must not hide the failure.
        let _ = reaper::keep_folder();
        eprintln!(
            "---- scenario {} failed; logs are in {}",
            self.name,
            self.cluster.folder().display()
        );
        for what in ["tw", "lpg", "restartorder", "pods"] {
            match self.kubectl(&["get", what, "-o", "wide"]).await {
                Ok(text) => eprintln!("---- {what}\n{text}"),
                Err(e) => eprintln!("---- {what}: {e:#}"),
            }
        }
        if let Ok(text) = self
            .kubectl(&["get", "events", "--sort-by=.lastTimestamp"])
            .await
        {
            eprintln!("---- events\n{text}");
        }
        eprintln!("---- nodes\n{}", self.nodes.log_tail(TAIL));
    }
}

/// Hostname of a pod, the stable name of its member.
pub fn hostname(pod: &Pod) -> String {
    pod.spec
        .as_ref()
        .and_then(|s| s.hostname.clone())
        .unwrap_or_default()
}

/// UIDs of pods, in their order.
pub fn uids(pods: &[Pod]) -> Vec<String> {
    pods.iter().filter_map(ResourceExt::uid).collect()
}

/// Node of a pod; empty while unbound.
pub fn node(pod: &Pod) -> String {
    pod.spec
        .as_ref()
        .and_then(|s| s.node_name.clone())
        .unwrap_or_default()
}

/// Checks that the nodes of all pods have one value of a label. `values`: by node, of
/// [`Nodes::label_values`].
pub fn in_one_domain(pods: &[Pod], values: &BTreeMap<String, String>) -> Result<()> {
    let domains: BTreeSet<_> = pods.iter().map(|pod| values.get(&node(pod))).collect();
    ensure!(
        domains.len() == 1 && !domains.contains(&None),
        "{domains:?}"
    );
    Ok(())
}

/// Addresses of pods, in their order.
pub fn addresses(pods: &[Pod]) -> Vec<String> {
    let address = |pod: &Pod| pod.status.as_ref()?.pod_ip.clone();
    pods.iter().filter_map(address).collect()
}

/// Restart count of the training container.
pub fn restarts(pod: &Pod) -> i32 {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|s| s.container_statuses.as_ref());
    statuses
        .and_then(|s| s.first())
        .map_or(0, |s| s.restart_count)
}

/// Checks that these are the same pods, with this number of restarts of each training container.
pub fn kept(before: &[Pod], after: &[Pod], times: i32) -> Result<()> {
    ensure!(uids(before) == uids(after), "pods were replaced");
    let restarts: Vec<i32> = after.iter().map(restarts).collect();
    ensure!(
        restarts.iter().all(|n| *n == times),
        "restarts of containers: {restarts:?}, and not {times} of each"
    );
    Ok(())
}
