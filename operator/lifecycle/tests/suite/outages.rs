//! Kubelets that do not reach the API server: many at once, or some for a short time.

use std::collections::BTreeMap;

use lockstep_api::condition::{find, reasons, types};
use lockstep_api::workload::Phase;
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Key, Solo, WatchedKind};
use serde_json::{Value, json};

/// `n` members that restart only with supervisors.
fn deny(n: i32, more: &Value) -> Value {
    let mut spec = gang_with(n, more);
    spec["failurePolicy"]["inPlace"] = json!({"withoutSupervisor": "Deny"});
    spec
}

fn cut_off(w: &mut Solo, nodes: &[String], off: bool) {
    for node in nodes {
        w.fault(node, |f| f.cut_off = off);
    }
}

/// Number of members that still have their pods.
fn survivors(w: &Solo, before: &BTreeMap<String, String>) -> usize {
    let after = w.uids();
    let same = |(member, uid): &(&String, &String)| after.get(*member) == Some(uid);
    before.iter().filter(same).count()
}

/// All nodes are silent for this many seconds, then return.
fn assert_outage_costs_nothing(mut w: Solo, seconds: usize, label: &str) {
    w.settle();
    let before = w.uids();
    let nodes = w.node_names();
    cut_off(&mut w, &nodes, true);
    w.rounds(seconds);
    let status = w.status();
    let ready = find(&status.conditions, types::READY).expect("a condition");
    assert_eq!(ready.reason, reasons::NODES_NOT_READY, "{label}");
    assert!(ready.message.contains("outage"), "{}", ready.message);
    // They return one after another.
    for node in nodes {
        w.fault(&node, |f| f.cut_off = false);
        w.rounds(7);
    }
    w.settle();
    let status = w.status();
    assert_eq!(survivors(&w, &before), before.len(), "{label}");
    assert_eq!(
        (status.phase, status.attempt, status.restarts.counted),
        (Some(Phase::Running), 1, 0),
        "{label}"
    );
}

#[test]
fn an_outage_of_all_kubelets_costs_nothing() {
    let none = json!({});
    let no_restarts = json!({"failurePolicy": {"limits": {"maxRestarts": 0}}});
    let basic = json!({"scheduling": {"policy": "Basic"}});
    assert_outage_costs_nothing(Solo::new(gang(4)), 100, "in place");
    assert_outage_costs_nothing(Solo::new(deny(8, &none)), 100, "recreated");
    assert_outage_costs_nothing(Solo::supervised(deny(8, &none)), 500, "supervised");
    assert_outage_costs_nothing(Solo::supervised(deny(4, &no_restarts)), 100, "no restarts");
    assert_outage_costs_nothing(Solo::new(gang_with(4, &basic)), 100, "basic");
}

#[test]
fn an_outage_is_no_hang() {
    let progress =
        json!({"failurePolicy": {"progress": {"timeoutSeconds": 60, "startupSeconds": 60}}});
    assert_outage_costs_nothing(Solo::supervised(deny(4, &progress)), 500, "progress");
}

/// Three of four silent nodes are in one zone, or in different zones.
#[test]
fn the_zone_of_a_node_decides_whether_its_silence_is_an_outage() {
    for (zones, lost) in [(["a", "a", "a", "a"], false), (["a", "b", "c", "d"], true)] {
        let mut w = Solo::supervised(deny(2, &json!({})));
        for (node, zone) in w.node_names().iter().zip(zones) {
            w.cluster
                .edit::<k8s_openapi::api::core::v1::Node>(&Key::new("", node), |n| {
                    let labels = n.metadata.labels.get_or_insert_default();
                    labels.insert("topology.kubernetes.io/zone".into(), zone.into());
                });
        }
        w.settle();
        let mut nodes = w.node_names();
        let used = w.node_of("g", 0);
        nodes.retain(|node| *node != used);
        nodes.truncate(2);
        nodes.push(used);
        cut_off(&mut w, &nodes, true);
        w.rounds(100);
        assert_eq!(w.status().attempt > 1, lost, "{zones:?}: {}", w.story(20));
    }
}

