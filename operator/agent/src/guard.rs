//! Self-test before the agent acts: does the admission policy restrict the agent to the NodeAgent
//! of its own node?
//!
//! Without the policy, a token stolen from one node could write the status of every node. The test
//! creates the NodeAgent of another node as a dry run. It passes only if an admission policy
//! refuses the request.

use kube::{Api, Client};
use lockstep_api::NodeAgent;
use lockstep_api::node_agent::NodeAgentSpec;
use lockstep_common::policy_self_test::{PolicyError, PolicySelfTest, RETRY};
use tokio::time::sleep;
use tracing::{error, info};

use crate::health::{Part, Readiness};

/// Names that no node has. Two names, in case the agent's node has one of them.
const OTHER_NODES: [&str; 2] = ["lockstep-self-test", "lockstep-self-test-2"];
const TEST: PolicySelfTest = PolicySelfTest {
    policy: "lockstep-node-agents",
    rule: "only the agent of a node",
};

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

async fn test(client: &Client, node: &str) -> Result<(), PolicyError> {
    let other = OTHER_NODES
        .into_iter()
        .find(|name| *name != node)
        .unwrap_or_default();
    let api = Api::all(client.clone());
    TEST.run(&api, &NodeAgent::new(other, NodeAgentSpec {}))
        .await
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

    #[tokio::test(start_paused = true)]
    async fn an_agent_waits_until_the_policy_is_in_force_and_says_so() {
        let readiness = Readiness::default();
        let client = server(vec![admitted(), status(403, "Forbidden", DENIED)]);
        let test = policy_in_force(&client, "n1", &readiness);
        let mut test = std::pin::pin!(test);
        assert!(tokio::time::timeout(RETRY / 2, &mut test).await.is_err());
        assert!(
            readiness
                .pending()
                .unwrap()
                .contains("apply config/policies")
        );
        test.await;
        assert!(!readiness.pending().unwrap().contains("policy"));
    }

    #[test]
    fn the_policy_refuses_foreign_nodes_in_the_words_that_the_test_looks_for() {
        let policy = include_str!("../../../config/policies/node_agents.yaml");
        assert!(policy.contains(TEST.policy) && policy.contains(TEST.rule));
    }
}
