//! Conditions of a workload.

use lockstep_api::condition::{find, is_true, reasons, types, upsert};
use lockstep_api::workload::{GangStatus, TrainingWorkloadStatus, Unfenced};

use crate::build::spec_hash;
use crate::decide::context::{Room, nodes};
use crate::decide::{Ctx, dependencies_met, describe, ended, preemptor, timed_out};
use crate::gangs::Gang;
use crate::ranks::World;
use crate::view::{Priority, Refusal, RefusalKind, Target};

/// What a condition says.
struct Says {
    status: bool,
    reason: String,
    message: String,
}

fn says(status: bool, reason: &str, message: impl Into<String>) -> Says {
    Says { status, reason: reason.into(), message: message.into() }
}

/// Sets all conditions but the terminal ones, which belong to the ledger. The order is fixed.
pub(super) fn set(ctx: &Ctx<'_>, status: &mut TrainingWorkloadStatus) {
    let stalled = stalled(ctx, status);
    let waits = stalled.status;
    put(ctx, status, types::STALLED, stalled);
    if ended(status) {
        over(ctx, status);
        return;
    }
    let admitted = admitted(ctx, status);
    put(ctx, status, types::ADMITTED, admitted);
    let ready = ready(ctx, status);
    let settled = ready.status || ctx.view.spec().suspend || waits;
    put(ctx, status, types::READY, ready);
    let reconciling = if settled {
        says(false, reasons::RECONCILED, "")
    } else {
        says(true, reasons::PROGRESSING, "working towards the desired state")
    };
    put(ctx, status, types::RECONCILING, reconciling);
    let restarting = restarting(status);
    put(ctx, status, types::RESTARTING, restarting);
    let disrupted = disrupted(ctx, status);
    put(ctx, status, types::DISRUPTION_TARGET, disrupted);
    let suspended = if ctx.view.spec().suspend {
        says(true, reasons::SUSPENDED, "spec.suspend is true")
    } else {
        says(false, reasons::RESUMED, "")
    };
    put(ctx, status, types::SUSPENDED, suspended);
    let fenced = fenced(ctx, status);
    put(ctx, status, types::FENCED, fenced);
    if let Some(versions) = &ctx.view.native {
        put(ctx, status, types::NATIVE_SCHEDULING, native(versions));
    }
}

/// Whether kube-scheduler places the gangs: not in this version, whatever is served.
fn native(versions: &[String]) -> Says {
    if versions.is_empty() {
        return says(
            false,
            reasons::NOT_SERVED,
            "the cluster serves no scheduling.k8s.io PodGroup; Lockstep places gangs",
        );
    }
    let served = versions.join(", ");
    says(false, reasons::NOT_USED, format!("scheduling.k8s.io PodGroup is served ({served}); Lockstep places gangs"))
}

fn put(ctx: &Ctx<'_>, status: &mut TrainingWorkloadStatus, type_: &str, says: Says) {
    let generation = ctx.view.generation();
    upsert(&mut status.conditions, type_, says.status, &says.reason, says.message, generation, ctx.now);
}

/// After the end everything that was under way is over, for the reason that ended it.
fn over(ctx: &Ctx<'_>, status: &mut TrainingWorkloadStatus) {
    let how = [types::COMPLETE, types::FAILED].into_iter().filter(|t| is_true(&status.conditions, t));
    let reason = how.filter_map(|t| find(&status.conditions, t)).map(|c| c.reason.clone()).next().unwrap_or_default();
    for type_ in [types::ADMITTED, types::READY, types::RECONCILING, types::RESTARTING, types::DISRUPTION_TARGET] {
        put(ctx, status, type_, says(false, &reason, ""));
    }
}

fn stalled(ctx: &Ctx<'_>, status: &TrainingWorkloadStatus) -> Says {
    let spec = ctx.view.spec();
    let none = says(false, reasons::PROGRESSING, "");
    if ended(status) || spec.suspend {
        return none;
    }
    if ctx.view.priority == Priority::Unknown && status.applied.is_none() {
        let class = spec.priority_class_name.as_deref().unwrap_or_default();
        let message = format!("spec.priorityClassName: no PriorityClass {class:?} exists");
        return says(true, reasons::INVALID_PRIORITY_CLASS, message);
    }
    let hash = spec_hash(spec);
    if let Some(answer) = ctx.view.dry_run.as_ref().filter(|d| d.spec_hash == hash) {
        if let Some(message) = &answer.invalid {
            return says(true, reasons::INVALID_TEMPLATE, message);
        }
    } else if let Some(told) = find(&status.conditions, types::STALLED)
        && told.reason == reasons::INVALID_TEMPLATE
        && told.observed_generation == ctx.view.generation()
    {
        // A new leader has not asked yet: what the last one was told still stands.
        return says(is_true(&status.conditions, types::STALLED), &told.reason, &told.message);
    }
    conflict(ctx).unwrap_or(none)
}

