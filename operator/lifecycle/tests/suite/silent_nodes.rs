//! Silent nodes: disconnected from the API server, or dead.

use k8s_openapi::api::core::v1::Pod;
use lockstep_api::workload::Phase;
use lockstep_sim::api::Verb;
use lockstep_sim::pods::{leaving, node_of};
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Key, Solo, WatchedKind};
use serde_json::json;

/// A supervised gang of four, two per node. One node has been disconnected until its members were
/// replaced. Returns that node.
fn replaced_behind_a_partition() -> (Solo, String) {
    let policy = json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Deny"}}});
    let mut w = Solo::supervised(gang_with(4, &policy));
    w.settle();
    let node = w.node_of("g", 3);
    w.fault(&node, |f| f.cut_off = true);
    w.rounds(60);
    w.until("attempt 2 elsewhere", |w| {
        let all = w.children();
        all.len() == 4 && all.values().all(|attempt| *attempt == 2)
    });
    (w, node)
}

fn on(w: &mut Solo, node: &str) -> Vec<u64> {
    let children = w.node(node).runtime.children();
    children.into_iter().map(|(_, attempt)| attempt).collect()
}

/// Pods that still exist on a node, but belong to no member.
fn left_on(w: &Solo, node: &str) -> Vec<Pod> {
    let mut pods = w.pods();
    pods.retain(|p| node_of(p) == Some(node));
    pods
}

#[test]
fn ranks_behind_a_partition_continue_and_never_connect_to_their_replacements() {
    let (mut w, node) = replaced_behind_a_partition();
    assert_eq!(on(&mut w, &node), [1, 1], "nobody there has heard of it");
    let order = w.order().unwrap().spec.domains.remove(0);
    assert_eq!(
        order.coordinator.map(|c| c.port),
        Some(29_501),
        "where attempt 2 meets, nobody of attempt 1 comes"
    );
    w.wait(600);
    assert_eq!(on(&mut w, &node), [1, 1]);
    w.fault(&node, |f| f.cut_off = false);
    // Its agent receives the order before its kubelet receives the deletion.
    for _ in 0..10 {
        w.agent(&node);
        w.later(1);
    }
    assert_eq!(on(&mut w, &node), [0; 0]);
    w.settle();
    assert_eq!(on(&mut w, &node), [0; 0]);
    assert!(left_on(&w, &node).is_empty());
    assert!(w.children().values().all(|attempt| *attempt == 2));
    let s = w.status();
    assert_eq!((s.phase, s.attempt), (Some(Phase::Running), 2));
}

#[test]
fn a_rank_that_fails_behind_a_partition_is_started_by_its_kubelet_and_held_for_good() {
    let (mut w, node) = replaced_behind_a_partition();
    for pod in left_on(&w, &node) {
        assert!(w.exit_pod(&pod, 1), "it has lost its peers");
    }
    // The supervisor stops waiting for the manager and exits. The kubelet restarts the container.
    for _ in 0..300 {
        w.rounds(2);
        assert_eq!(on(&mut w, &node), [0; 0], "{}", w.story(20));
    }
    let table = w.node(&node).runtime.table().all();
    let again = table
        .iter()
        .flat_map(|(_, view)| &view.containers)
        .filter(|c| c.alive() && c.attempt > 0)
        .count();
    assert_eq!(again, 2, "containers that wait at the barrier");
    w.fault(&node, |f| f.cut_off = false);
    w.settle();
    assert!(left_on(&w, &node).is_empty());
    let s = w.status();
    assert_eq!((s.phase, s.attempt), (Some(Phase::Running), 2));
}

/// The workload has no finalizer. The garbage collector deletes its objects.
#[test]
fn deleting_a_workload_forces_no_pods_on_a_lost_node_until_the_node_is_deleted() {
    let mut w = Solo::new(gang(4));
    w.settle();
    let node = w.node_of("g", 3);
    w.lose(&node);
    let key = w.key().clone();
    let log = w.store().log.len();
    w.delete(WatchedKind::TrainingWorkload, &key);
    for _ in 0..600 {
        w.rounds(2);
    }
    assert!(w.deleted(), "at once");
    let left = w.pods();
    assert!(
        left.len() == 2 && left.iter().all(|p| leaving(p) && node_of(p) == Some(&node)),
        "they end when their node says so"
    );
    let ours = {
        let store = w.store();
        let ours = store.log[log..]
            .iter()
            .filter(|write| write.kind == WatchedKind::Pod && write.who == "controller");
        ours.count()
    };
    assert_eq!(ours, 0, "nothing is forced");
    w.delete(WatchedKind::Node, &Key::new("", &node));
    w.settle();
    assert!(w.pods().is_empty());
}

