//! Stage 04: preempted gangs release their placements and queue again, uncharged.
//!
//! The scheduler marks the pod group. kube-scheduler marks single pods; a gang with disruption mode
//! All then releases its whole placement.

use lockstep_api::condition::{reasons, types};
use lockstep_api::gangs::Gang;
use lockstep_api::workload::{Cause, CauseKind, DisruptionMode, FailureAction};

use crate::facts::Facts;
use crate::gangs::PlacementView;
use crate::ledger::Ledger;

pub(super) fn release_preempted(facts: &Facts<'_>, ledger: &mut Ledger) {
    for gang in &facts.gangs {
        let Some(placement) = facts.placement(ledger, &gang.key) else {
            continue;
        };
        let by = facts
            .preemptor(&gang.key)
            .map(str::to_owned)
            .or_else(|| taken_member(facts, gang, placement));
        let Some(message) = by else { continue };
        let cause = Cause {
            reason: reasons::PREEMPTION_BY_SCHEDULER.into(),
            message,
            ..Cause::new(CauseKind::Preempted, facts.now)
        };
        for domain in &gang.domains {
            let action = FailureAction::RecreateGang;
            ledger.record_interruption(facts, &domain.key, &cause, action);
        }
        ledger.preemptions += 1;
        ledger.release_gang(facts, &gang.key, None);
    }
}

/// A member that kube-scheduler preempted in the current placement. Pods of earlier placements can
/// be stuck on a lost node.
fn taken_member(facts: &Facts<'_>, gang: &Gang, placement: &PlacementView) -> Option<String> {
    match gang.disruption {
        DisruptionMode::All => {}
        DisruptionMode::Single => return None,
    }
    for pod in gang.members().flat_map(|m| facts.pods_of(m)) {
        // The leader's clock can be ahead of the API server's.
        let present = pod.identity.placement == placement.id
            || pod.deleted_at.is_none_or(|at| at >= placement.decided_at);
        if let Some(taken) = pod.condition(types::DISRUPTION_TARGET)
            && taken.reason == reasons::PREEMPTION_BY_SCHEDULER
            && present
        {
            return Some(taken.message.clone());
        }
    }
    None
}
