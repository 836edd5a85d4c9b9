//! Containers other than the training container: effects of their exits.

use k8s_openapi::api::core::v1::Pod;
use lockstep_api::workload::{FailureAction, Phase};
use lockstep_sim::Solo;
use lockstep_sim::solo::gang_with;
use serde_json::{Value, json};

/// Members with an additional container `log` and a sidecar `watcher`. `rules`: failure rules.
/// `own`: restart rules of the watcher.
fn accompanied(n: i32, rules: &Value, own: &Value) -> Value {
    let mut spec = gang_with(
        n,
        &json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Allow"}, "rules": rules}}),
    );
    let pod = &mut spec["groups"][0]["template"]["spec"];
    pod["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "log", "image": "i"}));
    pod["initContainers"] = json!([
        {"name": "setup", "image": "i"},
        {"name": "watcher", "image": "i", "restartPolicy": "Always", "restartPolicyRules": own},
    ]);
    spec
}

fn on(container: &str, code: i32, action: &str) -> Value {
    json!([{"name": "named", "action": action,
        "match": {"containers": [container], "exitCodes": {"operator": "In", "values": [code]}}}])
}

fn restart_all_on(code: i32) -> Value {
    json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [code]}}])
}

/// A running workload on kubelets that can restart all containers of a pod.
fn begun(spec: Value) -> Solo {
    let mut w = Solo::new(spec);
    for node in w.node_names() {
        w.set_restart_all(&node, true);
    }
    w.settle();
    w
}

#[test]
fn a_rule_that_names_a_container_beside_the_training_container_answers_its_end() {
    for agents in [true, false] {
        let mut w = begun(accompanied(2, &on("log", 3, "FailWorkload"), &json!([])));
        w.faults(|f| f.no_agent = !agents);
        w.settle();
        let pod = w.pod("g", 1);
        assert!(w.exit_container(&pod, "log", 4));
        w.settle();
        assert_eq!(
            w.status().phase,
            Some(Phase::Running),
            "no rule has that code"
        );
        let pod = w.pod("g", 1);
        assert!(w.exit_container(&pod, "log", 3));
        w.settle();
        let cause = w.status().history[0].cause.clone();
        assert_eq!(w.condition("Failed"), "FailurePolicy", "agents: {agents}");
        assert_eq!(
            (
                cause.container.as_str(),
                cause.exit_code,
                cause.rule.as_str()
            ),
            ("log", Some(3), "named")
        );
    }
}

#[test]
fn a_restart_pod_rule_for_a_companion_container_replaces_the_pod() {
    let mut w = begun(accompanied(2, &on("log", 3, "RestartPod"), &json!([])));
    let before = w.uids();
    let pod = w.pod("g", 1);
    assert!(w.exit_container(&pod, "log", 3));
    w.settle();
    let (s, after) = (w.status(), w.uids());
    let replaced = after
        .iter()
        .filter(|(member, uid)| before[*member] != **uid);
    assert_eq!(
        (s.phase, s.attempt, replaced.count()),
        (Some(Phase::Running), 1, 1)
    );
}

#[test]
fn the_end_of_a_container_that_a_rule_names_restarts_the_gang_once() {
    let mut w = begun(accompanied(2, &on("log", 3, "RestartGang"), &json!([])));
    let pod = w.pod("g", 1);
    assert!(w.exit_container(&pod, "log", 3));
    w.settle();
    let s = w.status();
    assert_eq!(
        (s.phase, s.attempt, s.restarts.counted, s.history.len()),
        (Some(Phase::Running), 2, 1, 1)
    );
    assert_eq!(s.history[0].cause.container, "log");
}

#[test]
fn a_rule_without_containers_ignores_exits_of_companion_containers() {
    let all = json!([{"name": "all", "action": "FailWorkload"}]);
    let mut w = begun(accompanied(2, &all, &json!([])));
    let pod = w.pod("g", 0);
    assert!(w.exit_container(&pod, "log", 3));
    w.settle();
    assert_eq!(
        (w.status().phase, w.status().attempt),
        (Some(Phase::Running), 1)
    );
}

