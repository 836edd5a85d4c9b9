//! Stage 08: failures of placed gangs and their incidents.

use std::collections::BTreeSet;

use chrono::TimeDelta;
use lockstep_api::condition::reasons;
use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;
use lockstep_api::workload::{
    Cause, CauseKind, CheckpointOccasion, CheckpointOutcome, FailureAction,
};

use crate::cause::describe;
use crate::changes::ReleaseReason;
use crate::checkpoints::has_finished;
use crate::facts::{Facts, MemberObservation};
use crate::failure::dependency::follow_dependencies;
use crate::failure::detect::{is_consequence, is_start_error, vanished};
use crate::failure::domain::{Consequence, DomainPass, DomainScope, continues_without, left_down};
use crate::failure::policy::{Failure, FailureImpact, respond, verdict};
use crate::failure::restart_budget::{DETECTED_LATER, Unreported};
use crate::ledger::{Ledger, Outcome};
use crate::waiting::{DependencyState, dependency_state, may_break};
use crate::wake::Wake;

pub(super) fn follow_failures(facts: &Facts<'_>, ledger: &mut Ledger) -> Wake {
    let mut wake = Wake::NEVER;
    let membership = ledger.membership(facts.spec());
    // All gangs of a group have the same dependencies, which precede them.
    let (mut group, mut state) = ("", DependencyState::Met);
    for gang in &facts.gangs {
        if gang.template != group {
            group = &gang.template;
            state = dependency_state(facts, ledger, gang);
        }
        follow_dependencies(facts, ledger, gang, &state);
        if facts.placement(ledger, &gang.key).is_none() {
            continue;
        }
        for domain in &gang.domains {
            let scope = DomainScope::placed(facts, ledger, &membership, gang, domain);
            let Some(mut pass) = DomainPass::new(facts, ledger, scope) else {
                continue;
            };
            let consequence = step(&mut pass);
            wake = wake.min(pass.wake);
            match consequence {
                Some(Consequence::FailWorkload(reason, message)) => {
                    ledger.finish(facts, Outcome::Failed, reason, message);
                    return wake;
                }
                Some(Consequence::ReleaseGang(reason, message)) => {
                    let why = ReleaseReason { reason, message };
                    ledger.release_gang(facts, &gang.key, Some(why));
                    break;
                }
                None => {}
            }
        }
    }
    if let Some(cause) = only_ignored(facts, ledger) {
        let message = format!("no other member is left to run: {}", describe(&cause));
        ledger.finish(facts, Outcome::Failed, reasons::FAILURE_POLICY, message);
    }
    wake
}

/// The first failure, if the training of all members has ended and a rule ignores all failures. Such
/// a workload can neither succeed nor restart.
fn only_ignored(facts: &Facts<'_>, ledger: &Ledger) -> Option<Cause> {
    let membership = ledger.membership(facts.spec());
    let mut first: Option<Cause> = None;
    for domain in facts.gangs.iter().flat_map(|gang| &gang.domains) {
        let entry = ledger.domain(&domain.key)?;
        let members = domain.members.iter();
        for member in members.filter(|m| membership.contains(m) && !ledger.completed.contains(*m)) {
            let observed = facts.observe(member, facts.current(entry, member)?);
            let failure = left_down(&observed, entry)?;
            if entry.incident.is_some() {
                return None;
            }
            if first.as_ref().is_none_or(|f| failure.cause.time < f.time) {
                let rule = verdict(facts.spec(), &failure).rule_name();
                first = Some(Cause {
                    rule,
                    ..failure.cause
                });
            }
        }
    }
    first
}

