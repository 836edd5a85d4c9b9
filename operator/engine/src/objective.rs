//! The objective: cost of evicted units, and the order of costs. No other file scores victims,
//! except the order of KEP-5710 (`preempt/kep.rs`).
//!
//! Costs are compared as [`EvictionCost`], field by field; the order of the fields is the policy.
//! The relaxation and the local search need a single number, the *price*. In [`Weights`], a pod
//! beyond a disruption budget weighs more than all work that can be lost. So prices order victim
//! sets by PDB excess, then by lost work. Gangs and pods only break ties in [`EvictionCost`].
//!
//! To add a criterion, add a field to [`EvictionCost`] at its rank, and count it in
//! [`Units::eviction_cost`] and [`CostCounter`]. Add a weight if it should guide the search.

use crate::problem::{PdbIx, Unit, UnitIx, Units};

/// Cost of a victim set as one number, in accelerator-seconds; see [`Weights`].
pub(crate) type Price = i128;

/// Cost of a set of victims, compared field by field (smaller is better).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EvictionCost {
    /// Pods evicted beyond their disruption budgets.
    pub pdb_excess: u64,
    /// Lost accelerator-seconds, including cascades and follow-on evictions.
    pub lost: u128,
    /// Number of evicted gangs.
    pub gangs: u32,
    /// Number of evicted pods.
    pub pods: u32,
}

impl EvictionCost {
    /// The part of the cost that a [`Bound`] bounds.
    pub(crate) fn bounded_part(&self) -> Bound {
        Bound {
            pdb_excess: self.pdb_excess,
            lost: self.lost,
        }
    }

    pub(crate) fn add_follow_on(&mut self, lost: u128) {
        self.lost += lost;
    }
}

/// Lower bound of the cost of every plan within the rules and the priority bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bound {
    /// Pods beyond their disruption budgets in any plan.
    pub pdb_excess: u64,
    /// Accelerator-seconds lost by any plan with at most the PDB excess of the given plan,
    /// without follow-on cost.
    pub lost: u128,
}

impl Bound {
    /// A bound for all plans, given a bound per domain. Bounds each field separately, because a
    /// domain can lose less work at a higher PDB excess.
    pub(crate) fn weakest(bounds: &[Self]) -> Self {
        let pdb_excess = bounds.iter().map(|b| b.pdb_excess).min();
        let lost = bounds.iter().map(|b| b.lost).min();
        Self {
            pdb_excess: pdb_excess.unwrap_or_default(),
            lost: lost.unwrap_or_default(),
        }
    }
}

/// Weight of each criterion in a price. A lost accelerator-second weighs 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights {
    pub excess: Price,
}

impl Weights {
    /// Weights that compare PDB excess first. `all_work`: upper bound of the lost work of any
    /// victim set.
    pub fn excess_first(all_work: Price) -> Self {
        Self {
            excess: all_work + 1,
        }
    }

    pub fn work_only() -> Self {
        Self { excess: 0 }
    }

    pub fn scalar(self, cost: &EvictionCost) -> Price {
        self.marginal(cost.pdb_excess as i64, cost.lost as Price)
    }

    /// Price of additional pods beyond their budgets and additional lost work.
    pub fn marginal(self, excess: i64, lost: Price) -> Price {
        Price::from(excess) * self.excess + lost
    }

    /// A bound from a lower bound of prices: the inverse of [`Weights::scalar`].
    pub fn split(self, least: Price) -> Bound {
        let (least, excess) = (least.max(0).unsigned_abs(), self.excess.unsigned_abs());
        Bound {
            pdb_excess: least.checked_div(excess).unwrap_or(0) as u64,
            lost: least.checked_rem(excess).unwrap_or(least),
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct UnitCost<'a> {
    pub unit: &'a Unit,
    /// Accelerator-seconds lost by its eviction, with known follow-on evictions, without its
    /// cascade.
    pub lost: Price,
    pub pods: u32,
}

impl UnitCost<'_> {
    /// Price of evicting the unit alone.
    pub fn price_alone(&self, units: &Units, weights: Weights) -> Price {
        weights.marginal(units.excess_alone(self.unit), self.lost)
    }

    /// Price of the unit in the relaxation, which charges cascades separately. `excess`: assumed
    /// pods beyond its budgets.
    pub fn price_relaxed(&self, weights: Weights, excess: i64) -> Price {
        let lost = match self.unit.cascade {
            Some(_) => 0,
            None => self.lost,
        };
        weights.marginal(excess, lost)
    }
}

#[derive(Clone)]
pub(crate) struct CostCounter<'a> {
    units: &'a Units,
    weights: Weights,
    disrupted: Vec<i64>,
    cascades: Vec<u32>,
    excess: i64,
    lost: Price,
    gangs: u32,
    pods: u32,
}

