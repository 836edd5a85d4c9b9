//! The answer of `whatif` as data, for `-o json`.

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::gangs::ProposedGang;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WhatIfReport {
    pub namespace: String,
    pub workload: String,
    pub priority: i32,
    /// Time of the snapshot.
    pub taken_at: DateTime<Utc>,
    pub fits: bool,
    pub gangs: Vec<GangReport>,
    /// The only namespace in the snapshot. Capacity used in other namespaces counts as free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_namespace: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GangReport {
    pub gang: String,
    pub verdict: Verdict,
    pub members: usize,
    /// Fewest members with which the gang runs.
    pub min_count: u32,
    pub placed: usize,
    pub nodes: Vec<OnNode>,
    pub victims: Vec<EvictedUnit>,
    /// Cost of the victims in accelerator-seconds: lost work and restarts.
    pub cost: u64,
    pub pods_beyond_budgets: u64,
    /// Lower bound for the cost of any set of victims under the rules.
    pub at_least: u64,
    /// True if no better set exists.
    pub proven: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_best: Option<SecondBest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// Enough capacity is free.
    Fits,
    /// Enough capacity is free after terminating pods have exited.
    FitsOnceOthersHaveLeft,
    Preempts,
    DoesNotFit,
    /// kube-scheduler places the gang.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OnNode {
    pub node: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    pub members: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictedUnit {
    /// `podgroup` or `pod`.
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub priority: i32,
    pub pods: u32,
    /// Cost of its eviction in accelerator-seconds: lost work and the restart.
    pub cost: u64,
    /// Its work since the last checkpoint, in accelerator-seconds. A part of `cost`.
    pub lost_work: u64,
    /// Nodes on which the gang takes its capacity.
    pub nodes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecondBest {
    /// Cost of its victims in accelerator-seconds.
    pub cost: u64,
    /// Pods that would be evicted in violation of their disruption budgets.
    pub pods_beyond_budgets: u64,
    pub victims: Vec<EvictedUnit>,
}

impl GangReport {
    pub(super) fn new(proposed: &ProposedGang) -> Self {
        Self {
            gang: proposed.key.to_string(),
            verdict: Verdict::DoesNotFit,
            members: proposed.input.gang.size(),
            min_count: proposed.input.gang.min_count.unsigned_abs(),
            placed: 0,
            nodes: Vec::new(),
            victims: Vec::new(),
            cost: 0,
            pods_beyond_budgets: 0,
            at_least: 0,
            proven: false,
            next_best: None,
            reason: None,
        }
    }
}
