//! Stories of gangs on nodes with signals.

use chrono::TimeDelta;
use lockstep_api::NodeHealthMode;
use lockstep_sim::Solo;
use lockstep_sim::signals::{ACTIVE_MAINTENANCE, KARPENTER};
use lockstep_sim::solo::{gang, gang_with};
use serde_json::{Value, json};

use super::checkpoints::able;
use super::solo::{Story, settled};

pub(super) const STORIES: &[Story] = &[
    ("leaves a node before its deadline", leaves_in_time),
    (
        "leaves two nodes after its next checkpoint",
        leaves_two_nodes,
    ),
    ("leaves a faulty node", leaves_a_faulty_node),
    ("finds no other node", finds_no_other_node),
    ("stays by its own rule", stays_by_rule),
    ("starts on nodes that leave", starts_on_leaving_nodes),
    ("judges its nodes", judges_its_nodes),
];

fn acting(mut w: Solo) -> Solo {
    w.set_node_health(NodeHealthMode::Act);
    w
}

fn leaves_in_time() -> Solo {
    let mut w = acting(able("save", &json!({})));
    let node = w.node_of("g", 0);
    w.announce_maintenance(&node, TimeDelta::minutes(20));
    w.wait(700);
    w
}

fn leaves_two_nodes() -> Solo {
    let mut w = settled(Solo::supervised(gang(4)));
    for index in [0, 3] {
        let node = w.node_of("g", index);
        w.taint_node(&node, KARPENTER, true);
    }
    w.settle();
    let mut w = acting(w);
    w.wait(700);
    w
}

fn leaves_a_faulty_node() -> Solo {
    let mut w = acting(settled(Solo::supervised(gang(2))));
    let node = w.node_of("g", 0);
    w.report_node_condition(&node, "GpuNvlinkWatch", "True", "NVLinkDown");
    w.wait(120);
    w
}

fn finds_no_other_node() -> Solo {
    let policy = json!({"checkpoint": {"onRequest": {"timeoutSeconds": 30}}});
    let mut w = acting(settled(Solo::supervised(gang_with(8, &policy))));
    for tainted in [true, false] {
        w.taint_node("n0", KARPENTER, tainted);
        w.wait(30);
    }
    // Its pods end while the move is open, and it gets the same nodes again.
    w.label_node("n0", ACTIVE_MAINTENANCE, Some("ONGOING"));
    w.wait(30);
    w.edit(|spec| spec.suspend = true);
    w.wait(60);
    w.edit(|spec| spec.suspend = false);
    w.wait(60);
    w
}

fn stays_by_rule() -> Solo {
    let rules =
        json!([{"name": "finish-here", "match": {"reasons": ["NodeLeaving"]}, "action": "Ignore"}]);
    let mut w = acting(settled(Solo::supervised(gang_with(
        2,
        &json!({"failurePolicy": {"rules": rules}}),
    ))));
    let node = w.node_of("g", 0);
    w.taint_node(&node, KARPENTER, true);
    w.wait(60);
    w
}

fn starts_on_leaving_nodes() -> Solo {
    let mut w = acting(Solo::supervised(gang_with(
        4,
        &json!({"checkpoint": {"onRequest": {}}, "scheduling": {"gang": {"scope": "Replica"}}}),
    )));
    for node in w.node_names() {
        w.label_node(&node, ACTIVE_MAINTENANCE, Some("ONGOING"));
    }
    w.faults(|f| f.starts_nothing = true);
    w.wait(60);
    w
}

fn judges_its_nodes() -> Solo {
    let rules = json!([{"name": "preflight", "action": "RestartGang", "failedMember": "ReplaceElsewhere",
        "counted": false, "match": {"containers": ["preflight"], "exitCodes": {"operator": "In", "values": [3]}}}]);
    let mut spec: Value = gang_with(1, &json!({"failurePolicy": {"rules": rules}}));
    let env = json!([{"name": "HOLLOW_EXIT", "value": "3"}]);
    spec["groups"][0]["template"]["spec"]["initContainers"] =
        json!([{"name": "preflight", "image": "i", "env": env}]);
    let mut w = Solo::new(spec);
    w.wait(600);
    w
}
