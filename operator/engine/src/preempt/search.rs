//! Local search over victim sets: repair what does not fit, give back what is not needed, exchange what is dear.

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::{
    bundle::{Bundle, cheapest_bundle},
    field::CandIx,
    state::{Price, State},
};
use crate::problem::{DomainIx, NodeIx, ShapeIx, Toll};

/// How far apart, in the order of what they are worth, two victims may be that are exchanged together.
const PAIRS_APART: usize = 8;

/// Nodes that a search looks at before it looks at all: those where seats are cheapest.
const NEAR: usize = 96;

/// A bundle on a node, its price and the seats that it wins.
struct Offer {
    node: NodeIx,
    bundle: Bundle,
    price: Price,
    won: i64,
}

impl Offer {
    /// Compares the price of a seat.
    fn rate_to(&self, other: &Self) -> std::cmp::Ordering {
        (self.price * Price::from(other.won)).cmp(&(other.price * Price::from(self.won)))
    }
}

struct Offers(Vec<Offer>);

impl Offers {
    fn min_by_rate(self) -> Option<Offer> {
        self.0.into_iter().min_by(Offer::rate_to)
    }
}

/// A search from one set of victims to better ones.
pub(super) struct Search<'a> {
    pub state: State<'a>,
    /// Candidates that may be evicted.
    pool: &'a [bool],
    /// Candidates that the present move must leave alone.
    barred: Vec<bool>,
    /// Rounds in which a candidate was already looked at alone.
    seen: Vec<u32>,
    round: u32,
    /// Nodes where seats were cheapest when the search last looked around.
    near: Vec<NodeIx>,
    /// Whether moves are weighed without short cuts.
    thorough: bool,
    /// Steps after which the search ends.
    budget: u64,
}

impl<'a> Search<'a> {
    pub fn new(state: State<'a>, pool: &'a [bool], budget: u64) -> Self {
        let cands = state.field.cands.len();
        Self {
            state,
            pool,
            barred: vec![false; cands],
            seen: vec![0; cands],
            round: 0,
            near: Vec::new(),
            thorough: false,
            budget,
        }
    }

    /// Makes the set of victims this one.
    pub fn become_set(&mut self, gone: impl Fn(CandIx) -> bool) {
        for cand in 0..self.barred.len() {
            match (self.state.is_gone(cand), gone(cand)) {
                (false, true) => self.state.evict(cand),
                (true, false) => self.state.restore(cand),
                _ => {}
            }
        }
    }

    /// Evicts more until the gang fits: always the bundle that is cheapest for the seats it wins.
    pub fn repair(&mut self) -> bool {
        loop {
            let Some((shape, missing)) = self.state.deficit() else {
                if self.state.fits() {
                    return true;
                }
                // Counting is content but the shapes are in each other's way: any more room may help.
                let Some(cheapest) = self.evictable().min_by_key(|&c| (self.state.marginal(c), c)) else {
                    return false;
                };
                self.state.evict(cheapest);
                continue;
            };
            let Some(bundle) = self.best_bundle(shape, missing) else { return false };
            for cand in bundle {
                self.state.evict(cand);
            }
        }
    }

    /// Gives back every victim that is not needed, dearest first.
    pub fn reprieve(&mut self) {
        self.give_back(None, false);
    }

    /// Gives back victims that are not needed, dearest first, never `kept`; when `roughly`, only while there are seats to
    /// spare, which finds all but those that hold none.
    fn give_back(&mut self, kept: Option<CandIx>, roughly: bool) {
        for cand in self.dearest_first() {
            if roughly && self.state.surplus() == 0 {
                break;
            }
            if Some(cand) == kept {
                continue;
            }
            self.state.restore(cand);
            if !self.state.fits() {
                self.state.evict(cand);
            }
        }
    }

    /// What giving back a victim would save.
    fn worth(&self, cand: CandIx) -> (Price, u32) {
        (self.state.field.excess_alone_price(cand) + self.state.field.cost(cand), self.state.field.pods(cand))
    }

    /// Exchanges victims while that pays and the budget lasts: one by one, then all of a node, then in pairs; first with
    /// short cuts, then without.
    pub fn improve(&mut self) {
        let mut best = self.state.toll();
        let phases = 2 + PAIRS_APART;
        let mut idle = 0;
        self.thorough = false;
        while idle < 2 * phases && self.state.steps < self.budget {
            self.thorough |= idle >= phases;
            let improved = match idle % phases {
                0 => self.exchange_out(Self::singles, &mut best) | self.exchange_in(&mut best),
                1 => self.exchange_out(Self::by_node, &mut best),
                phase => self.exchange_out(|search| search.pairs(phase - 1), &mut best),
            };
            idle = match (improved, self.thorough) {
                (false, _) => idle + 1,
                (true, false) => 0,
                (true, true) => phases,
            };
        }
    }

