//! The status of a workload for people and tools, computed from what is there. Nothing of it is read back as input.

mod conditions;

pub(crate) use conditions::reason_of;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use lockstep_api::condition::{is_true, types};
use lockstep_api::member::Member;
use lockstep_api::workload::{DomainStatus, Group, GroupStatus, Phase, TrainingWorkloadStatus};

use crate::decide::context::Room;
use crate::decide::{Ctx, ended, hands_off};
use crate::pods::PodPhase;
use crate::ranks::World;
use crate::view::WorkloadView;

/// The status as it should be now. It is written when it differs from the one there is.
pub fn summary(view: &WorkloadView, now: DateTime<Utc>) -> TrainingWorkloadStatus {
    if hands_off(view) {
        return view.status();
    }
    summarize(&Ctx::new(view, now), view.status())
}

/// Brings the summary in line with a ledger and what is there.
pub(crate) fn summarize(ctx: &Ctx<'_>, mut status: TrainingWorkloadStatus) -> TrainingWorkloadStatus {
    let spec = ctx.view.spec();
    status.observed_generation = ctx.view.generation();
    // Domains that a smaller workload no longer has still count: the epoch never goes back.
    status.epoch = status.domains.iter().map(|d| d.epoch).max().unwrap_or_default().max(status.epoch);
    status.groups = spec.groups.iter().map(|g| group(ctx, &status, g)).collect();
    let (world, done) = (World::of(spec, &status), status.completed(&spec.groups));
    let over = |group: &str| spec.suspend || ended(&status) || world.complete(group, &done);
    let (ready, running): (i32, i32) = status.groups.iter().fold((0, 0), |(ready, running), g| {
        (ready + g.ready, running + if over(&g.name) { 0 } else { g.desired - g.succeeded })
    });
    status.ready = format!("{ready}/{running}");
    rooms(ctx, &mut status);
    conditions::set(ctx, &mut status);
    status.phase = Some(phase(ctx, &status));
    status
}

fn group(ctx: &Ctx<'_>, status: &TrainingWorkloadStatus, group: &Group) -> GroupStatus {
    let done = status.completed(&ctx.view.spec().groups);
    let mut out = GroupStatus { name: group.name.clone(), desired: group.members(), ..GroupStatus::default() };
    let ledger = status.groups.iter().find(|s| s.name == group.name);
    out.completed_indexes = ledger.map(|s| s.completed_indexes.clone()).unwrap_or_default();
    out.world_indexes = ledger.and_then(|s| s.world_indexes.clone());
    for domain in ctx.gangs.iter().flat_map(|g| &g.domains) {
        let entry = status.domains.iter().find(|d| d.key == domain.key);
        for member in domain.members.iter().filter(|m| m.group == group.name) {
            let finished = done.contains(member);
            out.succeeded += i32::from(finished);
            let pod = entry.and_then(|e| ctx.current(e, member)).filter(|p| !p.terminating());
            let Some(pod) = pod else { continue };
            out.created += 1;
            out.ready += i32::from(!finished && crate::decide::ready(pod));
            out.failed += i32::from(pod.phase == PodPhase::Failed);
            out.active += i32::from(!finished && !pod.terminal());
        }
    }
    out
}

/// Room and accelerators that are held.
fn rooms(ctx: &Ctx<'_>, status: &mut TrainingWorkloadStatus) {
    let held = status.gangs.iter().filter_map(|g| match ctx.room(g) {
        Room::Held(p) => Some(p),
        _ => None,
    });
    let mut accelerators = 0_i64;
    let mut last = None;
    let mut per_group: BTreeMap<String, i64> = BTreeMap::new();
    for placement in held {
        last = last.max(Some(placement.decided_at));
        for Member { group, .. } in crate::decide::context::nodes(placement).into_keys() {
            let each = *per_group.entry(group).or_insert_with_key(|g| ctx.accelerators(g));
            accelerators = accelerators.saturating_add(each);
        }
    }
    if last.is_some() {
        status.scheduled_time = last;
    }
    status.accounting.accelerators = accelerators;
}

fn phase(ctx: &Ctx<'_>, status: &TrainingWorkloadStatus) -> Phase {
    let is = |t| is_true(&status.conditions, t);
    let world = World::of(ctx.view.spec(), status);
    // Of an elastic gang a whole replica may be without room.
    let in_use = |d: &DomainStatus| ctx.domain(&d.key).is_none_or(|(_, d)| d.members.iter().any(|m| world.contains(m)));
    let order = [
        (is(types::COMPLETE), Phase::Succeeded),
        (is(types::FAILED), Phase::Failed),
        (ctx.view.spec().suspend, Phase::Suspended),
        (is(types::STALLED), Phase::Stalled),
        (is(types::DISRUPTION_TARGET), Phase::Preempting),
        (is(types::RESTARTING), Phase::Restarting),
        (!is(types::ADMITTED), Phase::Pending),
        (status.domains.iter().all(|d| d.healthy_since.is_some() || !in_use(d)), Phase::Running),
    ];
    order.into_iter().find(|(holds, _)| *holds).map_or(Phase::Starting, |(_, phase)| phase)
}