#[test]
fn an_init_container_named_by_a_rule_fails_the_workload_before_training_starts() {
    let mut spec = accompanied(2, &on("setup", 4, "FailWorkload"), &json!([]));
    spec["groups"][0]["template"]["spec"]["initContainers"][0]["env"] =
        json!([{"name": "HOLLOW_EXIT", "value": "4"}]);
    let mut w = Solo::new(spec);
    w.settle();
    assert_eq!(w.condition("Failed"), "FailurePolicy");
    assert_eq!(w.status().history[0].cause.container, "setup");
}

#[test]
fn a_watcher_that_restarts_its_pod_is_the_cause_of_what_follows() {
    for agents in [true, false] {
        let mut w = begun(accompanied(2, &json!([]), &restart_all_on(88)));
        w.faults(|f| f.no_agent = !agents);
        w.settle();
        let pod = w.pod("g", 1);
        assert!(w.exit_container(&pod, "watcher", 88));
        w.settle();
        let s = w.status();
        let cause = s.history[0].cause.clone();
        assert_eq!(
            (cause.container.as_str(), cause.exit_code),
            ("watcher", Some(88)),
            "agents: {agents}"
        );
        assert_eq!(
            (s.phase, s.attempt, s.restarts.counted, s.history.len()),
            (Some(Phase::Running), 2, 1, 1)
        );
    }
}

#[test]
fn a_training_container_ended_by_a_watcher_never_counts_as_succeeded() {
    for agents in [true, false] {
        let mut spec = accompanied(2, &json!([]), &restart_all_on(88));
        spec["groups"][0]["template"]["spec"]["containers"][0]["env"] =
            json!([{"name": "HOLLOW_ON_TERM", "value": "0"}]);
        let mut w = begun(spec);
        w.faults(|f| f.no_agent = !agents);
        w.settle();
        let pod = w.pod("g", 0);
        assert!(w.exit_container(&pod, "watcher", 88));
        w.settle();
        let s = w.status();
        assert_eq!(
            (s.phase, s.attempt, s.groups[0].completed_indexes.as_str()),
            (Some(Phase::Running), 2, "")
        );
    }
}

#[test]
fn a_policy_that_fails_on_what_it_does_not_know_knows_the_watcher() {
    let rules = json!([
        {"name": "retry", "action": "RestartGang", "match": {"exitCodes": {"operator": "In", "values": [88]}}},
        {"name": "rest", "action": "FailWorkload", "match": {"exitCodes": {"operator": "NotIn", "values": [0]}}}]);
    let mut w = begun(accompanied(2, &rules, &restart_all_on(88)));
    let pod = w.pod("g", 1);
    assert!(w.exit_container(&pod, "watcher", 88));
    w.settle();
    let s = w.status();
    assert_eq!(
        (s.phase, s.history[0].cause.rule.as_str()),
        (Some(Phase::Running), "retry"),
        "the training container was ended by its kubelet, with 143"
    );
}

#[test]
fn a_rule_can_leave_a_watchers_restart_to_the_kubelet() {
    let mut w = begun(accompanied(
        2,
        &on("watcher", 88, "RestartPod"),
        &restart_all_on(88),
    ));
    let before = w.uids();
    let pod = w.pod("g", 1);
    assert!(w.exit_container(&pod, "watcher", 88));
    w.settle();
    let s = w.status();
    assert_eq!((s.attempt, w.uids() == before), (1, true));
    assert_eq!(
        (
            s.history[0].action,
            s.history[0].cause.exit_code,
            s.restarts.counted
        ),
        (FailureAction::RestartPod, Some(88), 1)
    );
}

