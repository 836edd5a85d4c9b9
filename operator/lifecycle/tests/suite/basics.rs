//! Create, run, restart in place, complete, suspend.

use lockstep_api::workload::Phase;
use lockstep_lifecycle::{Action, Plan};
use lockstep_sim::Solo;
use lockstep_sim::pods::node_of;
use lockstep_sim::solo::{gang, gang_with};
use serde_json::json;

#[test]
fn a_gang_is_created_whole_and_runs() {
    let mut w = Solo::new(gang(4));
    w.settle();
    let s = w.status();
    assert_eq!(
        (s.phase, s.ready.as_str(), s.attempt),
        (Some(Phase::Running), "4/4", 1)
    );
    assert_eq!(w.condition("Ready"), "AllMembersReady");
    assert_eq!(w.condition("Reconciling"), "!Reconciled");
    assert_eq!(s.accounting.accelerators, 32);
}

#[test]
fn a_settled_workload_is_left_alone() {
    let mut w = Solo::new(gang(4));
    w.settle();
    assert!(w.is_idle());
}

#[test]
fn a_gang_that_does_not_fit_has_no_pods() {
    let mut w = Solo::new(gang(9));
    w.settle();
    assert!(w.pods().is_empty());
    assert_eq!(w.condition("Admitted"), "!ExceedsCluster");
    assert_eq!(w.status().phase, Some(Phase::Pending));
}

#[test]
fn a_gang_restarts_in_place_with_every_pod_kept_and_every_container_restarted_once() {
    let mut w = Solo::new(gang(4));
    w.settle();
    let before = w.uids();
    w.exit("g", 2, 42);
    w.settle();
    assert_eq!(w.uids(), before);
    assert_eq!(w.restarts(), [1, 1, 1, 1]);
    let s = w.status();
    let h = &s.history[0];
    assert_eq!(
        (s.attempt, s.history.len(), h.attempt, h.cause.exit_code),
        (2, 1, 2, Some(42))
    );
    assert_eq!(
        (s.restarts.total, s.restarts.in_place, s.restarts.counted),
        (1, 1, 1)
    );
    assert!(h.recovered_at.is_some());
    assert_eq!((s.phase, s.ready.as_str()), (Some(Phase::Running), "4/4"));
}

#[test]
fn members_that_die_together_are_one_incident_and_restart_once() {
    for quick in [false, true] {
        let mut w = Solo::new(gang(4));
        w.settle();
        let before = w.uids();
        w.faults(|f| f.quick = quick);
        for i in 0..4 {
            w.exit("g", i, 1);
        }
        w.settle();
        assert_eq!((w.uids(), w.restarts()), (before, vec![1, 1, 1, 1]));
        let s = w.status();
        assert_eq!((s.attempt, s.history.len(), s.restarts.counted), (2, 1, 1));
    }
}

#[test]
fn the_true_exit_code_survives_a_masked_last_state() {
    let mut w = Solo::new(gang(2));
    w.settle();
    // After a restart of all containers, the kubelet shows 137.
    w.faults(|f| f.quick = true);
    w.exit("g", 1, 42);
    let node = node_of(&w.pod("g", 1)).unwrap().to_owned();
    w.kubelet(&node);
    let status = w.pod("g", 1).status.unwrap();
    let shown = &status.container_statuses.unwrap()[0];
    let last = shown.last_state.clone().unwrap().terminated.unwrap();
    assert_eq!((shown.restart_count, last.exit_code), (1, 137));
    w.settle();
    assert_eq!(w.status().history[0].cause.exit_code, Some(42));
}

#[test]
fn a_workload_whose_members_all_succeed_is_complete() {
    let mut w = Solo::new(gang(3));
    w.settle();
    for i in 0..3 {
        w.exit("g", i, 0);
    }
    w.settle();
    assert_eq!(
        (w.condition("Complete"), w.status().phase),
        ("SuccessPolicy".into(), Some(Phase::Succeeded))
    );
    assert_eq!(w.status().groups[0].completed_indexes, "0-2");
    assert_eq!(w.pods().len(), 3, "ended pods stay for their logs");
}

#[test]
fn the_restart_order_ends_with_the_last_pod_of_an_ended_workload() {
    for code in [0, 1] {
        let mut spec = gang(2);
        spec["failurePolicy"]["limits"] = json!({"maxRestarts": 0});
        let mut w = Solo::new(spec);
        w.settle();
        w.exit("g", 0, code);
        w.settle();
        // All agents of the cluster keep orders.
        assert_eq!(w.order().is_some(), code == 0, "one member runs");
        if code == 0 {
            w.exit("g", 1, 0);
            w.settle();
        }
        assert!(
            w.status()
                .phase
                .is_some_and(|p| matches!(p, Phase::Succeeded | Phase::Failed))
        );
        assert_eq!(w.order(), None);
        w.later(3_600);
        w.settle();
        assert_eq!(w.order(), None);
    }
}