    /// The cheapest set found that leaves a victim alone, and its toll.
    pub fn without(&mut self, cand: CandIx) -> Option<(Toll, Vec<CandIx>)> {
        self.state.restore(cand);
        self.barred[cand] = true;
        let fits = self.repair();
        self.barred[cand] = false;
        fits.then(|| {
            self.reprieve();
            (self.state.toll(), self.state.victims())
        })
    }

    /// For each group of victims: can others make the room for less?
    fn exchange_out(&mut self, groups: impl Fn(&Self) -> Vec<Bundle>, best: &mut Toll) -> bool {
        let mut improved = false;
        self.look_around();
        for out in groups(self) {
            if self.state.steps >= self.budget {
                break;
            }
            if out.iter().any(|&c| !self.state.is_gone(c)) {
                continue;
            }
            self.state.begin();
            for &cand in &out {
                self.state.restore(cand);
                self.barred[cand] = true;
            }
            let fits = self.repair_below(best);
            for &cand in &out {
                self.barred[cand] = false;
            }
            improved |= self.settle(fits, None, best);
        }
        improved
    }

    /// The victims, dearest first.
    pub fn dearest_first(&self) -> Vec<CandIx> {
        let mut order = self.state.victims();
        order.sort_by_cached_key(|&c| (Reverse(self.worth(c)), c));
        order
    }

    fn singles(&self) -> Vec<Bundle> {
        self.dearest_first().into_iter().map(|c| SmallVec::from_slice(&[c])).collect()
    }

    /// Victims that stand so far from each other in the order of what they are worth.
    fn pairs(&self, apart: usize) -> Vec<Bundle> {
        let order = self.dearest_first();
        order.iter().zip(order.iter().skip(apart)).map(|(&a, &b)| SmallVec::from_slice(&[a, b])).collect()
    }

    /// For each node, its victims that hold nothing elsewhere, where they are several: together they win a seat there.
    fn by_node(&self) -> Vec<Bundle> {
        let field = self.state.field;
        let local = |c: CandIx| self.state.is_gone(c) && field.uses(c).nth(1).is_none();
        let on = |&n: &NodeIx| -> Bundle { field.uses_on(n).map(|(c, _)| c).filter(|&c| local(c)).collect() };
        field.site.nodes.iter().map(on).filter(|group| group.len() > 1).collect()
    }

    /// For each unit that stays: does evicting it let dearer ones stay?
    fn exchange_in(&mut self, best: &mut Toll) -> bool {
        let mut improved = false;
        for cand in 0..self.pool.len() {
            if self.state.steps >= self.budget {
                break;
            }
            if self.state.is_gone(cand) || !self.pool[cand] {
                continue;
            }
            let surplus = self.state.surplus();
            self.state.begin();
            self.state.evict(cand);
            // A unit that wins no seat lets nobody stay.
            if self.state.surplus() == surplus {
                self.state.restore(cand);
                continue;
            }
            improved |= self.settle(true, Some(cand), best);
        }
        improved
    }

    /// Keeps the move if it pays, else goes back to the set before it.
    fn settle(&mut self, fits: bool, kept: Option<CandIx>, best: &mut Toll) -> bool {
        if fits {
            self.give_back(kept, !self.thorough);
            if self.state.toll() < *best {
                self.reprieve();
                *best = self.state.toll();
                return true;
            }
        }
        self.state.undo();
        false
    }

    /// As [`Search::repair`], but ends in failure once the price has risen to where the move cannot pay any more, even
    /// if all victims from before but the cheapest were given back.
    fn repair_below(&mut self, best: &Toll) -> bool {
        let limit = Price::from(best.pdb_excess) * self.state.field.excess_price + best.lost as Price;
        while let Some((shape, missing)) = self.state.deficit() {
            let Some(bundle) = self.best_bundle(shape, missing) else { return false };
            for cand in bundle {
                self.state.evict(cand);
            }
            if self.state.price() > limit + limit / 4 {
                return false;
            }
        }
        self.repair()
    }

    fn evictable(&self) -> impl Iterator<Item = CandIx> {
        (0..self.pool.len()).filter(|&c| self.may_go(c))
    }