/// An object with a name that we need and that is not ours.
fn conflict(ctx: &Ctx<'_>) -> Option<Says> {
    let view = ctx.view;
    let foreign = [
        ("Service", view.subdomain(), view.service.as_ref().map(|h| h.owned)),
        ("Workload", view.name(), view.scheduling.as_ref().map(|h| h.owned)),
        ("RestartOrder", view.name(), view.order.as_ref().map(|h| h.owned)),
    ];
    if let Some((kind, name, _)) = foreign.iter().find(|(.., owned)| *owned == Some(false)) {
        return Some(says(true, reasons::NAME_CONFLICT, format!("{kind} {name} exists and belongs to somebody else")));
    }
    // Each is tried again after a while: a refusal that was not met again since is over.
    let stands = |r: &&Refusal| matches!(r.target, Target::Object(..)) && !ctx.due(r.at + view.settings.retry * 2);
    let refused = view.refusals.iter().find(stands)?;
    let reason = match refused.kind {
        RefusalKind::NameTaken => reasons::NAME_CONFLICT,
        RefusalKind::QuotaExceeded => reasons::QUOTA_EXCEEDED,
        RefusalKind::Forbidden => reasons::FORBIDDEN,
        RefusalKind::Invalid => reasons::INVALID_OBJECT,
    };
    let Target::Object(kind, name) = &refused.target else { return None };
    Some(says(true, reason, format!("{kind} {name}: {}", refused.message)))
}

fn admitted(ctx: &Ctx<'_>, status: &TrainingWorkloadStatus) -> Says {
    if ctx.view.spec().suspend {
        return says(false, reasons::SUSPENDED, "");
    }
    if status.applied.is_none() {
        return says(false, reasons::QUEUED, "the workload is being validated");
    }
    let waiting = status.gangs.iter().filter_map(|g| wait_of(ctx, status, g));
    let mut waiting: Vec<Says> = waiting.collect();
    let (total, held) = (status.gangs.len(), status.gangs.len() - waiting.len());
    match waiting.len() {
        0 => says(true, reasons::SCHEDULED, smaller(ctx, status).unwrap_or("every gang has its room".into())),
        _ if total == 1 => waiting.remove(0),
        _ => {
            let first = waiting.remove(0);
            says(false, &first.reason, format!("{held} of {total} gangs have their room; {}", first.message))
        }
    }
}

/// What is missing of gangs that have room for some of their members only.
fn smaller(ctx: &Ctx<'_>, status: &TrainingWorkloadStatus) -> Option<String> {
    let world = World::of(ctx.view.spec(), status);
    let of = |gang: &Gang| {
        let (runs, size) = (gang.members().filter(|m| world.contains(m)).count(), gang.size());
        let text = format!("gang {} has room for {runs} of {size} members (min {})", gang.key, gang.min_count);
        (runs < size).then_some(text)
    };
    let gangs: Vec<String> = ctx.gangs.iter().filter_map(of).collect();
    (!gangs.is_empty()).then(|| gangs.join("; "))
}

/// Why a gang has no room; None when it has.
fn wait_of(ctx: &Ctx<'_>, status: &TrainingWorkloadStatus, entry: &GangStatus) -> Option<Says> {
    let gang = ctx.gang(&entry.key)?;
    let key = &entry.key;
    if let Room::Held(placement) = ctx.room(entry) {
        let intent = ctx.view.pod_groups.get(key)?.status.as_ref()?.preemption.as_ref();
        let intent = intent.filter(|p| p.placement == placement.id)?;
        return Some(says(false, reasons::PREEMPTING, format!("gang {key}: {}", intent.explanation)));
    }
    if !entry.started && !dependencies_met(ctx, status, gang) {
        return Some(says(false, reasons::WAITING_FOR_DEPENDENCY, format!("gang {key} waits for groups in dependsOn")));
    }
    if let Some(backoff) = &entry.backoff {
        let until = backoff.until.format("%H:%M:%S");
        let message = format!("gang {key}: {}; next attempt at {until} UTC", backoff.message);
        return Some(says(false, &backoff.reason, message));
    }
    let group = ctx.view.pod_groups.get(key).and_then(|g| g.status.as_ref());
    if let Some(by) =
        group.and_then(|s| find(&s.conditions, types::DISRUPTION_TARGET)).filter(|c| c.status == true.into())
    {
        return Some(says(false, reasons::PREEMPTED, format!("gang {key}: {}", by.message)));
    }
    let late = if timed_out(ctx, status) { "; scheduling.timeoutSeconds has passed" } else { "" };
    match group.and_then(|s| find(&s.conditions, types::POD_GROUP_INITIALLY_SCHEDULED)) {
        Some(c) if c.status != true.into() => Some(says(false, &c.reason, format!("gang {key}: {}{late}", c.message))),
        _ => Some(says(false, reasons::QUEUED, format!("gang {key} waits for its turn{late}"))),
    }
}

