//! The decision of a cycle about a gang that requests capacity.

use lockstep_api::gangs::Assignments;
use lockstep_api::key::Key;
use lockstep_api::scheduling::{Preemptor, Victim};
use lockstep_engine::NodeIx;

#[derive(Clone, Debug, Default, PartialEq)]
pub enum Decision {
    /// The gang requests no capacity, or waits.
    #[default]
    None,
    Placed(Assignments),
    /// Waits for terminating pods. The gang takes these nodes if nothing else changes.
    AfterTerminations(Assignments),
    Preempts(Box<PreemptionDecision>),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PreemptionDecision {
    pub nodes: Assignments,
    pub victims: Vec<ChosenVictim>,
    /// Cost of the victims and of follow-on evictions in accelerator-seconds.
    pub cost: u128,
    pub pdb_excess: u64,
    /// Lower bound of the cost of any set of victims, in accelerator-seconds.
    pub at_least: u128,
    /// True if no cheaper set exists.
    pub proven: bool,
    /// Next best set that the search found.
    pub next_best: Option<OtherVictims>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChosenVictim {
    pub victim: Victim,
    /// Nodes on which the gang takes the victim's capacity.
    pub nodes: Vec<NodeIx>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct OtherVictims {
    pub victims: Vec<Victim>,
    /// Cost in accelerator-seconds.
    pub cost: u128,
    /// Pods evicted beyond their disruption budgets.
    pub pdb_excess: u64,
}

/// Why a gang is preempted.
#[derive(Clone, Debug)]
pub(crate) struct PreemptedGang {
    /// Pod group of the preemptor.
    pub by: Key,
    pub preemptor: Preemptor,
    /// For condition DisruptionTarget.
    pub message: String,
}
