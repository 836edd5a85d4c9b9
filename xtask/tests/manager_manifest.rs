//! The manager as it is shipped: nobody's victim, and with memory for the clusters that it is made for.

// `cfg(test)` always holds here; it tells clippy that helpers of tests may unwrap.
#![cfg(test)]

use std::path::Path;

use serde_json::Value;

/// Pods of the largest clusters: what Kubernetes supports is half of that.
const PODS: u64 = 300_000;
/// Bytes of a pod in the index; a cycle of the scheduler looks at a copy while the index goes on.
const POD: u64 = 1_024;
const COPIES: u64 = 2;

fn manifest(file: &str) -> Value {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/manager");
    let text = std::fs::read_to_string(config.join(file)).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

#[test]
fn the_manager_has_a_priority_that_nothing_preempts_and_a_quota_that_admits_it_in_its_namespace() {
    let (manager, quota) = (manifest("deployment.yaml"), manifest("quota.yaml"));
    let class = &manager["spec"]["template"]["spec"]["priorityClassName"];
    assert_eq!(class, "system-cluster-critical");
    let scope = &quota["spec"]["scopeSelector"]["matchExpressions"][0];
    assert_eq!(scope["scopeName"], "PriorityClass");
    assert_eq!(scope["values"], serde_json::json!([class]));
    assert_eq!(
        quota["metadata"]["namespace"],
        manager["metadata"]["namespace"]
    );
    let pods: u64 = quota["spec"]["hard"]["pods"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let replicas = manager["spec"]["replicas"].as_u64().unwrap();
    assert!(pods >= 2 * (replicas + 1), "a rollout adds as many");
}

#[test]
fn the_manager_learns_its_own_namespace_where_nothing_is_evicted() {
    let manager = manifest("deployment.yaml");
    let container = &manager["spec"]["template"]["spec"]["containers"][0];
    let env = container["env"].as_array().unwrap();
    let own = env.iter().find(|e| e["name"] == "POD_NAMESPACE").unwrap();
    assert_eq!(
        own["valueFrom"]["fieldRef"]["fieldPath"],
        "metadata.namespace"
    );
}

#[test]
fn the_memory_of_the_manager_is_enough_for_the_pods_of_the_largest_clusters() {
    let manager = manifest("deployment.yaml");
    let container = &manager["spec"]["template"]["spec"]["containers"][0];
    let limit = container["resources"]["limits"]["memory"].as_str().unwrap();
    let gib: u64 = limit.strip_suffix("Gi").unwrap().parse().unwrap();
    let (limit, pods) = (gib << 30, COPIES * PODS * POD);
    assert!(limit >= pods + pods / 2, "{limit} for {pods} of pods alone");
}
