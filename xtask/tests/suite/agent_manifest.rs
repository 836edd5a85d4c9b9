//! The shipped node agents run on every node, in a namespace whose quota admits all of them. A test
//! with a fault covers each rule.

use std::path::Path;

use serde_json::{Value, json};

/// Nodes of the largest clusters that Kubernetes supports.
const NODES: u64 = 5_000;

fn manifest(file: &str) -> Value {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/components/agent");
    let text = std::fs::read_to_string(config.join(file)).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

/// Faults of the agents and their quota in a namespace of this name.
fn mistakes(agents: &Value, quota: &Value, place: &Value) -> Vec<&'static str> {
    let class = &agents["spec"]["template"]["spec"]["priorityClassName"];
    let scope = json!([{"scopeName": "PriorityClass", "operator": "In", "values": [class]}]);
    let hard = quota["spec"]["hard"].as_object();
    let pods = quota["spec"]["hard"]["pods"].as_str();
    let pods = pods.and_then(|p| p.strip_suffix('k')?.parse::<u64>().ok());
    let rules = [
        (class == "system-node-critical", "something preempts them"),
        // A further scope would admit fewer pods.
        (
            quota["spec"]["scopeSelector"]["matchExpressions"] == scope,
            "the quota is for others",
        ),
        (
            [agents, quota].map(|o| &o["metadata"]["namespace"]) == [place; 2],
            "agents or quota are in another namespace",
        ),
        // A quota of memory, for example, would require a limit in each pod.
        (
            hard.is_some_and(|h| h.keys().eq(["pods"])),
            "the quota counts more than pods",
        ),
        // One pod per node while all old pods terminate.
        (
            pods.is_some_and(|p| p * 1_000 >= 2 * NODES),
            "the quota has no place for all",
        ),
    ];
    let broken = rules.into_iter().filter(|(holds, _)| !holds);
    broken.map(|(_, mistake)| mistake).collect()
}

/// Faults of the shipped manifests after a change.
fn after(change: fn(&mut Value, &mut Value)) -> Vec<&'static str> {
    let (mut agents, mut quota) = (manifest("daemonset.yaml"), manifest("quota.yaml"));
    change(&mut agents, &mut quota);
    mistakes(
        &agents,
        &quota,
        &manifest("namespace.yaml")["metadata"]["name"],
    )
}

#[test]
fn the_agent_quota_admits_a_pod_for_each_node_while_as_many_are_terminating() {
    assert_eq!(after(|_, _| ()), [""; 0]);
}

#[test]
fn each_rule_finds_the_mistake_that_it_is_shown() {
    let without_class = after(|agents, _| {
        agents["spec"]["template"]["spec"]["priorityClassName"] = Value::Null;
    });
    assert_eq!(
        without_class,
        ["something preempts them", "the quota is for others"]
    );
    let another_scope = after(|_, quota| {
        let scopes = &mut quota["spec"]["scopeSelector"]["matchExpressions"];
        let best_effort = json!({"scopeName": "BestEffort", "operator": "Exists"});
        scopes.as_array_mut().unwrap().push(best_effort);
    });
    assert_eq!(another_scope, ["the quota is for others"]);
    let elsewhere = after(|_, quota| quota["metadata"]["namespace"] = json!("default"));
    assert_eq!(elsewhere, ["agents or quota are in another namespace"]);
    let memory = after(|_, quota| quota["spec"]["hard"]["limits.memory"] = json!("1Ti"));
    assert_eq!(memory, ["the quota counts more than pods"]);
    let few = after(|_, quota| quota["spec"]["hard"]["pods"] = json!("9k"));
    assert_eq!(few, ["the quota has no place for all"]);
}
