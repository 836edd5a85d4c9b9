//! Pods of failures that end the workload.

use lockstep_api::workload::Phase;
use lockstep_sim::api::{Refused, Rule, Verb};
use lockstep_sim::pods::over;
use lockstep_sim::solo::gang_with;
use lockstep_sim::{Solo, WatchedKind};
use serde_json::{Value, json};

use super::barrier::denied;
use super::failures::on_code;

fn running(n: i32) -> Solo {
    let mut w = Solo::supervised(denied(n, &json!([on_code(3, "FailWorkload")])));
    w.settle();
    w
}

/// Exit codes of training containers by member.
fn codes(w: &Solo) -> Vec<(String, Option<i32>)> {
    let code = |pod: &k8s_openapi::api::core::v1::Pod| {
        let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
        let ended = statuses[0].state.as_ref()?.terminated.as_ref()?;
        over(pod).then_some(ended.exit_code)
    };
    let pods = w.pods();
    let pods = pods.iter().map(|pod| {
        let member = lockstep_sim::pods::member_of(pod).unwrap();
        (member.to_string(), code(pod))
    });
    pods.collect()
}

#[test]
fn the_pod_of_a_final_failure_stays_with_the_code_of_its_process() {
    let mut w = running(3);
    w.exit("g", 1, 3);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Failed));
    assert_eq!(codes(&w), [("g-1-0".to_owned(), Some(3))]);
    w.wait(600);
    assert_eq!(codes(&w), [("g-1-0".to_owned(), Some(3))]);
}

#[test]
fn peers_that_failed_before_the_end_keep_their_pods_too() {
    let mut w = running(3);
    w.exit("g", 0, 3);
    w.exit("g", 2, 1);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Failed));
    let kept = codes(&w);
    assert!(kept.contains(&("g-0-0".to_owned(), Some(3))), "{kept:?}");
}

#[test]
fn a_final_failure_reported_during_a_restart_keeps_its_pod() {
    let mut w = running(3);
    let node = w.node_of("g", 2);
    w.fault(&node, |f| f.silent_agent = true);
    w.exit("g", 2, 3);
    w.exit("g", 0, 1);
    w.until("the restart is ordered", |w| {
        w.order().unwrap().spec.domains[0].attempt == 2
    });
    w.fault(&node, |f| f.silent_agent = false);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Failed));
    let kept = codes(&w);
    assert!(kept.contains(&("g-2-0".to_owned(), Some(3))), "{kept:?}");
}

#[test]
fn the_pod_of_a_final_failure_stays_without_its_agent_too() {
    let mut w = running(2);
    let node = w.node_of("g", 0);
    w.exit("g", 0, 3);
    w.until("the end", |w| w.status().phase == Some(Phase::Failed));
    w.fault(&node, |f| f.silent_agent = true);
    w.settle();
    w.wait(300);
    assert_eq!(codes(&w), [("g-0-0".to_owned(), Some(3))]);
}

/// Two members without any restart left. `able`: their kubelets restart all containers of a pod by rule, or
/// the training container alone.
fn without_budget(w: fn(Value) -> Solo, able: bool) -> Solo {
    let policy = json!({"limits": {"maxRestarts": 0}, "inPlace": {"withoutSupervisor": "Allow"}});
    let mut w = w(gang_with(2, &json!({"failurePolicy": policy})));
    for node in ["n0", "n1", "n2", "n3"] {
        w.set_restart_all(node, able);
    }
    w.settle();
    w
}

#[test]
fn a_spent_budget_keeps_the_pod_of_a_supervised_member_that_its_kubelet_restarts() {
    for able in [true, false] {
        let mut w = without_budget(Solo::supervised, able);
        w.exit("g", 1, 3);
        w.settle();
        w.wait(600);
        assert_eq!(w.condition("Failed"), "RestartLimitExceeded");
        assert_eq!(codes(&w), [("g-1-0".to_owned(), Some(3))], "{able}");
    }
}

