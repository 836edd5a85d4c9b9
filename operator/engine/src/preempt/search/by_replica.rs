//! Covers for replicas: units to evict so that one more replica fits into a domain.

use super::{
    cover::Cover,
    local_search::{LocalSearch, Offer},
};
use crate::{
    objective::Price,
    problem::{DomainIx, ShapeIx},
};

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
            if best.as_ref().is_none_or(|(known, _)| price < *known) {
                best = Some((price, cover));
            }
        }
        best.map(|(_, cover)| cover)
    }

    /// Evicts for the cheapest slots of a domain until it holds one more replica, or nothing if
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
}
