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

/// Budget and replicas of the Deployment as `config/components/ha-3` changes them.
fn with_three() -> (Value, Value) {
    let patch = |file: &str| manifest(&format!("../components/ha-3/{file}"));
    let (budget, manager) = (patch("disruption_budget.yaml"), patch("deployment.yaml"));
    (
        budget["spec"]["minAvailable"].clone(),
        manager["spec"]["replicas"].clone(),
    )
}

#[test]
fn the_disruption_budget_lets_a_drain_take_one_manager_and_never_the_last() {
    let (manager, budget) = (
        manifest("deployment.yaml"),
        manifest("disruption_budget.yaml"),
    );
    let shipped = (
        budget["spec"]["minAvailable"].clone(),
        manager["spec"]["replicas"].clone(),
    );
    for (stay, replicas) in [shipped, with_three()] {
        let (stay, replicas) = (stay.as_u64().unwrap(), replicas.as_u64().unwrap());
        assert!(stay >= 1, "a drain takes all");
        assert_eq!(replicas - stay, 1, "a drain hangs, or takes several");
    }
}

#[test]
fn the_disruption_budget_is_for_the_managers_alone_and_those_that_are_broken_hold_up_no_drain() {
    let (manager, budget) = (
        manifest("deployment.yaml"),
        manifest("disruption_budget.yaml"),
    );
    let labels = &manager["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&budget["spec"]["selector"]["matchLabels"], labels);
    // Not the pods of `lockstep-components`, which have the same name.
    assert_eq!(labels["app.kubernetes.io/component"], "manager");
    assert_eq!(
        budget["metadata"]["namespace"],
        manager["metadata"]["namespace"]
    );
    assert_eq!(budget["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow");
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
