//! Division of `minCount` among the shapes of an elastic gang.
//!
//! Any members count, so a gang fits if it fits under one *division*: a number of needed pods for
//! each shape. A gang that fits also fits with fewer needed pods, which limits the divisions to try.

use std::collections::BTreeSet;

use crate::{
    infeasible::Infeasible,
    objective::Price,
    problem::{Demand, GangPlacement, ShapeIx},
};

/// Most divisions to try.
const TRIALS: usize = 64;
/// Number of divisions up to which [`MinCount::alternatives`] are all divisions.
const ALTERNATIVES: usize = 6;
/// Steps in which [`MinCount::cheapest`] adds the needed pods.
const ADDITIONS: u32 = 24;

/// A gang whose needed pods can be divided in several ways.
pub(crate) struct MinCount<'d> {
    demand: &'d Demand,
    /// Pods of each shape that every division needs, including running ones.
    least: Vec<u32>,
    /// Shapes with optional pods.
    optional: Vec<ShapeIx>,
    /// Needed pods beyond `least`.
    more: u32,
}

/// Pods of each shape beyond the least.
pub(crate) type Division = Vec<u32>;

/// Highest priority of a candidate, and price of the victims.
type Cost = (Option<i32>, Price);

/// The next pods of a shape that [`MinCount::cheapest`] can add.
struct NextPods {
    shape: ShapeIx,
    /// Highest priority of a candidate, and price of one pod.
    price: Cost,
    /// Cost of the demand with these pods. `None` unless computed for the present division.
    total: Option<Cost>,
}

impl<'d> MinCount<'d> {
    /// `None` if there is only one division.
    pub fn of(demand: &'d Demand) -> Option<Self> {
        let each = demand.shapes.iter();
        let least: Vec<u32> = each
            .map(|s| s.min.min(s.count).max(s.running_count()))
            .collect();
        let more = demand.min_count.saturating_sub(least.iter().sum());
        let all: u32 = demand.shapes.iter().map(|s| s.count).sum();
        let room = |s: &ShapeIx| demand.shapes[*s].count > least[*s];
        let optional: Vec<ShapeIx> = (0..least.len()).filter(room).collect();
        (more > 0 && demand.min_count < all && optional.len() > 1).then_some(Self {
            demand,
            least,
            optional,
            more,
        })
    }

    fn room(&self, shape: ShapeIx) -> u32 {
        self.demand.shapes[shape].count - self.least[shape]
    }

    /// The demand with a division as minima.
    fn divided(&self, division: &[u32]) -> Demand {
        let mut demand = self.demand.clone();
        for ((shape, least), more) in demand.shapes.iter_mut().zip(&self.least).zip(division) {
            shape.min = least + more;
        }
        demand.min_count = demand.shapes.iter().map(|s| s.min).sum();
        demand
    }

    /// Division of `more` pods, from the shapes in this order. With `most`, at most so many of each
    /// shape at first.
    fn in_order(&self, order: &[ShapeIx], most: Option<&Division>) -> Division {
        let mut division = vec![0; self.least.len()];
        let mut missing = self.more;
        let limits = most.into_iter().map(Vec::as_slice);
        let unlimited: Division = (0..self.least.len()).map(|s| self.room(s)).collect();
        for most in limits.chain([unlimited.as_slice()]) {
            for &shape in order {
                let more = most[shape].min(self.room(shape)) - division[shape].min(most[shape]);
                let more = more.min(missing);
                division[shape] += more;
                missing -= more;
            }
        }
        division
    }

    /// The demand with the division of this placement, as far as it goes.
    pub fn as_placed(&self, placement: &GangPlacement) -> Demand {
        let placed = self.placed_beyond_least(placement);
        self.divided(&self.in_order(&self.optional, Some(&placed)))
    }

    /// The pods of each shape that a placement has beyond those that every division needs.
    pub fn placed_beyond_least(&self, placement: &GangPlacement) -> Division {
        let each = self.demand.shapes.iter().zip(&self.least).enumerate();
        each.map(|(ix, (shape, least))| {
            let members = shape.running_count() + placement.count_of(ix);
            members.saturating_sub(*least)
        })
        .collect()
    }

