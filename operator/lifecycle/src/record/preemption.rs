//! Stage 04: preempted gangs release their placements and queue again, uncharged.
//!
//! The scheduler marks the pod group. kube-scheduler marks single pods; a gang with disruption mode
//! All then releases its whole placement.

use chrono::SubsecRound as _;
use lockstep_api::condition::{reasons, types};
use lockstep_api::gangs::Gang;
use lockstep_api::workload::{Cause, CauseKind, DisruptionMode, FailureAction};

use crate::facts::Facts;
use crate::gangs::PlacementView;
use crate::ledger::Ledger;
use crate::pods::PodView;

pub(super) fn release_preempted(facts: &Facts<'_>, ledger: &mut Ledger) {
    for gang in &facts.gangs {
        let Some(placement) = facts.placement(ledger, &gang.key) else {
            continue;
        };
        let by = facts.preemptor(&gang.key).map(str::to_owned).or_else(|| {
            let waits = ledger.awaits_reply_of(gang);
            taken_member(facts, ledger, gang, placement).filter(|_| !waits)
        });
        let Some(message) = by else { continue };
        let cause = Cause {
            reason: reasons::PREEMPTION_BY_SCHEDULER.into(),
            message,
            ..Cause::new(CauseKind::Preempted, facts.now)
        };
        for domain in &gang.domains {
            let action = FailureAction::RecreateGang;
            ledger.record_interruption(facts, &domain.key, &cause, action);
            let last = ledger.history.first_mut();
            let own = last.filter(|e| domain.key.as_str() == e.domain && e.cause == cause);
            if let (Some(entry), Some(gang)) = (own, facts.gang_view(&gang.key)) {
                entry.preemptor.clone_from(&gang.preemptor);
            }
        }
        ledger.preemptions += 1;
        ledger.release_gang(facts, &gang.key, None);
    }
}

/// A member that kube-scheduler preempted in the current placement. Pods of earlier placements can
/// be stuck on a lost node.
fn taken_member(
    facts: &Facts<'_>,
    ledger: &Ledger,
    gang: &Gang,
    placement: &PlacementView,
) -> Option<String> {
    match gang.disruption {
        DisruptionMode::All => {}
        DisruptionMode::Single => return None,
    }
    let membership = ledger.membership(facts.spec());
    for domain in &gang.domains {
        let Some(entry) = ledger.domain(&domain.key) else {
            continue;
        };
        // Each member that runs has had a pod since the last release.
        let ran = entry.healthy_since.is_some() && !gang.basic;
        for member in &domain.members {
            let runs = ran && membership.contains(member) && !ledger.completed.contains(member);
            let mut pods = facts.pods_of(member).iter();
            let present = pods.find_map(|pod| {
                let current = facts
                    .current(entry, member)
                    .is_some_and(|c| c.uid == pod.uid);
                taken(pod).filter(|_| belongs(pod, placement, current))
            });
            let disrupted = facts.disrupted(member).and_then(|pod| {
                taken(pod).filter(|_| pod.identity.placement == placement.id || runs)
            });
            if let Some(message) = present.or(disrupted) {
                return Some(message.to_owned());
            }
        }
    }
    None
}

/// True if a deleted pod belongs to the placement that it names. Pods of kube-scheduler's placements
/// name none, and a kept pod names the placement before a change of other nodes. These pods belong
/// to the placement if their deletion was requested since then; times of pods are whole seconds.
fn belongs(pod: &PodView, placement: &PlacementView, current: bool) -> bool {
    if pod.identity.placement == placement.id {
        return true;
    }
    let decided_at = placement.decided_at.trunc_subsecs(0);
    let later = pod.deletion_requested_at.is_some_and(|at| at >= decided_at);
    let unnamed = pod.identity.placement.is_empty();
    later && (unnamed || current) || current && !pod.terminating()
}

/// Message of kube-scheduler, if it preempted the pod.
fn taken(pod: &PodView) -> Option<&str> {
    let disrupted = pod.condition(types::DISRUPTION_TARGET)?;
    (disrupted.reason == reasons::PREEMPTION_BY_SCHEDULER).then_some(&disrupted.message)
}
