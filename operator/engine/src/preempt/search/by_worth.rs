//! Covers by what they are worth to several shapes.
//!
//! Where shapes compete for nodes, slots of each may be enough and the gang still not fit: what is
//! missing is a node that takes another mixture of pods. The prices of the mixture say what such a
//! node is worth.

use super::{
    cover::{Cover, cover_of},
    local_search::{LocalSearch, Offer},
};
use crate::{objective::Price, preempt::instance::CandidateIx, problem::NodeIx};

/// A cover that alone is worth all that was needed at some point of a repair.
pub(super) struct AtOnce {
    /// How many were evicted by the repair until then.
    taken: usize,
    cover: Cover,
    /// Price of the set with it.
    price: Price,
}

impl LocalSearch<'_> {
    /// The cover with the least price for its worth, and others that are nearly as good until there
    /// is what is needed; `None` where shapes do not compete, or nothing is worth anything.
    ///
    /// What has the best rate may leave a rest for which only something large is left: the cheapest set
    /// that would need nothing further is kept in `at_once`. `taken` is how many were evicted so far.
    pub(super) fn best_by_worth(
        &mut self,
        taken: usize,
        at_once: &mut Option<AtOnce>,
    ) -> Option<Cover> {
        let needed = self.state.missing_worth()?;
        let cheapest_nodes = std::mem::take(&mut self.cheapest_nodes);
        let mut offers = self.offers_by_worth(needed, &cheapest_nodes);
        self.cheapest_nodes = cheapest_nodes;
        if offers.is_empty() {
            offers = self.offers_by_worth(needed, &self.state.instance.placement.nodes);
        }
        offers.sort_by(Offer::compare_rate);
        if self.cheapest_nodes.is_empty() {
            self.keep_cheapest_nodes(&offers);
        }
        let whole = offers.iter().filter(|offer| offer.frees >= needed);
        if let Some(offer) = whole.min_by_key(|offer| offer.price) {
            let price = self.state.price() + offer.price;
            if at_once.as_ref().is_none_or(|known| price < known.price) {
                let cover = offer.cover.clone();
                *at_once = Some(AtOnce {
                    taken,
                    cover,
                    price,
                });
            }
        }
        self.together(offers, needed)
    }

    /// Goes back to where a cover was worth all that was needed, and takes that, if this is cheaper than
    /// the set that the repair has come to and the gang fits. Whether it fits in the end.
    pub(super) fn finish_at_once(
        &mut self,
        at_once: &AtOnce,
        taken: &[CandidateIx],
        limit: Price,
        fits: bool,
    ) -> bool {
        let limit = if fits { self.state.price() - 1 } else { limit };
        if at_once.price > limit {
            return fits;
        }
        let later = &taken[at_once.taken..];
        self.restore_all(later);
        self.evict_all(&at_once.cover);
        if self.state.fits() {
            return true;
        }
        self.restore_all(&at_once.cover);
        self.evict_all(later);
        fits && self.state.fits()
    }

    /// What the nodes offer, each for one pod more beside several mixtures.
    pub(super) fn offers_by_worth(&mut self, needed: i64, nodes: &[NodeIx]) -> Vec<Offer> {
        self.begin_round();
        let mut offers = Vec::new();
        for &node in nodes {
            let Some(one_more) = self.state.one_more(node) else {
                continue;
            };
            for more in &*one_more {
                if !self.state.instance.placement.admits[more.shape].contains(node) {
                    continue;
                }
                self.state.steps += 1;
                let (pool, excluded) = (self.pool, &self.excluded);
                let may_evict = |c: CandidateIx| pool[c] && !excluded[c];
                let Some(cover) = cover_of(&mut self.state, &more.free, node, may_evict) else {
                    continue;
                };
                if self.is_known(&cover) {
                    continue;
                }
                let (price, worth) = self.state.marginal_worth(&cover);
                if worth > 0 {
                    offers.push(Offer {
                        node,
                        cover,
                        price,
                        frees: worth.min(needed),
                    });
                }
            }
        }
        offers
    }

    /// The first offer, and those behind it on other nodes whose rate is within a quarter of its.
    fn together(&mut self, offers: Vec<Offer>, needed: i64) -> Option<Cover> {
        let mut offers = offers.into_iter();
        let first = offers.next()?;
        let (mut cover, mut worth, mut nodes) = (first.cover, first.frees, vec![first.node]);
        for offer in offers {
            let dearer = 4 * offer.price * Price::from(first.frees)
                > 5 * first.price * Price::from(offer.frees);
            if worth >= needed || dearer {
                break;
            }
            let adds = !nodes.contains(&offer.node)
                && offer.cover.iter().all(|&c| {
                    !cover.contains(&c)
                        && self.state.marginal_beside(c, &cover) <= self.state.marginal(c)
                });
            if adds {
                worth += offer.frees;
                nodes.push(offer.node);
                cover.extend(offer.cover);
            }
        }
        Some(cover)
    }
}
