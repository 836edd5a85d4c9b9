//! Requests that the API server fails, for example because a webhook is down.

use lockstep_api::condition::{find, reasons, types};
use lockstep_api::workload::Phase;
use lockstep_sim::api::{Refused, Rule, Verb};
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Solo, WatchedKind};
use serde_json::{Value, json};

const WORDS: &str = "failed calling webhook \"gate.example.com\": no endpoints";

/// The webhook for pods is down from now on.
fn webhook_fails(w: &mut Solo) {
    w.store().admission.webhook =
        Some(Box::new(|_| Err(Refused::new(500, "InternalError", WORDS))));
}

fn webhook_works(w: &mut Solo) {
    w.store().admission.webhook = None;
}

/// Runs until a gang has a placement, but no pods yet.
fn placed_without_pods(spec: Value) -> Solo {
    let mut w = Solo::new(spec);
    for _ in 0..20 {
        w.pass();
        w.schedule();
        if placed(&w) {
            assert!(w.pods().is_empty());
            return w;
        }
        w.later(1);
    }
    panic!("no placement: {}", w.story(20));
}

fn placed(w: &Solo) -> bool {
    let placement = |group: &lockstep_api::PodGroup| group.status.as_ref()?.placement.clone();
    w.groups().values().any(|group| placement(group).is_some())
}

/// The webhook's message is in the status and in a condition.
fn assert_reported(w: &Solo) {
    let status = w.status();
    let condition = find(&status.conditions, types::RECONCILING).expect("a condition");
    assert_eq!(condition.reason, reasons::API_SERVER_ERROR, "{status:?}");
    assert!(condition.message.contains(WORDS), "{}", condition.message);
    assert_eq!(status.reason, reasons::API_SERVER_ERROR);
    assert!(status.message.contains(WORDS), "{}", status.message);
}

#[test]
fn a_failing_webhook_is_reported_before_the_first_placement() {
    let mut w = Solo::new(gang(2));
    webhook_fails(&mut w);
    w.rounds(2);
    assert_eq!(w.status().phase, Some(Phase::Pending));
    assert_reported(&w);
    w.rounds(600);
    assert_reported(&w);
    assert!(!placed(&w), "no capacity is held");
    webhook_works(&mut w);
    w.until("it runs", |w| w.status().phase == Some(Phase::Running));
    assert_eq!(w.condition(types::RECONCILING), "!Reconciled");
}

#[test]
fn a_request_that_fails_is_repeated_with_a_growing_wait() {
    let mut w = Solo::new(gang(2));
    webhook_fails(&mut w);
    let before = w.line().writes;
    w.rounds(600);
    let writes = w.line().writes - before;
    assert!((10..30).contains(&writes), "{writes} requests in 10 min");
}

#[test]
fn a_gang_whose_pods_fail_is_reported_and_releases_its_nodes_in_time() {
    for policy in ["Gang", "Basic"] {
        let spec = gang_with(2, &json!({"scheduling": {"policy": policy}}));
        let mut w = placed_without_pods(spec);
        webhook_fails(&mut w);
        w.rounds(2);
        assert_reported(&w);
        w.rounds(280);
        assert!(placed(&w), "{policy}: the timeout is not over");
        w.until("the placement is released", |w| !placed(w));
        let status = w.status();
        let backoff = status.gangs[0].backoff.clone().expect("a back-off");
        assert_eq!(backoff.reason, reasons::API_SERVER_ERROR);
        assert!(backoff.message.contains(WORDS), "{}", backoff.message);
        assert_eq!((status.restarts.counted, status.attempt), (0, 1));
        for _ in 0..1200 {
            w.rounds(1);
            assert!(!placed(&w), "{policy}: no pod can be created there");
        }
        assert_reported(&w);
        assert_eq!(w.condition(types::ADMITTED), "!APIServerError");
        webhook_works(&mut w);
        w.settle();
        assert_eq!(w.status().phase, Some(Phase::Running));
    }
}