    fn may_go(&self, cand: CandIx) -> bool {
        self.pool[cand] && !self.barred[cand] && !self.state.is_gone(cand)
    }

    /// The bundle with the least price per seat won, seats beyond the need not counted: near ones first, else of any node.
    fn best_bundle(&mut self, shape: ShapeIx, missing: i64) -> Option<Bundle> {
        if self.state.goal.shapes[shape].replica_size.is_some() {
            return self.best_replica(shape);
        }
        let near = std::mem::take(&mut self.near);
        let mut best = self.offers(shape, missing, &near).min_by_rate();
        self.near = near;
        if best.is_none() {
            best = self.offers(shape, missing, &self.state.field.site.nodes).min_by_rate();
        }
        best.map(|offer| offer.bundle)
    }

    /// Looks at all nodes and remembers where seats are cheapest beside the present victims.
    fn look_around(&mut self) {
        let shape = 0;
        // Replicas are looked for by domain.
        if self.state.goal.shapes.first().is_none_or(|s| s.replica_size.is_some()) {
            return;
        }
        let mut offers = self.offers(shape, i64::MAX, &self.state.field.site.nodes).0;
        offers.sort_by(|a, b| a.rate_to(b).then(a.node.cmp(&b.node)));
        if !self.thorough {
            offers.truncate(NEAR);
        }
        self.near = offers.into_iter().map(|offer| offer.node).collect();
    }

    /// What the nodes offer for a shape, a unit that is a whole bundle only once.
    fn offers(&mut self, shape: ShapeIx, missing: i64, nodes: &[NodeIx]) -> Offers {
        self.round += 1;
        let mut offers = Vec::new();
        for &node in nodes {
            self.state.steps += 1;
            let Some(bundle) = self.bundle(shape, node) else { continue };
            if let [single] = bundle[..] {
                if self.seen[single] == self.round {
                    continue;
                }
                self.seen[single] = self.round;
            }
            let (price, won) = self.state.weigh(shape, &bundle);
            if won > 0 {
                offers.push(Offer { node, bundle, price, won: won.min(missing) });
            }
        }
        Offers(offers)
    }

    /// The units whose eviction wins a whole replica for the least.
    fn best_replica(&mut self, shape: ShapeIx) -> Option<Bundle> {
        let goal = self.state.goal;
        let mut best: Option<(Price, Bundle)> = None;
        for domain in 0..goal.domains.len() {
            let price = self.state.price();
            let bundle = self.win_replica(shape, domain);
            let risen = self.state.price() - price;
            if let Some(bundle) = bundle.inspect(|b| self.restore_all(b))
                && best.as_ref().is_none_or(|(known, _)| risen < *known)
            {
                best = Some((risen, bundle));
            }
        }
        best.map(|(_, bundle)| bundle)
    }

    /// Evicts the cheapest seats of a domain until it holds one more replica; nothing, and nobody evicted, if it cannot.
    fn win_replica(&mut self, shape: ShapeIx, domain: DomainIx) -> Option<Bundle> {
        let goal = self.state.goal;
        let target = self.state.supply(shape) + 1;
        let mut taken = Bundle::new();
        while self.state.supply(shape) < target {
            let mut best: Option<Offer> = None;
            for &node in &goal.domains[domain] {
                self.state.steps += 1;
                let Some(bundle) = self.bundle(shape, node) else { continue };
                let (price, seats) = (self.state.price(), self.state.seats_in(shape, domain));
                self.evict_all(&bundle);
                let (price, won) = (self.state.price() - price, self.state.seats_in(shape, domain) - seats);
                self.restore_all(&bundle);
                let offer = Offer { node, bundle, price, won };
                if won > 0 && best.as_ref().is_none_or(|b| offer.rate_to(b).is_lt()) {
                    best = Some(offer);
                }
            }
            let Some(offer) = best else {
                self.restore_all(&taken);
                return None;
            };
            self.evict_all(&offer.bundle);
            taken.extend(offer.bundle);
        }
        Some(taken)
    }

    fn evict_all(&mut self, cands: &[CandIx]) {
        for &cand in cands {
            self.state.evict(cand);
        }
    }

    fn restore_all(&mut self, cands: &[CandIx]) {
        for &cand in cands {
            self.state.restore(cand);
        }
    }

    fn bundle(&mut self, shape: ShapeIx, node: NodeIx) -> Option<Bundle> {
        let (pool, barred) = (self.pool, &self.barred);
        cheapest_bundle(&mut self.state, shape, node, |cand| pool[cand] && !barred[cand])
    }
}
