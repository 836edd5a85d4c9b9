//! Policies, rules (KEP-5307) and crash back-off.

use serde_json::{Value, json};

use super::*;

/// Exits of a pod's only container and their effect.
#[test]
fn policy_and_rules_decide_whether_an_exit_restarts_the_container() {
    let rule = |action: &str, op: &str, values: &[i32]| with_rule("c", action, op, values);
    let own = |policy: &str| json!({"name": "c", "image": "i", "restartPolicy": policy});
    let cases: Vec<(&str, Value, i32, &str)> = vec![
        ("Always", plain("c"), 0, "Running"),
        ("Always", plain("c"), 1, "Running"),
        ("OnFailure", plain("c"), 0, "Succeeded"),
        ("OnFailure", plain("c"), 1, "Running"),
        ("Never", plain("c"), 0, "Succeeded"),
        ("Never", plain("c"), 1, "Failed"),
        // The container's policy overrides the pod's.
        ("Never", own("OnFailure"), 1, "Running"),
        ("Always", own("Never"), 1, "Failed"),
        ("Always", own("Never"), 0, "Succeeded"),
        // A matching rule overrides both. Without a match, the policy decides.
        ("Never", rule("Restart", "In", &[42]), 42, "Running"),
        ("Never", rule("Restart", "In", &[42]), 41, "Failed"),
        ("Never", rule("Restart", "NotIn", &[0, 3]), 137, "Running"),
        ("Never", rule("Restart", "NotIn", &[0, 3]), 3, "Failed"),
        ("Never", rule("Restart", "NotIn", &[0, 3]), 0, "Succeeded"),
        ("Never", rule("Restart", "In", &[0]), 0, "Running"),
        (
            "Never",
            rule("RestartAllContainers", "In", &[42]),
            42,
            "Running",
        ),
        (
            "Never",
            rule("RestartAllContainers", "In", &[42]),
            1,
            "Failed",
        ),
    ];
    for (policy, container, code, phase) in cases {
        let mut rig = Rig::new(json!({"restartPolicy": policy, "containers": [container.clone()]}));
        rig.settle();
        assert_eq!(rig.phase(), "Running");
        rig.exit("c", code);
        rig.settle();
        assert_eq!(
            rig.phase(),
            phase,
            "policy {policy}, exit {code}, {container}"
        );
        assert_eq!(
            rig.container("c").restart_count,
            i32::from(phase == "Running")
        );
    }
}

#[test]
fn the_first_matching_rule_wins() {
    let mut c = with_rule("c", "Restart", "In", &[1]);
    c["restartPolicyRules"]
        .as_array_mut()
        .unwrap()
        .push(json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1, 2]}}));
    let mut rig = Rig::new(json!({"restartPolicy": "Never", "containers": [c, plain("other")]}));
    rig.settle();
    rig.exit("c", 1);
    rig.settle();
    assert_eq!(
        (
            rig.container("c").restart_count,
            rig.container("other").restart_count
        ),
        (1, 0)
    );
    rig.advance(60);
    rig.exit("c", 2);
    rig.settle();
    assert_eq!(
        (
            rig.container("c").restart_count,
            rig.container("other").restart_count
        ),
        (2, 1)
    );
}

#[test]
fn a_kubelet_before_1_35_ignores_rules_and_container_policies() {
    let mut rig = Rig::new(
        json!({"restartPolicy": "Never", "containers": [with_rule("c", "Restart", "In", &[42])]}),
    );
    rig.config.restart_rules = false;
    rig.settle();
    rig.exit("c", 42);
    rig.settle();
    assert_eq!(rig.phase(), "Failed");
}

