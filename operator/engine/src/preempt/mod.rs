//! Whom a gang displaces.

mod bundle;
mod exact;
mod field;
mod flow;
mod follow_on;
mod goal;
mod kep;
mod knapsack;
mod least_cost;
mod part;
mod reasons;
mod relax;
mod search;
mod state;

use crate::{
    cluster::Cluster,
    explain::Explanation,
    infeasible::Infeasible,
    placement::{Site, check, place_in},
    problem::{Demand, NodeIx, Placement, PreemptionPolicy, Toll, UnitIx, Units},
};
use field::{CandIx, Field};
pub use follow_on::FollowOn;
pub use reasons::{Reasons, RunnerUp, Spared, Taken, explain};

/// How victims are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// The least work lost, within the rules of KEP-5710.
    #[default]
    LeastCost,
    /// KEP-5710 as released: one placement on the cluster without the candidates, then reprieve by importance.
    Kep,
}

/// What comes first when priorities and lost work disagree. Read by [`Algorithm::LeastCost`] only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Only units up to the lowest priority that can make room at all.
    #[default]
    StrictPriority,
    /// Any unit of lower priority than the gang's.
    LeastWork,
}

/// How a preemption is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How victims are chosen.
    pub algorithm: Algorithm,
    /// What comes first when priorities and lost work disagree.
    pub order: Order,
    /// Steps the search may spend. Counted, not timed, so that equal questions have equal answers.
    pub work_budget: u64,
    /// For [`Algorithm::Kep`] without topology: members go to the first node of this order that has room (upstream breaks
    /// ties at random). `None` places by best fit.
    pub node_order: Option<Vec<NodeIx>>,
    /// How many evictions that victims cause in turn are followed; 0 ignores where victims go.
    pub follow_on_depth: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::LeastCost,
            order: Order::StrictPriority,
            // Keeps a decision over 1,000 nodes below ten milliseconds on one core.
            work_budget: 300_000,
            node_order: None,
            follow_on_depth: 0,
        }
    }
}

/// No answer within the rules and the priority bound costs less than this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bound {
    /// Pods beyond their budgets in any answer.
    pub pdb_excess: u64,
    /// Accelerator-seconds lost by any answer that has no more PDB excess than the one given, follow-on cost left out.
    pub lost: u128,
}

/// Whom to evict, and where the gang goes then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preemption {
    /// Units to evict, ascending. Empty when the gang fits as it is. Without any one of them the gang does not fit.
    pub victims: Vec<UnitIx>,
    /// Where the gang goes.
    pub placement: Placement,
    /// What the victims cost.
    pub toll: Toll,
    /// How little any answer must cost.
    pub bound: Bound,
    /// Whether no answer with less PDB excess, or equal excess and less work lost, exists.
    pub proven: bool,
    /// Why these.
    pub explanation: Explanation,
}

/// Finds room for a gang, evicting units of lower priority where needed.
///
/// Nothing is evicted unless the gang then fits, and no unit that could stay is evicted.
pub fn preempt(cluster: &Cluster, units: &Units, demand: &Demand, options: &Options) -> Result<Preemption, Infeasible> {
    check(cluster, demand)?;
    let site = Site::new(cluster, demand);
    let short = match place_in(&site, cluster.free_table().to_vec()) {
        Ok(placement) => return Ok(Preemption::without_victims(placement)),
        Err(reason) => reason,
    };
    if demand.preemption == PreemptionPolicy::Never {
        return Err(match short {
            Infeasible::NoRoom(s) => Infeasible::MayNotPreempt(s),
            other => other,
        });
    }
    let field = Field::new(&site, units);
    match options.algorithm {
        Algorithm::Kep => kep::preempt(&field, options),
        Algorithm::LeastCost => weigh_follow_on(field, options),
    }
}

/// Answers with the cost of what victims do next: where a victim would evict in turn, it is asked again with that cost
/// added to it, and the best of the answers in full is taken.
fn weigh_follow_on(mut field: Field<'_>, options: &Options) -> Result<Preemption, Infeasible> {
    /// Answers that are weighed.
    const ROUNDS: usize = 4;
    let mut best: Option<Preemption> = None;
    for round in 0..ROUNDS {
        let mut answer = least_cost::preempt(&field, options)?;
        let (cluster, units, demand) = (field.site.cluster, field.units, field.demand);
        let caused =
            follow_on::follow(cluster, units, demand, &answer.victims, &answer.placement, options.follow_on_depth);
        answer.toll = units.toll(&answer.victims);
        answer.toll.lost += caused.iter().map(|f| f.lost).sum::<u128>();
        // A later round's proof and bound are about the costs with what was added.
        answer.proven &= round == 0 && caused.is_empty();
        answer.bound = best.as_ref().map_or(answer.bound, |b| b.bound);
        for cause in &caused {
            if let Ok(cand) = field.cands.binary_search(&cause.victim) {
                field.add_cost(cand as CandIx, cause.lost as i128);
            }
        }
        answer.explanation.follow_on = caused;
        let settled = answer.explanation.follow_on.is_empty();
        if best.as_ref().is_none_or(|b| answer.toll < b.toll) {
            best = Some(answer);
        }
        if settled {
            break;
        }
    }
    best.ok_or(Infeasible::GaveUp { steps: 0 })
}

impl Preemption {
    fn without_victims(placement: Placement) -> Self {
        Self {
            victims: Vec::new(),
            placement,
            toll: Toll::default(),
            bound: Bound::default(),
            proven: true,
            explanation: Explanation::default(),
        }
    }
}
