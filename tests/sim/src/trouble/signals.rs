//! Signals of nodes that come, go and repeat.

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::Node;
use lockstep_api::NodeHealthMode;
use lockstep_api::key::Key;

use super::one_of;
use crate::SimCluster;
use crate::signals::{KARPENTER, MAINTENANCE, STANDING};

/// Conditions with the status and the reason that mean a fault, and those of a healthy node.
const CONDITIONS: [(&str, [&str; 2], [&str; 2]); 2] = [
    (
        "GpuNvlinkWatch",
        ["True", "NvlinkDown"],
        ["False", "GpuNvlinkWatchIsHealthy"],
    ),
    (
        "AcceleratedHardwareReady",
        ["False", "NvidiaXID79Error"],
        ["True", "AcceleratedHardwareIsReady"],
    ),
];

fn node(c: &SimCluster, rng: &mut fastrand::Rng) -> String {
    one_of(c.node_names(), rng).unwrap_or_default()
}

/// Names of the signals of a node.
fn standing(c: &SimCluster, name: &str) -> Vec<&'static str> {
    let store = c.store();
    let node = store.raw(
        lockstep_manager::stepped::WatchedKind::Node,
        &Key::new("", name),
    );
    let all = STANDING
        .iter()
        .filter(|(_, stands)| node.is_some_and(|node| stands(node)));
    all.map(|(signal, _)| *signal).collect()
}

fn report(c: &mut SimCluster, name: &str, condition: usize, is_faulty: bool) {
    let (type_, bad, good) = CONDITIONS[condition];
    let [status, reason] = if is_faulty { bad } else { good };
    c.report_node_condition(name, type_, status, reason);
}

pub(super) fn set(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let name = node(c, rng);
    match rng.u8(..6) {
        0..3 => {
            let after = TimeDelta::seconds(rng.i64(20..=1200));
            // Sometimes no other node is left.
            let names = if rng.u8(..3) == 0 {
                c.node_names()
            } else {
                vec![name]
            };
            for name in names {
                c.announce_maintenance(&name, after);
            }
        }
        3 => c.taint_node(&name, KARPENTER, true),
        4 => report(c, &name, 0, true),
        _ => report(c, &name, 1, true),
    }
    true
}

/// One signal of a node with signals is withdrawn.
pub(super) fn withdraw(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let names = c.node_names().into_iter();
    let all = names.flat_map(|name| {
        let signals = standing(c, &name).into_iter();
        signals
            .map(|signal| (name.clone(), signal))
            .collect::<Vec<_>>()
    });
    let Some((name, signal)) = one_of(all.collect(), rng) else {
        return false;
    };
    withdraw_one(c, &name, signal);
    true
}

fn withdraw_one(c: &mut SimCluster, name: &str, signal: &str) {
    match signal {
        "GKEScheduledMaintenance" => c.label_node(name, MAINTENANCE, None),
        "KarpenterDisrupted" => c.taint_node(name, KARPENTER, false),
        "GpuNvlinkWatch" => report(c, name, 0, false),
        _ => report(c, name, 1, false),
    }
}

/// Monitors of all nodes report again what they have found.
pub(super) fn repeat(c: &mut SimCluster, _: &mut fastrand::Rng) -> bool {
    let mut repeated = false;
    for name in c.node_names() {
        let node: Option<Node> = c.get(&Key::new("", &name));
        let conditions = node.and_then(|n| n.status?.conditions).unwrap_or_default();
        for condition in conditions
            .iter()
            .filter(|condition| condition.type_ != "Ready")
        {
            let reason = condition.reason.as_deref().unwrap_or_default();
            c.report_node_condition(&name, &condition.type_, &condition.status, reason);
            repeated = true;
        }
    }
    repeated
}

pub(super) fn switch_mode(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let modes = [
        NodeHealthMode::Act,
        NodeHealthMode::Act,
        NodeHealthMode::Observe,
        NodeHealthMode::Off,
    ];
    let mode = modes[rng.usize(..modes.len())];
    let changes = c.node_health() != mode;
    c.set_node_health(mode);
    changes
}

/// Withdraws all signals of a node.
pub(super) fn end(c: &mut SimCluster, name: &str) {
    for signal in standing(c, name) {
        withdraw_one(c, name, signal);
    }
}
