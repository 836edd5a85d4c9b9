//! Webhooks that change what identifies or places a pod.

use lockstep_api::condition::reasons;
use lockstep_api::workload::Phase;
use lockstep_sim::api::Verb;
use lockstep_sim::solo::gang;
use lockstep_sim::{Solo, WatchedKind};
use serde_json::{Value, json};

fn drop_annotations(pod: &mut Value) {
    pod["metadata"]["annotations"] = json!({"team": "x"});
}

fn replace_affinity(pod: &mut Value) {
    let term = json!({"matchExpressions": [{"key": "pool", "operator": "DoesNotExist"}]});
    let required = json!({"nodeSelectorTerms": [term]});
    pod["spec"]["affinity"] =
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
}

fn keep_pin_beside_own_terms(pod: &mut Value) {
    let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    for term in pod
        .pointer_mut(terms)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        term["matchExpressions"] = json!([{"key": "pool", "operator": "DoesNotExist"}]);
    }
}

fn with_webhook(w: &Solo, change: fn(&mut Value)) {
    w.store().admission.webhook = Some(Box::new(move |pod| {
        change(pod);
        Ok(())
    }));
}

fn creates(w: &Solo) -> usize {
    let log = w.log();
    let ours = log.iter().filter(|l| l.who == "controller");
    ours.filter(|l| l.kind == WatchedKind::Pod && l.verb == Verb::Create)
        .count()
}

#[test]
fn a_webhook_that_alters_pods_is_named_and_the_gang_backs_off() {
    for (change, part) in [
        (
            drop_annotations as fn(&mut Value),
            "annotation training.lockstep.dev/spec-hash",
        ),
        (replace_affinity, "spec.affinity.nodeAffinity"),
    ] {
        let mut w = Solo::new(gang(2));
        with_webhook(&w, change);
        w.rounds(600);
        let s = w.status();
        assert_eq!(
            (s.phase, s.reason.as_str()),
            (Some(Phase::Pending), reasons::POD_ALTERED)
        );
        assert!(
            s.message.contains(part) && s.message.contains("retry at"),
            "{}",
            s.message
        );
        let created = creates(&w);
        assert!(created < 20, "{created} pods created");
        assert!(w.pods().is_empty(), "{part}");
        w.store().admission.webhook = None;
        w.rounds(600);
        assert_eq!(w.status().phase, Some(Phase::Running), "{}", w.story(20));
    }
}

#[test]
fn a_webhook_that_alters_one_replacement_deletes_no_other_member() {
    let mut spec = gang(4);
    spec["scheduling"] = json!({"policy": "Basic"});
    let mut w = Solo::new(spec);
    w.settle();
    let before = w.uids();
    with_webhook(&w, drop_annotations);
    w.delete_pod("g", 0);
    w.rounds(200);
    let kept = w
        .uids()
        .into_iter()
        .filter(|(m, uid)| before.get(m) == Some(uid))
        .count();
    assert_eq!(kept, 3, "{}", w.story(20));
    let created = creates(&w) - 4;
    assert!((2..20).contains(&created), "{created} pods created");
    w.store().admission.webhook = None;
    w.rounds(200);
    assert_eq!(w.status().phase, Some(Phase::Running));
    assert_eq!(w.uids().len(), 4);
}

#[test]
fn a_webhook_that_adds_to_the_affinity_is_no_problem() {
    let mut w = Solo::new(gang(2));
    with_webhook(&w, keep_pin_beside_own_terms);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
    assert_eq!(creates(&w), 2);
}
