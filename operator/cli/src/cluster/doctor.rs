use std::collections::BTreeSet;
use std::fmt::Debug;

use futures_util::StreamExt;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIGroupList;
use kube::api::PostParams;
use kube::core::{PartialObjectMeta, Selector, SelectorExt};
use kube::{Api, Resource, ResourceExt};
use lockstep_api::names::{LEASE, RESTART_ALL_FEATURE, labels};
use lockstep_api::native_group::{NATIVE_GROUP, NATIVE_POD_GROUPS, NativeSupport, PodField, probe};
use lockstep_api::time::utc_micro;
use lockstep_api::{NodeAgent, PodGroup, RestartOrder, TrainingWorkload};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ClusterReader;
use super::logs::HowMuch;
use super::workloads::permitted;
use crate::agents::agents;
use crate::doctor_facts::{
    BudgetFacts, InstallFacts, LeaseFacts, ManagerPod, NodeFacts, ObjectFacts, POLICIES,
    PolicyFacts,
};
use crate::logs::LogSource;
use crate::objects::holds;
use crate::problem::Problem;
use crate::published::{AutoscalerPart, KueuePart, ManagerConfig, SchedulingPart};

/// Default namespace of the manager.
const NAMESPACE: &str = "lockstep-system";
/// Searched lines of a manager's log.
const LOG_LINES: i64 = 200;
const LABEL: (&str, &str) = ("app.kubernetes.io/name", "lockstep");
/// Groups of other projects with a PodGroup or a Workload.
const CALLED_ALIKE: [&str; 4] = [
    "kueue.x-k8s.io",
    "scheduling.sigs.k8s.io",
    "scheduling.volcano.sh",
    "scheduling.x-k8s.io",
];

impl ClusterReader {
    /// Reads the readable facts of the installation. Only an unreachable server is an error. Rights
    /// are checked in `namespace`.
    pub async fn install_facts(
        &self,
        namespace: &str,
        agent_namespace: Option<&str>,
    ) -> Result<InstallFacts, Problem> {
        let versions = self.versions().await?;
        let groups = self.send(self.client.list_api_groups(), "apis").await?;
        let native = self.native(&groups, namespace).await?;
        let integrations = self.integrations().await?;
        let managers = permitted(self.managers().await)?;
        let deployments = self.manager_deployments(None).await?.unwrap_or_default();
        let of_lease = managers
            .iter()
            .flatten()
            .find_map(ResourceExt::namespace)
            .or_else(|| Some(deployments.first()?.namespace.clone()))
            .unwrap_or_else(|| NAMESPACE.to_owned());
        let account = deployments.first().map(|manager| manager.account.as_str());
        let autoscaler = match &integrations {
            Some((_, found, _)) => Some(self.autoscaler(found, &groups, account).await?),
            None => None,
        };
        let enabled = integrations.as_ref().map(|(.., kueue)| kueue.enabled);
        let kueue = self.kueue(&groups, enabled, account).await?;
        let groups: BTreeSet<String> = groups.groups.into_iter().map(|g| g.name).collect();
        let objects = absent(self.node_agents().await)?;
        let pods = self.agent_pods(agent_namespace).await?;
        Ok(InstallFacts {
            kubernetes: versions.kubernetes.clone().unwrap_or_default(),
            served: self.served(&groups).await?,
            other_groups: called_alike(&groups, &native.versions),
            managers: match managers {
                Some(pods) => Some(self.manager_facts(&pods).await),
                None => None,
            },
            lease: permitted(self.lease(&of_lease).await)?,
            versions,
            policies: permitted(self.policies().await)?,
            accounts: self.accounts(&deployments).await?,
            agents: objects.map(|objects| agents(&objects, pods.as_deref())),
            nodes: permitted(self.nodes().await)?,
            rights: self.rights(namespace).await?,
            namespace: namespace.to_owned(),
            native,
            backend: integrations.map(|(scheduling, ..)| scheduling.backend),
            autoscaler,
            kueue,
            objects: self.object_facts().await?,
            budgets: permitted(self.budgets().await)?,
        })
    }

    async fn manager_facts(&self, pods: &[Pod]) -> Vec<ManagerPod> {
        let mut facts = Vec::new();
        for pod in pods {
            let ready = holds(pod, "Ready");
            let warning = if ready {
                None
            } else {
                self.last_warning(pod).await
            };
            facts.push(ManagerPod {
                namespace: pod.namespace().unwrap_or_default(),
                name: pod.name_any(),
                ready,
                warning,
            });
        }
        facts
    }

