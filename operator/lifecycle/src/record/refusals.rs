//! Stage 05: a gang releases its placement if the API server refuses one of its pods, because an
//! incomplete gang is of no use. A running or Basic gang keeps its nodes during retries.

use lockstep_api::condition::reasons;
use lockstep_api::gangs::Gang;

use crate::changes::ReleaseReason;
use crate::facts::Facts;
use crate::gangs::PlacementView;
use crate::ledger::Ledger;
use crate::view::{RefusalKind, RefusedRequest, Target};

pub(super) fn release_refused(facts: &Facts<'_>, ledger: &mut Ledger) {
    for gang in &facts.gangs {
        let Some(placement) = facts.placement(ledger, &gang.key) else {
            continue;
        };
        if gang.basic || ledger.is_under_way(gang) {
            continue;
        }
        let Some(refusal) = refused_pod(facts, gang, placement) else {
            continue;
        };
        let reason = match refusal.kind {
            RefusalKind::QuotaExceeded => reasons::QUOTA_EXCEEDED,
            RefusalKind::Forbidden => reasons::FORBIDDEN,
            RefusalKind::Invalid => reasons::INVALID_TEMPLATE,
            RefusalKind::NameTaken => reasons::NAME_CONFLICT,
        };
        let message = refusal.message.clone();
        ledger.release_gang(facts, &gang.key, Some(ReleaseReason { reason, message }));
    }
}

/// Ignores refusals of earlier placements. Compares ids, because clocks differ.
fn refused_pod<'a>(
    facts: &Facts<'a>,
    gang: &Gang,
    placement: &PlacementView,
) -> Option<&'a RefusedRequest> {
    facts.view.refusals().iter().find(|refusal| {
        let of_gang = match &refusal.target {
            Target::Pod(member) => gang.members().any(|m| m == member),
            Target::Object(..) => false,
        };
        of_gang && refusal.placement.as_ref() == Some(&placement.id)
    })
}
