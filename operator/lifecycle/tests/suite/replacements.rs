//! Replacements of single pods that do not succeed: members that do not need each other continue.

use k8s_openapi::api::core::v1::Pod;
use lockstep_api::TrainingWorkload;
use lockstep_api::workload::{Phase, TrainingWorkloadStatus};
use lockstep_sim::api::Refused;
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Key, Solo, WatchedKind};
use serde_json::{Value, json};

fn basic(n: i32, more: &Value) -> Value {
    let mut spec = gang_with(n, more);
    spec["scheduling"] = json!({"policy": "Basic"});
    spec
}

/// Four members, of which two suffice.
fn degrading() -> Value {
    let mut spec = gang(4);
    spec["scheduling"] = json!({"gang": {"minCount": 2}, "disruptionMode": "Single"});
    spec
}

fn is_replica(pod: &Value, group: &str, replica: &str) -> bool {
    let labels = &pod["metadata"]["labels"];
    labels["training.lockstep.dev/group"] == group
        && labels["training.lockstep.dev/replica"] == replica
}

/// From now on, a policy refuses new pods of this replica.
fn refuse(w: &mut Solo, replica: &'static str) {
    w.store().admission.webhook = Some(Box::new(move |pod| {
        if is_replica(pod, "g", replica) {
            return Err(Refused::forbidden("exceeded quota: gpus"));
        }
        Ok(())
    }));
}

/// Member 0 has lost its pod, and a policy refuses the replacement.
fn basic_with_refused_replacement(n: i32, more: &Value) -> Solo {
    let mut w = Solo::new(basic(n, more));
    w.settle();
    refuse(&mut w, "0");
    w.delete_pod("g", 0);
    w.rounds(60);
    assert_eq!(w.uids().len(), n as usize - 1, "the replacement is refused");
    w
}

/// Members that have had the same pod since `before`.
fn kept(w: &Solo, before: &std::collections::BTreeMap<String, String>) -> usize {
    let now = w.uids();
    let same = |(member, uid): &(&String, &String)| before.get(*member) == Some(*uid);
    now.iter().filter(same).count()
}

#[test]
fn a_refused_replacement_of_a_basic_member_costs_other_members_nothing() {
    let mut w = basic_with_refused_replacement(8, &json!({}));
    let before = w.uids();
    w.rounds(300);
    assert_eq!(kept(&w, &before), 7, "{}", w.story(20));
    w.store().admission.webhook = None;
    w.settle();
    let s = w.status();
    assert_eq!((kept(&w, &before), w.uids().len()), (7, 8));
    assert_eq!(s.phase, Some(Phase::Running));
    assert!(!s.domains[0].is_restarting());
}

#[test]
fn an_outage_of_a_webhook_costs_running_basic_members_nothing() {
    let mut w = Solo::new(basic(8, &json!({})));
    w.settle();
    let before = w.uids();
    w.store().admission.webhook = Some(Box::new(|_| {
        Err(Refused::new(500, "InternalError", "failed calling webhook"))
    }));
    w.delete_pod("g", 0);
    w.rounds(400);
    assert_eq!(kept(&w, &before), 7, "{}", w.story(20));
}

#[test]
fn a_refused_replacement_of_a_degrading_gang_costs_other_members_nothing() {
    for supervised in [false, true] {
        let mut w = Solo::supervised_if(supervised, degrading());
        w.settle();
        refuse(&mut w, "3");
        let before = w.uids();
        w.delete_pod("g", 3);
        w.rounds(400);
        assert_eq!(kept(&w, &before), 3, "{supervised}: {}", w.story(20));
        w.store().admission.webhook = None;
        w.settle();
        assert_eq!((kept(&w, &before), w.uids().len()), (3, 4), "{supervised}");
        assert_eq!(w.status().phase, Some(Phase::Running), "{supervised}");
    }
}