#[test]
fn a_workload_suspended_while_pods_hang_on_a_dead_node_forces_nothing_either() {
    let mut w = Solo::new(gang(4));
    w.settle();
    let node = w.node_of("g", 3);
    w.lose(&node);
    w.edit(|s| s.suspend = true);
    for _ in 0..600 {
        w.rounds(2);
    }
    let forced = {
        let store = w.store();
        let pods = store.log.iter().filter(|w| w.kind == WatchedKind::Pod);
        pods.filter(|w| w.verb == Verb::Gone && w.who == "controller")
            .count()
    };
    assert_eq!(forced, 0);
    assert_eq!(w.pods().len(), 2);
    assert_eq!(w.condition("Suspended"), "Suspended");
    w.delete(WatchedKind::Node, &Key::new("", &node));
    w.settle();
    assert!(w.pods().is_empty());
}

/// A gang of four at attempt 2 whose last member got two new pods for it. The first pod's node
/// became silent before its arrival at the barrier. Returns that node.
fn replaced_twice_for_one_attempt() -> (Solo, String) {
    let elsewhere = json!([{"name": "elsewhere", "match": {"exitCodes": {"operator": "In", "values": [3]}},
        "action": "RestartGang", "failedMember": "ReplaceElsewhere"}]);
    let policy =
        json!({"failurePolicy": {"inPlace": {"withoutSupervisor": "Deny"}, "rules": elsewhere}});
    let mut w = Solo::supervised(gang_with(4, &policy));
    w.settle();
    let used: Vec<String> = (0..4).map(|i| w.node_of("g", i)).collect();
    let free: Vec<String> = w.node_names();
    let free: Vec<String> = free.into_iter().filter(|n| !used.contains(n)).collect();
    for node in &free {
        w.fault(node, |f| f.silent_agent = true);
    }
    w.exit("g", 3, 3);
    w.until("a new pod that runs", |w| {
        let table = |node: &String| w.cluster.node(node).runtime.table().all();
        let there: Vec<_> = free.iter().flat_map(table).collect();
        there.iter().any(|(_, view)| view.any_alive())
    });
    let silent = w.node_of("g", 3);
    assert!(free.contains(&silent));
    w.fault(&silent, |f| f.cut_off = true);
    for node in &free {
        w.fault(node, |f| f.silent_agent = false);
    }
    for _ in 0..300 {
        w.rounds(1);
    }
    assert_eq!(w.children().into_values().collect::<Vec<_>>(), [2; 4]);
    (w, silent)
}

#[test]
fn a_pod_that_was_replaced_at_its_attempt_is_not_released_when_its_node_comes_back() {
    let (mut w, node) = replaced_twice_for_one_attempt();
    w.fault(&node, |f| f.cut_off = false);
    // Its agent receives the change before its kubelet.
    for _ in 0..10 {
        w.agent(&node);
        w.later(1);
        assert_eq!(on(&mut w, &node), [0; 0]);
    }
    let order = w.order().unwrap().spec.domains.remove(0);
    assert_eq!(order.replaced_pods.len(), 1, "{:?}", order.replaced_pods);
    w.settle();
    assert_eq!(w.children().into_values().collect::<Vec<_>>(), [2; 4]);
    assert_eq!(w.status().attempt, 2);
}

#[test]
fn the_detection_of_a_lost_node_takes_as_long_as_its_silence() {
    let mut w = Solo::new(gang(4));
    w.settle();
    let node = w.node_of("g", 3);
    w.lose(&node);
    w.rounds(100);
    w.settle();
    let first = w.status().history.pop().unwrap();
    assert_eq!(first.cause.reason, "NodeLost");
    let seconds = first.phases.detect_ms / 1000;
    assert!((55..70).contains(&seconds), "{seconds}");
}