    /// Demands with divisions that probably need the fewest evictions, and whether these are all.
    /// `placed`: the optional pods that fit into free capacity beside those that every division
    /// needs.
    pub fn alternatives(&self, placed: &Division) -> (Vec<Demand>, bool) {
        let mut divisions: BTreeSet<Division> = BTreeSet::new();
        let complete = self.all(0, &mut vec![0; self.least.len()], self.more, &mut divisions);
        if !complete {
            divisions = (0..self.optional.len().min(ALTERNATIVES))
                .map(|at| {
                    let mut order = self.optional.clone();
                    order.rotate_left(at);
                    self.in_order(&order, Some(placed))
                })
                .collect();
        }
        let demands = divisions.iter().map(|division| self.divided(division));
        (demands.collect(), complete)
    }

    /// The demand with the division that grows from the `placed` pods by the shape whose
    /// next pods cost the least. `cost`: of a demand with fewer needed pods; `None` if it does not
    /// fit. A price is computed again only if it is the least, or if its shape has grown.
    pub fn cheapest(
        &self,
        placed: &Division,
        mut cost: impl FnMut(&Demand) -> Option<Cost>,
    ) -> Option<Demand> {
        let each = placed.iter().enumerate();
        let mut division: Division = each.map(|(shape, &n)| n.min(self.room(shape))).collect();
        let mut missing = self.more.checked_sub(division.iter().sum())?;
        let part = missing.div_ceil(ADDITIONS);
        let mut spent = Cost::default();
        let unpriced = |&shape: &ShapeIx| NextPods {
            shape,
            price: (None, Price::MIN),
            total: None,
        };
        let mut next: Vec<NextPods> = self.optional.iter().map(unpriced).collect();
        while missing > 0 {
            next.retain(|next| division[next.shape] < self.room(next.shape));
            let least = next.iter_mut().min_by_key(|next| next.price)?;
            let shape = least.shape;
            let more = part.min(missing).min(self.room(shape) - division[shape]);
            division[shape] += more;
            if let Some(total) = least.total {
                (spent, missing) = (total, missing - more);
                *least = unpriced(&shape);
                for next in &mut next {
                    next.total = None;
                }
                continue;
            }
            let total = cost(&self.divided(&division));
            division[shape] -= more;
            match total {
                Some((bound, price)) => {
                    least.price = (bound, (price - spent.1) / Price::from(more));
                    least.total = total;
                }
                None => next.retain(|next| next.shape != shape),
            }
        }
        Some(self.divided(&division))
    }

    /// Collects all divisions. False if they are too many.
    fn all(
        &self,
        at: usize,
        division: &mut Division,
        missing: u32,
        divisions: &mut BTreeSet<Division>,
    ) -> bool {
        let Some(&shape) = self.optional.get(at) else {
            if missing == 0 {
                divisions.insert(division.clone());
            }
            return divisions.len() <= ALTERNATIVES;
        };
        let behind: u32 = self.optional[at + 1..].iter().map(|&s| self.room(s)).sum();
        let complete =
            (missing.saturating_sub(behind)..=missing.min(self.room(shape))).all(|more| {
                division[shape] = more;
                self.all(at + 1, division, missing - more, divisions)
            });
        division[shape] = 0;
        complete
    }

    /// The demand without the pods that only some divisions need.
    pub fn least(&self) -> Demand {
        self.divided(&vec![0; self.least.len()])
    }

    /// Result of `place` for the first division for which it succeeds. `place` must succeed for
    /// fewer needed pods if it succeeds for more.
    ///
    /// # Errors
    ///
    /// The error for the division with the most placed pods if it fails for all, and [`Infeasible::GaveUp`] if that is
    /// unknown for some.
    pub fn first<T>(
        &self,
        place: impl FnMut(&Demand) -> Result<T, Infeasible>,
    ) -> Result<T, Infeasible> {
        let mut search = DivisionSearch {
            min_count: self,
            place,
            fitting: None,
            trials: 0,
            reason: None,
            gave_up: None,
        };
        search.run();
        match (search.fitting, search.gave_up, search.reason) {
            (Some(fitting), _, _) => Ok(fitting),
            (None, Some(gave_up), _) => Err(gave_up),
            (None, None, reason) => Err(reason.unwrap_or(Infeasible::GaveUp { steps: 0 })),
        }
    }
}

