//! `RestartAllContainers` (KEP-5532): the list of upstream's own tests.

use serde_json::{Value, json};

use super::*;

/// init, sidecar, and two regular containers. `source` has the rule for exit 42.
fn pod(source: &str, policy: &str) -> Value {
    let make = |name: &str| {
        let mut c = if name == source {
            with_rule(name, "RestartAllContainers", "In", &[42])
        } else {
            plain(name)
        };
        if name == "side" {
            c["restartPolicy"] = json!("Always");
        }
        c
    };
    json!({"restartPolicy": policy, "initContainers": [make("side"), make("init")], "containers": [make("main"), make("other")]})
}

const ALL: [&str; 4] = ["side", "init", "main", "other"];

fn started(source: &str) -> Rig {
    let mut rig = Rig::new(pod(source, "Never"));
    rig.settle();
    rig.exit("init", 0);
    rig.settle();
    assert_eq!(rig.phase(), "Running");
    rig.take_log();
    rig
}

#[test]
fn a_matching_exit_restarts_all_init_sidecar_and_regular_containers_once() {
    for source in ["main", "side"] {
        let mut rig = started(source);
        rig.exit(source, 42);
        rig.settle();
        assert_eq!(rig.phase(), "Pending", "the init container runs again");
        rig.exit("init", 0);
        rig.settle();
        assert_eq!(rig.phase(), "Running");
        for name in ALL {
            let c = rig.container(name);
            assert_eq!(c.restart_count, 1, "{name} after {source}");
            assert!(
                c.last_state.as_ref().unwrap().terminated.is_some(),
                "{name} after {source}"
            );
        }
        assert_eq!(
            rig.condition(ALL_CONTAINERS_RESTARTING),
            Some(("False", ""))
        );
        assert_eq!(rig.condition("Ready"), Some(("True", "")));
    }
}

#[test]
fn an_init_container_that_sets_it_off_runs_again_with_the_sidecar_before_it() {
    let mut rig = Rig::new(pod("init", "Never"));
    rig.settle();
    rig.exit("init", 42);
    rig.settle();
    rig.exit("init", 0);
    rig.settle();
    let counts = ALL.map(|name| rig.container(name).restart_count);
    assert_eq!(
        counts,
        [1, 1, 0, 0],
        "regular containers start for the first time"
    );
    assert_eq!(rig.condition("Ready"), Some(("True", "")));
}

#[test]
fn running_containers_are_killed_one_by_one_without_pre_stop_and_the_trigger_last() {
    let mut rig = started("main");
    rig.pod.spec.termination_grace_period_seconds = Some(600);
    rig.exit("main", 42);
    rig.settle();
    assert_eq!(
        rig.take_log(),
        [
            "stop side in 2s without preStop",
            "stop other in 2s without preStop",
            "remove side",
            "remove init",
            "remove other",
            "remove main",
            "start side",
            "start init",
        ]
    );
}

#[test]
fn a_restarting_container_shows_its_exit_code_only_until_its_removal_and_then_137() {
    let mut rig = started("main");
    rig.stubborn = vec!["other"];
    rig.exit("main", 42);
    rig.step();
    assert_eq!(
        rig.states("main").0,
        "exit 42",
        "the one moment at which the true code shows"
    );
    assert_eq!(
        rig.condition(ALL_CONTAINERS_RESTARTING),
        Some(("True", "RestartAllContainersStarted"))
    );
    assert_eq!(
        rig.condition("Ready"),
        Some(("False", "ContainersNotReady"))
    );
    assert_eq!(rig.condition("Initialized"), Some(("True", "")));
    rig.step();
    assert!(
        rig.view.any_alive(),
        "a program that ignores SIGTERM has its two seconds"
    );
    rig.advance(2);
    rig.step();
    assert!(rig.view.containers.is_empty());
    let removed = rig
        .worker
        .clone()
        .sync(&rig.pod, &rig.view, &rig.config, rig.now);
    assert_eq!(
        removed.actions,
        [Action::Start {
            name: "side".into(),
            attempt: 1
        }]
    );
    rig.settle();
    for name in ["main", "other"] {
        assert_eq!(rig.states(name).1, "exit 137 RestartingAllContainers");
        assert_eq!(rig.container(name).restart_count, 1);
    }
}

#[test]
fn all_containers_are_shown_as_removed_together_and_not_while_that_is_under_way() {
    let mut rig = started("main");
    rig.stubborn = vec!["other"];
    rig.exit("main", 42);
    rig.step();
    rig.step();
    assert_eq!(rig.states("side").0, "running", "it has been stopped");
    rig.advance(2);
    rig.step();
    assert!(rig.view.containers.is_empty());
    assert_eq!(rig.states("main").0, "exit 42");
    rig.step();
    for name in ALL {
        assert_eq!(
            rig.states(name),
            (
                "RestartingAllContainers".into(),
                "exit 137 RestartingAllContainers".into()
            )
        );
        assert_eq!(rig.container(name).restart_count, 1);
    }
    assert_eq!(
        rig.condition(ALL_CONTAINERS_RESTARTING),
        Some(("False", ""))
    );
    rig.step();
    assert_eq!(rig.states("main").0, "PodInitializing");
}

