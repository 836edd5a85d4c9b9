//! Pods that are made while the agent of their node is on its way: they would have no supervisor for as
//! long as they live.

use lockstep_api::condition::find;
use lockstep_api::workload::Phase;
use lockstep_sim::Solo;
use serde_json::json;

use super::barrier::{attempts, denied};
use super::failures::on_code;

/// A gang that gets new pods while the agent of its last member's node is away.
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
fn pods_wait_for_an_agent_that_is_being_replaced_so_that_their_gang_restarts_in_place() {
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
fn pods_do_not_wait_for_long_for_an_agent_that_does_not_come() {
    let (mut w, _) = recreated_without_an_agent();
    w.rounds(30);
    assert_eq!(w.pods().len(), 4);
    w.settle();
    let running = (Some(Phase::Running), "!AgentMissing".to_owned());
    assert_eq!((w.status().phase, w.condition("RestartsInPlace")), running);
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