/// With one node there is no alternative. With two or three, the loss of one is a loss.
#[test]
fn a_small_cluster_loses_one_node_but_not_its_last() {
    for nodes in 1..=3 {
        let mut w = Solo::supervised(deny(1, &json!({})));
        for name in w.node_names().split_off(nodes) {
            w.delete(WatchedKind::Node, &Key::new("", &name));
        }
        w.settle();
        let before = w.uids();
        let node = w.node_of("g", 0);
        cut_off(&mut w, std::slice::from_ref(&node), true);
        w.rounds(100);
        let moved = nodes > 1;
        assert_eq!(
            survivors(&w, &before) == 0,
            moved,
            "{nodes} nodes: {}",
            w.story(60)
        );
        cut_off(&mut w, &[node], false);
        w.settle();
        let status = w.status();
        assert_eq!(status.phase, Some(Phase::Running), "{nodes} nodes");
        assert_eq!(status.restarts.counted, i64::from(moved), "{nodes} nodes");
    }
}

/// A switch reboots on a full cluster: the disconnected members have no other node.
fn until_nodes_return(mut w: Solo, seconds: usize) -> (Solo, BTreeMap<String, String>) {
    w.settle();
    let before = w.uids();
    let nodes = ["n0", "n1"].map(str::to_owned);
    cut_off(&mut w, &nodes, true);
    w.rounds(150);
    assert_eq!(survivors(&w, &before), 8, "no member has another node");
    assert_eq!(w.status().phase, Some(Phase::Restarting));
    cut_off(&mut w, &nodes, false);
    w.rounds(seconds);
    assert_eq!(w.status().phase, Some(Phase::Running), "{}", w.story(40));
    (w, before)
}

#[test]
fn members_on_a_full_cluster_keep_their_pods_until_their_nodes_return() {
    let (w, before) = until_nodes_return(Solo::supervised(deny(8, &json!({}))), 30);
    let status = w.status();
    assert_eq!(survivors(&w, &before), 8);
    assert_eq!(status.restarts.counted, 0, "no pod was lost");
    assert!(status.gangs[0].avoid.is_empty());
}

/// Without supervisors, a restart takes new pods.
#[test]
fn a_gang_that_is_recreated_waits_until_its_lost_nodes_return() {
    until_nodes_return(Solo::new(deny(8, &json!({}))), 60);
}

#[test]
fn a_gang_without_a_replacement_releases_its_nodes_in_time() {
    let mut w = Solo::supervised(deny(8, &json!({})));
    w.settle();
    let before = w.uids();
    cut_off(&mut w, &["n0".to_owned()], true);
    w.rounds(340);
    assert_eq!(survivors(&w, &before), 8);
    w.rounds(40);
    assert_eq!(survivors(&w, &before), 0);
    let written = w.written();
    let backoffs = written.iter().filter_map(|s| s.gangs[0].backoff.as_ref());
    let reasons: Vec<&str> = backoffs.map(|b| b.reason.as_str()).collect();
    assert!(reasons.contains(&"ReplacementTimeout"), "{reasons:?}");
}

/// A basic member continues on its silent node until another node is free.
#[test]
fn a_basic_member_keeps_its_pod_until_it_has_another_node() {
    let mut w = Solo::new(gang_with(8, &json!({"scheduling": {"policy": "Basic"}})));
    w.settle();
    let before = w.uids();
    cut_off(&mut w, &["n0".to_owned()], true);
    w.rounds(200);
    assert_eq!(survivors(&w, &before), 8);
    w.capacity("n1", 4);
    w.until("both members move", |w| survivors(w, &before) == 6);
}

#[test]
fn a_basic_member_without_another_node_continues_when_its_node_returns() {
    let mut w = Solo::new(gang_with(8, &json!({"scheduling": {"policy": "Basic"}})));
    w.settle();
    let before = w.uids();
    cut_off(&mut w, &["n0".to_owned()], true);
    w.rounds(200);
    let s = w.status();
    assert!(s.domains[0].replacement.is_some(), "{}", w.story(20));
    assert_eq!((s.restarts.counted_at.len(), s.history.len()), (1, 0));
    cut_off(&mut w, &["n0".to_owned()], false);
    w.settle();
    let s = w.status();
    assert_eq!(survivors(&w, &before), 8);
    assert_eq!(
        (s.phase, s.restarts.counted_at.len()),
        (Some(Phase::Running), 0)
    );
}
