use std::fmt::Debug;
use std::time::Duration;

use kube::api::PostParams;
use kube::core::Status;
use kube::{Api, Error};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(10);
/// Pause before the next test of a policy that is not in force. Applied policies and roles take
/// effect after a moment.
pub const RETRY: Duration = Duration::from_secs(5);
/// Kind that the API server names in a denial by a policy.
const BY_POLICY: &str = "ValidatingAdmissionPolicy";

/// A self-test of an admission policy: the policy must deny a dry-run create.
#[derive(Clone, Copy, Debug)]
pub struct PolicySelfTest {
    /// Name of the policy. An installation may prefix it.
    pub policy: &'static str,
    /// Words of the rule that the object violates. If the policy denies the object by another
    /// rule, it denies the account of this process.
    pub rule: &'static str,
}

/// Why a self-test failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// The policy denies the account of this process, so it denies the process's writes too.
    #[error("an admission policy refuses writes of this process: {0}")]
    Denied(String),
    /// The API server accepted the object.
    #[error("the policy {0} is not in force: apply config/policies")]
    NotInForce(&'static str),
    /// No response, or another component rejected the object.
    #[error("the policy {0} could not be tested: {1}")]
    Unclear(&'static str, String),
}

impl PolicySelfTest {
    /// Creates the object as a dry run. Ok if the policy denies the object by its rule.
    pub async fn run<K>(&self, api: &Api<K>, object: &K) -> Result<(), PolicyError>
    where
        K: Clone + Debug + Serialize + DeserializeOwned,
    {
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        match timeout(DEADLINE, api.create(&dry, object)).await {
            Ok(Ok(_)) => Err(PolicyError::NotInForce(self.policy)),
            Ok(Err(Error::Api(status))) => self.classify(&status),
            Ok(Err(error)) => Err(PolicyError::Unclear(self.policy, error.to_string())),
            Err(_) => Err(PolicyError::Unclear(
                self.policy,
                "no response in time".to_owned(),
            )),
        }
    }

    fn classify(&self, status: &Status) -> Result<(), PolicyError> {
        let message = &status.message;
        // Refusals by other policies of the cluster do not count.
        let by_policy =
            status.is_forbidden() && message.contains(BY_POLICY) && message.contains(self.policy);
        if by_policy && message.contains(self.rule) {
            Ok(())
        } else if by_policy {
            Err(PolicyError::Denied(message.clone()))
        } else if status.is_already_exists() {
            // Admission runs before storage, so the policy admitted the object.
            Err(PolicyError::NotInForce(self.policy))
        } else {
            Err(PolicyError::Unclear(self.policy, message.clone()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: PolicySelfTest = PolicySelfTest {
        policy: "lockstep-node-agents",
        rule: "only the agent of a node",
    };

    fn judged(code: u16, reason: &str, message: &str) -> Result<(), PolicyError> {
        TEST.classify(&Status::failure(message, reason).with_code(code))
    }

    fn denied(words: &str) -> Result<(), PolicyError> {
        let message = format!(
            "nodeagents \"x\" is forbidden: ValidatingAdmissionPolicy 'x-lockstep-node-agents' with binding \
             'x-lockstep-node-agents' denied request: {words}"
        );
        judged(403, "Forbidden", &message)
    }

    #[test]
    fn only_a_refusal_by_the_rule_proves_that_the_policy_is_in_force() {
        let by_rule = denied("only the agent of a node writes the NodeAgent of that node");
        assert_eq!(by_rule, Ok(()));
        let by_another = denied("only agents write NodeAgents: sa lacks the right");
        assert!(
            matches!(&by_another, Err(PolicyError::Denied(m)) if m.contains("sa lacks the right")),
            "{by_another:?}"
        );
        let exists = judged(409, "AlreadyExists", "exists");
        assert_eq!(exists, Err(PolicyError::NotInForce(TEST.policy)));
    }

    #[test]
    fn a_refusal_by_another_component_is_unclear() {
        let other = "forbidden: ValidatingAdmissionPolicy 'require-labels' with binding 'x' denied request: no team";
        for (code, reason, message) in [
            (403, "Forbidden", "cannot create resource \"nodeagents\""),
            (403, "Forbidden", "exceeded quota: pods"),
            (403, "Forbidden", other),
            (404, "NotFound", "the requested resource is not found"),
            (500, "InternalError", "ValidatingAdmissionPolicy broken"),
        ] {
            let found = judged(code, reason, message);
            assert!(matches!(found, Err(PolicyError::Unclear(..))), "{found:?}");
        }
    }
}
