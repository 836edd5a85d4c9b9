//! Checkpoints that a gang saves before it is preempted: on request, or the next regular one.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::workload::{Backend, CheckpointOccasion, CheckpointOutcome, CheckpointRequest};
use lockstep_model::SavedWork;

use crate::context::Context;
use crate::gang::state::GangState;
use crate::input::GangInput;
use crate::input::members::DomainInput;

/// Shortest time between two requests to a gang, besides requests of users.
const ONE_IN: TimeDelta = TimeDelta::minutes(10);

/// How long this preemptor waits for the checkpoints of its victims.
pub(crate) fn longest_wait(context: &Context<'_>, preemptor: &GangState) -> TimeDelta {
    let configured = context.settings.checkpoint_wait;
    let of_class = preemptor.input.checkpoint_wait.unwrap_or(configured);
    TimeDelta::from_std(of_class.min(configured)).unwrap_or(TimeDelta::MAX)
}

/// What limits the work that the gang would lose now.
pub(crate) fn saved_work(context: &Context<'_>, gang: &GangState) -> SavedWork {
    // The clock of the manager that recorded it may be ahead.
    let saved = saved_at(&gang.input).map(|at| at.min(context.now));
    SavedWork {
        checkpoint: gang.input.workload.checkpoint.max(saved),
        resumed: gang.input.resumed(),
        save: expected_save(context, gang),
    }
}

/// Deadline of a request for a checkpoint to this victim. `None`: a checkpoint cannot be expected in
/// time, or would take more than it saves.
pub(crate) fn deadline(
    context: &Context<'_>,
    gang: &GangState,
    wait: TimeDelta,
) -> Option<DateTime<Utc>> {
    if wait.is_zero() || !permits_request(context, gang) {
        return None;
    }
    let now = context.now;
    let (takes, longest) = match gang.input.workload.on_request {
        Some(timeout) => {
            let last = save_time(&gang.input);
            (last.unwrap_or_default(), timeout.min(wait))
        }
        None => (time_to_next(&gang.input, now)?, wait),
    };
    let worth = unsaved(context, gang)? > takes && takes <= longest;
    worth.then(|| now + longest)
}

/// True if each running restart domain has an outcome for the request with this id.
pub(crate) fn has_outcome(gang: &GangInput, id: &str) -> bool {
    domains(gang).all(|domain| match &domain.request {
        Some(request) if request.id == id => !request.is_open(),
        _ => domain.healthy_since.is_none(),
    })
}

/// Expected time of a checkpoint on request, if one would be requested and the last request was
/// answered by a checkpoint.
fn expected_save(context: &Context<'_>, gang: &GangState) -> Option<TimeDelta> {
    let timeout = gang.input.workload.on_request?;
    let save = save_time(&gang.input)?;
    let expected = save <= timeout && gang.input.whole() && permits_request(context, gang);
    expected.then_some(save)
}

/// False after a recent request, and after one in vain since the gang was placed.
fn permits_request(context: &Context<'_>, gang: &GangState) -> bool {
    let backend = gang.input.workload.backend;
    let placement = gang.input.group.status.placement.as_ref();
    let refused = |request: &CheckpointRequest| {
        let recent = request.reason != CheckpointOccasion::User
            && context.now - request.requested_at < ONE_IN;
        let in_vain = matches!(
            request.outcome,
            Some(CheckpointOutcome::TimedOut | CheckpointOutcome::Unsupported)
        );
        recent || in_vain && placement.is_some_and(|p| request.requested_at >= p.decided_at)
    };
    let ledger = &gang.input.workload.members.domains;
    let mut requests = ledger.iter().filter_map(|d| d.request.as_ref());
    backend.unwrap_or(context.settings.backend) == Backend::Lockstep && !requests.any(refused)
}

/// Time of the longest save, if the last request to each restart domain was answered by one.
fn save_time(gang: &GangInput) -> Option<TimeDelta> {
    let times: Option<Vec<i64>> = domains(gang)
        .map(|domain| saved(domain).filter(|r| !r.watch)?.millis)
        .collect();
    times?.into_iter().max().map(TimeDelta::milliseconds)
}

/// Time at which all restart domains had answered their last requests by a checkpoint. Processes
/// report it as progress only later.
fn saved_at(gang: &GangInput) -> Option<DateTime<Utc>> {
    let times: Option<Vec<DateTime<Utc>>> = domains(gang)
        .map(|domain| {
            let request = saved(domain)?;
            Some(request.requested_at + TimeDelta::milliseconds(request.millis?))
        })
        .collect();
    times?.into_iter().min()
}

fn saved(domain: &DomainInput) -> Option<&CheckpointRequest> {
    let request = domain.request.as_ref();
    request.filter(|r| r.outcome == Some(CheckpointOutcome::Saved))
}

/// Time to the next regular checkpoint, from the usual interval. `None` if a whole checkpoint is
/// overdue.
fn time_to_next(gang: &GangInput, now: DateTime<Utc>) -> Option<TimeDelta> {
    let interval = gang.workload.checkpoint_interval?;
    let last = gang.workload.checkpoint?.max(gang.resumed()?);
    let left = last + interval - now;
    (-left < interval).then(|| left.max(TimeDelta::zero()))
}

/// Longest work of a pod that no checkpoint contains. `None` if no pod has run.
fn unsaved(context: &Context<'_>, gang: &GangState) -> Option<TimeDelta> {
    let (saved, costs) = (saved_work(context, gang), &context.settings.rules.costs);
    let safe = gang
        .all_pods()
        .filter_map(|pod| costs.member_safe_until(pod, saved, context.now));
    Some(context.now - safe.min()?)
}

/// Ledger entries of restart domains with members that run or are to run.
fn domains(gang: &GangInput) -> impl Iterator<Item = &DomainInput> {
    let members = &gang.workload.members;
    let mut ledger = members.domains.iter().peekable();
    gang.gang.domains.iter().filter_map(move |domain| {
        let entry = ledger.next_if(|entry| entry.key == domain.key)?;
        let inactive =
            |member| members.absent.contains(member) || members.finished.contains(member);
        (!domain.members.iter().all(inactive)).then_some(entry)
    })
}
