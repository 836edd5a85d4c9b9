//! What `doctor` looks at.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use lockstep_api::names::RESTART_ALL_FEATURE;

use super::ClusterReader;
use super::workloads::permitted;
use crate::agents::agents;
use crate::doctor_facts::{
    InstallFacts, LeaseFacts, ManagerPod, NodeFacts, POLICIES, PolicyFacts, RightFacts,
};
use crate::objects::{holds, moment};
use crate::problem::Problem;

/// Where the manager is installed, unless its pods say otherwise.
const NAMESPACE: &str = "lockstep-system";
/// The lease of the manager, unless it is configured otherwise.
const LEASE: &str = "lockstep-manager";
/// Groups of others with a PodGroup or a Workload.
const CALLED_ALIKE: [&str; 4] = [
    "kueue.x-k8s.io",
    "scheduling.sigs.k8s.io",
    "scheduling.volcano.sh",
    "scheduling.x-k8s.io",
];
/// Namespace and name of Kueue's configuration.
const KUEUE: (&str, &str) = ("kueue-system", "kueue-manager-config");

/// Verbs of this program, and what they need: verb, group, resource, subresource.
const RIGHTS: [(&str, [&str; 4]); 5] = [
    (
        "list, status, explain (list trainingworkloads)",
        ["list", "training.lockstep.dev", "trainingworkloads", ""],
    ),
    (
        "restart, suspend, resume, checkpoint (patch trainingworkloads)",
        ["patch", "training.lockstep.dev", "trainingworkloads", ""],
    ),
    ("logs (get pods/log)", ["get", "", "pods", "log"]),
    (
        "queue, whatif, snapshot (list nodes)",
        ["list", "", "nodes", ""],
    ),
    (
        "agents (list nodeagents)",
        ["list", "training.lockstep.dev", "nodeagents", ""],
    ),
];

impl ClusterReader {
    /// What can be seen of the installation. Only a server that does not answer is an error.
    pub async fn install_facts(&self, agent_namespace: &str) -> Result<InstallFacts, Problem> {
        let versions = self.versions().await?;
        let groups = self.ask(self.client.list_api_groups(), "apis").await?;
        let groups: BTreeSet<String> = groups.groups.into_iter().map(|g| g.name).collect();
        let managers = permitted(self.managers().await)?;
        let namespace = managers.iter().flatten().find_map(ResourceExt::namespace);
        let namespace = namespace.unwrap_or_else(|| NAMESPACE.to_owned());
        let objects = absent(self.node_agents().await)?;
        let pods = self.agent_pods(agent_namespace).await?;
        let (workloads, unreadable) = match absent(self.workloads(None, None).await)? {
            Some((all, unreadable)) => (all.len(), Some(unreadable)),
            None => (0, None),
        };
        Ok(InstallFacts {
            kubernetes: versions.kubernetes.clone().unwrap_or_default(),
            served: self.served(&groups).await?,
            other_groups: CALLED_ALIKE
                .into_iter()
                .filter(|g| groups.contains(*g))
                .map(str::to_owned)
                .collect(),
            managers: managers.map(|pods| pods.iter().map(manager).collect()),
            lease: permitted(self.lease(&namespace).await)?,
            versions,
            policies: permitted(self.policies().await)?,
            agents: objects.map(|objects| agents(&objects, pods.as_deref())),
            nodes: permitted(self.nodes().await)?,
            rights: self.rights().await?,
            kueue_takes_all: self.kueue(&groups).await?,
            workloads,
            unreadable,
        })
    }

    async fn served(&self, groups: &BTreeSet<String>) -> Result<BTreeSet<String>, Problem> {
        let mut served = BTreeSet::new();
        for group in ["training.lockstep.dev", "scheduling.lockstep.dev"] {
            if !groups.contains(group) {
                continue;
            }
            let version = format!("{group}/v1alpha1");
            let answer = self.client.list_api_group_resources(&version);
            if let Some(list) = absent(self.ask(answer, group).await)? {
                let plurals = list.resources.iter().filter(|r| !r.name.contains('/'));
                served.extend(plurals.map(|r| format!("{}.{group}", r.name)));
            }
        }
        Ok(served)
    }

    async fn lease(&self, namespace: &str) -> Result<Option<LeaseFacts>, Problem> {
        let api: Api<Lease> = self.scoped(Some(namespace));
        let lease = self.ask(api.get_opt(LEASE), "leases").await?;
        let spec = lease.and_then(|l| l.spec);
        Ok(spec.map(|spec| LeaseFacts {
            holder: spec.holder_identity.unwrap_or_default(),
            renewed: spec.renew_time.and_then(|t| moment(&Time(t.0))),
            duration_seconds: i64::from(spec.lease_duration_seconds.unwrap_or_default()),
        }))
    }