/// A restart of the whole gang, in which one member gets no new pod.
#[test]
fn a_degrading_gang_restarts_without_a_member_whose_pod_is_refused() {
    for supervised in [false, true] {
        let mut w = Solo::supervised_if(supervised, degrading());
        w.settle();
        refuse(&mut w, "3");
        let groups = w.groups();
        w.edit(|s| s.restart_nonce += 1);
        w.delete_pod("g", 3);
        w.rounds(500);
        let s = w.status();
        assert_eq!(s.attempt, 2, "{supervised}: {}", w.story(20));
        assert!(
            s.domains[0].incident.is_none(),
            "{supervised}: {}",
            s.message
        );
        assert_eq!(w.groups().len(), groups.len());
        assert_eq!(w.uids().len(), 3, "{supervised}: {}", w.story(20));
        assert!(s.gangs[0].backoff.is_none(), "{supervised}");
        w.store().admission.webhook = None;
        w.settle();
        assert_eq!(w.uids().len(), 4, "{supervised}");
        assert_eq!(w.status().phase, Some(Phase::Running), "{supervised}");
        assert_eq!(w.status().attempt, 2, "{supervised}");
    }
}

/// A restart of the whole Basic group, in which one member gets no new pod.
#[test]
fn a_refused_pod_does_not_keep_the_restart_of_a_basic_group_open() {
    let mut w = Solo::new(basic(4, &json!({})));
    w.settle();
    refuse(&mut w, "0");
    w.edit(|s| s.restart_nonce += 1);
    w.delete_pod("g", 0);
    w.rounds(500);
    let s = w.status();
    assert!(s.domains[0].incident.is_none(), "{}", w.story(20));
    assert_eq!(w.uids().len(), 3, "{}", w.story(20));
    w.exit("g", 1, 0);
    w.rounds(30);
    assert_eq!(w.status().groups[0].completed_indexes, "1");
}

#[test]
fn a_non_degrading_gang_still_releases_nodes_for_which_no_replacement_exists() {
    let rules = json!([{"name": "alone", "action": "RestartPod",
        "match": {"reasons": ["PodDeleted"]}}]);
    let mut w = Solo::new(gang_with(4, &json!({"failurePolicy": {"rules": rules}})));
    w.settle();
    refuse(&mut w, "0");
    w.delete_pod("g", 0);
    w.rounds(200);
    assert_eq!(w.uids().len(), 3, "{}", w.story(20));
    w.rounds(200);
    assert!(w.uids().is_empty(), "{}", w.story(20));
}

/// From now on, the image of new pods of a replica cannot be pulled.
fn image_is_gone(w: &mut Solo, is_it: fn(&Value) -> bool) {
    w.store().admission.webhook = Some(Box::new(move |pod| {
        if is_it(pod) {
            let env = json!({"name": "HOLLOW_NOT_CREATED", "value": "ErrImagePull"});
            let list = &mut pod["spec"]["containers"][0]["env"];
            match list.as_array_mut() {
                Some(list) => list.push(env),
                None => *list = json!([env]),
            }
        }
        Ok(())
    }));
}

#[test]
fn a_replaced_basic_member_without_image_costs_other_members_nothing() {
    let mut spec = basic(8, &json!({}));
    spec["failurePolicy"]["startDeadlineSeconds"] = json!(60);
    let mut w = Solo::new(spec);
    for node in w.node_names() {
        w.capacity(&node, 4);
    }
    w.settle();
    image_is_gone(&mut w, |pod| is_replica(pod, "g", "0"));
    let before = w.uids();
    w.delete_pod("g", 0);
    w.rounds(600);
    let s = w.status();
    assert_eq!(
        (kept(&w, &before), s.phase == Some(Phase::Failed)),
        (7, false),
        "{}",
        w.story(20)
    );
}

fn two_groups(first: i32) -> Value {
    let mut spec = basic(first, &json!({}));
    spec["failurePolicy"]["startDeadlineSeconds"] = json!(60);
    let mut second = gang(2)["groups"][0].clone();
    second["name"] = json!("h");
    spec["groups"].as_array_mut().unwrap().push(second);
    spec
}

