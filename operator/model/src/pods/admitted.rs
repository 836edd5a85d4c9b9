//! Pods of a workload as admitted by the API server in a dry run. Webhooks, policies and admission
//! plugins add tolerations, sidecars, overhead and default requests, which affect nodes and
//! resources.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Volume};
use lockstep_api::names::labels;

/// Labels that differ between pods of one group.
const OF_ONE_POD: [&str; 4] = [
    labels::REPLICA,
    labels::INDEX,
    labels::DOMAIN,
    labels::POD_GROUP,
];

#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdmittedPods {
    /// Changes with the content; never 0.
    pub revision: u64,
    /// One entry per group with members.
    pub groups: BTreeMap<String, Admission>,
}

/// Result of the dry run for a group.
#[derive(Clone, Debug, PartialEq)]
pub enum Admission {
    As(Box<AdmittedPod>),
    /// No result, for a reason that may pass: a quota or an unavailable webhook.
    Failed(String),
    /// No result possible: a webhook does not support dry runs.
    Unsupported(String),
}

/// Relevant parts of an admitted pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdmittedPod {
    pub labels: BTreeMap<String, String>,
    /// Parts of the spec that affect nodes and resources.
    pub spec: PodSpec,
}

impl Admission {
    pub fn why_not(&self) -> Option<&str> {
        match self {
            Self::As(_) => None,
            Self::Failed(why) | Self::Unsupported(why) => Some(why),
        }
    }

    pub fn pod(&self) -> Option<&AdmittedPod> {
        match self {
            Self::As(pod) => Some(pod),
            Self::Failed(_) | Self::Unsupported(_) => None,
        }
    }

    /// This result, or `last` if it failed.
    #[must_use]
    pub fn or_last(self, last: Option<&Self>) -> Self {
        match (&self, last) {
            (Self::Failed(_), Some(last @ Self::As(_))) => last.clone(),
            _ => self,
        }
    }
}

impl From<Pod> for AdmittedPod {
    fn from(pod: Pod) -> Self {
        let mut labels = pod.metadata.labels.unwrap_or_default();
        for of_one in OF_ONE_POD {
            labels.remove(of_one);
        }
        Self {
            labels,
            spec: pod.spec.map(trimmed).unwrap_or_default(),
        }
    }
}

/// Keeps the fields in use, because containers may have hundreds of variables.
fn trimmed(spec: PodSpec) -> PodSpec {
    let containers = |all: Vec<Container>| all.into_iter().map(trimmed_container).collect();
    let needs_claim = |v: &Volume| v.persistent_volume_claim.is_some() || v.ephemeral.is_some();
    let volumes = spec.volumes.into_iter().flatten().filter(needs_claim);
    PodSpec {
        containers: containers(spec.containers),
        init_containers: spec.init_containers.map(containers),
        active_deadline_seconds: spec.active_deadline_seconds,
        affinity: spec.affinity,
        host_network: spec.host_network,
        node_selector: spec.node_selector,
        overhead: spec.overhead,
        preemption_policy: spec.preemption_policy,
        resource_claims: spec.resource_claims,
        resources: spec.resources,
        restart_policy: spec.restart_policy,
        scheduling_gates: spec.scheduling_gates,
        scheduler_name: spec.scheduler_name,
        termination_grace_period_seconds: spec.termination_grace_period_seconds,
        tolerations: spec.tolerations,
        topology_spread_constraints: spec.topology_spread_constraints,
        volumes: Some(volumes.collect()),
        ..PodSpec::default()
    }
}

fn trimmed_container(container: Container) -> Container {
    Container {
        name: container.name,
        ports: container.ports,
        resources: container.resources,
        restart_policy: container.restart_policy,
        restart_policy_rules: container.restart_policy_rules,
        ..Container::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn admitted(spec: &serde_json::Value) -> Admission {
        let labels = json!({"app": "llama", labels::REPLICA: "0", labels::POD_GROUP: "pg"});
        let pod = json!({"metadata": {"labels": labels}, "spec": spec});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        Admission::As(Box::new(pod.into()))
    }

    #[test]
    fn what_decides_on_nodes_and_amounts_is_kept_and_nothing_of_one_pod() {
        let answer = admitted(&json!({
            "containers": [{"name": "t", "image": "i", "env": [{"name": "A", "value": "b"}],
                "resources": {"requests": {"cpu": "1"}}}],
            "overhead": {"cpu": "250m"}, "tolerations": [{"operator": "Exists"}],
            "schedulingGates": [{"name": "example.com/quota"}],
            "volumes": [{"name": "token", "projected": {}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}));
        let pod = answer.pod().unwrap();
        assert_eq!(pod.labels, [("app".to_owned(), "llama".to_owned())].into());
        let expected = json!({
            "containers": [{"name": "t", "resources": {"requests": {"cpu": "1"}}}],
            "overhead": {"cpu": "250m"}, "tolerations": [{"operator": "Exists"}],
            "schedulingGates": [{"name": "example.com/quota"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]});
        assert_eq!(json!(pod.spec), expected);
    }

    #[test]
    fn an_answer_stays_when_the_next_request_fails_and_goes_when_dry_runs_are_refused() {
        let known = admitted(&json!({"containers": []}));
        let failed = Admission::Failed("exceeded quota".to_owned());
        let refused = Admission::Unsupported("no dry runs".to_owned());
        assert_eq!(failed.clone().or_last(Some(&known)), known);
        assert_eq!(failed.clone().or_last(None), failed);
        assert_eq!(refused.clone().or_last(Some(&known)), refused);
        assert_eq!(known.clone().or_last(Some(&refused)), known);
    }
}
