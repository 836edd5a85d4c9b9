//! Success, failure and deadlines of the workload as a whole.

use std::collections::BTreeSet;

use chrono::TimeDelta;
use lockstep_api::condition::{reasons, types, upsert};
use lockstep_api::member::Member;
use lockstep_api::workload::{Group, OnTimeout, SuccessOperator, TrainingWorkloadStatus};

use super::context::{Ctx, Room, set_completed};
use super::rooms;
use crate::ranks::World;

/// Records members that have succeeded: they stay finished when their pods are garbage-collected. While an incident is
/// handled nothing is latched, because the container that ended may be one of the old epoch.
pub(super) fn latch_completions(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus) {
    let groups = &ctx.view.spec().groups;
    let mut done = ledger.completed(groups);
    let before = done.len();
    for gang in &ctx.gangs {
        let held = ledger.gangs.iter().any(|g| g.key == gang.key && matches!(ctx.room(g), Room::Held(_)));
        for domain in gang.domains.iter().filter(|_| held) {
            let Some(status) = ledger.domains.iter().find(|d| d.key == domain.key && d.incident.is_none()) else {
                continue;
            };
            let succeeded = |m: &&Member| ctx.current(status, m).is_some_and(|p| ctx.succeeded(m, p));
            done.extend(domain.members.iter().filter(succeeded).cloned());
        }
    }
    if done.len() != before {
        set_completed(groups, ledger, &done);
    }
}

/// Members start over: what they have finished counts only where their whole group has.
pub(super) fn forget_unfinished<'m>(
    ctx: &Ctx<'_>,
    ledger: &mut TrainingWorkloadStatus,
    members: impl IntoIterator<Item = &'m Member>,
) {
    let groups = &ctx.view.spec().groups;
    let mut done = ledger.completed(groups);
    let world = World::of(ctx.view.spec(), ledger);
    let finished: BTreeSet<&str> =
        groups.iter().map(|g| g.name.as_str()).filter(|name| world.complete(name, &done)).collect();
    let before = done.len();
    for member in members.into_iter().filter(|m| !finished.contains(m.group.as_str())) {
        done.remove(member);
    }
    if done.len() != before {
        set_completed(groups, ledger, &done);
    }
}

/// Ends the workload when its success policy is met or a deadline has passed.
pub(super) fn conclude(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus) {
    let spec = ctx.view.spec();
    let done = ledger.completed(&spec.groups);
    if success(ctx, &World::of(spec, ledger), &done) {
        let message = match spec.success_policy.operator {
            SuccessOperator::All => "all groups that count have succeeded",
            SuccessOperator::Any => "a group that counts has succeeded",
        };
        end(ctx, ledger, types::COMPLETE, reasons::SUCCESS_POLICY, message);
        return;
    }
    if let (Some(limit), Some(start)) = (spec.active_deadline_seconds, ledger.start_time)
        && ctx.due(start + TimeDelta::seconds(limit - ledger.active_seconds))
    {
        let message = format!("activeDeadlineSeconds: {limit} s have passed");
        end(ctx, ledger, types::FAILED, reasons::DEADLINE_EXCEEDED, message);
        return;
    }
    if spec.scheduling.on_timeout == OnTimeout::Fail && timed_out(ctx, ledger) {
        let limit = spec.scheduling.timeout_seconds;
        let message = format!("no room was found within scheduling.timeoutSeconds: {limit} s");
        end(ctx, ledger, types::FAILED, reasons::SCHEDULING_TIMEOUT, message);
    }
}

fn success(ctx: &Ctx<'_>, world: &World<'_>, done: &BTreeSet<Member>) -> bool {
    let policy = &ctx.view.spec().success_policy;
    let counts = |g: &&Group| policy.groups.is_empty() || policy.groups.contains(&g.name);
    // A group of which nobody runs can neither succeed nor stand in the way.
    let mut groups = ctx.view.spec().groups.iter().filter(|g| world.size_of(&g.name) > 0).filter(counts).peekable();
    match policy.operator {
        SuccessOperator::All => groups.peek().is_some() && groups.all(|g| world.complete(&g.name, done)),
        SuccessOperator::Any => groups.any(|g| world.complete(&g.name, done)),
    }
}

/// Whether a gang has waited for room longer than `scheduling.timeoutSeconds`.
pub(crate) fn timed_out(ctx: &Ctx<'_>, ledger: &TrainingWorkloadStatus) -> bool {
    let limit = ctx.view.spec().scheduling.timeout_seconds;
    limit > 0
        && ledger.gangs.iter().any(|g| {
            let queued = ctx.view.pod_groups.get(&g.key).and_then(|p| p.status.as_ref()?.queued_at);
            !matches!(ctx.room(g), Room::Held(_)) && queued.is_some_and(|at| ctx.due(at + TimeDelta::seconds(limit)))
        })
}

/// Ends the workload, finally. Its room is given back.
pub(super) fn end(
    ctx: &Ctx<'_>,
    ledger: &mut TrainingWorkloadStatus,
    condition: &str,
    reason: &str,
    message: impl Into<String>,
) {
    let done = ledger.completed(&ctx.view.spec().groups);
    let keys: Vec<String> = ledger.gangs.iter().map(|g| g.key.clone()).collect();
    for key in keys {
        rooms::give_back(ctx, ledger, &key, None);
    }
    for gang in &mut ledger.gangs {
        gang.backoff = None;
    }
    // Nothing starts over any more: what members have finished stays on record.
    set_completed(&ctx.view.spec().groups, ledger, &done);
    upsert(&mut ledger.conditions, condition, true, reason, message, ctx.view.generation(), ctx.now);
    ledger.completion_time = Some(ctx.now);
}
