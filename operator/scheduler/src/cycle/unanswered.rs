//! Preemptors whose victims are gone and whose pods nobody binds or refuses: `schedulerName` may name
//! nobody, or kube-scheduler may be away. What was evicted for them goes to others in the end.
//!
//! How far the gang has come stands in its intent, so that a new leader goes on counting. Bound
//! members of a gang that has never run are left to the workload controller, which gives them up when
//! the gang does not come to be whole.

use std::time::Duration;

use lockstep_api::scheduling::BindingProgress;
use lockstep_model::Assignments;
use lockstep_model::pod::Stage;

use crate::context::{Context, Wake};
use crate::memory::Memory;
use crate::state::GangState;

/// Progress is written this often at most: the members of a large gang are bound in many cycles.
const WRITTEN_EVERY: Duration = Duration::from_mins(1);
/// How long a process itself must have seen that the time is over: one that has taken over, or has not
/// heard of the API server for a while, does not know whether schedulers have.
const SEEN_FOR: Duration = Duration::from_mins(1);

/// Whether nobody has bound or refused a pod of the gang for too long, since its victims are gone. Notes
/// how far it is. `unbound`: its members that are not bound.
pub(super) fn is_unanswered(
    context: &Context<'_>,
    memory: &mut Memory,
    gang: &mut GangState,
    unbound: &Assignments,
    wake: &mut Wake,
) -> bool {
    let bound = gang.unfinished_assigned().count() - unbound.len();
    let bound = i32::try_from(bound).unwrap_or(i32::MAX);
    let seen = gang.status.preemption.as_ref().and_then(|p| p.binding);
    let written = written(context, seen, bound, wake);
    if let Some(intent) = &mut gang.status.preemption {
        intent.binding = Some(written);
    }
    let deadline = context.settings.binding_deadline;
    let moves = bound > written.bound || is_refused(gang, unbound);
    if moves || !context.due(written.since, deadline, wake) {
        memory.unanswered_since.remove(gang.uid());
        return false;
    }
    let since = memory.unanswered_since.entry(gang.uid().to_owned());
    let since = *since.or_insert(context.now);
    context.due(since, SEEN_FOR, wake)
}

/// What is to be written of a gang of which so many members are bound.
fn written(
    context: &Context<'_>,
    seen: Option<BindingProgress>,
    bound: i32,
    wake: &mut Wake,
) -> BindingProgress {
    let now = context.now;
    match seen {
        Some(seen) if seen.since > now => BindingProgress {
            bound: bound.max(seen.bound),
            since: now,
        },
        Some(seen) if bound <= seen.bound || !context.due(seen.since, WRITTEN_EVERY, wake) => seen,
        Some(_) | None => BindingProgress { bound, since: now },
    }
}

/// Whether kube-scheduler has refused a pod of the gang that waits: then it is there.
fn is_refused(gang: &GangState, unbound: &Assignments) -> bool {
    let mut waiting = unbound.iter().filter_map(|(m, n)| gang.waiting_pod(m, n));
    waiting.any(|pod| pod.stage == Stage::Refused)
}
