//! Covers by their slots for one shape.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::{
    cover::{Cover, Offer},
    local_search::LocalSearch,
};
use crate::{
    objective::Price,
    problem::{NodeIx, ShapeIx},
};

/// Number of nodes with the cheapest slots that are visited first.
const CHEAPEST_NODES: usize = 96;

impl LocalSearch<'_> {
    /// Evicts covers with the least price per slot, ignoring slots beyond the need. Starts with the
    /// cheapest nodes, or with all nodes if these offer nothing. Returns the evicted units: none if
    /// the pool is exhausted.
    pub(super) fn evict_for_slots(&mut self, shape: ShapeIx, missing: i64, limit: Price) -> Cover {
        if self.state.fit.shapes[shape].replica_size.is_some() {
            let cover = self.best_replica(shape).unwrap_or_default();
            self.evict_all(&cover);
            return cover;
        }
        let cheapest_nodes = std::mem::take(&mut self.cheapest_nodes);
        let mut offers = self.offers(shape, missing, &cheapest_nodes);
        self.cheapest_nodes = cheapest_nodes;
        if offers.is_empty() {
            offers = self.offers(shape, missing, &self.state.instance.placement.nodes);
        }
        let mut offers: BinaryHeap<Reverse<Offer>> = offers.into_iter().map(Reverse).collect();
        let mut taken = Cover::new();
        while let Some(Reverse(queued)) = offers.pop() {
            let missing = match self.state.deficit() {
                Some((lacking, missing)) if lacking == shape => missing,
                _ => break,
            };
            if self.state.price() > limit {
                break;
            }
            // Earlier evictions can have changed the offer.
            let Some(offer) = self.offer(shape, missing, queued.node) else {
                continue;
            };
            if offer > queued {
                offers.push(Reverse(offer));
                continue;
            }
            self.evict_all(&offer.cover);
            taken.extend_from_slice(&offer.cover);
            let instance = self.state.instance;
            // Others in the cascade of a victim are cheaper now, on any node.
            let mut units = offer.cover.iter().map(|&c| instance.unit(c));
            if units.any(|unit| unit.cascade.is_some()) {
                break;
            }
            let nodes: BTreeSet<NodeIx> = offer
                .cover
                .iter()
                .flat_map(|&c| instance.uses(c))
                .map(|(node, _)| node)
                .collect();
            if self
                .state
                .deficit()
                .is_some_and(|(lacking, _)| lacking == shape)
            {
                let nodes: Vec<NodeIx> = nodes.into_iter().collect();
                let new = self.offers(shape, missing, &nodes);
                offers.extend(new.into_iter().map(Reverse));
            }
        }
        taken
    }

    /// Recomputes the nodes with the cheapest slots for the current victims.
    pub(super) fn refresh_cheapest_nodes(&mut self) {
        let shape = 0;
        // Replicas are searched by domain.
        if self
            .state
            .fit
            .shapes
            .first()
            .is_none_or(|s| s.replica_size.is_some())
        {
            return;
        }
        let nodes = &self.state.instance.placement.nodes;
        let mut offers = match self.state.missing_worth() {
            Some(_) => self.offers_by_worth(i64::MAX, nodes),
            None => self.offers(shape, i64::MAX, nodes),
        };
        offers.sort_unstable();
        self.keep_cheapest_nodes(&offers);
    }

    /// Sets the nodes to visit first. `offers`: best first.
    pub(super) fn keep_cheapest_nodes(&mut self, offers: &[Offer]) {
        let most = if self.thorough {
            usize::MAX
        } else {
            CHEAPEST_NODES
        };
        // Only the best offer of a node counts.
        let mut distinct = BTreeSet::new();
        let nodes = offers.iter().map(|offer| offer.node);
        self.cheapest_nodes = nodes
            .filter(|&node| distinct.insert(node))
            .take(most)
            .collect();
    }

    /// Offers of the nodes for a shape. Skips units that alone covered another node.
    fn offers(&mut self, shape: ShapeIx, missing: i64, nodes: &[NodeIx]) -> Vec<Offer> {
        self.begin_round();
        let mut offers = Vec::new();
        for &node in nodes {
            self.state.steps += 1;
            let Some(cover) = self.cover(shape, node) else {
                continue;
            };
            if !self.repeats_single(&cover) {
                offers.extend(self.offer_of(shape, missing, node, cover));
            }
        }
        offers
    }

    /// Offer of a node for a shape.
    fn offer(&mut self, shape: ShapeIx, missing: i64, node: NodeIx) -> Option<Offer> {
        self.state.steps += 1;
        let cover = self.cover(shape, node)?;
        self.offer_of(shape, missing, node, cover)
    }

    fn offer_of(
        &mut self,
        shape: ShapeIx,
        missing: i64,
        node: NodeIx,
        cover: Cover,
    ) -> Option<Offer> {
        let (price, slots) = self.state.marginal_of(shape, &cover);
        (slots > 0).then(|| Offer {
            node,
            cover,
            price,
            frees: slots.min(missing),
        })
    }
}