    /// Last warning in the log of a manager.
    async fn last_warning(&self, pod: &Pod) -> Option<String> {
        let source = LogSource {
            namespace: pod.namespace()?,
            pod: pod.name_any(),
            container: pod.spec.as_ref()?.containers.first()?.name.clone(),
            previous: false,
            prefix: String::new(),
            up_to_attempt: None,
            failure: None,
        };
        let how_much = HowMuch {
            tail: Some(LOG_LINES),
            ..HowMuch::default()
        };
        let (lines, _) = self.logs(&[source], how_much).await.ok()?;
        let warnings: Vec<String> = lines
            .filter_map(async |(_, line)| warning(&line.ok()?))
            .collect()
            .await;
        warnings.last().cloned()
    }

    async fn object_facts(&self) -> Result<Vec<ObjectFacts>, Problem> {
        Ok(vec![
            self.facts_of::<TrainingWorkload>().await?,
            self.facts_of::<PodGroup>().await?,
            self.facts_of::<RestartOrder>().await?,
            self.facts_of::<NodeAgent>().await?,
        ])
    }

    /// Number of readable objects of a kind. A kind that is not served has no objects: another
    /// check reports it.
    async fn facts_of<K>(&self) -> Result<ObjectFacts, Problem>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug,
    {
        let list = self.readable::<K>(Api::all(self.client.clone()), None);
        let read = match list.await {
            Err(Problem::NotInstalled { .. }) => Some((0, Vec::new())),
            other => permitted(other)?.map(|(all, unreadable)| (all.len(), unreadable)),
        };
        Ok(ObjectFacts {
            kind: K::plural(&()).into_owned(),
            read,
        })
    }

    async fn served(&self, groups: &BTreeSet<String>) -> Result<BTreeSet<String>, Problem> {
        let mut served = BTreeSet::new();
        for group in ["training.lockstep.dev", "scheduling.lockstep.dev"] {
            if !groups.contains(group) {
                continue;
            }
            let version = format!("{group}/v1alpha1");
            let request = self.client.list_api_group_resources(&version);
            if let Some(list) = absent(self.send(request, group).await)? {
                let plurals = list.resources.iter().filter(|r| !r.name.contains('/'));
                served.extend(plurals.map(|r| format!("{}.{group}", r.name)));
            }
        }
        Ok(served)
    }

    /// Tests the API server as the manager does, with a dry run in `namespace`.
    async fn native(
        &self,
        groups: &APIGroupList,
        namespace: &str,
    ) -> Result<NativeSupport, Problem> {
        let upstream = groups.groups.iter().filter(|g| g.name == NATIVE_GROUP);
        let mut versions = Vec::new();
        for version in upstream.flat_map(|g| &g.versions) {
            let request = self.client.list_api_group_resources(&version.group_version);
            let list = absent(self.send(request, NATIVE_GROUP).await)?;
            let mut resources = list.iter().flat_map(|l| &l.resources);
            if resources.any(|r| r.name == NATIVE_POD_GROUPS) {
                versions.push(version.version.clone());
            }
        }
        let pod_field = if versions.is_empty() {
            PodField::Unknown
        } else {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
            let dry = PostParams {
                dry_run: true,
                ..PostParams::default()
            };
            // Any refusal leaves it unknown: quotas and policies may refuse the pod.
            let response = self.send(pods.create(&dry, &probe()), "pods").await;
            response.map_or(PodField::Unknown, |pod| PodField::read(&pod))
        };
        Ok(NativeSupport {
            versions,
            pod_field,
        })
    }

    async fn integrations(
        &self,
    ) -> Result<Option<(SchedulingPart, AutoscalerPart, KueuePart)>, Problem> {
        let config = permitted(self.manager_config(None).await)?.flatten();
        let config = config.and_then(|(_, text)| ManagerConfig::parse(&text).ok());
        Ok(config.map(|c| (c.scheduling, c.autoscaler, c.kueue)))
    }

    pub(super) async fn lease(&self, namespace: &str) -> Result<Option<LeaseFacts>, Problem> {
        let api: Api<Lease> = self.scoped(Some(namespace));
        let lease = self.send(api.get_opt(LEASE), "leases").await?;
        let spec = lease.and_then(|l| l.spec);
        Ok(spec.map(|spec| LeaseFacts {
            holder: spec.holder_identity.unwrap_or_default(),
            renewed: spec.renew_time.as_ref().and_then(utc_micro),
            duration_seconds: i64::from(spec.lease_duration_seconds.unwrap_or_default()),
        }))
    }

    /// Namespace of the manager's lease: where its Deployment is.
    pub(super) async fn lease_namespace(&self) -> String {
        let deployments = self.manager_deployments(None).await.ok().flatten();
        let first = deployments.and_then(|all| Some(all.first()?.namespace.clone()));
        first.unwrap_or_else(|| NAMESPACE.to_owned())
    }

    /// Name of the user, as the API server knows it.
    pub async fn user(&self) -> Option<String> {
        let api: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let review = SelfSubjectReview::default();
        let params = PostParams::default();
        let request = api.create(&params, &review);
        let response = self.send(request, "selfsubjectreviews").await.ok()?;
        response.status?.user_info?.username
    }

