//! The shipped manager is never preempted, and has enough memory for supported clusters. A test
//! with a fault covers each rule.

use std::path::Path;

use serde_json::{Value, json};

/// Pods of the largest clusters: twice the number that Kubernetes supports.
const PODS: u64 = 300_000;
/// Bytes of a pod in the index. The scheduler's cycle uses a copy while the index changes.
const POD: u64 = 1_024;
const COPIES: u64 = 2;
const NONE: [&str; 0] = [];

fn manifest(file: &str) -> Value {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/manager");
    let text = std::fs::read_to_string(config.join(file)).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

struct Manifests {
    manager: Value,
    quota: Value,
    budget: Value,
}

fn shipped() -> Manifests {
    Manifests {
        manager: manifest("deployment.yaml"),
        quota: manifest("quota.yaml"),
        budget: manifest("disruption_budget.yaml"),
    }
}

/// Budget and replicas after `config/components/ha-3`.
fn with_three() -> Manifests {
    let patch = |file: &str| manifest(&format!("../components/ha-3/{file}"))["spec"].clone();
    let mut three = shipped();
    three.budget["spec"]["minAvailable"] = patch("disruption_budget.yaml")["minAvailable"].clone();
    three.manager["spec"]["replicas"] = patch("deployment.yaml")["replicas"].clone();
    three
}

/// A condition, and the fault if it is not met.
type Rule = (bool, &'static str);

fn broken(rules: Vec<Rule>) -> Vec<&'static str> {
    let broken = rules.into_iter().filter(|(holds, _)| !holds);
    broken.map(|(_, mistake)| mistake).collect()
}

fn of_class_and_quota(m: &Manifests) -> Vec<Rule> {
    let class = &m.manager["spec"]["template"]["spec"]["priorityClassName"];
    let scope = &m.quota["spec"]["scopeSelector"]["matchExpressions"][0];
    let pods = m.quota["spec"]["hard"]["pods"].as_str();
    let pods = pods.and_then(|p| p.parse::<u64>().ok());
    let replicas = m.manager["spec"]["replicas"].as_u64();
    let place = &m.manager["metadata"]["namespace"];
    vec![
        (class == "system-cluster-critical", "something preempts it"),
        (
            scope["scopeName"] == "PriorityClass" && scope["values"] == json!([class]),
            "the quota is for another class",
        ),
        (
            m.quota["metadata"]["namespace"] == *place,
            "the quota is in another namespace",
        ),
        // A rollout adds the same number.
        (
            pods.zip(replicas).is_some_and(|(p, r)| p >= 2 * (r + 1)),
            "the quota stops a rollout",
        ),
    ]
}

fn of_drains(m: &Manifests) -> Vec<Rule> {
    let stay = m.budget["spec"]["minAvailable"].as_u64().unwrap_or(0);
    let replicas = m.manager["spec"]["replicas"].as_u64().unwrap_or(0);
    vec![
        (stay >= 1, "a drain takes all"),
        (replicas == stay + 1, "a drain hangs, or takes several"),
    ]
}

fn of_budget(m: &Manifests) -> Vec<Rule> {
    let labels = &m.manager["spec"]["template"]["metadata"]["labels"];
    let place = &m.manager["metadata"]["namespace"];
    vec![
        // Not the pods of `lockstep-components`, which have the same name.
        (
            m.budget["spec"]["selector"]["matchLabels"] == *labels
                && labels["app.kubernetes.io/component"] == "manager",
            "the budget is for others",
        ),
        (
            m.budget["metadata"]["namespace"] == *place,
            "the budget is in another namespace",
        ),
        (
            m.budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow",
            "broken managers hold up a drain",
        ),
    ]
}

fn of_namespace(m: &Manifests) -> Vec<Rule> {
    let container = &m.manager["spec"]["template"]["spec"]["containers"][0];
    let mut env = container["env"].as_array().into_iter().flatten();
    let own = env.find(|e| e["name"] == "POD_NAMESPACE");
    let path = own.map(|e| &e["valueFrom"]["fieldRef"]["fieldPath"]);
    vec![(
        path.is_some_and(|p| p == "metadata.namespace"),
        "it does not know its namespace",
    )]
}

fn of_memory(m: &Manifests) -> Vec<Rule> {
    let container = &m.manager["spec"]["template"]["spec"]["containers"][0];
    let limit = container["resources"]["limits"]["memory"].as_str();
    let gib = limit.and_then(|l| l.strip_suffix("Gi")?.parse::<u64>().ok());
    let pods = COPIES * PODS * POD;
    vec![(
        gib.is_some_and(|gib| gib << 30 >= pods + pods / 2),
        "memory for fewer pods, or not in Gi",
    )]
}

#[test]
fn the_manager_has_a_priority_above_preemption_and_a_quota_that_admits_it() {
    for manifests in [shipped(), with_three()] {
        assert_eq!(broken(of_class_and_quota(&manifests)), NONE);
    }
}

#[test]
fn the_disruption_budget_lets_a_drain_take_one_manager_and_never_the_last() {
    for manifests in [shipped(), with_three()] {
        assert_eq!(broken(of_drains(&manifests)), NONE);
    }
}

#[test]
fn the_disruption_budget_selects_only_managers_and_unhealthy_pods_block_no_drain() {
    assert_eq!(broken(of_budget(&shipped())), NONE);
}

#[test]
fn the_manager_learns_its_own_namespace_where_nothing_is_evicted() {
    assert_eq!(broken(of_namespace(&shipped())), NONE);
}

#[test]
fn the_memory_of_the_manager_is_enough_for_the_pods_of_the_largest_clusters() {
    assert_eq!(broken(of_memory(&shipped())), NONE);
}

type Change = fn(&mut Manifests);

const MISTAKES: [(Change, &[&str]); 12] = [
    (
        |m| m.manager["spec"]["template"]["spec"]["priorityClassName"] = Value::Null,
        &["something preempts it", "the quota is for another class"],
    ),
    (
        |m| m.quota["spec"]["scopeSelector"] = Value::Null,
        &["the quota is for another class"],
    ),
    (
        |m| m.quota["metadata"]["namespace"] = json!("default"),
        &["the quota is in another namespace"],
    ),
    (
        |m| m.quota["spec"]["hard"]["pods"] = json!("3"),
        &["the quota stops a rollout"],
    ),
    (
        |m| m.budget["spec"]["minAvailable"] = json!(2),
        &["a drain hangs, or takes several"],
    ),
    (
        |m| m.budget["spec"]["minAvailable"] = json!(0),
        &["a drain takes all", "a drain hangs, or takes several"],
    ),
    (
        |m| m.manager["spec"]["replicas"] = json!(3),
        &["a drain hangs, or takes several"],
    ),
    (
        |m| m.budget["spec"]["selector"]["matchLabels"] = json!({}),
        &["the budget is for others"],
    ),
    (
        |m| m.budget["metadata"]["namespace"] = json!("default"),
        &["the budget is in another namespace"],
    ),
    (
        |m| m.budget["spec"]["unhealthyPodEvictionPolicy"] = Value::Null,
        &["broken managers hold up a drain"],
    ),
    (
        |m| container(m)["env"] = json!([]),
        &["it does not know its namespace"],
    ),
    (
        |m| container(m)["resources"]["limits"]["memory"] = json!("256Mi"),
        &["memory for fewer pods, or not in Gi"],
    ),
];

fn container(m: &mut Manifests) -> &mut Value {
    &mut m.manager["spec"]["template"]["spec"]["containers"][0]
}

#[test]
fn each_rule_finds_the_mistake_that_it_is_shown() {
    for (change, expected) in MISTAKES {
        let mut m = shipped();
        change(&mut m);
        let rules = [
            of_class_and_quota(&m),
            of_drains(&m),
            of_budget(&m),
            of_namespace(&m),
            of_memory(&m),
        ];
        assert_eq!(broken(rules.concat()), expected);
    }
}

/// Rights that only a component grants: API group, resource.
fn rights_of(file: &str) -> Vec<(String, String)> {
    let role = manifest(file);
    let rules = role["rules"].as_array().unwrap();
    let texts = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).unwrap() };
    let of_rule = |rule: &Value| {
        let resources = texts(&rule["resources"]);
        let pairs = texts(&rule["apiGroups"])
            .into_iter()
            .flat_map(move |group| {
                resources
                    .clone()
                    .into_iter()
                    .map(move |r| (group.clone(), r))
            });
        pairs.collect::<Vec<_>>()
    };
    rules.iter().flat_map(of_rule).collect()
}

#[test]
fn rights_for_autoscalers_and_kueue_are_in_components_only() {
    let base = rights_of("role.yaml");
    let foreign = ["autoscaling.x-k8s.io", "kueue.x-k8s.io"];
    for component in ["provisioning-requests", "kueue"] {
        let own = rights_of(&format!("../components/{component}/role.yaml"));
        assert!(own.iter().any(|(group, _)| foreign.contains(&&**group)));
        let both: Vec<_> = own.iter().filter(|right| base.contains(right)).collect();
        assert!(both.is_empty(), "{component}: {both:?}");
        let binding = manifest(&format!("../components/{component}/role_binding.yaml"));
        let account = json!([{"kind": "ServiceAccount", "name": "lockstep-manager", "namespace": "lockstep-system"}]);
        assert_eq!(binding["subjects"], account, "{component}");
    }
    for overlay in ["default", "full"] {
        let text = manifest(&format!("../overlays/{overlay}/kustomization.yaml")).to_string();
        for component in ["provisioning-requests", "signal-pods", "kueue"] {
            assert!(!text.contains(component), "{overlay}: {component}");
        }
    }
}