#[test]
fn two_matching_exits_or_kills_with_a_matching_code_make_one_restart() {
    let rule = |name| with_rule(name, "RestartAllContainers", "NotIn", &[0]);
    let mut rig = Rig::new(
        json!({"restartPolicy": "Never", "containers": [rule("a"), rule("b"), rule("c")]}),
    );
    rig.settle();
    rig.exit("a", 1);
    rig.exit("b", 2);
    rig.settle();
    assert_eq!(
        ["a", "b", "c"].map(|n| rig.container(n).restart_count),
        [1, 1, 1]
    );
}

#[test]
fn a_container_restarted_by_its_own_policy_before_does_not_set_it_off_again() {
    let mut c = with_rule("c", "Restart", "In", &[1]);
    c["restartPolicyRules"].as_array_mut().unwrap().push(
        json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}),
    );
    let mut rig = Rig::new(json!({"restartPolicy": "Never", "containers": [c]}));
    rig.settle();
    rig.exit("c", 1);
    rig.settle();
    rig.exit("c", 42);
    rig.settle();
    assert_eq!(rig.container("c").restart_count, 2);
    assert_eq!(
        rig.condition(ALL_CONTAINERS_RESTARTING),
        Some(("False", ""))
    );
}

#[test]
fn ip_sandbox_and_start_time_survive_and_there_is_no_back_off() {
    let mut rig = started("main");
    let before = (rig.status.pod_ip.clone(), rig.status.start_time.clone());
    for round in 1..5 {
        rig.advance(1);
        rig.exit("main", 42);
        rig.settle();
        rig.exit("init", 0);
        rig.settle();
        assert_eq!(rig.container("main").restart_count, round);
    }
    assert_eq!(
        (rig.status.pod_ip.clone(), rig.status.start_time.clone()),
        before
    );
    assert!(rig.take_log().iter().all(|l| !l.contains("sandbox")));
}

#[test]
fn a_deletion_wins_over_a_restart() {
    let mut rig = started("main");
    rig.pod.deletion = Some(std::time::Duration::from_secs(30));
    rig.exit("main", 42);
    rig.settle();
    assert_eq!(
        rig.condition(ALL_CONTAINERS_RESTARTING),
        Some(("False", "PodFailed"))
    );
    assert_eq!(rig.log.last().unwrap(), "delete pod");
}

#[test]
fn an_init_container_failure_after_the_restart_fails_the_pod_or_retries_by_policy() {
    for (policy, phase) in [("Never", "Failed"), ("Always", "Pending")] {
        let mut rig = Rig::new(pod("main", policy));
        rig.settle();
        rig.exit("init", 0);
        rig.settle();
        rig.exit("main", 42);
        rig.settle();
        rig.exit("init", 1);
        rig.settle();
        rig.advance(1);
        rig.settle();
        assert_eq!(rig.phase(), phase, "{policy}");
    }
}

#[test]
fn a_sidecar_that_sets_it_off_before_regular_containers_started_is_no_failure() {
    let mut rig = Rig::new(pod("side", "Never"));
    rig.settle();
    rig.exit("side", 42);
    rig.settle();
    assert_eq!(rig.phase(), "Pending");
    rig.exit("init", 0);
    rig.settle();
    assert_eq!(ALL.map(|n| rig.container(n).restart_count), [1, 1, 0, 0]);
    assert_eq!(rig.phase(), "Running");
}

#[test]
fn a_kubelet_that_restarts_during_the_restart_continues_from_the_api_condition() {
    let mut rig = started("main");
    rig.exit("main", 42);
    rig.step();
    rig.worker = PodWorker::new(Some(&rig.status), rig.now);
    rig.settle();
    rig.exit("init", 0);
    rig.settle();
    assert_eq!(ALL.map(|n| rig.container(n).restart_count), [1; 4]);
    assert_eq!(rig.condition("Ready"), Some(("True", "")));
}

#[test]
fn a_kubelet_restarted_while_containers_start_again_does_not_restart_them_twice() {
    let mut rig = started("main");
    rig.exit("main", 42);
    rig.settle();
    assert_eq!(
        rig.condition(ALL_CONTAINERS_RESTARTING),
        Some(("False", ""))
    );
    rig.worker = PodWorker::new(Some(&rig.status), rig.now);
    rig.exit("init", 0);
    rig.settle();
    assert_eq!(ALL.map(|n| rig.container(n).restart_count), [1; 4]);
}

#[test]
fn the_condition_shows_only_on_pods_with_such_a_rule() {
    let mut rig = Rig::new(
        json!({"restartPolicy": "Never", "containers": [with_rule("c", "Restart", "In", &[1])]}),
    );
    rig.settle();
    assert_eq!(rig.condition(ALL_CONTAINERS_RESTARTING), None);
}
