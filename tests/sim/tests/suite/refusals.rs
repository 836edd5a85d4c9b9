//! kube-scheduler refuses with the recorded messages.

use k8s_openapi::api::core::v1::Pod;
use lockstep_sim::{Gangs, Key};
use serde_json::{Value, json};

/// kube-scheduler's message for a pod pinned to `n2`, with further fields.
fn refusal(more: &Value) -> Option<String> {
    let mut world = Gangs::new(&[("n1", 4), ("n2", 1), ("n3", 4)]);
    let holder = json!({"metadata": {"labels": {"app": "holder"}},
        "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}],
            "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}});
    world.foreign_with("holder", "n2", 0, 1, &holder);
    let pin =
        json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}]);
    let mut pod = json!({"metadata": {"name": "p", "namespace": "ml"}, "spec": {
        "containers": [{"name": "c"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": pin}}}}});
    for (field, value) in more.as_object().unwrap() {
        match (pod["spec"][field].as_object_mut(), value.as_object()) {
            (Some(old), Some(new)) => old.extend(new.clone()),
            _ => pod["spec"][field] = value.clone(),
        }
    }
    world.create::<Pod>(&serde_json::from_value(pod).unwrap());
    world.bind();
    let pod: Pod = world.get(&Key::new("ml", "p")).unwrap();
    let conditions = pod.status.unwrap().conditions.unwrap();
    let said = conditions
        .into_iter()
        .find(|c| c.type_ == "PodScheduled")
        .unwrap();
    said.message
}

#[test]
fn the_reason_of_the_pinned_node_is_the_recorded_one() {
    let container = |more: Value| {
        let mut container = json!({"name": "c"});
        container
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({"containers": [container]})
    };
    let anti = json!([{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "holder"}}}]);
    let cases = [
        (
            container(json!({"resources": {"limits": {"nvidia.com/gpu": "1"}}})),
            "1 Insufficient nvidia.com/gpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]. ",
        ),
        (
            container(json!({"ports": [{"containerPort": 80, "hostPort": 80}]})),
            "1 node(s) didn't have free ports for the requested pod ports, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]. ",
        ),
        (
            json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": anti}}}),
            "1 node(s) didn't match pod anti-affinity rules, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]. ",
        ),
        (
            json!({"nodeSelector": {"zone": "elsewhere"}}),
            "1 node(s) didn't match Pod's node affinity/selector, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]. ",
        ),
        (
            json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}]}),
            "persistentvolumeclaim \"none\" not found. not found",
        ),
    ];
    for (more, words) in cases {
        let said = refusal(&more).unwrap_or_default();
        let expected = format!("0/3 nodes are available: {words}");
        assert!(said.starts_with(&expected), "{said}\n{expected}");
    }
    assert_eq!(refusal(&json!({})), None, "nothing is in the way");
}
