//! Start, readiness, deletion, phases.

use std::time::Duration;

use lockstep_model::pods::resources::Resources;
use serde_json::json;

use super::*;

#[test]
fn init_containers_run_in_order_and_sidecars_must_have_started_before_the_next() {
    let mut slow = sidecar("side");
    slow["startupProbe"] = json!({"initialDelaySeconds": 5, "exec": {"command": ["true"]}});
    let mut rig = Rig::new(
        json!({"initContainers": [plain("one"), slow, plain("two")], "containers": [plain("main")]}),
    );
    rig.settle();
    assert_eq!(rig.take_log(), ["sandbox", "start one"]);
    assert_eq!(
        (rig.phase(), rig.states("main").0.as_str()),
        ("Pending", "PodInitializing")
    );
    rig.exit("one", 0);
    let waits = rig.settle();
    assert_eq!(rig.take_log(), ["start side"]);
    assert_eq!(waits.wake, Some(rig.now + TimeDelta::seconds(5)));
    rig.advance(5);
    rig.settle();
    assert_eq!(rig.take_log(), ["start two"]);
    assert_eq!(
        rig.condition("Initialized"),
        Some(("False", "ContainersNotInitialized"))
    );
    rig.exit("two", 0);
    rig.settle();
    assert_eq!(rig.take_log(), ["start main"]);
    assert_eq!(
        (rig.phase(), rig.condition("Initialized")),
        ("Running", Some(("True", "")))
    );
}

#[test]
fn a_failed_init_container_fails_the_pod_under_never_and_retries_otherwise() {
    for (policy, phase, state) in [
        ("Never", "Failed", "exit 1"),
        ("OnFailure", "Pending", "running"),
        ("Always", "Pending", "running"),
    ] {
        let mut rig = Rig::new(
            json!({"restartPolicy": policy, "initContainers": [plain("init")], "containers": [plain("main")]}),
        );
        rig.settle();
        rig.exit("init", 1);
        rig.settle();
        assert_eq!(
            (rig.phase(), rig.states("init").0.as_str()),
            (phase, state),
            "{policy}"
        );
        assert_eq!(rig.states("main").0, "PodInitializing");
    }
}

#[test]
fn a_sidecar_keeps_the_pod_running_until_it_stops_after_the_last_regular_container() {
    let mut rig = Rig::new(
        json!({"restartPolicy": "Never", "initContainers": [sidecar("a"), sidecar("b")], "containers": [plain("main")]}),
    );
    rig.settle();
    rig.take_log();
    rig.stubborn = vec!["b"];
    rig.exit("main", 0);
    let blocked = rig.settle();
    assert_eq!(
        rig.take_log(),
        ["stop b in 30s"],
        "sidecars stop in reverse order"
    );
    assert!(blocked.blocked);
    assert_eq!(
        (rig.phase(), rig.states("main").0.as_str()),
        ("Running", "exit 0")
    );
    rig.advance(30);
    rig.settle();
    assert_eq!(rig.take_log(), ["stop a in 2s", "stop sandbox"]);
    assert_eq!(
        (rig.phase(), rig.condition("Ready")),
        ("Running", Some(("False", "PodCompleted")))
    );
    rig.advance(1);
    rig.settle();
    assert_eq!(rig.phase(), "Succeeded");
}

#[test]
fn a_sidecar_is_restarted_while_regular_containers_run() {
    let mut rig = Rig::new(
        json!({"restartPolicy": "Never", "initContainers": [sidecar("side")], "containers": [plain("main")]}),
    );
    rig.settle();
    rig.exit("side", 0);
    rig.settle();
    assert_eq!(
        (rig.container("side").restart_count, rig.phase()),
        (1, "Running")
    );
}

#[test]
fn a_container_is_unready_from_its_last_permitted_failure_until_a_success() {
    let mut c = plain("c");
    c["readinessProbe"] =
        json!({"periodSeconds": 2, "failureThreshold": 3, "exec": {"command": ["true"]}});
    let mut rig = Rig::new(json!({"containers": [c]}));
    rig.settle();
    rig.view.containers[0].unhealthy_since = Some(rig.now);
    rig.advance(5);
    assert_eq!(rig.settle().wake, Some(rig.now + TimeDelta::seconds(1)));
    assert!(rig.container("c").ready);
    rig.advance(1);
    rig.settle();
    assert!(!rig.container("c").ready);
    rig.view.containers[0].unhealthy_since = None;
    rig.settle();
    assert!(rig.container("c").ready);
}

