//! Tests whether the admission policies are in force and allow this process's writes.
//!
//! If a policy refuses the manager's writes, every workload stays without status, and no object
//! reports the reason. So the manager sends dry-run creates at start and periodically. The policies
//! refuse their object name to every user, so the message of the refusal shows the rule.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use lockstep_api::admission::refused_by_policy;
use lockstep_api::{RestartOrder, restart_order};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use thiserror::Error;
use tokio::time::{sleep, timeout};
use tracing::{error, info, warn};

use crate::health::Health;

const DEADLINE: Duration = Duration::from_secs(10);
/// Applied policies and roles take effect after a moment.
const RETRY: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_mins(10);
/// `config/policies` refuses this object name to every user.
const NAME: &str = "lockstep-self-test";
const REFUSED_TO_ALL: &str = "the name lockstep-self-test is for the manager's test";

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// The policy refuses writes of this process.
    #[error("an admission policy refuses this manager its writes: {0}")]
    Refused(String),
    /// Any user with a role for the object could have created it.
    #[error("the policy {0} is not in force: apply config/policies")]
    NotInForce(&'static str),
    /// No response, or another component refused the object.
    #[error("the policy {0} could not be tested: {1}")]
    Unclear(&'static str, String),
}

/// `lockstep_policy_check_failed`: 1 if a policy refuses the manager or is not in force.
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
/// unless a policy refuses its writes.
pub async fn watch_policies(
    client: Client,
    namespace: String,
    health: Health,
    metric: PolicyMetric,
) {
    let mut said = None;
    let mut refusals = Refusals::default();
    loop {
        let outcomes = test_all(&client, &namespace, &metric).await;
        refusals.learn(&outcomes);
        health.policies(refusals.told());
        let found: Vec<PolicyError> = outcomes.into_iter().filter_map(|(_, o)| o.err()).collect();
        let text = found.iter().map(ToString::to_string).collect::<Vec<_>>();
        if said.as_ref() != Some(&text) {
            report(&found);
            said = Some(text);
        }
        sleep(if found.is_empty() { INTERVAL } else { RETRY }).await;
    }
}

fn report(found: &[PolicyError]) {
    for problem in found {
        match problem {
            PolicyError::Refused(_) => error!(%problem, "not ready, testing again"),
            PolicyError::NotInForce(_) | PolicyError::Unclear(..) => {
                warn!(%problem, "testing again");
            }
        }
    }
    if found.is_empty() {
        info!("the admission policies are in force and let this manager write");
    }
}

type Outcome = (&'static str, Result<(), PolicyError>);

/// The last clear result of each policy that refuses this process.
#[derive(Debug, Default)]
struct Refusals(BTreeMap<&'static str, String>);

impl Refusals {
    fn learn(&mut self, outcomes: &[Outcome]) {
        for (policy, outcome) in outcomes {
            match outcome {
                Ok(()) | Err(PolicyError::NotInForce(_)) => {
                    self.0.remove(policy);
                }
                Err(refused @ PolicyError::Refused(_)) => {
                    self.0.insert(policy, refused.to_string());
                }
                Err(PolicyError::Unclear(..)) => {}
            }
        }
    }

    fn told(&self) -> Option<String> {
        let all: Vec<&str> = self.0.values().map(String::as_str).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

async fn test_all(client: &Client, namespace: &str, metric: &PolicyMetric) -> Vec<Outcome> {
    let mut found = Vec::new();
    for (policy, outcome) in [
        (
            "lockstep-operator-objects",
            test(client, namespace, &order()).await,
        ),
        ("lockstep-members", test(client, namespace, &member()).await),
    ] {
        let outcome = judge(policy, outcome);
        match &outcome {
            Ok(()) => metric.set(policy, false),
            Err(PolicyError::Refused(_) | PolicyError::NotInForce(_)) => metric.set(policy, true),
            Err(PolicyError::Unclear(..)) => {}
        }
        found.push((policy, outcome));
    }
    found
}

/// `None` if the deadline passed.
type Answer = Option<kube::Result<()>>;

async fn test<K>(client: &Client, namespace: &str, object: &K) -> Answer
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    let api = Api::<K>::namespaced(client.clone(), namespace);
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let answer = timeout(DEADLINE, api.create(&dry, object)).await.ok()?;
    Some(answer.map(drop))
}

fn judge(policy: &'static str, answer: Answer) -> Result<(), PolicyError> {
    match answer {
        None => Err(PolicyError::Unclear(policy, "no answer in time".into())),
        Some(Ok(())) => Err(PolicyError::NotInForce(policy)),
        Some(Err(kube::Error::Api(status))) => {
            let by_policy = refused_by_policy(&status, policy);
            if by_policy && status.message.contains(REFUSED_TO_ALL) {
                Ok(())
            } else if by_policy {
                Err(PolicyError::Refused(status.message.clone()))
            } else if status.is_already_exists() {
                // Admission runs before storage, so the policy admitted the object.
                Err(PolicyError::NotInForce(policy))
            } else {
                Err(PolicyError::Unclear(policy, status.message.clone()))
            }
        }
        Some(Err(error)) => Err(PolicyError::Unclear(policy, error.to_string())),
    }
}

fn order() -> RestartOrder {
    let spec = restart_order::RestartOrderSpec {
        workload_uid: NAME.into(),
        domains: Vec::new(),
    };
    RestartOrder::new(NAME, spec)
}

/// A member that Pod Security admits even at level `restricted`.
fn member() -> Pod {
    let pod = json!({
        "metadata": {"name": NAME, "ownerReferences": [{
            "apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload",
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
    use kube::core::Status;

    use super::*;

    fn refused(code: u16, reason: &str, message: &str) -> kube::Error {
        let status = Status::failure(message, reason).with_code(code);
        kube::Error::Api(status.boxed())
    }

    const P: &str = "lockstep-operator-objects";

    fn judged(error: kube::Error) -> Result<(), PolicyError> {
        judge(P, Some(Err(error)))
    }

    fn denied(words: &str) -> kube::Error {
        let by = "restartorders \"lockstep-self-test\" is forbidden: ValidatingAdmissionPolicy 'x-lockstep-operator-objects' \
                  with binding 'x-lockstep-operator-objects' denied request: ";
        refused(403, "Forbidden", &format!("{by}{words}"))
    }

    #[test]
    fn only_the_refusal_that_everybody_gets_says_that_the_manager_may_write() {
        let p = P;
        let all = denied("the name lockstep-self-test is for the manager's test of this policy");
        assert_eq!(judged(all), Ok(()));
        let own = judged(denied("only Lockstep's manager writes: sa lacks the right"));
        assert!(
            matches!(&own, Err(PolicyError::Refused(m)) if m.contains("x-lockstep-operator-objects")),
            "{own:?}"
        );
        assert_eq!(judge(p, Some(Ok(()))), Err(PolicyError::NotInForce(p)));
        let exists = refused(409, "AlreadyExists", "exists");
        assert_eq!(judged(exists), Err(PolicyError::NotInForce(p)));
    }

    #[test]
    fn a_refusal_for_another_reason_says_nothing_about_the_policy() {
        let unanswered = judge("p", None);
        assert!(
            matches!(unanswered, Err(PolicyError::Unclear(..))),
            "{unanswered:?}"
        );
        for error in [
            refused(403, "Forbidden", "cannot create resource \"restartorders\""),
            refused(403, "Forbidden", "exceeded quota: pods"),
            refused(
                403,
                "Forbidden",
                "forbidden: ValidatingAdmissionPolicy 'require-labels' with binding 'x' denied request: no team",
            ),
            refused(
                404,
                "NotFound",
                "the server could not find the requested resource",
            ),
            refused(500, "InternalError", "later"),
        ] {
            let found = judged(error);
            assert!(matches!(found, Err(PolicyError::Unclear(..))), "{found:?}");
        }
    }

    #[test]
    fn no_answer_does_not_make_a_manager_ready_that_was_refused() {
        let mut refusals = Refusals::default();
        let unclear = || Err(PolicyError::Unclear(P, "no answer in time".into()));
        for (outcome, ready) in [
            (unclear(), true),
            (Err(PolicyError::Refused("right".into())), false),
            (unclear(), false),
            (Ok(()), true),
            (unclear(), true),
        ] {
            refusals.learn(&[(P, outcome)]);
            assert_eq!(refusals.told().is_none(), ready);
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
            assert!(policy.contains(REFUSED_TO_ALL) && policy.contains(&format!("'{NAME}'")));
        }
    }
}
