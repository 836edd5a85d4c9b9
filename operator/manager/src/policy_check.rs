//! Tests whether the admission policies are in force and allow this process's writes.
//!
//! If a policy denies the manager's writes, every workload stays without status, and no object
//! reports the reason. So the manager sends dry-run creates at start and periodically. The policies
//! deny their object name to every user, so the message of the denial shows the rule.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use lockstep_api::{RestartOrder, restart_order};
use lockstep_common::policy_self_test::{PolicyError, PolicySelfTest, RETRY};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::time::sleep;
use tracing::{error, info, warn};

use crate::health::Health;

const INTERVAL: Duration = Duration::from_mins(10);
/// `config/policies` denies this object name to every user.
const NAME: &str = "lockstep-self-test";
const DENIED_TO_ALL: &str = "the name lockstep-self-test is for the manager's test";

/// `lockstep_policy_check_failed`: 1 if a policy denies the manager or is not in force.
#[derive(Clone, Debug, Default)]
pub struct PolicyMetric(Family<PolicyLabel, Gauge>);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PolicyLabel {
    policy: &'static str,
}

impl PolicyMetric {
    pub fn register(registry: &mut Registry) -> Self {
        let failed = Self::default();
        registry.register(
            "lockstep_policy_check_failed",
            "1 for an admission policy that refuses this process its writes or is not in force",
            failed.0.clone(),
        );
        failed
    }

    pub(crate) fn set(&self, policy: &'static str, failed: bool) {
        let label = PolicyLabel { policy };
        self.0.get_or_create(&label).set(i64::from(failed));
    }
}

/// Tests the policies until the process exits. The process becomes ready with the first result,
/// unless a policy denies its writes.
pub async fn watch_policies(
    client: Client,
    namespace: String,
    health: Health,
    metric: PolicyMetric,
) {
    let mut last_report = None;
    let mut denials = Denials::default();
    loop {
        let outcomes = test_all(&client, &namespace, &metric).await;
        denials.record(&outcomes);
        health.policies(denials.summary());
        let errors: Vec<PolicyError> = outcomes.into_iter().filter_map(|(_, o)| o.err()).collect();
        let text = errors.iter().map(ToString::to_string).collect::<Vec<_>>();
        if last_report.as_ref() != Some(&text) {
            report(&errors);
            last_report = Some(text);
        }
        sleep(if errors.is_empty() { INTERVAL } else { RETRY }).await;
    }
}

fn report(errors: &[PolicyError]) {
    for problem in errors {
        match problem {
            PolicyError::Denied(_) => error!(%problem, "not ready, testing again"),
            PolicyError::NotInForce(_) | PolicyError::Unclear(..) => {
                warn!(%problem, "testing again");
            }
        }
    }
    if errors.is_empty() {
        info!("the admission policies are in force and let this manager write");
    }
}

type Outcome = (&'static str, Result<(), PolicyError>);

/// The last clear result of each policy that denies this process.
#[derive(Debug, Default)]
struct Denials(BTreeMap<&'static str, String>);

impl Denials {
    fn record(&mut self, outcomes: &[Outcome]) {
        for (policy, outcome) in outcomes {
            match outcome {
                Ok(()) | Err(PolicyError::NotInForce(_)) => {
                    self.0.remove(policy);
                }
                Err(denied @ PolicyError::Denied(_)) => {
                    self.0.insert(policy, denied.to_string());
                }
                Err(PolicyError::Unclear(..)) => {}
            }
        }
    }

    fn summary(&self) -> Option<String> {
        let all: Vec<&str> = self.0.values().map(String::as_str).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

async fn test_all(client: &Client, namespace: &str, metric: &PolicyMetric) -> Vec<Outcome> {
    let test = |policy| PolicySelfTest {
        policy,
        rule: DENIED_TO_ALL,
    };
    let (objects, members) = (test("lockstep-operator-objects"), test("lockstep-members"));
    let orders = Api::namespaced(client.clone(), namespace);
    let pods = Api::namespaced(client.clone(), namespace);
    let outcomes = vec![
        (objects.policy, objects.run(&orders, &order()).await),
        (members.policy, members.run(&pods, &member()).await),
    ];
    for (policy, outcome) in &outcomes {
        match outcome {
            Ok(()) => metric.set(policy, false),
            Err(PolicyError::Denied(_) | PolicyError::NotInForce(_)) => metric.set(policy, true),
            Err(PolicyError::Unclear(..)) => {}
        }
    }
    outcomes
}

fn order() -> RestartOrder {
    let spec = restart_order::RestartOrderSpec {
        workload_uid: NAME.into(),
        domains: Vec::new(),
    };
    RestartOrder::new(NAME, spec)
}

/// A member that Pod Security admits even at level `restricted`. No API has the version of its owner,
/// because Kueue's webhook refuses pods of owners that it knows and does not find.
fn member() -> Pod {
    let pod = json!({
        "metadata": {"name": NAME, "ownerReferences": [{
            "apiVersion": "training.lockstep.dev/self-test", "kind": "TrainingWorkload",
            "name": NAME, "uid": NAME, "controller": true}]},
        "spec": {
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "test", "image": "registry.k8s.io/pause:3.10",
                "securityContext": {"allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]}}}]},
    });
    serde_json::from_value(pod).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: &str = "lockstep-operator-objects";

    #[test]
    fn no_answer_does_not_make_a_manager_ready_that_was_refused() {
        let mut denials = Denials::default();
        let unclear = || Err(PolicyError::Unclear(P, "no answer in time".into()));
        for (outcome, ready) in [
            (unclear(), true),
            (Err(PolicyError::Denied("right".into())), false),
            (unclear(), false),
            (Ok(()), true),
            (unclear(), true),
        ] {
            denials.record(&[(P, outcome)]);
            assert_eq!(denials.summary().is_none(), ready);
        }
    }

    #[test]
    fn the_member_of_the_test_is_a_pod_that_the_policy_looks_at() {
        let owners = member().metadata.owner_references.unwrap();
        assert_eq!(owners[0].kind, "TrainingWorkload");
        assert_eq!(member().spec.unwrap().containers.len(), 1);
    }

    #[test]
    fn the_policies_refuse_the_name_of_the_test_in_the_words_that_it_looks_for() {
        for policy in [
            include_str!("../../../config/policies/operator_objects.yaml"),
            include_str!("../../../config/policies/members.yaml"),
        ] {
            assert!(policy.contains(DENIED_TO_ALL) && policy.contains(&format!("'{NAME}'")));
        }
    }
}