#[test]
fn a_suspended_workload_holds_nothing_and_comes_back() {
    let mut w = Solo::new(gang(4));
    w.settle();
    w.edit(|s| s.suspend = true);
    w.settle();
    assert!(w.pods().is_empty());
    assert!(
        w.groups()
            .values()
            .all(|g| g.status.as_ref().unwrap().placement.is_none()),
        "the placement is released"
    );
    assert_eq!(
        (w.condition("Suspended"), w.status().phase),
        ("Suspended".into(), Some(Phase::Suspended))
    );
    assert_eq!(w.status().ready, "0/4");
    w.edit(|s| s.suspend = false);
    w.settle();
    assert_eq!(
        (w.status().phase, w.status().ready),
        (Some(Phase::Running), "4/4".into())
    );
    assert!(w.status().history.is_empty(), "nothing of it is a failure");
}

/// They hold their nodes for up to their grace period.
#[test]
fn pods_that_still_end_are_counted_while_suspended_and_after() {
    let mut w = Solo::new(gang(2));
    w.settle();
    w.faults(|f| f.unkillable = true);
    w.edit(|s| s.suspend = true);
    w.rounds(4);
    let message = |w: &Solo, kind: &str| {
        let conditions = w.status().conditions;
        let of_kind = conditions.into_iter().find(|c| c.type_ == kind);
        of_kind.map(|c| c.message).unwrap_or_default()
    };
    let suspended = "spec.suspend is true; 2 pods are still ending";
    assert_eq!(message(&w, "Suspended"), suspended);
    w.edit(|s| s.suspend = false);
    w.rounds(4);
    let queued = "waiting in the scheduling queue; 2 pods are still ending";
    assert_eq!(message(&w, "Admitted"), queued, "{}", w.story(10));
    w.faults(|f| f.unkillable = false);
    w.settle();
    assert_eq!(w.status().phase, Some(Phase::Running));
}

#[test]
fn a_workload_created_suspended_makes_nothing() {
    let mut w = Solo::new(gang_with(2, &json!({"suspend": true})));
    w.settle();
    assert!(w.pods().is_empty() && w.groups().is_empty() && w.service().is_none());
    assert_eq!(w.status().phase, Some(Phase::Suspended));
}

#[test]
fn a_quick_suspend_edit_resume_is_noticed() {
    let mut w = Solo::new(gang(2));
    w.settle();
    let before = w.uids();
    w.edit(|s| {
        s.groups[0].template.0.spec.as_mut().unwrap().containers[0].image = Some("new".into());
    });
    w.settle();
    assert!(
        w.uids()
            .values()
            .all(|uid| before.values().all(|old| old != uid))
    );
    assert!(
        w.pods()
            .iter()
            .all(|p| p.spec.as_ref().unwrap().containers[0].image.as_deref() == Some("new"))
    );
    assert_eq!(
        (w.pods().len(), w.status().phase),
        (2, Some(Phase::Running))
    );
}

#[test]
fn an_ended_workload_is_deleted_after_its_time_to_live() {
    let mut w = Solo::new(gang_with(1, &json!({"ttlSecondsAfterFinished": 100})));
    w.settle();
    w.exit("g", 0, 0);
    w.settle();
    assert!(!w.deleted());
    w.wait(101);
    assert!(w.deleted());
}

#[test]
fn another_controllers_workload_is_left_alone() {
    let mut w = Solo::new(gang_with(2, &json!({"managedBy": "other.dev/x"})));
    w.settle();
    assert!(w.written().is_empty() && w.groups().is_empty());
}

#[test]
fn a_pass_creates_at_most_some_megabytes_of_pods() {
    let big = "x".repeat(1_100_000);
    let container = json!({"name": "t", "image": "i", "env": [{"name": "BIG", "value": big}]});
    let group =
        json!({"name": "g", "replicas": 40, "template": {"spec": {"containers": [container]}}});
    let mut w = Solo::new(json!({"groups": [group]}));
    let mut bytes: usize = 0;
    while bytes == 0 {
        if let Plan::Act(actions) = w.plan() {
            let pods = actions.iter().filter_map(|action| match action {
                Action::CreatePod { pod, .. } => Some(serde_json::to_vec(pod).unwrap().len()),
                _ => None,
            });
            bytes = pods.sum();
        }
        w.pass();
        w.schedule();
        w.later(1);
    }
    assert!((1_000_000..32_000_000).contains(&bytes), "{bytes}");
    w.settle();
    assert_eq!(w.status().ready, "40/40");
}
