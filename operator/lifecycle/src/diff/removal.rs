//! Deletions of pods.

use lockstep_api::condition::types;

use crate::ledger::Ledger;
use crate::plan::Action;
use crate::pods::PodView;

/// Whether a pod stays although its gang leaves: it has ended and its member is finished.
pub(super) fn stays_when_released(ledger: &Ledger, pod: &PodView) -> bool {
    let member = pod.identity.member.as_ref();
    pod.terminal() && member.is_some_and(|m| ledger.completed.contains(m))
}

/// Deletes a pod, once.
pub(super) fn delete(pod: &PodView) -> Option<Action> {
    (!pod.terminating()).then(|| Action::DeletePod {
        name: pod.name.clone(),
        uid: pod.uid.clone(),
    })
}

/// Takes a pod out of the Service.
pub(super) fn unpublish(pod: &PodView) -> Option<Action> {
    pod.identity.published.then(|| Action::Unpublish {
        name: pod.name.clone(),
        uid: pod.uid.clone(),
    })
}

/// Says on the pod of a preempted gang who preempts it.
pub(super) fn mark_disrupted(pod: &PodView, message: &str) -> Option<Action> {
    let marked = pod.condition(types::DISRUPTION_TARGET).is_some();
    (!marked && !pod.terminal()).then(|| Action::MarkDisrupted {
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        message: message.to_owned(),
    })
}
