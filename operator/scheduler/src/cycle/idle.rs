//! Accelerators that no pod holds at the end of a cycle, by reason.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_engine::{DimIx, NodeIx};

use super::state::Cycle;
use crate::capacity::reservations::requested_resources;
use crate::gang::pending::Pending;
use crate::plan::{IdleAccelerators, QueuePlace};

impl Cycle<'_> {
    /// Counts the accelerators that no pod holds. `places`: the served queue.
    pub(super) fn idle_accelerators(&self, places: &[QueuePlace]) -> IdleAccelerators {
        let cluster = self.context.cluster;
        let unheld = cluster.free_capacity();
        let waiting = places.iter().map(|place| &self.gangs[place.gang]);
        let wanted: BTreeSet<String> = waiting
            .filter(|gang| gang.pending.as_ref().is_some_and(Pending::waits_in_queue))
            .flat_map(requested_resources)
            .collect();
        let wanted = wanted.iter().filter_map(|name| cluster.dims().dim(name));
        let wanted: BTreeSet<DimIx> = wanted.collect();
        let kept = self.reserved_for_waiting(unheld.accelerators());
        let mut idle = IdleAccelerators::default();
        for ix in 0..cluster.node_count() {
            let Some(node) = cluster.node(ix) else {
                continue;
            };
            let usable = node.state.takes_pods() && !node.state.cordoned;
            let (offers, left) = (unheld.free(ix), self.capacity.left(ix));
            for &dim in unheld.accelerators() {
                let at = |amounts: &[i64]| amounts.get(dim).copied().unwrap_or_default();
                let rest = at(offers).max(0);
                let kept = kept.get(&(ix, dim)).copied().unwrap_or_default();
                let promised = at(offers) - at(left) + kept;
                let reserved = promised.clamp(0, rest);
                if !usable {
                    idle.unusable += rest;
                } else if wanted.contains(&dim) {
                    idle.fragmented += rest - reserved;
                    idle.reserved += reserved;
                } else {
                    idle.no_demand += rest - reserved;
                    idle.reserved += reserved;
                }
            }
        }
        idle
    }

    /// Amounts that are reserved for waiting gangs.
    fn reserved_for_waiting(&self, dims: &[DimIx]) -> BTreeMap<(NodeIx, DimIx), i64> {
        let mut sums = BTreeMap::new();
        for (&node, amounts) in self.queue.ahead.iter().flat_map(|r| &r.nodes) {
            for &dim in dims {
                let amount = amounts.get(dim).copied().unwrap_or_default();
                *sums.entry((node, dim)).or_default() += amount;
            }
        }
        sums
    }
}