#[test]
fn a_rule_that_restarts_the_pod_restarts_containers_that_admission_has_added() {
    let rule = json!([{"name": "pod", "action": "RestartPod",
        "match": {"exitCodes": {"operator": "In", "values": [9]}}}]);
    let mut w = Solo::new(gang_with(2, &json!({"failurePolicy": {"rules": rule}})));
    for node in w.node_names() {
        w.set_restart_all(&node, true);
    }
    w.store().admission.webhook = Some(Box::new(|pod| {
        let containers = pod["spec"]["containers"].as_array_mut().unwrap();
        containers.push(json!({"name": "proxy", "image": "i"}));
        Ok(())
    }));
    w.settle();
    let before = w.uids();
    w.exit("g", 0, 9);
    w.settle();
    let after = w.uids();
    assert_ne!(after["g-0-0"], before["g-0-0"], "the pod has another proxy");
    assert_eq!(after["g-1-0"], before["g-1-0"]);
    let s = w.status();
    assert_eq!((s.attempt, s.phase), (1, Some(Phase::Running)));
    assert_eq!(s.history[0].action, FailureAction::RestartPod);
}

#[test]
fn what_fails_long_after_a_watcher_has_restarted_the_pod_is_a_failure_of_its_own() {
    for in_place in ["Allow", "Deny"] {
        let rules = on("watcher", 88, "RestartPod");
        let mut spec = accompanied(2, &rules, &restart_all_on(88));
        spec["failurePolicy"]["inPlace"]["withoutSupervisor"] = json!(in_place);
        let mut w = begun(spec);
        let pod = w.pod("g", 1);
        assert!(w.exit_container(&pod, "watcher", 88));
        w.settle();
        assert_eq!(w.status().attempt, 1);
        w.wait(3600);
        w.exit("g", 1, 1);
        w.settle();
        let s = w.status();
        assert_eq!(
            (s.attempt, s.phase),
            (2, Some(Phase::Running)),
            "{in_place}"
        );
    }
}

/// A basic group whose training container restarts after success.
fn tasks(action: &str) -> Value {
    let mut spec = gang_with(2, &json!({"scheduling": {"policy": "Basic"}}));
    let container = &mut spec["groups"][0]["template"]["spec"]["containers"][0];
    container["restartPolicy"] = json!("Never");
    container["restartPolicyRules"] =
        json!([{"action": action, "exitCodes": {"operator": "In", "values": [0]}}]);
    spec
}

#[test]
fn a_task_that_ends_and_starts_again_costs_nothing_and_never_ends_the_workload() {
    for action in ["Restart", "RestartAllContainers"] {
        for agents in [true, false] {
            let mut w = Solo::new(tasks(action));
            for node in w.node_names() {
                w.set_restart_all(&node, true);
            }
            w.faults(|f| f.no_agent = !agents);
            w.settle();
            for _ in 0..12 {
                w.exit("g", 0, 0);
                w.settle();
                w.wait(400);
            }
            let s = w.status();
            assert_eq!(
                (s.phase, s.restarts.counted, s.history.len()),
                (Some(Phase::Running), 0, 0),
                "{action}, agents: {agents}"
            );
            assert_eq!(w.restarts(), [12, 0]);
        }
    }
}

#[test]
fn a_restart_of_the_pod_runs_its_init_containers_again_in_every_tier() {
    for restart_all in [true, false] {
        let rule = json!([{"name": "pod", "action": "RestartPod",
            "match": {"exitCodes": {"operator": "In", "values": [5]}}}]);
        let mut spec = gang_with(1, &json!({"failurePolicy": {"rules": rule}}));
        spec["groups"][0]["template"]["spec"]["initContainers"] =
            json!([{"name": "setup", "image": "i"}]);
        let mut w = Solo::new(spec);
        for node in w.node_names() {
            w.set_restart_all(&node, restart_all);
        }
        w.settle();
        let before = w.uids();
        w.exit("g", 0, 5);
        w.settle();
        let pod = w.pod("g", 0);
        let setups = pod.status.unwrap().init_container_statuses.unwrap();
        let again = setups[0].restart_count == 1;
        assert_eq!((again, w.uids() == before), (restart_all, restart_all));
        assert_eq!(w.status().restarts.counted, 1);
    }
}