/// There is capacity, but the API server refuses the Service.
#[test]
fn a_gang_without_its_service_releases_its_nodes_in_time() {
    let mut w = Solo::new(gang(2));
    w.store().admission.rules.push(Rule {
        kind: WatchedKind::Service,
        verb: Verb::Create,
        name: None,
        answer: Refused::forbidden("exceeded quota: services"),
    });
    w.until("a placement", |w| placed(w));
    w.rounds(280);
    assert!(placed(&w));
    w.until("the placement is released", |w| !placed(w));
    w.rounds(1000);
    assert!(!placed(&w), "no capacity is of use to the gang");
    w.store().admission.rules.clear();
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn survivors_of_a_failure_release_their_nodes_in_time() {
    let mut w = Solo::new(gang(4));
    w.settle();
    webhook_fails(&mut w);
    w.delete_pod("g", 3);
    w.until("the failure is reported", |w| {
        w.status().reason == reasons::API_SERVER_ERROR
    });
    assert_eq!(w.status().phase, Some(Phase::Restarting));
    assert_reported(&w);
    w.rounds(280);
    assert_eq!(w.uids().len(), 3, "survivors keep their nodes");
    w.until("the nodes are released", |w| w.uids().is_empty());
    let counted = w.status().restarts.counted;
    assert_eq!(counted, 0, "a deleted pod costs no budget");
    webhook_works(&mut w);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn a_gang_whose_pods_failed_before_a_new_leader_is_not_placed_either() {
    let mut w = placed_without_pods(gang(2));
    webhook_fails(&mut w);
    w.rounds(280);
    w.until("the placement is released", |w| !placed(w));
    for _ in 0..20 {
        w.crash();
        w.rounds(30);
        assert!(!placed(&w));
    }
    webhook_works(&mut w);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn a_short_outage_of_a_webhook_costs_survivors_nothing() {
    let mut w = Solo::new(gang(4));
    w.settle();
    let before = w.uids();
    webhook_fails(&mut w);
    w.delete_pod("g", 3);
    w.rounds(100);
    webhook_works(&mut w);
    w.settle();
    let after = w.uids();
    let same = before
        .iter()
        .filter(|(member, uid)| after.get(*member) == Some(uid));
    assert_eq!(same.count(), 3);
    assert_eq!(w.status().phase, Some(Phase::Running));
}

/// The webhook concerns pods only, so orders reach their agents.
#[test]
fn a_gang_restarts_in_place_while_the_pods_of_another_gang_fail() {
    let group = |name: &str| {
        let mut spec = gang(2);
        spec["groups"][0]["name"] = json!(name);
        spec["groups"][0].clone()
    };
    let spec = gang_with(
        2,
        &json!({"groups": [group("a"), group("b")], "scheduling": {"gang": {"scope": "Group"}}}),
    );
    let mut w = Solo::new(spec);
    w.settle();
    webhook_fails(&mut w);
    w.delete_pod("a", 0);
    w.rounds(30);
    let before = w.restarts();
    w.exit("b", 0, 1);
    w.rounds(15);
    assert_ne!(w.restarts(), before, "{}", w.story(30));
}

#[test]
fn a_refused_delete_is_reported() {
    let mut w = Solo::new(gang(2));
    w.settle();
    w.store().admission.rules.push(Rule {
        kind: WatchedKind::Pod,
        verb: Verb::Delete,
        name: None,
        answer: Refused::new(500, "InternalError", WORDS),
    });
    w.edit(|s| s.suspend = true);
    w.rounds(3);
    assert_eq!(w.status().phase, Some(Phase::Suspended));
    assert_reported(&w);
    w.store().admission.rules.clear();
    w.settle();
    assert!(w.pods().is_empty());
    assert_eq!(w.condition(types::RECONCILING), "!Reconciled");
}