fn step(pass: &mut DomainPass<'_>) -> Option<Consequence> {
    let facts = pass.facts;
    pass.correct_cause();
    let members = pass.observe();
    let (mut late, mut new) = failures(pass, &members);
    late.retain(|f| !is_start_error(facts, f));
    new.retain(|f| !is_start_error(facts, f));
    new.retain(|f| !is_awaited(pass, f));
    degrade(pass, &mut new);
    let gang = pass.ledger.gang(&pass.scope.gang.key);
    if !gang.is_some_and(|g| g.started) {
        late.append(&mut new);
    }
    let stopped = pass.incident().map(|i| i.cause.kind);
    if stopped == Some(CauseKind::DependencyBroken) {
        // Failures before the restart follow from the dependency.
        late.retain(|f| !verdict(facts.spec(), f).action.ends_workload());
    }
    let before = late.len() + new.len();
    late.retain(|f| !waits_for_status(pass, f));
    new.retain(|f| !waits_for_status(pass, f));
    let limits = &facts.spec().failure_policy.limits;
    if before > late.len() + new.len() && !pass.ledger.budget.has_unit_left(limits, facts.now) {
        // Other failures can be consequences of the unclear one.
        return None;
    }
    if !late.is_empty() {
        let consequence = pass.merge_into_incident(&late);
        if consequence.is_some() {
            return consequence;
        }
    }
    if let Some(response) = respond(facts, &new) {
        return pass.apply_response(response);
    }
    // A restart of the domain also raises restart counts.
    if pass.incident().is_none() {
        match pass.count_kubelet_restarts(&members) {
            Unreported::Nothing => {}
            Unreported::OverBudget(cause) => {
                return Some(pass.over_budget(&cause));
            }
            Unreported::Failure(failure) => {
                if let Some(response) = respond(facts, &[*failure]) {
                    return pass.apply_response(response);
                }
            }
        }
    }
    restart_after_request(pass, &members);
    pass.advance()
}

/// True if the failure answers a request for a checkpoint, or is a deletion that waits for the
/// answer.
fn is_awaited(pass: &DomainPass<'_>, failure: &Failure) -> bool {
    let entry = pass.entry();
    if is_added(pass, &failure.member) {
        return true;
    }
    match failure.cause.kind {
        CauseKind::PodDeleted => entry.open_request().is_some_and(|r| {
            // Nothing is stopped for a user's request, so a gang without a member waits for nothing.
            let stops = r.reason != CheckpointOccasion::User || failure.pod_uid.is_some();
            stops && !r.watch
        }),
        CauseKind::ContainerExit => {
            let (code, at) = (failure.cause.exit_code, failure.cause.time);
            code.is_some_and(|code| entry.is_reply(pass.facts, pass.key(), code, at))
        }
        CauseKind::PodFailed
        | CauseKind::Hang
        | CauseKind::NodeLost
        | CauseKind::Preempted
        | CauseKind::Requested
        | CauseKind::Resize
        | CauseKind::DependencyBroken
        | CauseKind::NodeLeaving
        | CauseKind::NodeFaulty => false,
    }
}

/// True for a member that an edit adds, which waits for the answers to requests.
fn is_added(pass: &DomainPass<'_>, member: &Member) -> bool {
    let mut groups = pass.facts.spec().groups.iter();
    let group = groups.position(|g| g.name == member.group);
    let replicas = pass.ledger.applied.iter().map(|a| &a.replicas);
    let mut before = replicas.zip(group).filter_map(|(r, at)| r.get(at));
    before.any(|before| member.replica >= *before)
}