#[test]
fn a_spent_budget_keeps_the_log_of_a_container_that_its_kubelet_has_restarted() {
    let mut w = without_budget(Solo::new, false);
    w.exit("g", 1, 3);
    w.settle();
    w.wait(600);
    assert_eq!(w.condition("Failed"), "RestartLimitExceeded");
    assert_eq!(w.pods().len(), 1);
    let pod = w.pod("g", 1);
    assert!(over(&pod), "{:?}", pod.status);
    let shown = &pod.status.unwrap().container_statuses.unwrap()[0];
    let ends = [shown.state.clone(), shown.last_state.clone()]
        .into_iter()
        .filter_map(|state| Some(state?.terminated?.exit_code));
    assert!(ends.into_iter().any(|code| code == 3), "{shown:?}");
}

#[test]
fn a_pod_whose_deadline_the_api_server_refuses_is_deleted() {
    let mut w = without_budget(Solo::supervised, true);
    w.store().admission.rules.push(Rule {
        kind: WatchedKind::Pod,
        verb: Verb::Update,
        name: None,
        answer: Refused::forbidden("exceeded quota: pods of scope Terminating"),
    });
    w.exit("g", 1, 3);
    w.wait(600);
    assert_eq!(w.condition("Failed"), "RestartLimitExceeded");
    assert_eq!(codes(&w), []);
}

/// A gang of two whose failures with code 5 are ignored.
fn ignoring(supervised: bool) -> Solo {
    let spec = denied(2, &json!([on_code(5, "Ignore")]));
    let mut w = Solo::supervised_if(supervised, spec);
    for node in w.node_names() {
        w.set_restart_all(&node, true);
    }
    w.settle();
    w
}

#[test]
fn a_workload_of_which_only_ignored_members_are_left_fails() {
    for supervised in [false, true] {
        for other in [0, 5] {
            let mut w = ignoring(supervised);
            w.exit("g", 0, 5);
            w.wait(60);
            assert_eq!(w.status().phase, Some(Phase::Running), "member 1 trains");
            w.exit("g", 1, other);
            // A supervisor that knows of no end of its peers exits five minutes after its process.
            w.wait(400);
            let s = w.status();
            assert_eq!(
                (s.phase, s.reason.as_str(), s.accounting.accelerators),
                (Some(Phase::Failed), "FailurePolicy", 0),
                "{}",
                s.message
            );
            assert!(s.message.contains("exit code 5"), "{}", s.message);
            assert!(s.message.contains("rule "), "{}", s.message);
        }
    }
}

/// A log shipper keeps the pod Running after training has failed.
#[test]
fn ignored_members_with_a_second_container_fail_the_workload() {
    for supervised in [false, true] {
        let mut spec = denied(2, &json!([on_code(5, "Ignore")]));
        let pod = &mut spec["groups"][0]["template"]["spec"];
        let containers = pod["containers"].as_array_mut().unwrap();
        containers.push(json!({"name": "log", "image": "i"}));
        let mut w = Solo::supervised_if(supervised, spec);
        w.settle();
        w.exit("g", 0, 5);
        w.wait(60);
        assert_eq!(w.status().phase, Some(Phase::Running), "member 1 trains");
        w.exit("g", 1, 0);
        w.wait(400);
        let s = w.status();
        assert_eq!(
            (s.phase, s.reason.as_str(), s.accounting.accelerators),
            (Some(Phase::Failed), "FailurePolicy", 0),
            "{supervised}: {}",
            s.message
        );
    }
}

/// Otherwise the gang would count as starting for ever, and the incident as open.
#[test]
fn a_gang_runs_although_an_ignored_member_ended_before_the_others_started() {
    let mut w = Solo::new(denied(3, &json!([on_code(5, "Ignore")])));
    let starts_on_n1 = |w: &mut Solo, able: bool| w.fault("n1", |f| f.starts_nothing = !able);
    starts_on_n1(&mut w, false);
    let another_start = |w: &mut Solo, attempt: i64| {
        w.until("two start", |w| {
            let s = w.status();
            s.ready == "2/3" && s.phase != Some(Phase::Running)
        });
        w.exit("g", 0, 5);
        w.wait(20);
        starts_on_n1(w, true);
        w.settle();
        let s = w.status();
        assert_eq!(
            (s.phase, s.attempt),
            (Some(Phase::Running), attempt),
            "{}",
            s.message
        );
        assert_eq!(w.condition("Restarting"), "!NotRestarting");
        assert!(over(&w.pod("g", 0)));
    };
    another_start(&mut w, 1);
    starts_on_n1(&mut w, false);
    w.exit("g", 1, 1);
    another_start(&mut w, 2);
}
