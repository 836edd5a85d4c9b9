//! The node agents as they are shipped: on every node, in a namespace whose quota admits them all.

// `cfg(test)` always holds here; it tells clippy that helpers of tests may unwrap.
#![cfg(test)]

use std::path::Path;

use serde_json::Value;

/// Nodes of the largest clusters: what Kubernetes supports.
const NODES: u64 = 5_000;

fn manifest(file: &str) -> Value {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/components/agent");
    let text = std::fs::read_to_string(config.join(file)).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

#[test]
fn the_quota_of_the_agents_is_in_their_namespace_and_for_their_class() {
    let (agents, quota) = (manifest("daemonset.yaml"), manifest("quota.yaml"));
    let class = &agents["spec"]["template"]["spec"]["priorityClassName"];
    assert_eq!(class, "system-node-critical");
    let scopes = quota["spec"]["scopeSelector"]["matchExpressions"]
        .as_array()
        .unwrap();
    assert_eq!(scopes.len(), 1, "another scope would admit fewer");
    assert_eq!(scopes[0]["scopeName"], "PriorityClass");
    assert_eq!(scopes[0]["operator"], "In");
    assert_eq!(scopes[0]["values"], serde_json::json!([class]));
    let place = &manifest("namespace.yaml")["metadata"]["name"];
    assert_eq!(&agents["metadata"]["namespace"], place);
    assert_eq!(&quota["metadata"]["namespace"], place);
}

#[test]
fn the_quota_of_the_agents_admits_a_pod_for_each_node_while_as_many_are_ending() {
    let quota = manifest("quota.yaml");
    let hard = quota["spec"]["hard"].as_object().unwrap();
    // A quota of memory, say, would demand it of each pod and count it.
    assert!(hard.keys().eq(["pods"]), "{hard:?}");
    let pods = hard["pods"].as_str().unwrap().strip_suffix('k').unwrap();
    let pods = pods.parse::<u64>().unwrap() * 1_000;
    assert!(pods >= 2 * NODES, "{pods} for {NODES} nodes");
}