struct DivisionSearch<'s, 'd, P, T> {
    min_count: &'s MinCount<'d>,
    place: P,
    /// Result for a division that fits.
    fitting: Option<T>,
    trials: usize,
    /// Error of the division with the most placed pods.
    reason: Option<Infeasible>,
    /// Set if it is unknown whether some division fits.
    gave_up: Option<Infeasible>,
}

impl<P: FnMut(&Demand) -> Result<T, Infeasible>, T> DivisionSearch<'_, '_, P, T> {
    fn run(&mut self) {
        let MinCount {
            optional,
            more,
            least,
            ..
        } = self.min_count;
        let first = self.min_count.in_order(optional, None);
        if self.fits(&first) {
            return;
        }
        // Most pods of each shape if only that shape has more than the least.
        let mut most = vec![0; least.len()];
        for &shape in optional {
            let room = self.min_count.room(shape).min(*more);
            let mut division = vec![0; least.len()];
            most[shape] = match self.most(&mut division, shape, room + 1) {
                Some(most) => most,
                None => return,
            };
        }
        let mut division = vec![0; least.len()];
        self.search(0, &mut division, *more, &most);
        // Each shape with as many pods as fit alone: its shortage is what the gang lacks at least.
        if self.is_open() {
            let closest = self.min_count.in_order(optional, Some(&most));
            self.reason = None;
            self.fits(&closest);
        }
    }

    /// Tries all divisions of the missing pods among the shapes from a position on. `most`: upper
    /// bound of each shape.
    fn search(&mut self, at: usize, division: &mut Division, missing: u32, most: &[u32]) {
        let optional = &self.min_count.optional;
        let shape = optional[at];
        let behind: u32 = optional[at + 1..].iter().map(|&s| most[s]).sum();
        let mut more = missing.saturating_sub(behind);
        while more <= missing.min(most[shape]) && self.is_open() {
            division[shape] = more;
            if at + 2 < optional.len() {
                self.search(at + 1, division, missing - more, most);
                more += 1;
                continue;
            }
            let last = optional[at + 1];
            division[last] = missing - more;
            if self.fits(division) {
                return;
            }
            // With more pods of this shape, at most as many of the last fit.
            match self.most(division, last, missing - more) {
                Some(fit) => more = missing - fit,
                None => break,
            }
        }
        division[shape] = 0;
        division[optional[at + 1]] = 0;
    }

    /// Most pods of a shape that fit beside the others of a division, below a bound. `None` if not
    /// even none fits.
    fn most(&mut self, division: &mut Division, shape: ShapeIx, below: u32) -> Option<u32> {
        let (mut fit, mut too_many) = (None, below);
        while fit.map_or(0, |fit| fit + 1) < too_many {
            let next = fit.map_or(0, |fit| fit + (too_many - fit) / 2);
            division[shape] = next;
            if self.is_possible(division) {
                fit = Some(next);
            } else {
                too_many = next;
            }
        }
        division[shape] = 0;
        fit
    }

    fn is_open(&self) -> bool {
        self.fitting.is_none() && self.trials < TRIALS
    }

    /// Tries a division, which is a result if it fits.
    fn fits(&mut self, division: &[u32]) -> bool {
        match self.try_division(division) {
            Ok(fitting) => self.fitting = Some(fitting),
            Err(reason) => drop(self.reason.get_or_insert(reason)),
        }
        self.fitting.is_some()
    }

    /// Tries a part of a division.
    fn is_possible(&mut self, division: &[u32]) -> bool {
        self.try_division(division).is_ok()
    }

    fn try_division(&mut self, division: &[u32]) -> Result<T, Infeasible> {
        self.trials += 1;
        if self.trials > TRIALS {
            let gave_up = Infeasible::GaveUp { steps: 0 };
            self.gave_up.get_or_insert_with(|| gave_up.clone());
            return Err(gave_up);
        }
        let result = (self.place)(&self.min_count.divided(division));
        if let Err(gave_up @ Infeasible::GaveUp { .. }) = &result {
            self.gave_up.get_or_insert_with(|| gave_up.clone());
        }
        result
    }
}