#[test]
fn a_basic_group_without_image_costs_another_group_nothing() {
    let mut w = Solo::new(two_groups(2));
    image_is_gone(&mut w, |pod| {
        pod["metadata"]["labels"]["training.lockstep.dev/group"] == "h"
    });
    w.rounds(30);
    let of_g = |w: &Solo| -> Vec<_> {
        let all = w.uids().into_iter();
        all.filter(|(m, _)| m.starts_with("g-")).collect()
    };
    let before = of_g(&w);
    assert_eq!(before.len(), 2);
    w.rounds(600);
    let s = w.status();
    assert_eq!(
        of_g(&w),
        before,
        "{} {:?} {}",
        s.message,
        s.history,
        w.story(20)
    );
    assert_ne!(w.status().phase, Some(Phase::Failed));
    // Nothing else is left to run, so the template fails the workload.
    w.exit("g", 0, 0);
    w.exit("g", 1, 0);
    fails_without_image(&mut w);
}

fn fails_without_image(w: &mut Solo) {
    let mut minutes = 0;
    while w.status().phase != Some(Phase::Failed) && minutes < 30 {
        w.rounds(60);
        minutes += 1;
    }
    let s = w.status();
    assert_eq!(
        (s.phase, s.reason.as_str()),
        (Some(Phase::Failed), "ImageUnavailable")
    );
}

#[test]
fn a_basic_workload_fails_if_no_group_of_it_can_start() {
    let mut w = Solo::new(two_groups(2));
    image_is_gone(&mut w, |_| true);
    fails_without_image(&mut w);
}

#[test]
fn capacity_of_finished_basic_members_is_free_while_another_is_replaced() {
    let mut w = basic_with_refused_replacement(8, &json!({}));
    for member in 1..8 {
        w.exit("g", member, 0);
    }
    w.rounds(60);
    assert_eq!(w.status().groups[0].completed_indexes, "1-7");
    let mut other = gang(6);
    other["groups"][0]["name"] = json!("h");
    w.add_workload("other", other);
    w.rounds(120);
    let running = w.uids().keys().filter(|m| m.starts_with('h')).count();
    assert_eq!(running, 6, "{}", w.story(20));
}

#[test]
fn the_success_of_a_basic_member_is_recorded_while_another_is_replaced() {
    let mut w = basic_with_refused_replacement(4, &json!({}));
    w.exit("g", 1, 0);
    w.rounds(60);
    assert_eq!(w.status().groups[0].completed_indexes, "1");
    // The garbage collector of pods, or the removal of its node.
    let phase = |pod: &Pod| pod.status.as_ref().and_then(|s| s.phase.clone());
    let mut pods = w.pods().into_iter();
    let done = pods.find(|p| phase(p).as_deref() == Some("Succeeded"));
    w.remove(WatchedKind::Pod, &Key::of(&done.expect("a finished pod")));
    w.store().admission.webhook = None;
    w.settle();
    let names: Vec<String> = w.uids().into_keys().collect();
    assert!(!names.iter().any(|m| m.starts_with("g-1-")), "{names:?}");
}

#[test]
fn restarts_of_a_basic_member_are_charged_while_another_is_replaced() {
    let limits = json!({"failurePolicy": {"limits": {"maxRestarts": 3}}});
    let mut w = basic_with_refused_replacement(4, &limits);
    let mut exits = 0;
    while w.status().phase != Some(Phase::Failed) && exits < 10 {
        exits += i32::from(w.exit_if_running("g", 2, 1));
        w.rounds(20);
    }
    let s = w.status();
    assert_eq!(
        (s.phase, exits, s.restarts.counted),
        (Some(Phase::Failed), 4, 3)
    );
}

