//! The answer as data: what `-o json` prints.

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::gangs::AskedGang;

/// What would become of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Namespace of the workload.
    pub namespace: String,
    /// Name of the workload.
    pub workload: String,
    /// Its priority.
    pub priority: i32,
    /// As of when.
    pub taken_at: DateTime<Utc>,
    /// Whether all of its gangs would be placed.
    pub fits: bool,
    /// Its gangs, in the order in which they are asked about.
    pub gangs: Vec<GangAnswer>,
    /// The one namespace that the snapshot knows; what others hold counts as free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_namespace: Option<String>,
}

/// What would become of one gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GangAnswer {
    /// Key of the gang.
    pub gang: String,
    /// In a word.
    pub verdict: Verdict,
    /// Members that it wants.
    pub members: usize,
    /// Members without which it is useless.
    pub min_count: u32,
    /// Members that get a node.
    pub placed: usize,
    /// Where they go, by topology domain and name of the node.
    pub nodes: Vec<OnNode>,
    /// Who leaves for it.
    pub victims: Vec<EvictedUnit>,
    /// Accelerator-seconds of work that the victims lose.
    pub lost: u64,
    /// Pods evicted although their disruption budgets do not allow it.
    pub pods_beyond_budgets: u64,
    /// No set of victims loses less than this, within the rules.
    pub at_least: u64,
    /// Whether the search has shown that no better set exists.
    pub proven: bool,
    /// The next best set of victims that was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_best: Option<SecondBest>,
    /// Why it does not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What would become of a gang, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// There is free capacity.
    Fits,
    /// There is capacity once pods that are terminating already have left.
    FitsOnceOthersHaveLeft,
    /// Other work has to leave.
    Preempts,
    /// It waits.
    DoesNotFit,
}

/// Members on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OnNode {
    /// The node.
    pub node: String,
    /// Its domain, where the gang has a topology.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Ranges of members.
    pub members: Vec<String>,
}

/// A unit that leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictedUnit {
    /// `podgroup` or `pod`.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Priority.
    pub priority: i32,
    /// Pods evicted.
    pub pods: u32,
    /// Accelerator-seconds of work that it loses.
    pub lost: u64,
    /// Nodes on which the gang takes its capacity.
    pub nodes: Vec<String>,
}

/// Another set of victims, for comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecondBest {
    /// Accelerator-seconds of work that they would lose.
    pub lost: u64,
    /// Pods that would be evicted although their disruption budgets do not allow it.
    pub pods_beyond_budgets: u64,
    /// Who would leave.
    pub victims: Vec<EvictedUnit>,
}

impl GangAnswer {
    /// A gang that has not been placed.
    pub(super) fn new(asked: &AskedGang) -> Self {
        Self {
            gang: asked.key.to_string(),
            verdict: Verdict::DoesNotFit,
            members: asked.input.gang.size(),
            min_count: asked.input.gang.min_count.unsigned_abs(),
            placed: 0,
            nodes: Vec::new(),
            victims: Vec::new(),
            lost: 0,
            pods_beyond_budgets: 0,
            at_least: 0,
            proven: false,
            next_best: None,
            reason: None,
        }
    }
}
