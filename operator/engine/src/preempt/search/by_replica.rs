//! Covers for replicas: units to evict so that one more replica fits into a domain.

use super::{
    cover::{Cover, Offer, cover_of},
    local_search::LocalSearch,
};
use crate::{
    objective::Price,
    placement::shape_pods::ShapePods,
    preempt::instance::CandidateIx,
    problem::{DomainIx, NodeIx, ShapeIx},
};

/// The cheapest units to evict in a domain for one replica. `None` if no such units exist.
type DomainCover = Option<(Price, Cover)>;

impl LocalSearch<'_> {
    pub(super) fn best_replica(&mut self, shape: ShapeIx) -> Option<Cover> {
        let mut best: Option<(Price, Cover)> = None;
        for domain in 0..self.state.fit.domains.len() {
            let before = self.state.price();
            let Some(cover) = self.free_replica(shape, domain) else {
                continue;
            };
            let price = self.state.price() - before;
            self.restore_all(&cover);
            if best.as_ref().is_none_or(|(least, _)| price < *least) {
                best = Some((price, cover));
            }
        }
        best.map(|(_, cover)| cover)
    }

    /// Evicts for the cheapest slots of a domain until it holds one more replica. Evicts no unit if
    /// that is impossible.
    fn free_replica(&mut self, shape: ShapeIx, domain: DomainIx) -> Option<Cover> {
        let target = self.state.supply(shape) + 1;
        let mut taken = Cover::new();
        while self.state.supply(shape) < target {
            let Some(cover) = self.cheapest_in_domain(shape, domain) else {
                self.restore_all(&taken);
                return None;
            };
            self.evict_all(&cover);
            taken.extend(cover);
        }
        Some(taken)
    }

    fn cheapest_in_domain(&mut self, shape: ShapeIx, domain: DomainIx) -> Option<Cover> {
        let fit = self.state.fit;
        let mut best: Option<Offer> = None;
        for &node in &fit.domains[domain] {
            self.state.steps += 1;
            let Some(cover) = self.cover(shape, node) else {
                continue;
            };
            let (price, slots) = (self.state.price(), self.state.slots_in(shape, domain));
            self.evict_all(&cover);
            let (price, slots) = (
                self.state.price() - price,
                self.state.slots_in(shape, domain) - slots,
            );
            self.restore_all(&cover);
            let offer = Offer {
                node,
                cover,
                price,
                frees: slots,
            };
            if slots > 0 && best.as_ref().is_none_or(|b| offer.compare_rate(b).is_lt()) {
                best = Some(offer);
            }
        }
        best.map(|offer| offer.cover)
    }

    /// Places the replicas one by one, largest first, each in the domain where its evictions cost
    /// least. False if a replica fits into no domain, or running members bind the replicas.
    pub(super) fn evict_for_replicas(&mut self) -> bool {
        let replicas = self.state.replicas_to_place().unwrap_or_default();
        let domains = self.state.replica_domains().len();
        for equal in replicas.chunk_by(|a, b| a == b) {
            let mut covers: Vec<Option<DomainCover>> = vec![None; domains];
            for &replica in equal {
                if !self.evict_for_replica(replica, &mut covers) {
                    // Some of the replicas are no placement.
                    self.state.replicas_to_place();
                    return false;
                }
            }
        }
        !replicas.is_empty()
    }

    /// `covers`: known covers of the domains, which this updates.
    fn evict_for_replica(
        &mut self,
        replica: ShapePods,
        covers: &mut [Option<DomainCover>],
    ) -> bool {
        for (domain, cover) in covers.iter_mut().enumerate() {
            cover.get_or_insert_with(|| self.domain_cover(replica, domain));
        }
        let computed = covers
            .iter()
            .enumerate()
            .filter_map(|(domain, c)| Some((domain, c.as_ref()?.as_ref()?)));
        let best = computed.min_by_key(|(domain, (price, _))| (*price, *domain));
        let Some((domain, (_, cover))) = best else {
            return false;
        };
        let cover = cover.clone();
        self.evict_all(&cover);
        self.state.place_replica(replica, domain);
        covers[domain] = None;
        for &candidate in &cover {
            for domain in self.state.domains_of(candidate) {
                covers[domain] = None;
            }
        }
        true
    }

    fn domain_cover(&mut self, replica: ShapePods, domain: DomainIx) -> DomainCover {
        let before = self.state.price();
        let nodes = self.state.replica_domains();
        let mut taken = Cover::new();
        let mut offers: Vec<Option<Offer>> = Vec::new();
        while self.state.slots_left_in(replica.shape, domain) < u64::from(replica.count) {
            if offers.is_empty() {
                let each = nodes[domain].iter();
                offers = each
                    .map(|&node| self.one_more_slot(replica.shape, node))
                    .collect();
            }
            let best = offers
                .iter()
                .enumerate()
                .filter_map(|(at, offer)| Some((at, offer.as_ref()?)))
                .min_by(|(_, a), (_, b)| a.compare_rate(b));
            let Some((at, offer)) = best else {
                self.restore_all(&taken);
                return None;
            };
            // A unit on several nodes can already be evicted for another node.
            if !offer.cover.iter().any(|&c| self.state.is_evicted(c)) {
                let cover = offer.cover.clone();
                self.evict_all(&cover);
                taken.extend(cover);
            }
            offers[at] = self.one_more_slot(replica.shape, nodes[domain][at]);
        }
        let price = self.state.price() - before;
        self.restore_all(&taken);
        Some((price, taken))
    }

    /// The cheapest units to evict so that one more pod fits on the node, given the placed
    /// replicas.
    fn one_more_slot(&mut self, shape: ShapeIx, node: NodeIx) -> Option<Offer> {
        self.state.steps += 1;
        let needed = self.state.capacity_for_one_more(shape, node)?;
        let (pool, excluded) = (self.pool, &self.excluded);
        let may_evict = |c: CandidateIx| pool[c] && !excluded[c];
        let cover = cover_of(&mut self.state, &needed, node, may_evict)?;
        let (price, slots) = (self.state.price(), self.state.slots_left(shape, node));
        self.evict_all(&cover);
        let price = self.state.price() - price;
        let frees = i64::from(self.state.slots_left(shape, node)) - i64::from(slots);
        self.restore_all(&cover);
        (frees > 0).then_some(Offer {
            node,
            cover,
            price,
            frees,
        })
    }
}
