//! Pods created while the agent of their node starts. Without an agent they would never get a
//! supervisor.

use lockstep_api::condition::find;
use lockstep_api::workload::Phase;
use lockstep_sim::{Solo, WatchedKind};
use serde_json::{Value, json};

use super::barrier::{attempts, denied};
use super::failures::on_code;

/// A gang that gets new pods while the agent of its last member's node is unavailable.
fn recreated_without_an_agent() -> (Solo, String) {
    let mut w = Solo::supervised(denied(4, &json!([on_code(9, "RecreateGang")])));
    w.settle();
    let node = w.node_of("g", 3);
    assert_ne!(w.node_of("g", 0), node);
    w.fault(&node, |f| f.no_agent = true);
    w.exit("g", 0, 9);
    w.rounds(15);
    assert_eq!(w.pods().len(), 2, "those of the other node");
    let conditions = w.status().conditions;
    let message = &find(&conditions, "RestartsInPlace").unwrap().message;
    assert!(
        message.ends_with("pods there wait a moment for it to start"),
        "{message}"
    );
    (w, node)
}

#[test]
fn pods_wait_for_an_agent_under_replacement_so_that_their_gang_restarts_in_place() {
    let (mut w, node) = recreated_without_an_agent();
    w.fault(&node, |f| f.no_agent = false);
    w.settle();
    assert_eq!(w.condition("RestartsInPlace"), "Supervised");
    let before = w.uids();
    w.exit("g", 0, 1);
    w.settle();
    assert_eq!((w.uids(), attempts(&mut w)), (before, vec![3; 4]));
}

#[test]
fn a_member_keeps_its_pod_while_the_agent_of_its_node_is_replaced() {
    let mut w = Solo::supervised(denied(4, &json!([])));
    w.settle();
    let before = w.uids();
    let node = w.node_of("g", 3);
    assert_ne!(w.node_of("g", 0), node);
    w.fault(&node, |f| f.no_agent = true);
    w.rounds(5);
    w.exit("g", 0, 1);
    w.rounds(10);
    assert_eq!(w.uids(), before);
    w.fault(&node, |f| f.no_agent = false);
    w.settle();
    assert_eq!((w.uids(), attempts(&mut w)), (before, vec![2; 4]));
}

#[test]
fn pods_do_not_wait_for_long_for_an_agent_that_does_not_come() {
    let (mut w, _) = recreated_without_an_agent();
    w.rounds(30);
    assert_eq!(w.pods().len(), 4);
    w.settle();
    let running = (Some(Phase::Running), "!AgentMissing".to_owned());
    assert_eq!((w.status().phase, w.condition("RestartsInPlace")), running);
}

#[test]
fn pods_wait_although_no_agent_of_the_cluster_is_ready() {
    let mut w = Solo::supervised(denied(4, &json!([on_code(9, "RecreateGang")])));
    w.settle();
    w.exit("g", 0, 9);
    w.until("the failure is known", |w| w.status().attempt == 2);
    w.faults(|f| f.no_agent = true);
    w.rounds(15);
    assert!(w.pods().is_empty());
    w.faults(|f| f.no_agent = false);
    w.settle();
    assert_eq!(w.condition("RestartsInPlace"), "Supervised");
}

/// A gang on minute-old nodes without agent pods. Returns the removed agent pods.
fn without_agent_pods() -> (Solo, Vec<Value>) {
    let mut w = Solo::supervised(denied(4, &json!([])));
    w.faults(|f| f.no_agent = true);
    let mut store = w.store();
    let pods = store.all(WatchedKind::Pod);
    let agents: Vec<_> = pods.map(|(key, pod)| (key.clone(), pod.clone())).collect();
    for (key, pod) in &agents {
        store.remove("administrator", WatchedKind::Pod, key, pod);
    }
    drop(store);
    w.later(60);
    let agents = agents.iter().map(|(_, pod)| Value::clone(pod)).collect();
    (w, agents)
}

#[test]
fn pods_wait_for_agents_that_are_being_installed_on_nodes_that_are_old() {
    let (mut w, agents) = without_agent_pods();
    assert_eq!(agents.len(), 4);
    for pod in agents {
        let made = w.store().create("daemonset", WatchedKind::Pod, pod, false);
        assert!(made.is_ok());
    }
    w.rounds(15);
    assert!(w.pods().is_empty());
    w.faults(|f| f.no_agent = false);
    w.settle();
    let running = (Some(Phase::Running), "Supervised".to_owned());
    assert_eq!((w.status().phase, w.condition("RestartsInPlace")), running);
}

#[test]
fn no_restart_waits_for_an_agent_on_a_node_without_agent_pod() {
    let (mut w, _) = without_agent_pods();
    w.rounds(45);
    let before = w.uids();
    assert_eq!(before.len(), 4);
    w.exit("g", 0, 1);
    w.rounds(15);
    let after = w.uids();
    assert_eq!(after.len(), 4);
    assert!(after.iter().all(|(member, uid)| before[member] != *uid));
    assert_eq!(w.condition("RestartsInPlace"), "!AgentMissing");
}

#[test]
fn pods_on_a_node_that_has_just_come_wait_for_its_agent() {
    let mut w = Solo::supervised(denied(4, &json!([])));
    for node in ["n2", "n3"] {
        w.capacity(node, 0);
    }
    w.fault("n0", |f| (f.lost, f.no_agent) = (true, true));
    w.wait(60);
    assert!(
        w.pods().is_empty(),
        "there are two nodes for two members each"
    );
    w.fault("n0", |f| f.lost = false);
    w.rounds(15);
    assert_eq!(w.pods().len(), 2, "those of the other node");
    w.fault("n0", |f| f.no_agent = false);
    w.settle();
    let running = (Some(Phase::Running), "Supervised".to_owned());
    assert_eq!((w.status().phase, w.condition("RestartsInPlace")), running);
}
