//! Preemption of a gang and by a gang.

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::Pod;
use lockstep_api::condition::{Condition, ConditionStatus, find, is_true, reasons, types, upsert};
use lockstep_api::member::Member;
use lockstep_api::scheduling::{BindingProgress, Preemption};
use lockstep_api::workload::{CauseKind, Phase};
use lockstep_lifecycle::transitions;
use lockstep_sim::pods::{condition, gated, leaving};
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Key, Solo, WatchedKind};
use serde_json::json;

#[test]
fn a_preempted_gang_leaves_whole_and_queues_again_uncounted() {
    let mut w = Solo::new(gang_with(
        3,
        &json!({"failurePolicy": {"limits": {"maxRestarts": 0}}}),
    ));
    w.settle();
    w.preempt("workload");
    assert_eq!(
        (w.condition("DisruptionTarget"), w.status().preemptions),
        ("PreemptionByScheduler".into(), 1)
    );
    w.pass();
    assert_eq!(w.pods().len(), 3);
    let marked = Some(("True", "PreemptionByScheduler"));
    assert!(
        w.pods()
            .iter()
            .all(|p| leaving(p) && condition(p, "DisruptionTarget") == marked)
    );
    w.settle();
    let s = w.status();
    assert_eq!(
        (s.phase, s.preemptions, s.restarts.counted),
        (Some(Phase::Running), 1, 0)
    );
    assert_eq!(
        (s.history.len(), s.history[0].cause.kind),
        (1, CauseKind::Preempted)
    );
    let by = s.history[0].preemptor.clone().unwrap();
    assert_eq!((&*by.namespace, &*by.name), ("ns", "boss"));
    assert_eq!(by.priority, 500);
    let group = w.groups().remove("workload").unwrap();
    assert_eq!(group.status.unwrap().preemptor, None);
    assert_eq!(w.condition("DisruptionTarget"), "!NotPreempted");
}

#[test]
fn a_member_taken_by_kube_scheduler_requeues_the_gang_even_if_its_pod_is_gone() {
    let mut w = Solo::new(gang(3));
    w.settle();
    // Twice: the pod of an earlier placement does not count again.
    for times in 1..=2 {
        let taken = Key::of(&w.pod("g", 1));
        w.take_pod("g", 1);
        w.remove(WatchedKind::Pod, &taken);
        w.settle();
        let s = w.status();
        assert_eq!((s.preemptions, s.restarts.counted), (times, 0));
        assert_eq!(s.history[0].cause.kind, CauseKind::Preempted);
        assert_eq!(s.phase, Some(Phase::Running));
    }
}

#[test]
fn members_that_an_elastic_gang_lacks_after_a_preemption_are_not_taken_again() {
    let elastic = json!({"scheduling": {"gang": {"minCount": 1}}});
    let mut w = Solo::new(gang_with(8, &elastic));
    w.settle();
    w.preempt("workload");
    w.capacity("n3", 0);
    w.settle();
    let s = w.status();
    assert_eq!((s.preemptions, s.phase), (1, Some(Phase::Running)));
}

#[test]
fn the_last_delete_of_a_kubelet_is_no_second_preemption() {
    for make in [Solo::new, Solo::kubernetes] {
        for restarted in [false, true] {
            let mut w = make(gang(2));
            w.settle();
            w.take_pod("g", 0);
            w.pass();
            w.pass();
            let old = w.pods();
            assert!(old.iter().all(leaving));
            // The gang gets other nodes, while its old pods still end.
            let decided = w.now() + TimeDelta::seconds(5);
            w.later(5);
            let on = |index, node: &str| (Member::new("g", index, 0), node.to_owned());
            w.place("workload", &[on(0, "n2"), on(1, "n3")].into());
            w.pass();
            w.later(1);
            if restarted {
                w.crash();
            }
            for pod in &old {
                w.cluster.edit::<Pod>(&Key::of(pod), |pod| {
                    let at = decided + TimeDelta::seconds(1);
                    pod.metadata.deletion_timestamp =
                        Some(serde_json::from_value(json!(at)).unwrap());
                    pod.metadata.deletion_grace_period_seconds = Some(0);
                });
            }
            w.pass();
            assert_eq!(w.status().preemptions, 1, "restarted {restarted}");
        }
    }
}

#[test]
fn an_eviction_is_the_cause_of_a_restart_even_if_the_pod_is_gone() {
    let mut w = Solo::new(gang(2));
    w.settle();
    let evicted = w.pod("g", 1);
    w.cluster.evict(&evicted).unwrap();
    w.remove(WatchedKind::Pod, &Key::of(&evicted));
    w.settle();
    let (phase, history) = (w.status().phase, w.status().history);
    assert_eq!((phase, history.len()), (Some(Phase::Running), 1));
    assert_eq!(history[0].cause.reason, "EvictionByEvictionAPI");
}

