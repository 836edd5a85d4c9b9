//! Claims for volumes that kube-scheduler misses: looked at now and then, so that the gang may
//! preempt again once they are there.
//!
//! A gang that was refused is tried again in free capacity. Where there is none, nobody would
//! notice that what was missing has come, and to evict in order to find out is what must not be.
//! Claims can be looked at; other obstacles cannot.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use lockstep_model::GangPhase;
use lockstep_model::refusal::{ClaimNeed, missing_claim};

use crate::backoff::backoff;
use crate::context::{Context, Wake};
use crate::plan::Step;
use crate::state::GangState;

/// A claim that exists and is not being deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenClaim {
    /// UID.
    pub uid: String,
    /// Whether it has its volume.
    pub bound: bool,
}

/// What is remembered of the claims of gangs, by the UID of the pod group.
#[derive(Debug, Default)]
pub(crate) struct ClaimMemory {
    /// When they were last looked at, and how often since a refusal was over.
    asked: HashMap<String, (DateTime<Utc>, i32)>,
    seen: HashMap<String, (DateTime<Utc>, Vec<Option<SeenClaim>>)>,
    /// With which claims a refusal was last taken to be over. Should kube-scheduler not see them
    /// all the same, these do not end another.
    settled: HashMap<String, Vec<Option<SeenClaim>>>,
}

impl ClaimMemory {
    /// Takes note of the claims of a gang, in the order of their names.
    pub fn saw(&mut self, gang: String, claims: Vec<Option<SeenClaim>>, at: DateTime<Utc>) {
        self.seen.insert(gang, (at, claims));
    }

    /// The step that looks at the claims of a gang that waits because of them, where it is time.
    pub fn look(
        &mut self,
        context: &Context<'_>,
        gang: &GangState,
        wake: &mut Wake,
    ) -> Option<Step> {
        let refusal = gang.status.refusal.as_ref()?;
        missing_claim(&refusal.message)?;
        let names = gang.claims();
        let waits = gang.phase() == GangPhase::Active && gang.assigned.is_none();
        if names.is_empty() || !waits {
            return None;
        }
        let (since, times) = self
            .asked
            .get(gang.uid())
            .copied()
            .unwrap_or((refusal.at, 0));
        let next = since + backoff(times + 1);
        if context.now < next {
            wake.at(next);
            return None;
        }
        self.asked
            .insert(gang.uid().to_owned(), (context.now, times + 1));
        Some(Step::LookAtClaims {
            gang: gang.uid().to_owned(),
            namespace: gang.input.key.namespace.clone(),
            names,
        })
    }

    /// Whether all claims of a gang have been seen, since it was refused, as they must be.
    pub fn settle(&mut self, gang: &GangState) -> bool {
        let Some(refusal) = &gang.status.refusal else {
            return false;
        };
        let Some((at, claims)) = self.seen.get(gang.uid()) else {
            return false;
        };
        let Some(need) = missing_claim(&refusal.message).filter(|_| *at > refusal.at) else {
            return false;
        };
        let mended = claims.iter().all(|claim| match (claim, need) {
            (None, _) => false,
            (Some(_), ClaimNeed::Exists) => true,
            (Some(claim), ClaimNeed::Bound) => claim.bound,
        });
        let settled = mended && self.settled.get(gang.uid()) != Some(claims);
        if settled {
            self.settled.insert(gang.uid().to_owned(), claims.clone());
            self.asked.remove(gang.uid());
        }
        settled
    }

    /// Forgets gangs that are gone.
    pub fn retain(&mut self, there: impl Fn(&str) -> bool) {
        self.asked.retain(|uid, _| there(uid));
        self.seen.retain(|uid, _| there(uid));
        self.settled.retain(|uid, _| there(uid));
    }
}
