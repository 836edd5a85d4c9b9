//! Covers by their value to several shapes.
//!
//! If shapes compete for nodes, the gang can lack a node with another mixture of pods, although
//! each shape has enough slots. The prices of the mixture determine the value of such a node.

use super::{
    cover::{Cover, Offer, cover_of},
    local_search::LocalSearch,
};
use crate::{objective::Price, preempt::instance::CandidateIx, problem::NodeIx};

/// A cover whose value alone would have sufficed at some point of a repair.
pub(super) struct AtOnce {
    /// Number of units evicted before this cover.
    taken: usize,
    cover: Cover,
    /// Price of the set including this cover.
    price: Price,
}

impl LocalSearch<'_> {
    /// Cover with the least price per value, plus nearly equal covers until the need is met. `None`
    /// if shapes do not compete, or no cover has a value.
    ///
    /// Greedy choice can leave a remainder that only a large unit covers. So `at_once` keeps the
    /// cheapest set that would have sufficed alone. `taken`: number of evicted units.
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
            if at_once.as_ref().is_none_or(|best| price < best.price) {
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

    /// Reverts to the state of `at_once` and takes its cover, if that is cheaper than the repaired
    /// set and the gang fits. Returns whether the gang fits in the end.
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

    /// Offers of the nodes, each for one more pod in addition to one of several patterns.
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
                if self.repeats_single(&cover) {
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

    /// The first offer, plus later offers on other nodes with a rate at most a quarter worse.
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