#[test]
fn a_member_taken_by_kube_scheduler_requeues_the_whole_gang() {
    let mut w = Solo::new(gang(3));
    w.settle();
    let before = w.uids();
    w.take_pod("g", 1);
    w.settle();
    assert!(w.uids().values().all(|u| before.values().all(|b| b != u)));
    assert_eq!(
        (w.status().preemptions, w.status().restarts.counted),
        (1, 0)
    );
}

#[test]
fn a_preempted_gang_that_had_restarted_before_starts_again_without_an_incident() {
    for make in [Solo::new, Solo::supervised] {
        let mut w = make(gang_with(2, &json!({})));
        w.settle();
        w.exit("g", 0, 1);
        w.settle();
        let nodes = ["n0", "n1", "n2", "n3"];
        for node in nodes {
            w.capacity(node, 0);
        }
        w.preempt("workload");
        // Another workload uses its nodes.
        w.rounds(30);
        assert_eq!(w.pods().len(), 0);
        for node in nodes {
            w.capacity(node, 8);
        }
        w.settle();
        let s = w.status();
        let causes: Vec<CauseKind> = s.history.iter().map(|h| h.cause.kind).collect();
        assert_eq!(causes, [CauseKind::Preempted, CauseKind::ContainerExit]);
        assert_eq!(s.phase, Some(Phase::Running));
    }
}

#[test]
fn a_preempted_gang_that_no_supervisor_holds_starts_again_without_an_incident() {
    // The installation has supervisors, but no node has an agent.
    let mut w = Solo::supervised(gang(2));
    w.faults(|f| f.no_agent = true);
    w.settle();
    for round in 1..=2 {
        w.preempt("workload");
        w.settle();
        let s = w.status();
        let causes: Vec<CauseKind> = s.history.iter().map(|h| h.cause.kind).collect();
        assert_eq!(causes, vec![CauseKind::Preempted; round]);
        assert_eq!(s.phase, Some(Phase::Running));
    }
}

#[test]
fn a_preemption_of_what_has_no_placement_is_withdrawn() {
    let mut w = Solo::new(gang(2));
    while w.groups().is_empty() {
        w.pass();
    }
    w.preempt("workload");
    w.settle();
    w.wait(3600);
    assert_eq!(w.status().phase, Some(Phase::Running));
    let group = w.groups().remove("workload").unwrap();
    let conditions = group.status.unwrap().conditions;
    assert!(!is_true(&conditions, "DisruptionTarget"));
}

/// A gang of two with a placement that waits for victims.
fn preemptor() -> Solo {
    preempting(Solo::new(gang(2)))
}

fn preempting(mut w: Solo) -> Solo {
    while w.status().applied.is_none() || w.groups().is_empty() {
        w.pass();
    }
    w.schedule();
    announce_preemption(&mut w);
    w
}

/// The scheduler announces that the placement waits for victims.
fn announce_preemption(w: &mut Solo) {
    w.edit_group("workload", |group| {
        let status = group.status.as_mut().unwrap();
        let placement = status.placement.clone().unwrap().id;
        status.preemption = Some(Preemption {
            placement,
            ..Preemption::default()
        });
    });
}

/// The node to which a pod is pinned.
fn pin(pod: &Pod) -> String {
    let affinity = pod.spec.clone().unwrap().affinity.unwrap().node_affinity;
    let required = affinity
        .unwrap()
        .required_during_scheduling_ignored_during_execution;
    let term = required.unwrap().node_selector_terms.remove(0);
    term.match_fields
        .unwrap()
        .remove(0)
        .values
        .unwrap()
        .remove(0)
}

/// The scheduler nominates nodes for the first pods of the group.
fn nominate(w: &mut Solo, pods: i32) {
    for i in 0..pods {
        w.edit_pod("g", i, |p| {
            let node = pin(p);
            p.status.get_or_insert_default().nominated_node_name = Some(node);
        });
    }
}

#[test]
fn a_preemptors_pods_wait_behind_their_gate_until_they_are_nominated() {
    let mut w = preemptor();
    w.control();
    assert_eq!((w.pods().len(), w.pods().iter().all(gated)), (2, true));
    assert_eq!(w.condition("Admitted"), "!Preempting");
    nominate(&mut w, 2);
    w.control();
    assert!(w.pods().iter().all(|p| !gated(p)));
}

