//! The objective: what evicting units costs, and which of two costs is smaller. No other file
//! scores victims, but for the order that KEP-5710 prescribes (`preempt/kep.rs`).
//!
//! Costs are compared as [`EvictionCost`], field by field in the order of its fields: that order is
//! the policy. The relaxation and the local search need a single number instead, the *price*.
//! [`Weights`] converts between the two: one pod beyond a disruption budget weighs more than all
//! the work that could be lost, so prices order victim sets as their PDB excess and then their lost
//! work do. Gangs and pods break ties only in [`EvictionCost`] and have no part in the price.
//!
//! A new criterion is a field of [`EvictionCost`] at its rank, counted in [`Units::eviction_cost`]
//! and in [`CostCounter`], and a weight where it shall steer the search.

use crate::problem::{PdbIx, Unit, UnitIx, Units};

/// The cost of a victim set in one number, in accelerator-seconds; see [`Weights`].
pub(crate) type Price = i128;

/// What a set of victims costs, in the order in which it is compared (smaller is better).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct EvictionCost {
    /// Pods evicted beyond what their disruption budgets allow.
    pub pdb_excess: u64,
    /// Accelerator-seconds destroyed, cascades and follow-on evictions included.
    pub lost: u128,
    /// Gangs evicted.
    pub gangs: u32,
    /// Pods evicted.
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

    /// Adds the accelerator-seconds that the victims destroy when they are placed again.
    pub(crate) fn add_follow_on(&mut self, lost: u128) {
        self.lost += lost;
    }
}

/// A lower bound of the cost of every answer within the rules and the priority bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bound {
    /// Pods beyond their disruption budgets in any answer.
    pub pdb_excess: u64,
    /// Accelerator-seconds lost by any answer that has no more PDB excess than the one given,
    /// follow-on cost left out.
    pub lost: u128,
}

impl Bound {
    /// What holds for every answer when each of these holds for the answers of one domain. The
    /// fields are bounded separately: a domain may lose less work at a higher PDB excess.
    pub(crate) fn weakest(bounds: &[Self]) -> Self {
        let pdb_excess = bounds.iter().map(|b| b.pdb_excess).min();
        let lost = bounds.iter().map(|b| b.lost).min();
        Self {
            pdb_excess: pdb_excess.unwrap_or_default(),
            lost: lost.unwrap_or_default(),
        }
    }
}

/// The weight of each criterion in a price; a lost accelerator-second weighs 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights {
    /// Of one pod beyond its disruption budget.
    pub excess: Price,
}

impl Weights {
    /// Weights under which prices compare PDB excess first; `all_work` is an upper bound of the
    /// work that any victim set loses.
    pub fn excess_first(all_work: Price) -> Self {
        Self {
            excess: all_work + 1,
        }
    }

    /// Weights under which a price is the lost work alone.
    pub fn work_only() -> Self {
        Self { excess: 0 }
    }

    /// The price of a cost.
    pub fn scalar(self, cost: &EvictionCost) -> Price {
        self.marginal(cost.pdb_excess as i64, cost.lost as Price)
    }

    /// The price of this many more pods beyond their budgets and this much more lost work.
    pub fn marginal(self, excess: i64, lost: Price) -> Price {
        Price::from(excess) * self.excess + lost
    }

    /// The bound that a lower bound of prices stands for: the inverse of [`Weights::scalar`].
    pub fn split(self, least: Price) -> Bound {
        let (least, excess) = (least.max(0).unsigned_abs(), self.excess.unsigned_abs());
        Bound {
            pdb_excess: least.checked_div(excess).unwrap_or(0) as u64,
            lost: least.checked_rem(excess).unwrap_or(least),
        }
    }
}

/// What one unit contributes to the cost of a victim set.
#[derive(Clone, Copy)]
pub(crate) struct UnitCost<'a> {
    pub unit: &'a Unit,
    /// Accelerator-seconds that its eviction destroys, known follow-on evictions included and its
    /// cascade left out.
    pub lost: Price,
    pub pods: u32,
}

impl UnitCost<'_> {
    /// The price of evicting the unit alone.
    pub fn price_alone(&self, units: &Units, weights: Weights) -> Price {
        weights.marginal(units.excess_alone(self.unit), self.lost)
    }

    /// The price of the unit in the relaxation, which charges cascades by itself and budgets only
    /// by `excess`: the pods that the unit is counted to take beyond its budgets.
    pub fn price_relaxed(&self, weights: Weights, excess: i64) -> Price {
        let lost = match self.unit.cascade {
            Some(_) => 0,
            None => self.lost,
        };
        weights.marginal(excess, lost)
    }
}

/// The cost of a set of units while units join and leave it.
#[derive(Clone)]
pub(crate) struct CostCounter<'a> {
    units: &'a Units,
    weights: Weights,
    /// Pods evicted, per disruption budget.
    disrupted: Vec<i64>,
    /// Units evicted, per cascade.
    cascades: Vec<u32>,
    excess: i64,
    lost: Price,
    gangs: u32,
    pods: u32,
}

impl<'a> CostCounter<'a> {
    /// The cost of the empty set.
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

    /// The cost of the set.
    pub fn cost(&self) -> EvictionCost {
        EvictionCost {
            pdb_excess: self.excess.unsigned_abs(),
            lost: self.lost.unsigned_abs(),
            gangs: self.gangs,
            pods: self.pods,
        }
    }

    /// The price of the set.
    pub fn price(&self) -> Price {
        self.weights.marginal(self.excess, self.lost)
    }

    /// By how much the price rises when a unit joins the set.
    pub fn marginal(&self, one: &UnitCost<'_>) -> Price {
        let lost = match one.unit.cascade {
            None => one.lost,
            Some(c) if self.cascades[c] == 0 => Price::from(self.units.cascade_loss[c]),
            Some(_) => 0,
        };
        self.weights.marginal(self.marginal_excess(one.unit), lost)
    }

    /// Pods that a unit takes beyond their budgets when it joins the set.
    pub fn marginal_excess(&self, unit: &Unit) -> i64 {
        let mut more = 0;
        for &(pdb, pods) in &unit.pdbs {
            let over = self.disrupted[pdb] - i64::from(self.units.pdb_allowed[pdb]);
            more += (over + i64::from(pods)).max(0) - over.max(0);
        }
        more
    }

    /// Counts a unit that joins the set (`sign` 1) or leaves it (-1).
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
    /// What evicting these units costs, without follow-on evictions.
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

    /// Pods that a unit takes beyond their budgets even when nothing else is evicted.
    pub(crate) fn excess_alone(&self, unit: &Unit) -> i64 {
        let mut excess = 0;
        for &(pdb, pods) in &unit.pdbs {
            excess += i64::from(pods.saturating_sub(self.pdb_allowed[pdb]));
        }
        excess
    }
}
