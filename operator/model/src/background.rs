//! Pods that come and go in the background of gangs: what they take is not what decides there.
//!
//! A small pod on a node of accelerators takes some CPU, of which the node has more than its
//! accelerators can ever use. How many members fit on the node is the same with and without it, now
//! and with any of the node's work gone, so nothing that was found out about gangs that wait has
//! changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use lockstep_engine::{Amounts, NodeIx};

use crate::cluster::Snapshot;
use crate::pod::Pod;

/// What gangs ask for and hold, as far as it matters who else is on a node.
#[derive(Clone, Debug, Default)]
pub struct AskedAmounts {
    /// What one member takes, for all templates of all gangs.
    pub members: BTreeSet<Amounts>,
    /// Nodes with something reserved for members without pods.
    pub reserved: BTreeSet<NodeIx>,
}

impl AskedAmounts {
    /// Whether what has changed since an earlier snapshot makes no difference to any gang: as many
    /// members fit on each node, whoever of those on it may be gone, and whatever else is reserved
    /// there for members.
    pub fn make_no_difference(&self, earlier: &Snapshot, now: &Snapshot) -> bool {
        let changed = now.pods_changed_since(earlier);
        changed.is_some_and(|nodes| {
            let mut nodes = nodes.into_iter();
            nodes.all(|node| self.fit_as_before(earlier, now, node))
        })
    }

    fn fit_as_before(&self, earlier: &Snapshot, now: &Snapshot, node: NodeIx) -> bool {
        let before: Vec<&Arc<Pod>> = earlier.pods_on(node).collect();
        let after: Vec<&Arc<Pod>> = now.pods_on(node).collect();
        // What is kept for a pod that is not there yet binds some gangs and not others.
        let waits = |pods: &[&Arc<Pod>]| pods.iter().any(|p| p.bound.is_none());
        if self.reserved.contains(&node) || waits(&before) || waits(&after) {
            return false;
        }
        // Whether a unit of others may go depends on all of its pods, wherever they are.
        if goes_whole_only_in(now, &before, &after) || goes_whole_only_in(now, &after, &before) {
            return false;
        }
        let offered = now.free_capacity().allocatable(node);
        let fits = |asked: &&Amounts| asked.iter().zip(offered).all(|(a, o)| a <= o);
        let asked: Vec<&Amounts> = self.members.iter().filter(fits).collect();
        if asked.is_empty() {
            return true;
        }
        let before: Vec<(&Arc<Pod>, Amounts)> = with_amounts(now, before);
        let after: Vec<(&Arc<Pod>, Amounts)> = with_amounts(now, after);
        let changed = || only_in(&before, &after).chain(only_in(&after, &before));
        let touched = |dim: usize| changed().any(|(_, held)| held[dim] != 0);
        let unchanged = (0..offered.len()).filter(|&dim| !touched(dim));
        let mut asked_by_all = unchanged.filter(|&dim| asked.iter().all(|a| a[dim] > 0));
        let contested = (0..offered.len()).filter(|&dim| touched(dim));
        let contested: Vec<usize> = contested
            .filter(|&dim| asked.iter().any(|a| a[dim] > 0))
            .collect();
        contested.is_empty()
            || asked_by_all.any(|by| {
                decides_alone(by, &contested, offered, &asked, &before)
                    && decides_alone(by, &contested, offered, &asked, &after)
            })
    }
}

/// Whether one of these pods that is not among the others goes with all of its unit.
fn goes_whole_only_in(now: &Snapshot, these: &[&Arc<Pod>], others: &[&Arc<Pod>]) -> bool {
    let among = |pod: &Arc<Pod>| others.iter().any(|other| Arc::ptr_eq(pod, other));
    these.iter().any(|pod| now.goes_whole(pod) && !among(pod))
}

fn with_amounts<'p>(snapshot: &Snapshot, pods: Vec<&'p Arc<Pod>>) -> Vec<(&'p Arc<Pod>, Amounts)> {
    let amounts = |pod: &Arc<Pod>| snapshot.dims().amounts(&pod.requests);
    pods.into_iter().map(|pod| (pod, amounts(pod))).collect()
}

fn only_in<'l>(
    these: &'l [(&'l Arc<Pod>, Amounts)],
    others: &'l [(&'l Arc<Pod>, Amounts)],
) -> impl Iterator<Item = &'l (&'l Arc<Pod>, Amounts)> {
    let among = |pod: &Arc<Pod>| others.iter().any(|(other, _)| Arc::ptr_eq(pod, other));
    these.iter().filter(move |(pod, _)| !among(pod))
}

/// Whether what is left of one resource decides how many members fit on a node, and what is left of
/// these others never does.
///
/// Pods that hold nothing of the one may stay: what they leave of another resource is at least as
/// large a part of it for each unit of the one as any member asks for, and any pod holds that has
/// some of the one. So where the one suffices for some members, the other does.
fn decides_alone(
    by: usize,
    others: &[usize],
    offered: &[i64],
    asked: &[&Amounts],
    pods: &[(&Arc<Pod>, Amounts)],
) -> bool {
    others.iter().all(|&other| {
        let beside = pods.iter().filter(|(_, held)| held[by] == 0);
        let beside: i128 = beside.map(|(_, held)| i128::from(held[other])).sum();
        let left = i128::from(offered[other]) - beside;
        let holders = pods
            .iter()
            .map(|(_, held)| held)
            .filter(|held| held[by] > 0);
        asked.iter().copied().chain(holders).all(|amounts| {
            i128::from(amounts[other]) * i128::from(offered[by]) <= left * i128::from(amounts[by])
        })
    })
}

#[cfg(test)]
mod tests;