#[test]
fn one_pod_of_a_native_group_is_gated_until_the_victims_are_gone() {
    let mut w = preempting(Solo::native(gang(2)));
    let gates = |w: &mut Solo| {
        w.control();
        w.pods().iter().map(gated).collect::<Vec<_>>()
    };
    assert_eq!(gates(&mut w), [true, true]);
    nominate(&mut w, 2);
    assert_eq!(gates(&mut w), [true, false]);
    assert!(w.is_idle());
    let since = w.now();
    w.edit_group("workload", |group| {
        let intent = group.status.as_mut().unwrap().preemption.as_mut().unwrap();
        intent.binding = Some(BindingProgress { bound: 0, since });
    });
    assert_eq!(gates(&mut w), [false, false]);
}

#[test]
fn a_missing_scheduler_is_suspected_only_if_all_pods_wait_for_it() {
    let mut w = preemptor();
    let since = w.now() - TimeDelta::minutes(2);
    w.edit_group("workload", |group| {
        let intent = group.status.as_mut().unwrap().preemption.as_mut().unwrap();
        intent.binding = Some(BindingProgress { bound: 0, since });
    });
    let says = |w: &mut Solo, asks: bool| {
        w.later(2);
        w.control();
        let status = w.status();
        let message = &find(&status.conditions, types::ADMITTED).unwrap().message;
        assert!(message.contains("0 members bound since"), "{message}");
        assert_eq!(message.contains("is the scheduler"), asks, "{message}");
    };
    // First all pods are gated, then one.
    says(&mut w, false);
    nominate(&mut w, 1);
    says(&mut w, false);
    nominate(&mut w, 2);
    says(&mut w, true);
}

#[test]
fn a_withdrawn_preemption_takes_its_gated_pods_along() {
    let mut w = preemptor();
    w.control();
    assert_eq!(w.pods().len(), 2);
    w.edit_group("workload", |group| {
        let status = group.status.as_mut().unwrap();
        (status.preemption, status.placement) = (None, None);
    });
    w.control();
    assert!(w.pods().is_empty());
}

#[test]
fn a_gang_per_replica_fails_and_is_preempted_by_itself() {
    let mut w = Solo::new(gang_with(
        3,
        &json!({"scheduling": {"gang": {"scope": "Replica"}}}),
    ));
    w.settle();
    let before = w.uids();
    w.exit("g", 1, 1);
    w.settle();
    assert_eq!((w.restarts(), w.uids() == before), (vec![0, 1, 0], true));
    w.preempt("g.2");
    w.settle();
    let after = w.uids();
    assert_eq!(
        before
            .iter()
            .filter(|(m, u)| after[*m] != **u)
            .map(|(m, _)| m.as_str())
            .collect::<Vec<_>>(),
        ["g-2-0"]
    );
    assert_eq!(
        (w.status().preemptions, w.status().phase),
        (1, Some(Phase::Running))
    );
}

#[test]
fn a_preemption_is_followed_whatever_the_clock_of_the_leader_that_announces_it() {
    let mut w = Solo::new(gang(2));
    w.settle();
    let slow = w.now() - TimeDelta::hours(1);
    w.edit_group("workload", |group| {
        let conditions = &mut group.status.get_or_insert_default().conditions;
        let preempted = Condition {
            type_: types::DISRUPTION_TARGET.to_owned(),
            status: ConditionStatus::True,
            reason: reasons::PREEMPTION_BY_SCHEDULER.to_owned(),
            message: "preempted".to_owned(),
            last_transition_time: slow,
            observed_generation: 1,
        };
        upsert(conditions, preempted);
    });
    w.pass();
    assert_eq!(w.status().preemptions, 1);
}

#[test]
fn a_preemption_is_one_event() {
    let mut w = Solo::new(gang(2));
    w.settle();
    w.preempt("workload");
    w.settle();
    let spec = w.workload().unwrap().spec;
    let written = w.written();
    let events = written
        .windows(2)
        .flat_map(|two| transitions(&spec, &two[0], &two[1]));
    let preempted = events.filter(|event| event.note.contains("preempted by ns/boss"));
    let reasons: Vec<String> = preempted.map(|event| event.reason).collect();
    assert_eq!(reasons, ["PreemptionByScheduler"]);
}

#[test]
fn a_preempted_gang_has_its_whole_scheduling_timeout() {
    let limits = json!({"timeoutSeconds": 60, "onTimeout": "Fail"});
    let mut w = Solo::new(gang_with(2, &json!({"scheduling": limits})));
    w.settle();
    w.later(300);
    for node in w.node_names() {
        w.capacity(&node, 0);
    }
    w.preempt("workload");
    w.rounds(30);
    assert_eq!(w.condition("Failed"), "absent");
    w.rounds(60);
    assert_eq!(w.condition("Failed"), "SchedulingTimeout");
}
