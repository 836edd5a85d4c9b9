//! Refusals for a missing volume claim that now exists.
//!
//! A gang with missing claims is held ([`crate::hold`]), so kube-scheduler refuses its pods only if
//! a claim was created or deleted at that moment. Such a refusal ends once all claims exist. If
//! kube-scheduler continues to miss a claim, repeated placements would evict pods in vain. So the
//! same claims end at most one refusal.

use std::collections::{BTreeSet, HashMap};

use lockstep_model::pods::refusal::misses_claim;

use crate::gang::state::GangState;

/// UIDs of the claims that last ended a refusal, by UID of the pod group.
#[derive(Debug, Default)]
pub(crate) struct ClaimMemory(HashMap<String, BTreeSet<String>>);

impl ClaimMemory {
    /// True if a gang was refused for a missing claim, has released its placement, and its claims
    /// now exist.
    pub fn settle(&mut self, gang: &GangState) -> bool {
        let refusal = gang.status.refusal.as_ref();
        let missed = refusal.is_some_and(|r| misses_claim(&r.message));
        let vacated = gang.assigned.is_none() && gang.all_pods().next().is_none();
        if !missed || !vacated || gang.missing_volume().is_some() {
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

    pub fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| exists(uid));
    }
}
