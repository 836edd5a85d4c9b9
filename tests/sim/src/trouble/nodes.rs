//! Faults of nodes, kubelets and agents.

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lockstep_api::key::Key;

use super::one_of;
use crate::SimCluster;
use crate::nodes::NodeFaults;
use crate::signals::KARPENTER;

/// How far clocks of nodes are ahead.
const CLOCKS_AHEAD: [TimeDelta; 8] = [
    TimeDelta::zero(),
    TimeDelta::zero(),
    TimeDelta::zero(),
    TimeDelta::zero(),
    TimeDelta::minutes(7),
    TimeDelta::minutes(-7),
    TimeDelta::hours(1),
    TimeDelta::hours(-1),
];
const GPU: &str = "nvidia.com/gpu";

/// How far the clock of a node is ahead.
pub(super) fn any_clock(rng: &mut fastrand::Rng) -> TimeDelta {
    CLOCKS_AHEAD[rng.usize(..CLOCKS_AHEAD.len())]
}

fn node(c: &SimCluster, rng: &mut fastrand::Rng) -> String {
    one_of(c.node_names(), rng).unwrap_or_default()
}

fn faulty(c: &mut SimCluster, name: &str, change: impl FnOnce(&mut NodeFaults)) -> bool {
    let before = c.node(name).faults;
    c.fault(name, change);
    c.node(name).faults != before
}

pub(super) fn lose(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let name = node(c, rng);
    faulty(c, &name, |f| f.lost = true)
}

pub(super) fn flap(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let mut names = c.node_names();
    names.retain(|name| c.node(name).alive());
    let Some(name) = one_of(names, rng) else {
        return false;
    };
    let end = c.now() + TimeDelta::seconds(rng.i64(5..=40));
    faulty(c, &name, |f| (f.lost, f.lost_until) = (true, Some(end)))
}

/// Kubelets and agents of many nodes lose the API server, and continue.
pub(super) fn outage(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let mut names = c.node_names();
    rng.shuffle(&mut names);
    names.truncate(rng.usize(1..=names.len().max(1)));
    let mut changed = false;
    for name in names {
        changed |= faulty(c, &name, |f| f.cut_off = true);
    }
    changed
}

pub(super) fn outage_over(c: &mut SimCluster, _: &mut fastrand::Rng) -> bool {
    let mut changed = false;
    for name in c.node_names() {
        changed |= faulty(c, &name, |f| f.cut_off = false);
    }
    changed
}

pub(super) fn find(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let mut lost = c.node_names();
    lost.retain(|name| !c.node(name).alive());
    let Some(name) = one_of(lost, rng) else {
        return false;
    };
    let before = c.node(&name).faults;
    c.find(&name);
    c.node(&name).faults != before
}

fn set_gpus(c: &mut SimCluster, name: &str, gpus: &str) -> bool {
    let before = c.store().version();
    c.edit::<Node>(&Key::new("", name), |node| {
        let status = node.status.get_or_insert_default();
        let offered = status.allocatable.get_or_insert_default();
        offered.insert(GPU.into(), Quantity(gpus.to_owned()));
    });
    c.store().version() != before
}

pub(super) fn shrink(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let name = node(c, rng);
    let left = rng.i64(0..2).to_string();
    set_gpus(c, &name, &left)
}

/// Restores the original resources of a node.
pub(super) fn restore(c: &mut SimCluster, name: &str) -> bool {
    let node: Option<Node> = c.get(&Key::new("", name));
    let capacity = node.and_then(|n| n.status?.capacity?.remove(GPU));
    capacity.is_some_and(|Quantity(gpus)| set_gpus(c, name, &gpus))
}

pub(super) fn grow(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let mut names = c.node_names();
    rng.shuffle(&mut names);
    names.iter().any(|name| restore(c, name))
}

pub(super) fn set_cordoned(c: &mut SimCluster, name: &str, cordoned: bool) {
    c.edit::<Node>(&Key::new("", name), |node| {
        let spec = node.spec.get_or_insert_default();
        spec.unschedulable = cordoned.then_some(true);
    });
}

pub(super) fn cordon(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let name = node(c, rng);
    let node: Option<Node> = c.get(&Key::new("", &name));
    let cordoned = node.and_then(|n| n.spec?.unschedulable) == Some(true);
    set_cordoned(c, &name, !cordoned);
    if rng.bool() {
        c.taint_node(&name, KARPENTER, true);
    }
    true
}

pub(super) fn reboot(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let name = node(c, rng);
    let node = c.node(&name);
    node.reboot();
    node.clock_ahead = any_clock(rng);
    true
}

pub(super) fn restart_kubelet(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let name = node(c, rng);
    c.node(&name).restart_kubelet();
    true
}

pub(super) fn stubborn(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let name = node(c, rng);
    let which = rng.u8(..4);
    faulty(c, &name, |f| match which {
        0 => f.rejects = !f.rejects,
        1 => f.starts_nothing = !f.starts_nothing,
        2 => f.hangs = !f.hangs,
        _ => f.quick = !f.quick,
    })
}

pub(super) fn agent_forgets(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let name = node(c, rng);
    c.node(&name).agent_loses_memory();
    true
}

pub(super) fn agent_away(c: &mut SimCluster, rng: &mut fastrand::Rng) -> bool {
    let name = node(c, rng);
    let silent = rng.bool();
    faulty(c, &name, |f| {
        if silent {
            f.silent_agent = !f.silent_agent;
        } else {
            f.no_agent = !f.no_agent;
        }
    })
}