    async fn policies(&self) -> Result<Vec<PolicyFacts>, Problem> {
        let policies: Vec<ValidatingAdmissionPolicy> =
            self.list(Api::all(self.client.clone()), None).await?;
        let bindings: Vec<ValidatingAdmissionPolicyBinding> =
            self.list(Api::all(self.client.clone()), None).await?;
        let facts = POLICIES.map(|name| {
            let policy = policies.iter().find(|p| p.name_any() == name);
            let bound = bindings.iter().map(|b| &b.spec);
            let bound: Vec<_> = bound.filter(|b| b.policy_name == name).collect();
            let mut actions = bound.iter().flat_map(|b| &b.validation_actions);
            let denies = actions.any(|a| a == "Deny");
            let parameters = bound
                .iter()
                .find_map(|b| b.param_ref.as_ref()?.name.clone());
            PolicyFacts {
                name: name.to_owned(),
                denies: policy.is_some() && denies,
                account: policy.and_then(manager_account),
                parameters,
            }
        });
        Ok(facts.into())
    }

    async fn nodes(&self) -> Result<Vec<NodeFacts>, Problem> {
        let nodes: Vec<Node> = self.list(Api::all(self.client.clone()), None).await?;
        let facts = |n: &Node| NodeFacts {
            name: n.name_any(),
            restarts_all: n
                .status
                .iter()
                .flat_map(|s| s.declared_features.iter().flatten())
                .any(|f| f == RESTART_ALL_FEATURE),
        };
        Ok(nodes.iter().map(facts).collect())
    }

    async fn rights(&self) -> Result<Vec<RightFacts>, Problem> {
        let api: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let mut rights = Vec::new();
        for (verbs, [verb, group, resource, subresource]) in RIGHTS {
            let text = |t: &str| Some(t.to_owned()).filter(|t| !t.is_empty());
            let review = SelfSubjectAccessReview {
                spec: SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(ResourceAttributes {
                        namespace: text(self.namespace()).filter(|_| resource != "nodes"),
                        verb: text(verb),
                        group: text(group),
                        resource: text(resource),
                        subresource: text(subresource),
                        ..ResourceAttributes::default()
                    }),
                    ..SelfSubjectAccessReviewSpec::default()
                },
                ..SelfSubjectAccessReview::default()
            };
            let params = PostParams::default();
            let answer = api.create(&params, &review);
            let answer = self.ask(answer, "selfsubjectaccessreviews").await;
            if let Some(answer) = permitted(answer)? {
                let allowed = answer.status.is_some_and(|s| s.allowed);
                rights.push(RightFacts { verbs, allowed });
            }
        }
        Ok(rights)
    }

    async fn kueue(&self, groups: &BTreeSet<String>) -> Result<Option<bool>, Problem> {
        if !groups.contains("kueue.x-k8s.io") {
            return Ok(None);
        }
        let api: Api<ConfigMap> = self.scoped(Some(KUEUE.0));
        let map = permitted(self.ask(api.get_opt(KUEUE.1), "configmaps").await)?.flatten();
        let data = map.and_then(|m| m.data);
        Ok(data.map(|data| {
            let mut lines = data.values().flat_map(|text| text.lines());
            lines.any(|l| l.trim() == "manageJobsWithoutQueueName: true")
        }))
    }
}

/// `None` for what may not be read or is not there.
fn absent<T>(answer: Result<T, Problem>) -> Result<Option<T>, Problem> {
    match answer {
        Err(Problem::NotInstalled { .. }) => Ok(None),
        other => permitted(other),
    }
}

fn manager(pod: &Pod) -> ManagerPod {
    let namespace = pod.namespace().unwrap_or_default();
    let account = pod
        .spec
        .as_ref()
        .and_then(|s| s.service_account_name.as_deref());
    ManagerPod {
        account: format!(
            "system:serviceaccount:{namespace}:{}",
            account.unwrap_or("default")
        ),
        namespace,
        name: pod.name_any(),
        ready: holds(pod, "Ready"),
    }
}

/// The account that the policy's variable `manager` compares the user with.
fn manager_account(policy: &ValidatingAdmissionPolicy) -> Option<String> {
    let variables = policy.spec.as_ref()?.variables.as_ref()?;
    let expression = &variables.iter().find(|v| v.name == "manager")?.expression;
    let quoted = expression.split('\'').nth(1)?;
    quoted
        .starts_with("system:serviceaccount:")
        .then(|| quoted.to_owned())
}
