//! Refusals for a missing volume claim that exists by now.
//!
//! A gang with missing claims is held ([`crate::hold`]). If kube-scheduler still misses a claim,
//! the claim was created or deleted at that moment, so the refusal ends once all claims exist. The
//! same claims end at most one refusal, because kube-scheduler may continue not to see them, and no
//! pod must be evicted to find out.

use std::collections::{BTreeSet, HashMap};

use lockstep_model::refusal::misses_claim;

use crate::gang::state::GangState;

/// Claims (by UID) that last ended a refusal, by UID of the pod group.
#[derive(Debug, Default)]
pub(crate) struct ClaimMemory(HashMap<String, BTreeSet<String>>);

impl ClaimMemory {
    /// True if a gang was refused for a missing claim, has released its placement, and its claims
    /// exist now.
    pub fn settle(&mut self, gang: &GangState) -> bool {
        let refusal = gang.status.refusal.as_ref();
        let missed = refusal.is_some_and(|r| misses_claim(&r.message));
        let gone = gang.assigned.is_none() && gang.all_pods().next().is_none();
        if !missed || !gone || gang.missing_volume().is_some() {
            return false;
        }
        let templates = gang.input.workload.templates.iter();
        let claims: BTreeSet<String> = templates.flat_map(|t| t.storage.uids.clone()).collect();
        if claims.is_empty() || self.0.get(gang.uid()) == Some(&claims) {
            return false;
        }
        self.0.insert(gang.uid().to_owned(), claims);
        true
    }

    pub fn retain(&mut self, there: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| there(uid));
    }
}