/// Each failure of another member opens a new replacement.
#[test]
fn a_second_replacement_keeps_the_new_pod_of_the_first() {
    let mut w = Solo::new(basic(4, &json!({})));
    w.settle();
    refuse(&mut w, "0");
    w.delete_pod("g", 0);
    w.rounds(10);
    w.delete_pod("g", 1);
    w.rounds(30);
    let before = w.uids();
    assert_eq!(before.len(), 3, "only the first is refused");
    w.delete_pod("g", 2);
    w.rounds(60);
    assert_eq!(kept(&w, &before), 2, "{}", w.story(20));
}

/// The status of an earlier version has one field for incidents of both kinds.
fn as_an_earlier_version(status: &mut TrainingWorkloadStatus) {
    let mut value = serde_json::to_value(&*status).unwrap();
    for domain in value["domains"].as_array_mut().unwrap() {
        let attempt = domain["attempt"].clone();
        let Some(open) = domain.as_object_mut().unwrap().remove("replacement") else {
            continue;
        };
        domain["incident"] = json!({
            "attempt": attempt, "action": "RestartPod", "stage": "Ordered",
            "cause": open["cause"], "counted": open["counted"],
            "replace": open["members"], "oldPods": open["oldPods"],
            "detectedAt": open["detectedAt"], "decidedAt": open["detectedAt"],
            "orderedAt": open["detectedAt"], "arrivedAt": open["detectedAt"],
        });
    }
    *status = serde_json::from_value(value).unwrap();
}

#[test]
fn a_replacement_recorded_by_an_earlier_version_continues_without_a_restart() {
    let mut w = basic_with_refused_replacement(4, &json!({}));
    let (before, old) = (w.uids(), w.status());
    let key = w.key().clone();
    w.cluster.edit::<TrainingWorkload>(&key, |w| {
        as_an_earlier_version(w.status.as_mut().unwrap());
    });
    assert!(w.status().domains[0].incident.is_some());
    w.rounds(60);
    let s = w.status();
    assert_eq!(s.domains[0].replacement, old.domains[0].replacement);
    assert_eq!((&s.restarts, &s.history), (&old.restarts, &old.history));
    w.store().admission.webhook = None;
    w.settle();
    assert_eq!((kept(&w, &before), w.uids().len()), (3, 4));
    let s = w.status();
    assert_eq!((s.history.len(), s.restarts.total), (1, 1));
}

/// An earlier version drops the field that it does not know.
#[test]
fn a_lost_replacement_costs_other_members_nothing() {
    for (supervised, degrades) in [(false, false), (false, true), (true, true)] {
        let spec = if degrades {
            degrading()
        } else {
            basic(4, &json!({}))
        };
        let mut w = Solo::supervised_if(supervised, spec);
        w.settle();
        let before = w.uids();
        refuse(&mut w, "0");
        w.delete_pod("g", 0);
        w.rounds(30);
        let key = w.key().clone();
        w.cluster.edit::<TrainingWorkload>(&key, |w| {
            w.status.as_mut().unwrap().domains[0].replacement = None;
        });
        w.rounds(30);
        w.store().admission.webhook = None;
        w.settle();
        let s = w.status();
        let case = (supervised, degrades);
        assert_eq!((kept(&w, &before), w.uids().len()), (3, 4), "{case:?}");
        assert_eq!((s.attempt, s.restarts.counted), (1, 0));
    }
}

#[test]
fn a_degrading_gang_starts_with_the_members_that_a_policy_admits() {
    for supervised in [false, true] {
        let mut w = Solo::supervised_if(supervised, degrading());
        refuse(&mut w, "3");
        w.rounds(60);
        let before = w.uids();
        assert_eq!(before.len(), 3, "{supervised}: {}", w.story(20));
        w.rounds(400);
        assert_eq!(kept(&w, &before), 3, "{supervised}: {}", w.story(20));
        assert!(w.exit_if_running("g", 0, 0), "{supervised}: it trains");
    }
}