#[test]
fn a_gang_with_a_watcher_is_placed_on_nodes_only_that_can_restart_all_of_a_pod() {
    let mut w = Solo::new(accompanied(2, &json!([]), &restart_all_on(88)));
    for node in ["n0", "n1", "n2"] {
        w.set_restart_all(node, false);
    }
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    assert_eq!(
        (w.node_of("g", 0), w.node_of("g", 1)),
        ("n3".into(), "n3".into())
    );
    assert!(
        w.status().gangs[0].avoid.is_empty(),
        "nothing was tried in vain"
    );
}

#[test]
fn a_watchers_restart_that_is_left_to_the_kubelet_ends_under_a_supervisor_too() {
    let mut spec = accompanied(2, &on("watcher", 88, "RestartPod"), &restart_all_on(88));
    spec["failurePolicy"]["inPlace"]["withoutSupervisor"] = json!("Deny");
    let mut w = Solo::supervised(spec);
    for node in w.node_names() {
        w.set_restart_all(&node, true);
    }
    w.settle();
    let before = w.uids();
    let pod = w.pod("g", 1);
    assert!(w.exit_container(&pod, "watcher", 88));
    w.settle();
    assert_eq!((w.uids(), w.status().attempt), (before, 1));
    let running: Vec<u64> = w.children().into_values().collect();
    assert_eq!(running, [1, 1], "{}", w.story(40));
}

/// A gang whose init container `preflight` judges its node.
fn judged(n: i32, env: &Value) -> Value {
    let rules = json!([{"name": "preflight", "action": "RestartGang", "failedMember": "ReplaceElsewhere",
        "counted": false, "match": {"containers": ["preflight"], "exitCodes": {"operator": "In", "values": [3]}}}]);
    let mut spec = gang_with(n, &json!({"failurePolicy": {"rules": rules}}));
    spec["groups"][0]["template"]["spec"]["initContainers"] =
        json!([{"name": "preflight", "image": "i", "env": env}]);
    spec
}

#[test]
fn an_init_container_judges_its_node_at_its_first_exit() {
    for supervised in [true, false] {
        let env = json!([{"name": "HOLLOW_RUN_MILLIS", "value": "10000"}]);
        let mut w = Solo::supervised_if(supervised, judged(2, &env));
        w.rounds(4);
        let (pod, node) = (w.pod("g", 1), w.node_of("g", 1));
        let since = w.now();
        assert!(w.exit_container(&pod, "preflight", 3));
        w.until("another node", |w| {
            let is_moved = |p: &Pod| {
                let at = p.spec.as_ref().and_then(|s| s.node_name.as_ref());
                p.metadata.name == pod.metadata.name && at.is_some_and(|n| *n != node)
            };
            w.pods().iter().any(is_moved)
        });
        let took = (w.now() - since).num_seconds();
        assert!(took <= 20, "{took} s instead of the start deadline");
        w.settle();
        let s = w.status();
        assert_eq!((s.phase, s.restarts.counted), (Some(Phase::Running), 0));
        let avoided = &s.gangs[0].avoid[0];
        assert_eq!((&avoided.node, avoided.exit_code), (&node, Some(3)));
    }
}

#[test]
fn the_same_exit_code_of_an_init_container_on_three_nodes_fails_the_workload() {
    let env = json!([{"name": "HOLLOW_EXIT", "value": "3"}]);
    let mut w = Solo::new(judged(1, &env));
    w.wait(600);
    let s = w.status();
    assert_eq!(w.condition("Failed"), "StartError", "{}", s.message);
}