fn ready(ctx: &Ctx<'_>, status: &TrainingWorkloadStatus) -> Says {
    let world = World::of(ctx.view.spec(), status);
    let missing: i32 = status.groups.iter().map(|g| world.size_of(&g.name) - g.succeeded - g.ready).sum();
    let members: i32 = status.groups.iter().map(|g| world.size_of(&g.name)).sum();
    if ctx.view.spec().suspend {
        says(false, reasons::SUSPENDED, "")
    } else if status.domains.iter().any(|d| d.incident.is_some()) {
        // Members that have not been stopped yet are of no use to the others.
        says(false, reasons::MEMBERS_NOT_READY, "an incident is being handled")
    } else if missing <= 0 && members > 0 {
        let every = "every member is ready or has succeeded";
        says(true, reasons::ALL_MEMBERS_READY, smaller(ctx, status).map_or(every.into(), |s| format!("{every}; {s}")))
    } else if status.groups.iter().all(|g| g.created == 0) {
        says(false, reasons::STARTING, "no pods yet")
    } else {
        says(false, reasons::MEMBERS_NOT_READY, format!("{} members are ready", status.ready))
    }
}

fn restarting(status: &TrainingWorkloadStatus) -> Says {
    let open = status.domains.iter().filter_map(|d| Some((d, d.incident.as_ref()?)));
    let Some((domain, incident)) = open.min_by_key(|(_, i)| i.cause.time) else {
        return says(false, reasons::NO_INCIDENT, "");
    };
    let reason = reason_of(incident.action);
    says(true, reason, format!("{} at epoch {}: {}", domain.key, incident.epoch, describe(&incident.cause)))
}

/// The reason that names an action.
pub(crate) fn reason_of(action: lockstep_api::workload::FailureAction) -> &'static str {
    use lockstep_api::workload::FailureAction as A;
    match action {
        A::RestartGang => reasons::RESTART_GANG,
        A::RecreateGang => reasons::RECREATE_GANG,
        A::FailWorkload => reasons::FAILURE_POLICY,
        A::Ignore | A::RestartContainer | A::RestartPod => reasons::RESTART_POD,
    }
}

fn disrupted(ctx: &Ctx<'_>, status: &TrainingWorkloadStatus) -> Says {
    let leaving = status.gangs.iter().find_map(|g| {
        let placement = ctx.view.pod_groups.get(&g.key)?.status.as_ref()?.placement.as_ref()?;
        preemptor(ctx, &g.key, placement)
    });
    match leaving {
        Some(message) => says(true, reasons::PREEMPTION_BY_SCHEDULER, message),
        None => says(false, reasons::NO_INCIDENT, ""),
    }
}

fn fenced(ctx: &Ctx<'_>, status: &TrainingWorkloadStatus) -> Says {
    let held = status.gangs.iter().filter_map(|g| match ctx.room(g) {
        Room::Held(p) => Some(p),
        _ => None,
    });
    let mut without: Vec<&str> = held.flat_map(|p| nodes(p).into_values()).filter(|n| !ctx.can_stop(n)).collect();
    without.sort_unstable();
    without.dedup();
    if let Some(first) = without.first() {
        let n = without.len();
        let message = format!("{n} nodes have no ready agent, {first} is one; members there restart with new pods");
        return says(false, reasons::AGENT_MISSING, message);
    }
    let message = match ctx.view.spec().failure_policy.in_place.unfenced {
        Unfenced::Allow => "training containers run without a supervisor; failurePolicy.inPlace.unfenced allows it",
        Unfenced::Deny => {
            "training containers run without a supervisor, so RestartGang makes new pods; see failurePolicy.inPlace.unfenced"
        }
    };
    says(false, reasons::UNSUPERVISED, message)
}
