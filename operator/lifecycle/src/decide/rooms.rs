//! The room of gangs: getting it, giving it back, waiting before asking again.

use chrono::TimeDelta;
use lockstep_api::condition::{find, is_true, reasons, types};
use lockstep_api::member::Member;
use lockstep_api::scheduling::Placement;
use lockstep_api::workload::{
    AvoidedNode, Backoff, Cause, CauseKind, DependencyCondition, DisruptionMode, DomainStatus, FailureAction,
    GangStatus, TrainingWorkloadStatus,
};

use super::context::{Ctx, DISRUPTION_TARGET, Room, nodes};
use super::failure::Failure;
use super::{finish, history, incident};
use crate::gangs::Gang;
use crate::pods::{ContainerView, PodPhase, PodView};
use crate::ranks::World;
use crate::settings::doubling;
use crate::view::{RefusalKind, Target};

/// Gives a gang's room back: recorded first, its pods are deleted afterwards. Incidents end, and what single members have
/// finished of an unfinished group is done again, since the gang starts over. With a reason the gang waits before it
/// queues again.
pub(super) fn give_back(
    ctx: &Ctx<'_>,
    ledger: &mut TrainingWorkloadStatus,
    key: &str,
    why: Option<(&'static str, String)>,
) {
    let settings = &ctx.view.settings;
    let Some(entry) = ledger.gangs.iter_mut().find(|g| g.key == key) else { return };
    let Room::Held(placement) = ctx.room(entry) else { return };
    entry.released = Some(placement.id.clone());
    if let Some((reason, message)) = why {
        entry.attempts = entry.attempts.saturating_add(1);
        let wait = doubling(settings.placement_backoff, settings.placement_backoff_max, entry.attempts);
        entry.backoff =
            Some(Backoff { reason: reason.into(), message, attempts: entry.attempts, until: ctx.now + wait });
    }
    let Some(gang) = ctx.gang(key) else { return };
    let mut domains = std::mem::take(&mut ledger.domains);
    for domain in domains.iter_mut().filter(|d| gang.domains.iter().any(|g| g.key == d.key)) {
        if let Some(open) = domain.incident.take() {
            history::close(ctx, ledger, domain, &open, false);
        }
        domain.healthy_since = None;
        domain.in_place_attempts = 0;
        domain.restarts_seen = 0;
    }
    ledger.domains = domains;
    finish::forget_unfinished(ctx, ledger, gang.members());
}

/// Dependencies are looked at until they are met once.
pub(super) fn latch_dependencies(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus) {
    let met: Vec<String> = ledger
        .gangs
        .iter()
        .filter(|g| !g.started)
        .filter(|g| ctx.gang(&g.key).is_some_and(|gang| dependencies_met(ctx, ledger, gang)))
        .map(|g| g.key.clone())
        .collect();
    for gang in ledger.gangs.iter_mut().filter(|g| met.contains(&g.key)) {
        gang.started = true;
    }
}

/// Whether the groups that a gang waits for are ready or have succeeded. A gang of the whole workload waits for nobody.
pub(crate) fn dependencies_met(ctx: &Ctx<'_>, ledger: &TrainingWorkloadStatus, gang: &Gang) -> bool {
    let groups = &ctx.view.spec().groups;
    let Some(group) = groups.iter().find(|g| g.name == gang.template) else { return true };
    let (world, done) = (World::of(ctx.view.spec(), ledger), ledger.completed(groups));
    group.depends_on.iter().all(|d| {
        let Some(other) = groups.iter().find(|g| g.name == d.group) else { return true };
        match d.condition {
            DependencyCondition::Succeeded => world.complete(&other.name, &done),
            DependencyCondition::Ready => {
                let ready = |m: &Member| done.contains(m) || ctx.pods_of(m).iter().any(|p| ready(p));
                let replicas = (0..other.replicas).flat_map(|r| (0..other.size).map(move |i| (r, i)));
                let mut members = replicas.map(|(r, i)| Member::new(other.name.as_str(), r, i));
                members.all(|m| !world.contains(&m) || ready(&m))
            }
        }
    })
}

/// Whether a pod is ready and stays.
pub(crate) fn ready(pod: &PodView) -> bool {
    pod.phase == PodPhase::Running && !pod.terminating() && pod.condition("Ready").is_some()
}

/// Ends waits whose time is over.
pub(super) fn expire(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus) {
    for gang in &mut ledger.gangs {
        if gang.backoff.as_ref().is_some_and(|b| ctx.due(b.until)) {
            gang.backoff = None;
        }
        gang.avoid.retain(|a| !ctx.due(a.until));
    }
}

/// A gang that is preempted gives its room back and queues again, uncounted. The scheduler loop says so on the pod group;
/// kube-scheduler says so on the pod that it takes, and a gang whose unit of disruption is the whole goes with it.
pub(super) fn follow_preemption(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus) {
    let preempted: Vec<(String, String)> = ledger
        .gangs
        .iter()
        .filter_map(|entry| {
            let Room::Held(placement) = ctx.room(entry) else { return None };
            let gang = ctx.gang(&entry.key)?;
            let by = preemptor(ctx, &entry.key, placement).or_else(|| taken_member(ctx, gang, placement))?;
            Some((entry.key.clone(), by))
        })
        .collect();
    for (key, message) in preempted {
        let cause = Cause {
            kind: CauseKind::Preempted,
            pod: String::new(),
            node: String::new(),
            container: String::new(),
            exit_code: None,
            reason: reasons::PREEMPTION_BY_SCHEDULER.into(),
            message,
            rule: String::new(),
            time: ctx.now,
        };
        let gang = ctx.gang(&key);
        for domain in ledger.domains.clone() {
            if gang.is_some_and(|g| g.domains.iter().any(|d| d.key == domain.key)) {
                history::interrupted(ctx, ledger, &domain, &cause, FailureAction::RecreateGang);
            }
        }
        ledger.preemptions += 1;
        give_back(ctx, ledger, &key, None);
    }
}

/// The message of the pod group's `DisruptionTarget`, if it is about the present placement.
pub(crate) fn preemptor(ctx: &Ctx<'_>, gang: &str, placement: &Placement) -> Option<String> {
    let status = ctx.view.pod_groups.get(gang)?.status.as_ref()?;
    let condition = find(&status.conditions, types::DISRUPTION_TARGET)?;
    let present =
        is_true(&status.conditions, types::DISRUPTION_TARGET) && condition.last_transition_time >= placement.decided_at;
    present.then(|| condition.message.clone())
}

/// The message of a member's `DisruptionTarget`, when kube-scheduler has taken it from the present placement. A pod of an
/// earlier one may be stuck on a lost node.
fn taken_member(ctx: &Ctx<'_>, gang: &Gang, placement: &Placement) -> Option<String> {
    let whole = gang.disruption == DisruptionMode::All;
    let mut pods = gang.members().filter(|_| whole).flat_map(|m| ctx.pods_of(m));
    pods.find_map(|p| {
        let taken = p.condition(DISRUPTION_TARGET).filter(|c| c.reason == reasons::PREEMPTION_BY_SCHEDULER)?;
        let present = p.deleted_at.is_none_or(|at| at >= placement.decided_at);
        present.then(|| taken.message.clone())
    })
}

/// A gang of which a pod was refused gives its room back whole: a part of it is of no use.
pub(super) fn follow_refusals(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus) {
    let refused: Vec<(String, &'static str, String)> = ledger
        .gangs
        .iter()
        .filter_map(|entry| {
            let Room::Held(placement) = ctx.room(entry) else { return None };
            let gang = ctx.gang(&entry.key)?;
            let refusal = ctx.view.refusals.iter().find(|r| {
                let ours = matches!(&r.target, Target::Pod(m) if gang.members().any(|g| g == m));
                // An older one was answered by giving back the placement before this one.
                ours && r.at >= placement.decided_at
            })?;
            let reason = match refusal.kind {
                RefusalKind::QuotaExceeded => reasons::QUOTA_EXCEEDED,
                RefusalKind::Forbidden => reasons::FORBIDDEN,
                RefusalKind::Invalid => reasons::INVALID_TEMPLATE,
                RefusalKind::NameTaken => reasons::NAME_CONFLICT,
            };
            Some((entry.key.clone(), reason, refusal.message.clone()))
        })
        .collect();
    for (key, reason, message) in refused {
        give_back(ctx, ledger, &key, Some((reason, message)));
    }
}

/// A member that its node cannot start: the placement was wrong, not the workload.
struct Trouble {
    member: Member,
    node: String,
    reason: &'static str,
    message: String,
}

/// Follows placements that do not come up. Before a gang first runs it gives everything back; later only the member is
/// placed elsewhere, while the others hold their nodes.
pub(super) fn follow_placements(ctx: &Ctx<'_>, ledger: &mut TrainingWorkloadStatus) {
    for entry in ledger.gangs.clone() {
        let Room::Held(placement) = ctx.room(&entry) else { continue };
        let Some(gang) = ctx.gang(&entry.key) else { continue };
        let troubles = troubles(ctx, ledger, gang, placement);
        let Some(first) = troubles.first() else { continue };
        for t in &troubles {
            // What a kubelet sees at the moment and the scheduler does not will soon be seen by both.
            let soon = t.reason == reasons::REJECTED_BY_NODE;
            let until = ctx.now + if soon { ctx.view.settings.retry } else { ctx.view.settings.avoid };
            avoid(ledger, &entry.key, AvoidedNode { node: t.node.clone(), reason: t.reason.into(), until });
        }
        let under_way = |d: &&DomainStatus| d.incident.is_some() || d.healthy_since.is_some();
        let begun =
            ledger.domains.iter().filter(|d| gang.domains.iter().any(|g| g.key == d.key)).any(|d| under_way(&d));
        if begun || gang.basic {
            let failures = troubles
                .iter()
                .map(|t| Failure::placement(&t.member, &t.node, t.reason, &t.message, ctx.now))
                .collect();
            incident::place_elsewhere(ctx, ledger, gang, failures);
        } else {
            let message = format!("member {} on node {}: {}", first.member, first.node, first.message);
            give_back(ctx, ledger, &entry.key, Some((first.reason, message)));
        }
    }
}

/// Records that a gang stays away from a node.
pub(super) fn avoid(ledger: &mut TrainingWorkloadStatus, gang: &str, node: AvoidedNode) {
    let Some(entry) = ledger.gangs.iter_mut().find(|g| g.key == gang) else { return };
    match entry.avoid.iter_mut().find(|a| a.node == node.node) {
        Some(old) if old.until >= node.until => {}
        Some(old) => *old = node,
        None => entry.avoid.push(node),
    }
}

/// Whether a member may be created on a node.
pub(super) fn usable(ctx: &Ctx<'_>, entry: &GangStatus, node: &str) -> bool {
    entry.avoid.iter().all(|a| a.node != node || ctx.due(a.until)) && !ctx.lost(node)
}

fn troubles(ctx: &Ctx<'_>, ledger: &TrainingWorkloadStatus, gang: &Gang, placement: &Placement) -> Vec<Trouble> {
    let limit = TimeDelta::seconds(ctx.view.spec().failure_policy.start_deadline_seconds);
    let placed = nodes(placement);
    let mut out = Vec::new();
    let domains = gang.domains.iter().filter_map(|d| Some((d, ledger.domains.iter().find(|s| s.key == d.key)?)));
    for (status, member) in domains.flat_map(|(d, s)| d.members.iter().map(move |m| (s, m))) {
        if !placed.contains_key(member) {
            continue;
        }
        let Some(pod) = ctx.current(status, member).filter(|p| !p.terminating() && !p.gated) else { continue };
        let Some(node) = pod.node.as_ref().or(pod.pinned.as_ref()) else { continue };
        let started = ctx.trainer(member, pod).is_some_and(ContainerView::started);
        let trouble = if pod.phase == PodPhase::Failed && !pod.has_run() {
            Some((reasons::REJECTED_BY_NODE, format!("{}: {}", pod.reason, pod.message)))
        } else if pod.terminal() || started {
            None
        } else if pod.node.is_some() && ctx.lost(node) {
            Some((reasons::NODE_LOST, "the node was lost before the pod started".into()))
        } else if ctx.due(pod.created_at + limit) {
            let limit = limit.num_seconds();
            Some((reasons::START_DEADLINE_EXCEEDED, format!("containers did not start within {limit} s")))
        } else {
            None
        };
        if let Some((reason, message)) = trouble {
            out.push(Trouble { member: member.clone(), node: node.clone(), reason, message });
        }
    }
    out
}