    async fn policies(&self) -> Result<Vec<PolicyFacts>, Problem> {
        let policies: Vec<ValidatingAdmissionPolicy> =
            self.list(Api::all(self.client.clone()), None).await?;
        let bindings: Vec<ValidatingAdmissionPolicyBinding> =
            self.list(Api::all(self.client.clone()), None).await?;
        let facts = POLICIES.map(|name| {
            let ours: Vec<String> = policies
                .iter()
                .filter(|p| is_ours(p, name))
                .map(ResourceExt::name_any)
                .collect();
            let mut bound = bindings
                .iter()
                .map(|b| &b.spec)
                .filter(|b| ours.contains(&b.policy_name));
            PolicyFacts {
                name: name.to_owned(),
                denies: bound.any(|b| b.validation_actions.iter().any(|a| a == "Deny")),
            }
        });
        Ok(facts.into())
    }

    async fn nodes(&self) -> Result<Vec<NodeFacts>, Problem> {
        let nodes: Vec<Node> = self.list(Api::all(self.client.clone()), None).await?;
        Ok(nodes.iter().map(node_facts).collect())
    }

    /// Disruption budgets that select members, by the labels of the pods that exist.
    async fn budgets(&self) -> Result<Vec<BudgetFacts>, Problem> {
        let budgets: Vec<PodDisruptionBudget> =
            self.list(Api::all(self.client.clone()), None).await?;
        if budgets.is_empty() {
            return Ok(Vec::new());
        }
        let members: Api<PartialObjectMeta<Pod>> = Api::all(self.client.clone());
        let members = self.list(members, Some(labels::WORKLOAD_UID)).await?;
        let facts = budgets.iter().map(|budget| budget_facts(budget, &members));
        Ok(facts.filter(|budget| budget.members > 0).collect())
    }
}

/// Served versions of a group.
pub(super) fn versions(groups: &APIGroupList, group: &str) -> Vec<String> {
    let found = groups.groups.iter().filter(|g| g.name == group);
    found
        .flat_map(|g| &g.versions)
        .map(|v| v.version.clone())
        .collect()
}

fn called_alike(groups: &BTreeSet<String>, native: &[String]) -> BTreeSet<String> {
    let alike = CALLED_ALIKE.into_iter().filter(|g| groups.contains(*g));
    let upstream = (!native.is_empty()).then_some(NATIVE_GROUP);
    alike.chain(upstream).map(str::to_owned).collect()
}

/// Maps a forbidden or missing object to `None`.
pub(super) fn absent<T>(response: Result<T, Problem>) -> Result<Option<T>, Problem> {
    match response {
        Err(Problem::NotInstalled { .. }) => Ok(None),
        other => permitted(other),
    }
}

/// True if a policy is Lockstep's policy of this name. An overlay can prefix the names; the labels
/// stay.
fn is_ours(policy: &ValidatingAdmissionPolicy, name: &str) -> bool {
    let label = policy.labels().get(LABEL.0);
    policy.name_any().ends_with(name) && label.is_some_and(|l| l == LABEL.1)
}

fn node_facts(node: &Node) -> NodeFacts {
    let status = node.status.iter();
    let mut features = status.flat_map(|s| s.declared_features.iter().flatten());
    NodeFacts {
        name: node.name_any(),
        restarts_all: features.any(|f| f == RESTART_ALL_FEATURE),
    }
}

fn budget_facts(budget: &PodDisruptionBudget, members: &[PartialObjectMeta<Pod>]) -> BudgetFacts {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.clone());
    let selector = selector.and_then(|selector| Selector::try_from(selector).ok());
    let selects = |pod: &&PartialObjectMeta<Pod>| {
        let same = pod.metadata.namespace == budget.metadata.namespace;
        same && selector.as_ref().is_some_and(|s| s.matches(pod.labels()))
    };
    let status = budget.status.as_ref();
    let mut conditions = status
        .and_then(|s| s.conditions.as_ref())
        .into_iter()
        .flatten();
    BudgetFacts {
        namespace: budget.namespace().unwrap_or_default(),
        name: budget.name_any(),
        members: members.iter().filter(selects).count(),
        // Before its first sync, a budget expects nothing.
        expected: status.and_then(|s| s.expected_pods).unwrap_or(i32::MAX),
        failed: conditions.any(|c| c.type_ == "DisruptionAllowed" && c.reason == "SyncFailed"),
    }
}

/// Warning or error in a line of the manager's log (`--log-format=json`, as installed).
fn warning(line: &str) -> Option<String> {
    let line: Value = serde_json::from_str(line).ok()?;
    let field = |name: &str| line[name].as_str();
    if !matches!(field("level")?, "WARN" | "ERROR") {
        return None;
    }
    let parts = [field("message"), field("kind"), field("error")];
    Some(parts.into_iter().flatten().collect::<Vec<_>>().join(": "))
}