#[test]
fn a_container_is_ready_after_its_readiness_delay() {
    let mut c = plain("c");
    c["readinessProbe"] = json!({"initialDelaySeconds": 7, "exec": {"command": ["true"]}});
    let mut rig = Rig::new(json!({"containers": [c, plain("d")]}));
    let outcome = rig.settle();
    assert_eq!(
        rig.condition("Ready"),
        Some(("False", "ContainersNotReady"))
    );
    assert_eq!(
        (
            rig.container("c").started,
            rig.container("c").ready,
            rig.container("d").ready
        ),
        (Some(true), false, true)
    );
    assert_eq!(outcome.wake, Some(rig.now + TimeDelta::seconds(7)));
    rig.advance(7);
    rig.settle();
    assert_eq!(rig.condition("Ready"), Some(("True", "")));
}

#[test]
fn a_deleted_pod_gets_sigterm_then_sigkill_and_is_reported_before_its_deletion() {
    let mut rig = Rig::new(
        json!({"restartPolicy": "Always", "containers": [plain("polite"), plain("stubborn")]}),
    );
    rig.settle();
    rig.take_log();
    rig.stubborn = vec!["stubborn"];
    rig.pod.deletion = Some(Duration::from_secs(20));
    rig.settle();
    assert_eq!(
        rig.take_log(),
        ["stop polite in 20s", "stop stubborn in 20s"]
    );
    rig.advance(19);
    rig.settle();
    assert!(rig.view.any_alive());
    rig.advance(1);
    rig.settle();
    assert_eq!(rig.take_log(), ["stop sandbox", "delete pod"]);
    assert_eq!(
        (rig.states("polite").0, rig.states("stubborn").0),
        ("exit 143".into(), "exit 137".into())
    );
    assert_eq!(rig.phase(), "Failed");
}

#[test]
fn a_deleted_pod_shows_the_ends_of_its_containers_together_and_with_its_final_phase() {
    let mut rig = Rig::new(
        json!({"restartPolicy": "Never", "containers": [plain("polite"), plain("stubborn")]}),
    );
    rig.settle();
    rig.stubborn = vec!["stubborn"];
    rig.pod.deletion = Some(Duration::from_secs(20));
    rig.settle();
    assert_eq!(
        (rig.phase(), rig.states("polite").0.as_str()),
        ("Running", "running"),
        "it has ended"
    );
    rig.advance(20);
    rig.settle();
    assert_eq!(
        (rig.phase(), rig.states("polite").0.as_str()),
        ("Failed", "exit 143")
    );
}

#[test]
fn a_pod_with_exited_containers_changes_its_conditions_before_its_phase() {
    let mut rig = Rig::new(json!({"restartPolicy": "Never", "containers": [plain("c")]}));
    rig.settle();
    rig.exit("c", 3);
    let ended = rig.step();
    assert_eq!(
        (rig.phase(), rig.states("c").0.as_str()),
        ("Running", "exit 3")
    );
    assert_eq!(rig.condition("Ready"), Some(("False", "PodFailed")));
    assert!(!ended.blocked, "what comes of it is seen at the next poll");
    rig.step();
    assert_eq!(rig.phase(), "Failed");
}

#[test]
fn a_deleted_pod_frees_its_resources_with_its_last_container_before_its_object() {
    let mut rig = Rig::new(json!({"containers": [plain("c")]}));
    rig.settle();
    rig.stubborn = vec!["c"];
    rig.pod.deletion = Some(Duration::from_secs(30));
    rig.settle();
    assert!(rig.worker.active(&rig.view), "it still runs");
    rig.exit("c", 143);
    assert!(!rig.worker.active(&rig.view));
}

#[test]
fn a_deletion_with_a_shorter_grace_period_shortens_the_one_under_way() {
    let mut rig = Rig::new(json!({"containers": [plain("c")]}));
    rig.settle();
    rig.stubborn = vec!["c"];
    rig.pod.deletion = Some(Duration::from_mins(10));
    rig.settle();
    rig.take_log();
    rig.advance(5);
    rig.pod.deletion = Some(Duration::from_secs(10));
    rig.settle();
    assert_eq!(rig.take_log(), ["stop c in 5s"]);
}

#[test]
fn sigterm_then_exit_zero_shows_phase_succeeded_although_the_pod_is_being_deleted() {
    let mut rig = Rig::new(json!({"restartPolicy": "Never", "containers": [plain("c")]}));
    rig.settle();
    rig.stubborn = vec!["c"];
    rig.pod.deletion = Some(Duration::from_secs(30));
    rig.settle();
    rig.exit("c", 0);
    rig.settle();
    assert_eq!(rig.phase(), "Succeeded");
}

#[test]
fn a_pod_deleted_before_it_started_ends_without_having_run() {
    let mut rig = Rig::new(json!({"containers": [plain("c")]}));
    rig.pod.deletion = Some(Duration::from_secs(30));
    rig.settle();
    assert_eq!(rig.take_log(), ["delete pod"]);
    assert_eq!(
        (rig.phase(), rig.states("c").0.as_str()),
        ("Failed", "exit 137 ContainerStatusUnknown")
    );
}