#[test]
fn the_second_crash_waits_ten_seconds_and_then_shows_crash_loop_back_off() {
    let ruled = with_rule("c", "Restart", "NotIn", &[0]);
    for (policy, container) in [("Always", plain("c")), ("Never", ruled)] {
        let mut rig = Rig::new(json!({"restartPolicy": policy, "containers": [container]}));
        rig.settle();
        rig.exit("c", 3);
        rig.settle();
        assert_eq!(
            rig.states("c"),
            ("running".into(), "exit 3".into()),
            "the first crash restarts at once"
        );
        rig.advance(1);
        rig.exit("c", 4);
        let first = rig.settle();
        assert_eq!(rig.states("c"), ("exit 4".into(), "exit 3".into()));
        assert_eq!(first.wake, Some(rig.now + TimeDelta::seconds(10)));
        assert_eq!(rig.phase(), "Running", "terminated is not finished");
        rig.advance(10);
        rig.step();
        assert_eq!(
            rig.states("c"),
            ("CrashLoopBackOff".into(), "exit 4".into())
        );
        rig.settle();
        assert_eq!(rig.states("c"), ("running".into(), "exit 4".into()));
        assert_eq!(rig.container("c").restart_count, 2);
    }
}

#[test]
fn a_rule_restarts_an_init_container_until_it_succeeds_or_no_rule_matches() {
    for (codes, phase) in [(vec![42, 0], "Running"), (vec![42, 7], "Failed")] {
        let mut rig = Rig::new(json!({"restartPolicy": "Never", "containers": [plain("c")],
            "initContainers": [with_rule("init", "Restart", "In", &[42])]}));
        for code in codes {
            rig.settle();
            assert_eq!(rig.phase(), "Pending");
            rig.exit("init", code);
        }
        rig.settle();
        assert_eq!(rig.phase(), phase);
    }
}

#[test]
fn a_program_that_cannot_start_waits_for_its_restart_or_ends_the_pod_by_policy() {
    for (policy, state, phase) in [
        ("OnFailure", "RunContainerError", "Running"),
        ("Never", "exit 128 StartError", "Pending"),
    ] {
        let mut rig = Rig::new(json!({"restartPolicy": policy, "containers": [plain("c")]}));
        rig.step();
        rig.step();
        rig.exit("c", 128);
        let State::Exited { reason, .. } = &mut rig.view.containers[0].state else {
            panic!("it has ended");
        };
        *reason = "StartError".into();
        rig.step();
        assert_eq!(
            (rig.states("c").0.as_str(), rig.phase()),
            (state, phase),
            "{policy}"
        );
    }
}

/// `kubelet_pods.go`: the status is waiting, so the restart of all containers does not mask the exit.
#[test]
fn a_failed_start_shows_its_code_while_all_containers_restart() {
    let mut c = plain("c");
    c["restartPolicy"] = json!("Never");
    c["restartPolicyRules"] = json!([{"action": "RestartAllContainers",
        "exitCodes": {"operator": "NotIn", "values": [0]}}]);
    let mut rig = Rig::new(json!({"restartPolicy": "Never", "containers": [c]}));
    rig.step();
    rig.step();
    rig.exit("c", 128);
    let State::Exited { reason, .. } = &mut rig.view.containers[0].state else {
        panic!("it has ended");
    };
    *reason = "StartError".into();
    let shown = || {
        (
            "RunContainerError".to_owned(),
            "exit 128 StartError".to_owned(),
        )
    };
    while !rig.view.containers.is_empty() {
        rig.step();
        assert_eq!(rig.states("c"), shown());
    }
    rig.step();
    assert_eq!(rig.states("c"), shown());
}

#[test]
fn a_container_beyond_its_liveness_failures_is_stopped_and_restarted_by_policy() {
    let probe = json!({"periodSeconds": 5, "failureThreshold": 2, "exec": {"command": ["true"]}});
    let mut c = plain("c");
    c["livenessProbe"] = probe;
    let mut rig = Rig::new(json!({"restartPolicy": "OnFailure", "containers": [c]}));
    rig.settle();
    rig.view.containers[0].unhealthy_since = Some(rig.now);
    rig.advance(9);
    assert_eq!(rig.settle().wake, Some(rig.now + TimeDelta::seconds(1)));
    rig.advance(1);
    rig.settle();
    assert_eq!(rig.states("c"), ("running".into(), "exit 143".into()));
    assert_eq!(rig.container("c").restart_count, 1);
}
