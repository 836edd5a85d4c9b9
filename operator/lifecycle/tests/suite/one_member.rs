//! Restart domains of one member, without peers.

use std::collections::BTreeMap;

use lockstep_api::workload::{CauseKind, FailureAction, Phase};
use lockstep_sim::Solo;
use lockstep_sim::solo::gang_with;
use serde_json::{Value, json};

use super::barrier::{attempts, denied};

/// A workload of `n` single-member domains with a policy that denies restarts without a supervisor.
fn replicas(n: i32, more: &Value) -> Value {
    let mut spec = denied(n, &json!([]));
    for (key, value) in more.as_object().unwrap() {
        let old = spec[key].as_object_mut();
        match (old, value.as_object()) {
            (Some(old), Some(new)) => old.extend(new.clone()),
            _ => spec[key] = value.clone(),
        }
    }
    spec
}

fn scopes() -> [Value; 2] {
    [
        json!({"failurePolicy": {"restartScope": "Replica"}}),
        json!({"scheduling": {"gang": {"scope": "Replica"}}}),
    ]
}

#[test]
fn a_gang_of_one_member_restarts_inside_its_container_by_default() {
    let mut w = Solo::supervised(denied(1, &json!([])));
    w.settle();
    let before = w.uids();
    assert_eq!(w.condition("RestartsInPlace"), "Supervised");
    w.exit("g", 0, 1);
    w.settle();
    assert_eq!(
        (w.uids(), w.restarts(), attempts(&mut w)),
        (before, vec![0], vec![2])
    );
    let s = w.status();
    assert_eq!(
        (s.history[0].action, s.history[0].cause.exit_code),
        (FailureAction::RestartGang, Some(1))
    );
    assert_eq!((s.restarts.in_place, s.restarts.counted), (1, 1));
}

#[test]
fn a_gang_of_one_member_restarts_in_its_pod_without_a_supervisor() {
    for restart_all in [false, true] {
        let mut w = Solo::new(denied(1, &json!([])));
        for node in w.node_names() {
            w.set_restart_all(&node, restart_all);
        }
        w.settle();
        let before = w.uids();
        assert_eq!(w.condition("RestartsInPlace"), "Unsupervised");
        w.exit("g", 0, 1);
        w.settle();
        let s = w.status();
        assert_eq!(w.uids(), before, "restart all: {restart_all}");
        assert_eq!(
            (s.phase, s.history[0].action, s.history[0].recreated),
            (Some(Phase::Running), FailureAction::RestartGang, 0)
        );
        assert_eq!((s.restarts.in_place, s.restarts.counted), (1, 1));
    }
}

#[test]
fn a_gang_of_two_members_without_a_supervisor_is_still_recreated() {
    let mut w = Solo::new(denied(2, &json!([])));
    w.settle();
    assert_eq!(w.condition("RestartsInPlace"), "!Denied");
    w.exit("g", 0, 1);
    w.settle();
    assert_eq!(w.status().history[0].action, FailureAction::RecreateGang);
}

#[test]
fn a_replica_of_one_member_restarts_in_its_pod_without_other_replicas() {
    for scope in scopes() {
        for supervised in [false, true] {
            let spec = replicas(3, &scope);
            let mut w = Solo::supervised_if(supervised, spec);
            w.settle();
            let before = w.uids();
            w.exit("g", 1, 1);
            w.settle();
            assert_eq!(w.uids(), before, "{scope}, supervised: {supervised}");
            let s = w.status();
            assert_eq!(
                (s.phase, s.restarts.in_place),
                (Some(Phase::Running), 1),
                "{scope}, supervised: {supervised}"
            );
            if supervised {
                assert_eq!(attempts(&mut w), [1, 2, 1], "{scope}");
            }
        }
    }
}

#[test]
fn a_replica_of_one_member_exits_when_it_has_succeeded() {
    for scope in scopes() {
        let mut w = Solo::supervised(replicas(2, &scope));
        w.settle();
        w.exit("g", 0, 0);
        w.until("the end of the replica", |w| {
            w.status().groups[0].succeeded == 1
        });
        assert_eq!(attempts(&mut w), [1], "{scope}: the other runs");
        w.exit("g", 1, 0);
        w.settle();
        assert_eq!(w.status().phase, Some(Phase::Succeeded), "{scope}");
    }
}

#[test]
fn a_hang_is_found_where_one_member_restarts_alone() {
    let progress =
        json!({"failurePolicy": {"progress": {"timeoutSeconds": 60, "startupSeconds": 60}}});
    let gang_of_one = || gang_with(1, &progress);
    let replica = || {
        let mut spec = gang_with(2, &progress);
        spec["failurePolicy"]["restartScope"] = json!("Replica");
        spec
    };
    for spec in [gang_of_one(), replica()] {
        let mut w = Solo::supervised(spec);
        w.settle();
        let before = w.uids();
        let pod = w.pod("g", 0);
        for step in [1, 2] {
            w.progress(&pod, step, None);
            w.rounds(3);
        }
        w.later(60);
        w.rounds(10);
        let first = BTreeMap::from([("g-0-0".to_owned(), 2)]);
        let mut children = w.children();
        children.retain(|member, _| member == "g-0-0");
        assert_eq!((w.uids(), children), (before, first));
        let cause = &w.status().history[0].cause;
        assert_eq!(
            (cause.kind, cause.message.as_str()),
            (CauseKind::Hang, "no progress for 60 s after step 2")
        );
    }
}
