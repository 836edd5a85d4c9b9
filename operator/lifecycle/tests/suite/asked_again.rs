//! Which later occasions ask a gang again.

use chrono::TimeDelta;
use lockstep_api::scheduling::PreemptionRequest;
use lockstep_api::workload::CheckpointOutcome;
use lockstep_sim::api::DeleteOptions;
use lockstep_sim::solo::gang_with;
use lockstep_sim::{Key, Solo, WatchedKind};
use serde_json::{Value, json};

use super::barrier::attempts;
use super::checkpoints::{asked, call, outcome, until_called};

/// Ids of all requests, in the order in which they were made.
fn ids(w: &Solo) -> Vec<String> {
    let mut requests: Vec<_> = w
        .written()
        .into_iter()
        .flat_map(|s| s.domains)
        .filter_map(|d| d.checkpoint_request)
        .map(|r| (r.requested_at, r.id))
        .collect();
    requests.sort();
    requests.dedup();
    requests.into_iter().map(|(_, id)| id).collect()
}

#[test]
fn each_eviction_of_a_degrading_gang_at_one_attempt_gets_a_request() {
    let single = json!({"scheduling": {"gang": {"minCount": 2}, "disruptionMode": "Single"}});
    let mut w = asked(Some("save"), &single);
    for evicted in [1, 2] {
        let pod = w.pod("g", evicted).metadata.uid.unwrap();
        w.delete_pod("g", evicted);
        until_called(&mut w);
        assert_eq!(call(&w).unwrap().id, format!("eviction-{pod}"));
        w.settle();
        assert_eq!(outcome(&w), Some(CheckpointOutcome::Saved));
        assert_eq!(w.uids().len(), 3);
    }
    assert_eq!((attempts(&mut w), ids(&w).len()), (vec![1, 1, 1], 2));
}

/// A gang of two replicas, each a restart domain. The processes of the second one do not answer.
fn two_domains() -> Solo {
    let more: Value = json!({"failurePolicy": {"restartScope": "Replica"},
        "checkpoint": {"onRequest": {"timeoutSeconds": 30}}});
    let mut spec = gang_with(1, &more);
    let mut second = spec["groups"][0].clone();
    second["name"] = json!("h");
    spec["groups"].as_array_mut().unwrap().push(second);
    for (group, reaction) in [(0, "save"), (1, "ignore")] {
        let container = &mut spec["groups"][group]["template"]["spec"]["containers"][0];
        container["env"] = json!([{"name": "HOLLOW_ON_CHECKPOINT", "value": reaction}]);
    }
    let mut w = Solo::supervised(spec);
    w.settle();
    w
}

fn outcomes(w: &Solo) -> Vec<Option<CheckpointOutcome>> {
    let domains = w.status().domains.into_iter();
    let requests = domains.filter_map(|d| d.checkpoint_request);
    requests.map(|r| r.outcome).collect()
}

#[test]
fn an_edit_during_a_suspension_asks_no_domain_again_that_has_answered() {
    let mut w = two_domains();
    w.edit(|spec| spec.suspend = true);
    until_called(&mut w);
    w.rounds(6);
    assert_eq!(outcomes(&w), [Some(CheckpointOutcome::Saved), None]);
    let before = ids(&w);
    w.edit(|spec| spec.priority_class_name = None);
    w.edit(|spec| spec.active_deadline_seconds = Some(100_000));
    w.rounds(6);
    assert_eq!(ids(&w), before);
    assert_eq!(outcomes(&w), [Some(CheckpointOutcome::Saved), None]);
}

#[test]
fn a_domain_that_answered_before_a_cancelled_suspension_is_asked_at_the_next_one() {
    let mut w = two_domains();
    w.edit(|spec| spec.suspend = true);
    until_called(&mut w);
    w.rounds(6);
    w.edit(|spec| spec.suspend = false);
    w.rounds(6);
    let withdrawn = Some(CheckpointOutcome::Withdrawn);
    assert_eq!(outcomes(&w), [withdrawn, withdrawn]);
    w.edit(|spec| spec.suspend = true);
    w.rounds(6);
    assert_eq!(outcomes(&w), [Some(CheckpointOutcome::Saved), None]);
}

#[test]
fn an_eviction_bounds_the_wait_of_an_open_request_by_the_grace_period_of_the_pod() {
    for preempted in [false, true] {
        let mut w = asked(Some("ignore"), &json!({}));
        if preempted {
            let wanted = PreemptionRequest {
                id: "p1".to_owned(),
                deadline: w.now() + TimeDelta::seconds(120),
                preemptor: "ns/boss".to_owned(),
                watch: false,
            };
            w.edit_group("workload", |g| {
                g.status.get_or_insert_default().checkpoint_request = Some(wanted);
            });
        } else {
            w.edit(|spec| spec.restart_nonce = 1);
        }
        until_called(&mut w);
        let before = call(&w).unwrap();
        let pod = Key::of(&w.pod("g", 1));
        let grace = DeleteOptions {
            grace: Some(15),
            ..DeleteOptions::default()
        };
        let deleted = w.store().delete("user", WatchedKind::Pod, &pod, &grace);
        assert!(deleted.is_ok());
        w.rounds(2);
        let open = call(&w).unwrap();
        assert_eq!((&open.id, &*open.reason), (&before.id, "Eviction"));
        let left = (open.deadline - w.now()).num_seconds();
        assert!((1..=5).contains(&left), "15 s of grace less 10 s: {left}");
    }
}
