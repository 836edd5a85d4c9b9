//! Failures that end the workload, in supervised pods.

use lockstep_api::workload::Phase;
use lockstep_sim::Solo;
use lockstep_sim::pods::over;
use serde_json::json;

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