#[test]
fn the_active_deadline_fails_a_running_pod() {
    let mut rig = Rig::new(json!({"activeDeadlineSeconds": 60, "containers": [plain("c")]}));
    assert_eq!(rig.settle().wake, Some(rig.now + TimeDelta::seconds(60)));
    rig.advance(60);
    rig.settle();
    assert_eq!(
        (rig.phase(), rig.status.reason.as_deref()),
        ("Failed", Some("DeadlineExceeded"))
    );
}

#[test]
fn an_evicted_pod_fails_with_reason_and_disruption_target() {
    let mut rig = Rig::new(json!({"restartPolicy": "Always", "containers": [plain("c")]}));
    rig.settle();
    rig.stubborn = vec!["c"];
    rig.worker.evict("The node was low on resource: memory.");
    rig.settle();
    assert_eq!(
        (rig.phase(), rig.condition("DisruptionTarget")),
        ("Running", None),
        "neither is told before its last container has ended"
    );
    rig.exit("c", 143);
    rig.settle();
    assert_eq!(
        (rig.phase(), rig.status.reason.as_deref()),
        ("Failed", Some("Evicted"))
    );
    assert_eq!(
        rig.condition("DisruptionTarget"),
        Some(("True", "TerminationByKubelet"))
    );
}

#[test]
fn a_pod_evicted_for_its_own_limit_has_no_disruption_target() {
    let mut rig = Rig::new(json!({"restartPolicy": "Always", "containers": [plain("c")]}));
    rig.settle();
    let message = "Usage of EmptyDir volume \"ckpt\" exceeds the limit \"10Gi\". ";
    rig.worker.evict_for_own_limit(message);
    rig.settle();
    assert_eq!(
        (rig.phase(), rig.status.reason.as_deref()),
        ("Failed", Some("Evicted"))
    );
    assert_eq!(rig.condition("DisruptionTarget"), None);
}

#[test]
fn a_force_deleted_pod_is_killed_within_two_seconds_and_nothing_is_written() {
    let mut rig = Rig::new(json!({"containers": [plain("c")]}));
    rig.settle();
    rig.take_log();
    rig.pod.gone = true;
    rig.settle();
    assert_eq!(rig.take_log(), ["stop c in 2s", "stop sandbox"]);
}

#[test]
fn a_node_refuses_what_it_lacks_room_or_features_for() {
    let resources = |cpu: &str, gpu: &str| {
        let map = [("cpu", cpu), ("nvidia.com/gpu", gpu)]
            .map(|(n, q)| (n.to_owned(), serde_json::from_value(json!(q)).unwrap()));
        Resources::parse(&map.into()).unwrap()
    };
    let features = [FEATURE_RESTART_ALL.to_owned()];
    let plain_pod = Rig::new(json!({"containers": [plain("c")]})).pod;
    let rule_pod =
        Rig::new(json!({"containers": [with_rule("c", "RestartAllContainers", "In", &[1])]})).pod;
    let node = resources("8", "4");
    let check = |pod: &PodDesc, ask, features: &[String], used: Resources| {
        admission::admit(pod, &ask, features, &node, &|name| {
            Resources::get(&used, name)
        })
        .map_err(|r| r.reason)
    };
    assert_eq!(
        check(&plain_pod, resources("8", "4"), &[], resources("0", "0")),
        Ok(())
    );
    assert_eq!(
        check(&plain_pod, resources("8", "0"), &[], resources("1", "0")),
        Err("OutOfcpu".into())
    );
    assert_eq!(
        check(&plain_pod, resources("1", "4"), &[], resources("0", "1")),
        Err("OutOfnvidia.com/gpu".into())
    );
    assert_eq!(
        check(&rule_pod, resources("1", "0"), &[], resources("0", "0")),
        Err("PodFeatureUnsupported".into())
    );
    assert_eq!(
        check(
            &rule_pod,
            resources("1", "0"),
            &features,
            resources("0", "0")
        ),
        Ok(())
    );
}

#[test]
fn a_rejected_pod_fails_with_the_reason_and_has_run_nothing() {
    let mut rig = Rig::new(json!({"containers": [plain("c")]}));
    rig.worker.reject(&admission::Rejection {
        reason: "OutOfcpu".into(),
        message: "no room".into(),
    });
    rig.settle();
    assert_eq!(
        (rig.phase(), rig.status.reason.as_deref()),
        ("Failed", Some("OutOfcpu"))
    );
    assert_eq!(
        rig.status.message.as_deref(),
        Some("Pod was rejected: no room")
    );
    assert!(rig.status.container_statuses.is_none() && rig.take_log().is_empty());
}
