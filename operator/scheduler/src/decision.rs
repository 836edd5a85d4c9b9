//! What a cycle has decided for a gang that asked for capacity.

use std::collections::BTreeMap;

use lockstep_api::member::Member;
use lockstep_api::scheduling::Victim;
use lockstep_engine::NodeIx;

/// The node of each member.
pub type MemberNodes = BTreeMap<Member, NodeIx>;

/// What a cycle has decided for a gang.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Decision {
    /// Nothing: it did not ask, or waits.
    #[default]
    None,
    /// It is placed in free capacity.
    Placed(MemberNodes),
    /// It waits for pods that are terminating; if nothing else happens it goes here.
    AfterTerminations(MemberNodes),
    /// Work is preempted for it.
    Preempts(Box<PreemptionDecision>),
}

/// Which work is preempted for a gang, and why.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PreemptionDecision {
    /// Where the gang goes.
    pub nodes: MemberNodes,
    /// The victims.
    pub victims: Vec<ChosenVictim>,
    /// Accelerator-seconds of work lost.
    pub lost: u128,
    /// Pods evicted beyond their disruption budgets.
    pub pdb_excess: u64,
    /// No set of victims loses less than this, in accelerator-seconds.
    pub at_least: u128,
    /// Whether no cheaper set exists.
    pub proven: bool,
    /// The next best set that was found.
    pub next_best: Option<OtherVictims>,
}

/// A victim, and where the gang uses its capacity.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChosenVictim {
    /// The victim.
    pub victim: Victim,
    /// Nodes on which the gang takes its capacity.
    pub nodes: Vec<NodeIx>,
}

/// Another set of victims, for comparison.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OtherVictims {
    /// The victims.
    pub victims: Vec<Victim>,
    /// Accelerator-seconds of work that they would lose.
    pub lost: u128,
    /// Pods evicted beyond their disruption budgets.
    pub pdb_excess: u64,
}
