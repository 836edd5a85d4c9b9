//! Preemptors whose victims are gone and whose pods nobody binds or refuses: `schedulerName` may name
//! nobody, or kube-scheduler may be away. What was evicted for them goes to others in the end.
//!
//! How far the gang has come stands in its intent, so that a new leader goes on counting. Bound
//! members of a gang that has never run are left to the workload controller, which gives them up when
//! the gang does not come to be whole.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use lockstep_api::scheduling::{BindingProgress, Refusal};
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
    // Members that have finished were bound.
    let bound = gang.assigned_members().count() - unbound.len();
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

/// Whether a scheduler has refused a pod of the gang that waits: then it is there. One that has failed
/// over a pod may go on failing, so that does not count.
fn is_refused(gang: &GangState, unbound: &Assignments) -> bool {
    let mut waiting = unbound.iter().filter_map(|(m, n)| gang.waiting_pod(m, n));
    waiting.any(|pod| pod.stage == Stage::Refused)
}

/// Drops the silence that was noted of gangs whose schedulers have answered since, whichever gang they
/// answered. The eviction stays one that was of no use, so that there is no second one.
pub(super) fn forget_silence(gangs: &mut [GangState]) {
    if !gangs.iter().any(|gang| silence(gang).is_some()) {
        return;
    }
    let heard = last_heard(gangs);
    for gang in gangs {
        let Some(silence) = silence(gang) else {
            continue;
        };
        let mut templates = gang.input.workload.templates.iter();
        let all_heard = templates.all(|t| heard.get(&t.scheduler_name) > Some(&silence.at));
        if all_heard || gang.all_pods().any(|pod| pod.refusal.is_some()) {
            gang.status.refusal = None;
        }
    }
}

fn silence(gang: &GangState) -> Option<&Refusal> {
    gang.status.refusal.as_ref().filter(|r| r.unanswered)
}

/// When the last pod was taken by a kubelet, or made, that the scheduler of this name has bound or
/// refused.
fn last_heard(gangs: &[GangState]) -> BTreeMap<String, DateTime<Utc>> {
    let mut heard = BTreeMap::new();
    for gang in gangs {
        for template in gang.input.workload.templates.iter() {
            let pods = gang
                .pods
                .by_member
                .iter()
                .filter(|(m, _)| m.group == template.group);
            let answered = pods
                .flat_map(|(_, pods)| pods)
                .filter(|p| p.bound.is_some() || p.refusal.is_some());
            if let Some(last) = answered.filter_map(|p| p.started).max() {
                let name = template.scheduler_name.clone();
                let known = heard.entry(name).or_insert(last);
                *known = last.max(*known);
            }
        }
    }
    heard
}
