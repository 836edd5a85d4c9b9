use lockstep_api::condition::{reasons, types};

use crate::facts::{Facts, Standing};
use crate::ledger::Ledger;
use crate::plan::Action;
use crate::pods::PodView;

/// True if a pod outlives its placement, because it has ended and its member is completed.
pub(super) fn stays_when_released(ledger: &Ledger, pod: &PodView) -> bool {
    let member = pod.identity.member.as_ref();
    pod.terminal() && member.is_some_and(|m| ledger.completed.contains(m))
}

pub(super) fn delete(pod: &PodView) -> Option<Action> {
    (!pod.terminating()).then(|| delete_within(pod, None))
}

/// Deletes a pod that must end. `longest` shortens its grace period to this many seconds, even
/// after a deletion by another client. Deletes a stuck pod by force; its node is already avoided.
pub(super) fn delete_awaited(
    facts: &Facts<'_>,
    pod: &PodView,
    longest: Option<u32>,
) -> Option<Action> {
    if !pod.terminating() {
        return delete(pod);
    }
    if pod.deletion_grace == 0 {
        return None;
    }
    if facts.standing(pod) == Standing::Stuck {
        return Some(delete_within(pod, Some(0)));
    }
    // The API server counts a shortened grace period from the first request, so the past time is
    // added.
    let passed = pod
        .deletion_requested_at
        .map_or(0, |at| (facts.now - at).num_seconds());
    let passed = u32::try_from(passed).unwrap_or(0);
    let cut = longest
        .map(|s| s.saturating_add(passed))
        .filter(|s| pod.deletion_grace > i64::from(*s));
    cut.filter(|_| !pod.terminal())
        .map(|s| delete_within(pod, Some(s)))
}

fn delete_within(pod: &PodView, grace: Option<u32>) -> Action {
    Action::DeletePod {
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        grace,
    }
}

pub(super) fn recreate_grace(facts: &Facts<'_>) -> Option<u32> {
    let seconds = facts.spec().failure_policy.recreate_grace_seconds;
    u32::try_from(seconds).ok()
}

/// A preempted pod has not failed and keeps its grace period.
pub(super) fn is_preempted(pod: &PodView) -> bool {
    let taken = pod.condition(types::DISRUPTION_TARGET);
    taken.is_some_and(|c| c.reason == reasons::PREEMPTION_BY_SCHEDULER)
}

pub(super) fn unpublish(pod: &PodView) -> Option<Action> {
    pod.identity.published.then(|| Action::Unpublish {
        name: pod.name.clone(),
        uid: pod.uid.clone(),
    })
}

pub(super) fn mark_disrupted(pod: &PodView, message: &str) -> Option<Action> {
    let marked = pod.condition(types::DISRUPTION_TARGET).is_some();
    (!marked && !pod.terminal()).then(|| Action::MarkDisrupted {
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        message: message.to_owned(),
    })
}
