//! The self-test before an agent acts: is the policy in force that lets it write the NodeAgent of
//! its own node only?
//!
//! Without it a token taken from one node could speak for every node. The API server is asked, as a
//! dry run, to make the NodeAgent of another node; nothing but a refusal by an admission policy
//! will do.

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

/// Longest time that the question may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// Pause before it is asked again: an applied policy takes a moment to be in force.
const RETRY: Duration = Duration::from_secs(5);
/// Names of nodes that are not there; two, because one of them might be the name of this one.
const OTHER_NODES: [&str; 2] = ["lockstep-self-test", "lockstep-self-test-2"];
/// The policy.
const POLICY: &str = "lockstep-node-agents";
/// The right that makes an account that of an agent; the policy names it to who lacks it.
const RIGHT: &str = "nodeagents.admission.lockstep.dev";

/// Why an agent does not act.
#[derive(Debug, Error)]
pub enum GuardError {
    /// The API server would have taken it.
    #[error(
        "this agent may write the NodeAgent of other nodes: the policy lockstep-node-agents is not in force; \
         apply config/policies"
    )]
    NotInForce,
    /// Refused as somebody who is no agent: nothing that this one writes would be taken.
    #[error(
        "the policy does not take this account for an agent: {0}; the ClusterRole of config/components/agent has the right"
    )]
    NoAgent(String),
    /// Refused, but not by a policy: what the policy says is not known.
    #[error("the API server refused the self-test for another reason: {0}")]
    Unclear(String),
    /// No answer.
    #[error("the API server did not answer the self-test: {0}")]
    NoAnswer(String),
}

/// Waits until the policy is in force. Until then the agent is not ready and says why.
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
    info!(node, "the API server takes the NodeAgent of this node only");
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
                // Admission comes first: it let the object pass.
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

    /// An API server that gives these answers in turn, and the last one for ever.
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