/// Restarts processes that have ended for a request after which nothing is stopped: it was a user's,
/// or it was withdrawn.
fn restart_after_request(
    pass: &mut DomainPass<'_>,
    members: &[(&Member, Option<MemberObservation<'_>>)],
) {
    let (facts, entry) = (pass.facts, pass.entry());
    let end = |(_, observed): &(&Member, Option<MemberObservation<'_>>)| {
        let (code, at) = observed.as_ref()?.end_at(entry.attempt)?;
        let replies = entry.is_reply(facts, pass.key(), code, at);
        replies.then_some(at.min(facts.now))
    };
    let ends: Vec<_> = members.iter().filter_map(end).collect();
    let request = entry.request.as_ref().filter(|r| !r.is_open());
    let (Some(first), Some(request)) = (ends.iter().min(), request) else {
        return;
    };
    let reason = request.reason;
    let timeout = facts.checkpoint_policy().map_or(0, |p| p.timeout_seconds);
    let deadline = request.requested_at.max(*first) + TimeDelta::seconds(timeout);
    let view = facts.gang_view(&pass.scope.gang.key);
    let is_preempted = view.is_some_and(|v| v.checkpoint_request.is_some());
    // The other domains are asked for the same stop.
    let others_asked = reason != CheckpointOccasion::User
        && (pass.ledger.domains.values())
            .any(|d| d.open_request().is_some_and(|r| r.id == request.id));
    // Pod status shows the success later than the reports.
    let finished = has_finished(facts, pass.ledger, entry, members.iter().map(|(m, _)| *m));
    let stops = entry.incident.is_some() || is_preempted || pass.ledger.is_suspended(facts.spec());
    if stops || others_asked || finished {
        return;
    }
    // Members that an edit adds restart the others once they are placed.
    let scope = &pass.scope;
    let grows = reason == CheckpointOccasion::Resize
        && request.outcome != Some(CheckpointOutcome::Withdrawn)
        && scope.all.len() < scope.domain.members.len();
    let is_settled = ends.len() == members.len() && !grows;
    if !is_settled && !facts.due(deadline).passed(&mut pass.wake) {
        return;
    }
    let message = format!(
        "training ended for a requested checkpoint ({})",
        reason.as_str()
    );
    let cause = Cause::requested(CauseKind::Requested, facts.now, &message);
    pass.open_uncounted(FailureAction::RestartGang, cause, BTreeSet::new());
}

/// Marks losses that a degrading gang survives.
fn degrade(pass: &DomainPass<'_>, new: &mut [Failure]) {
    let gang = pass.scope.gang;
    let failed = new.iter().map(|f| f.member.clone()).collect();
    if gang.degrades() && continues_without(pass.facts, pass.ledger, gang, &failed) {
        for failure in new.iter_mut().filter(|f| f.is_loss()) {
            failure.impact = FailureImpact::Member;
        }
    }
}

/// True if the response is irreversible, and the failure may still turn out to be of the node or of
/// a dependency, which is not charged.
fn waits_for_status(pass: &mut DomainPass<'_>, failure: &Failure) -> bool {
    let (spec, now) = (pass.facts.spec(), pass.facts.now);
    let verdict = verdict(spec, failure);
    let limits = &spec.failure_policy.limits;
    let spent = verdict.counted && !pass.ledger.budget.has_unit_left(limits, now);
    let action = verdict.action;
    let is_final = action.ends_workload() || spent;
    let status = failure
        .confirmed_by
        .filter(|_| is_final || action.replaces_pods());
    let dependent = is_final && may_break(pass.facts, pass.ledger, pass.scope.gang);
    // A later time indicates a wrong clock.
    let by = Some(failure.cause.time + DETECTED_LATER);
    let by = by.filter(|by| dependent && *by <= now + DETECTED_LATER);
    let by = status.max(by);
    by.is_some_and(|by| !pass.facts.due(by).passed(&mut pass.wake))
}

/// Failures of the open incident, and of the current attempt.
fn failures(
    pass: &DomainPass<'_>,
    members: &[(&Member, Option<MemberObservation<'_>>)],
) -> (Vec<Failure>, Vec<Failure>) {
    let (mut late, mut new) = (Vec::new(), Vec::new());
    let (facts, scope, domain) = (pass.facts, &pass.scope, pass.entry());
    for (member, observed) in members {
        let Some(observed) = observed else {
            // Basic members end independently. In a gang that ran, the end of a missing pod was not
            // observed.
            let ran = domain.healthy_since.is_some();
            let released =
                domain.is_restarting() && facts.is_past_barrier(pass.key(), domain.attempt);
            let replacement = domain.replacement.as_ref();
            let replaced = replacement.is_some_and(|r| r.members.contains(member));
            if (ran || released) && !replaced && !scope.gang.basic {
                let disrupted = facts.disrupted(member);
                let failure = disrupted.and_then(|pod| facts.observe(member, pod).pod_failure());
                new.push(failure.unwrap_or_else(|| {
                    let node = scope.assigned.get(*member).map_or("", NodeName::as_str);
                    vanished(member, node, facts.now)
                }));
            }
            continue;
        };
        let pod = observed.pod;
        let restarting = domain.restart_in_place(member);
        let mut others = Vec::new();
        if pod.is_live() {
            others = observed.exits_beside_training(domain, restarting.is_some());
        }
        let Some(incident) = restarting else {
            let own = observed.failure(domain);
            new.extend(own.filter(|f| !is_consequence(f, &others)));
            new.extend(others);
            continue;
        };
        let exit = observed.exit_at_attempt(domain);
        if let Some(exit) = exit.filter(|f| !is_consequence(f, &others)) {
            new.push(exit);
            new.extend(others);
        } else if !others.is_empty() {
            new.extend(others);
        } else if let Some(dead) = observed.pod_failure() {
            if pod.is_supervised() && facts.is_released(pass.key(), incident.attempt) {
                new.push(dead);
            } else {
                late.push(dead);
            }
        } else {
            late.extend(observed.late_exit(incident.attempt));
        }
    }
    (late, new)
}
