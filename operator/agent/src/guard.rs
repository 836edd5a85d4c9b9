//! Self-test before the agent acts: does the admission policy restrict the agent to the NodeAgent
//! of its own node?
//!
//! Without the policy, a token stolen from one node could write the status of every node. The test
//! creates the NodeAgent of another node as a dry run. It passes only if an admission policy
//! refuses the request.

use std::time::Duration;

use kube::api::PostParams;
use kube::{Api, Client};
use lockstep_api::NodeAgent;
use lockstep_api::admission::refused_by_policy;
use lockstep_api::node_agent::NodeAgentSpec;
use thiserror::Error;
use tokio::time::{sleep, timeout};
use tracing::{error, info};

use crate::health::{Part, Readiness};

const DEADLINE: Duration = Duration::from_secs(10);
/// Pause between two tests: an applied policy takes effect after a moment.
const RETRY: Duration = Duration::from_secs(5);
/// Names that no node has. Two names, in case the agent's node has one of them.
const OTHER_NODES: [&str; 2] = ["lockstep-self-test", "lockstep-self-test-2"];
const POLICY: &str = "lockstep-node-agents";
/// RBAC resource that identifies an agent's account. The policy names it if the account lacks it.
const RIGHT: &str = "nodeagents.admission.lockstep.dev";

#[derive(Debug, Error)]
pub enum GuardError {
    /// The API server accepted the request.
    #[error(
        "this agent may write the NodeAgent of other nodes: the policy lockstep-node-agents is not in force; \
         apply config/policies"
    )]
    NotInForce,
    /// The policy refused the account, which is not an agent's. It would refuse the agent's writes
    /// too.
    #[error(
        "the policy does not take this account for an agent: {0}; the ClusterRole of config/components/agent has the right"
    )]
    NoAgent(String),
    /// Another component refused the request, so the policy's decision is unknown.
    #[error("the API server refused the self-test for another reason: {0}")]
    Unclear(String),
    #[error("the API server did not answer the self-test: {0}")]
    NoAnswer(String),
}

/// Returns when the policy is in force. Until then, `/readyz` reports the reason.
pub async fn policy_in_force(client: &Client, node: &str, readiness: &Readiness) {
    let mut last = None;
    loop {
        let Err(error) = test(client, node).await else {
            break;
        };
        readiness.waits_for(Part::Policy, &error);
        let text = error.to_string();
        if last.as_ref() != Some(&text) {
            error!(node, %error, "not acting, testing again");
            last = Some(text);
        }
        sleep(RETRY).await;
    }
    info!(
        node,
        "the policy restricts this agent to the NodeAgent of its node"
    );
    readiness.done(Part::Policy);
}

async fn test(client: &Client, node: &str) -> Result<(), GuardError> {
    let other = OTHER_NODES
        .into_iter()
        .find(|name| *name != node)
        .unwrap_or_default();
    let api = Api::<NodeAgent>::all(client.clone());
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let object = NodeAgent::new(other, NodeAgentSpec {});
    match timeout(DEADLINE, api.create(&dry, &object)).await {
        Ok(answer) => judge(answer),
        Err(_) => Err(GuardError::NoAnswer("no answer in time".into())),
    }
}

fn judge(answer: kube::Result<NodeAgent>) -> Result<(), GuardError> {
    match answer {
        Ok(_) => Err(GuardError::NotInForce),
        Err(kube::Error::Api(status)) => {
            let by_policy = refused_by_policy(&status, POLICY);
            if by_policy && status.message.contains(RIGHT) {
                Err(GuardError::NoAgent(status.message.clone()))
            } else if by_policy {
                Ok(())
            } else if status.is_already_exists() {
                // Admission runs before storage, so the policy accepted the object.
                Err(GuardError::NotInForce)
            } else {
                Err(GuardError::Unclear(status.message.clone()))
            }
        }
        Err(error) => Err(GuardError::NoAnswer(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    const DENIED: &str = "nodeagents.training.lockstep.dev \"lockstep-self-test\" is forbidden: ValidatingAdmissionPolicy \
                          'lockstep-node-agents' with binding 'lockstep-node-agents' denied request: only the agent of \
                          a node writes the NodeAgent of that node";

    const NO_AGENT: &str = "nodeagents.training.lockstep.dev \"lockstep-self-test\" is forbidden: ValidatingAdmissionPolicy \
                            'lockstep-node-agents' with binding 'lockstep-node-agents' denied request: only agents write \
                            NodeAgents: a lacks the right to report nodeagents.admission.lockstep.dev";

    const OTHER_POLICY: &str = "nodeagents.training.lockstep.dev \"lockstep-self-test\" is forbidden: ValidatingAdmissionPolicy \
                                'require-labels' with binding 'require-labels' denied request: no team";

    fn status(code: u16, reason: &str, message: &str) -> Value {
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
            "message": message})
    }

    /// An API server that gives these answers in order, then repeats the last one.
    fn server(answers: Vec<Value>) -> Client {
        let answers = std::sync::Mutex::new(answers.into_iter().peekable());
        let service = tower::service_fn(move |request: Request<Body>| {
            assert!(
                request.uri().query().unwrap().contains("dryRun=All"),
                "nothing may be left behind"
            );
            let mut answers = answers.lock().unwrap();
            let answer = answers.next().unwrap();
            let code = answer["code"]
                .as_u64()
                .map_or(201, |c| u16::try_from(c).unwrap());
            let body = Body::from(serde_json::to_vec(&answer).unwrap());
            std::future::ready(Ok::<_, kube::Error>(
                Response::builder().status(code).body(body).unwrap(),
            ))
        });
        Client::new(service, "default")
    }

    fn admitted() -> Value {
        json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "NodeAgent", "metadata": {"name": "x"}, "spec": {}})
    }

    #[tokio::test]
    async fn only_a_refusal_by_a_policy_proves_that_the_policy_is_in_force() {
        let cases = [
            (status(403, "Forbidden", DENIED), None),
            (
                status(403, "Forbidden", NO_AGENT),
                Some("does not take this account for an agent"),
            ),
            (admitted(), Some("not in force")),
            (status(409, "AlreadyExists", "exists"), Some("not in force")),
            (
                status(403, "Forbidden", "cannot create resource \"nodeagents\""),
                Some("another reason"),
            ),
            (
                status(403, "Forbidden", OTHER_POLICY),
                Some("another reason"),
            ),
            (
                status(
                    404,
                    "NotFound",
                    "the server could not find the requested resource",
                ),
                Some("another reason"),
            ),
            (
                status(500, "InternalError", "ValidatingAdmissionPolicy broken"),
                Some("another reason"),
            ),
        ];
        for (answer, wrong) in cases {
            let result = test(&server(vec![answer.clone()]), "n1").await;
            match (result, wrong) {
                (Ok(()), None) => {}
                (Err(error), Some(text)) => {
                    assert!(error.to_string().contains(text), "{answer}: {error}");
                }
                (result, _) => panic!("{answer}: {result:?}"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_waits_until_the_policy_is_in_force_and_says_so() {
        let readiness = Readiness::default();
        let client = server(vec![admitted(), status(403, "Forbidden", DENIED)]);
        let test = policy_in_force(&client, "n1", &readiness);
        let mut test = std::pin::pin!(test);
        assert!(timeout(RETRY / 2, &mut test).await.is_err());
        assert!(
            readiness
                .pending()
                .unwrap()
                .contains("apply config/policies")
        );
        test.await;
        assert!(!readiness.pending().unwrap().contains("policy"));
    }
}
