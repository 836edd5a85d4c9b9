//! Preemptors whose pods are neither bound nor refused after their victims are gone:
//! `schedulerName` is wrong, or kube-scheduler is down. After a deadline, other gangs get the
//! capacity.
//!
//! The intent records the progress, so a new leader continues the count. If a gang has never run
//! and stays incomplete, the workload controller releases the nodes of its bound members.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use lockstep_api::gangs::Assignments;
use lockstep_api::scheduling::{BindingProgress, Refusal};
use lockstep_model::pods::pod::Stage;

use crate::context::Context;
use crate::gang::state::GangState;
use crate::memory::Memory;

/// Shortest time between two writes of progress. The binding of a large gang takes many cycles.
const WRITTEN_EVERY: Duration = Duration::from_mins(1);
/// Delay between the first cycle in which this process finds the deadline passed and the verdict. A
/// new leader, or a process that was disconnected, may have missed progress.
const CONFIRMED_AFTER: Duration = Duration::from_mins(1);

/// True if the binding deadline has passed since the victims were gone, or since the last recorded
/// binding, and no pod is refused. Records the progress. `unbound`: members without bound pods.
pub(super) fn has_timed_out(
    context: &Context<'_>,
    memory: &mut Memory,
    gang: &mut GangState,
    unbound: &Assignments,
) -> bool {
    // Finished members were bound.
    let bound = gang.assigned_members().count() - unbound.len();
    let bound = i32::try_from(bound).unwrap_or(i32::MAX);
    let recorded = gang.status.preemption.as_ref().and_then(|p| p.binding);
    let written = written(context, recorded, bound);
    if let Some(intent) = &mut gang.status_mut().preemption {
        intent.binding = Some(written);
    }
    let deadline = context.settings.binding_deadline;
    let moves = bound > written.bound || is_refused(gang, unbound);
    if moves || !context.due(written.since, deadline) {
        memory.timed_out_since.remove(gang.uid());
        return false;
    }
    let since = memory.timed_out_since.entry(gang.uid().to_owned());
    let since = *since.or_insert(context.now);
    context.due(since, CONFIRMED_AFTER)
}

fn written(
    context: &Context<'_>,
    recorded: Option<BindingProgress>,
    bound: i32,
) -> BindingProgress {
    let now = context.now;
    match recorded {
        Some(recorded) if recorded.since > now => BindingProgress {
            bound: bound.max(recorded.bound),
            since: now,
        },
        Some(recorded)
            if bound <= recorded.bound || !context.due(recorded.since, WRITTEN_EVERY) =>
        {
            recorded
        }
        Some(_) | None => BindingProgress { bound, since: now },
    }
}

/// True if a scheduler has refused a waiting pod: it is alive. An error of the scheduler does not
/// count, because it can repeat forever.
fn is_refused(gang: &GangState, unbound: &Assignments) -> bool {
    let mut waiting = unbound.iter().filter_map(|(m, n)| gang.waiting_pod(m, n));
    waiting.any(|pod| pod.stage == Stage::Refused)
}

/// Clears a recorded timeout if each scheduler of the gang has bound or refused a pod of any gang
/// that started after it, or if a pod of this gang is refused. The preemption still counts as
/// failed, which prevents another preemption.
pub(super) fn forget_silence(gangs: &mut [GangState]) {
    if !gangs.iter().any(|gang| silence(gang).is_some()) {
        return;
    }
    let responses = last_responses(gangs);
    for gang in gangs {
        let Some(silence) = silence(gang) else {
            continue;
        };
        let mut templates = gang.input.workload.templates.iter();
        let all_responded = templates.all(|t| responses.get(&t.scheduler_name) > Some(&silence.at));
        if all_responded || gang.all_pods().any(|pod| pod.refusal.is_some()) {
            gang.status_mut().refusal = None;
        }
    }
}

fn silence(gang: &GangState) -> Option<&Refusal> {
    gang.status.refusal.as_ref().filter(|r| r.unanswered)
}

/// Latest start time of bound or refused pods, by scheduler name. Before the kubelet accepts a pod,
/// its creation time counts.
fn last_responses(gangs: &[GangState]) -> BTreeMap<String, DateTime<Utc>> {
    let mut responses = BTreeMap::new();
    for gang in gangs {
        for template in gang.input.workload.templates.iter() {
            let pods = gang
                .pods
                .by_member
                .iter()
                .filter(|(m, _)| m.group == template.group);
            let handled = pods
                .flat_map(|(_, pods)| pods)
                .filter(|p| p.bound.is_some() || p.refusal.is_some());
            if let Some(last) = handled.filter_map(|p| p.started).max() {
                let name = template.scheduler_name.clone();
                let latest = responses.entry(name).or_insert(last);
                *latest = last.max(*latest);
            }
        }
    }
    responses
}