impl<'a> CostCounter<'a> {
    pub fn new(units: &'a Units, weights: Weights) -> Self {
        Self {
            units,
            weights,
            disrupted: vec![0; units.pdb_allowed.len()],
            cascades: vec![0; units.cascade_loss.len()],
            excess: 0,
            lost: 0,
            gangs: 0,
            pods: 0,
        }
    }

    pub fn cost(&self) -> EvictionCost {
        EvictionCost {
            pdb_excess: self.excess.unsigned_abs(),
            lost: self.lost.unsigned_abs(),
            gangs: self.gangs,
            pods: self.pods,
        }
    }

    pub fn price(&self) -> Price {
        self.weights.marginal(self.excess, self.lost)
    }

    pub fn marginal(&self, one: &UnitCost<'_>) -> Price {
        let lost = match one.unit.cascade {
            None => one.lost,
            Some(c) if self.cascades[c] == 0 => Price::from(self.units.cascade_loss[c]),
            Some(_) => 0,
        };
        self.weights.marginal(self.marginal_excess(one.unit), lost)
    }

    pub fn marginal_excess(&self, unit: &Unit) -> i64 {
        let mut more = 0;
        for &(pdb, pods) in &unit.pdbs {
            let over = self.disrupted[pdb] - i64::from(self.units.pdb_allowed[pdb]);
            more += (over + i64::from(pods)).max(0) - over.max(0);
        }
        more
    }

    /// Adds (`sign` 1) or removes (-1) a unit.
    pub fn count(&mut self, one: &UnitCost<'_>, sign: i64) {
        for &(pdb, pods) in &one.unit.pdbs {
            self.count_disrupted(pdb, sign * i64::from(pods));
        }
        match one.unit.cascade {
            None => self.lost += Price::from(sign) * one.lost,
            Some(c) => {
                let before = self.cascades[c] > 0;
                self.cascades[c] = self.cascades[c].wrapping_add_signed(sign as i32);
                let loss = Price::from(self.units.cascade_loss[c]);
                match (before, self.cascades[c] > 0) {
                    (false, true) => self.lost += loss,
                    (true, false) => self.lost -= loss,
                    _ => {}
                }
            }
        }
        let sign = sign as i32;
        self.gangs = self
            .gangs
            .wrapping_add_signed(sign * i32::from(one.unit.gang));
        self.pods = self.pods.wrapping_add_signed(sign * one.pods as i32);
    }

    fn count_disrupted(&mut self, pdb: PdbIx, pods: i64) {
        let allowed = i64::from(self.units.pdb_allowed[pdb]);
        let before = (self.disrupted[pdb] - allowed).max(0);
        self.disrupted[pdb] += pods;
        self.excess += (self.disrupted[pdb] - allowed).max(0) - before;
    }
}

impl Units {
    /// Cost of evicting these units, without follow-on evictions.
    pub fn eviction_cost(&self, victims: &[UnitIx]) -> EvictionCost {
        let mut counter = CostCounter::new(self, Weights::work_only());
        for unit in victims.iter().filter_map(|&u| self.units.get(u)) {
            let one = UnitCost {
                unit,
                lost: Price::from(unit.cost),
                pods: unit.pod_count(),
            };
            counter.count(&one, 1);
        }
        counter.cost()
    }

    /// PDB excess of a unit if nothing else is evicted.
    pub(crate) fn excess_alone(&self, unit: &Unit) -> i64 {
        let mut excess = 0;
        for &(pdb, pods) in &unit.pdbs {
            excess += i64::from(pods.saturating_sub(self.pdb_allowed[pdb]));
        }
        excess
    }
}
