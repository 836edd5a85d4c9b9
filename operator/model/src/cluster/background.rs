//! Pod churn that cannot change how many members fit on a node, because another resource is the
//! bottleneck and no anti-affinity is concerned.
//!
//! For example, a small pod on an accelerator node takes CPU, but the node has more CPU than its
//! accelerators can use. The same number of members fits with and without the pod, so verdicts on
//! waiting gangs stay valid.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use lockstep_engine::{Amounts, NodeIx};

use crate::cluster::Snapshot;
use crate::pods::pdb::selects;
use crate::pods::pod::Pod;
use crate::pods::pod_view::namespaces_of;

/// Requests and reservations of gangs, for the recognition of irrelevant pod churn.
#[derive(Clone, Debug, Default)]
pub struct RequestedAmounts {
    /// Resources of one member, for all templates of all gangs.
    pub members: BTreeSet<Amounts>,
    /// Nodes with reservations for members without pods.
    pub reserved: BTreeSet<NodeIx>,
    /// Namespaces of gangs, where anti-affinity of other pods keeps members off nodes.
    pub namespaces: BTreeSet<Arc<str>>,
    /// Pods that members must not share a node with: namespace and selector.
    pub avoided: Vec<(Arc<str>, LabelSelector)>,
}

impl RequestedAmounts {
    /// True if no change since the earlier snapshot affects a gang: the same number of members fits
    /// on each node, for all evictions and reservations.
    pub fn make_no_difference(&self, earlier: &Snapshot, now: &Snapshot) -> bool {
        let changed = now.pods_changed_since(earlier);
        changed.is_some_and(|nodes| {
            let mut nodes = nodes.into_iter();
            nodes.all(|node| self.fit_as_before(earlier, now, node))
        })
    }

    /// True if the pod keeps members off nodes, or members avoid it.
    fn concerns_anti_affinity(&self, pod: &Pod) -> bool {
        let terms = pod.anti_affinity.iter().flat_map(|terms| terms.iter());
        let mut namespaces = terms.flat_map(|term| namespaces_of(term, &pod.namespace));
        let mut avoided = self.avoided.iter();
        namespaces.any(|n| n.is_none_or(|n| self.namespaces.contains(&n)))
            || avoided.any(|(n, selector)| *n == pod.namespace && selects(selector, &pod.labels))
    }

    fn fit_as_before(&self, earlier: &Snapshot, now: &Snapshot, node: NodeIx) -> bool {
        let before: Vec<&Arc<Pod>> = earlier.pods_on(node).collect();
        let after: Vec<&Arc<Pod>> = now.pods_on(node).collect();
        // Capacity kept for an unbound pod binds only some gangs.
        let waits = |pods: &[&Arc<Pod>]| pods.iter().any(|p| p.bound.is_none());
        if self.reserved.contains(&node) || waits(&before) || waits(&after) {
            return false;
        }
        let changed = || pods_only_in(&before, &after).chain(pods_only_in(&after, &before));
        // The eviction of a foreign unit depends on all its pods, on any node.
        if changed().any(|pod| now.goes_whole(pod) || self.concerns_anti_affinity(pod)) {
            return false;
        }
        let offered = now.free_capacity().allocatable(node);
        let fits = |requested: &&Amounts| requested.iter().zip(offered).all(|(a, o)| a <= o);
        let requested: Vec<&Amounts> = self.members.iter().filter(fits).collect();
        if requested.is_empty() {
            return true;
        }
        let before: Vec<(&Arc<Pod>, Amounts)> = with_amounts(now, &before);
        let after: Vec<(&Arc<Pod>, Amounts)> = with_amounts(now, &after);
        let changed = || only_in(&before, &after).chain(only_in(&after, &before));
        let touched = |dim: usize| changed().any(|(_, held)| held[dim] != 0);
        let unchanged = (0..offered.len()).filter(|&dim| !touched(dim));
        let mut requested_by_all = unchanged.filter(|&dim| requested.iter().all(|a| a[dim] > 0));
        let contested = (0..offered.len()).filter(|&dim| touched(dim));
        let contested: Vec<usize> = contested
            .filter(|&dim| requested.iter().any(|a| a[dim] > 0))
            .collect();
        contested.is_empty()
            || requested_by_all.any(|by| {
                decides_alone(by, &contested, offered, &requested, &before)
                    && decides_alone(by, &contested, offered, &requested, &after)
            })
    }
}

fn pods_only_in<'l, 'p>(
    these: &'l [&'p Arc<Pod>],
    others: &'l [&'p Arc<Pod>],
) -> impl Iterator<Item = &'p Arc<Pod>> + use<'l, 'p> {
    let among = |pod: &Arc<Pod>| others.iter().any(|other| Arc::ptr_eq(pod, other));
    these.iter().copied().filter(move |pod| !among(pod))
}

fn with_amounts<'p>(snapshot: &Snapshot, pods: &[&'p Arc<Pod>]) -> Vec<(&'p Arc<Pod>, Amounts)> {
    let amounts = |pod: &Arc<Pod>| snapshot.dims().amounts(&pod.requests);
    pods.iter().map(|&pod| (pod, amounts(pod))).collect()
}

fn only_in<'l>(
    these: &'l [(&'l Arc<Pod>, Amounts)],
    others: &'l [(&'l Arc<Pod>, Amounts)],
) -> impl Iterator<Item = &'l (&'l Arc<Pod>, Amounts)> {
    let among = |pod: &Arc<Pod>| others.iter().any(|(other, _)| Arc::ptr_eq(pod, other));
    these.iter().filter(move |(pod, _)| !among(pod))
}

/// True if resource `by` alone limits how many members fit on a node, and none of `others` ever
/// does.
///
/// Assumes that pods without `by` stay. Per unit of `by`, they leave at least as much of another
/// resource as each member requests and each holder of `by` holds.
fn decides_alone(
    by: usize,
    others: &[usize],
    offered: &[i64],
    requested: &[&Amounts],
    pods: &[(&Arc<Pod>, Amounts)],
) -> bool {
    others.iter().all(|&other| {
        let beside: i128 = pods
            .iter()
            .filter(|(_, held)| held[by] == 0)
            .map(|(_, held)| i128::from(held[other]))
            .sum();
        let left = i128::from(offered[other]) - beside;
        let holders = pods
            .iter()
            .map(|(_, held)| held)
            .filter(|held| held[by] > 0);
        requested.iter().copied().chain(holders).all(|amounts| {
            i128::from(amounts[other]) * i128::from(offered[by]) <= left * i128::from(amounts[by])
        })
    })
}

#[cfg(test)]
mod tests;
