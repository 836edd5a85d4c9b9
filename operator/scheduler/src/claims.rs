//! Claims for volumes that kube-scheduler missed, although they are there.
//!
//! A gang whose claims are missing is not placed ([`crate::hold`]). Where kube-scheduler missed one all
//! the same, it came or went just then: so the refusal is over once we see it. That it stays unseen is
//! possible, too, and to evict in order to find out is what must not be: the same claims end one
//! refusal and no more.

use std::collections::{BTreeSet, HashMap};

use lockstep_model::refusal::misses_claim;

use crate::state::GangState;

/// With which claims, by UID, a refusal was last taken to be over, by the UID of the pod group.
#[derive(Debug, Default)]
pub(crate) struct ClaimMemory(HashMap<String, BTreeSet<String>>);

impl ClaimMemory {
    /// Whether a gang was refused for want of claims that are there, and has given up its placement.
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

    /// Forgets gangs that are gone.
    pub fn retain(&mut self, there: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| there(uid));
    }
}
