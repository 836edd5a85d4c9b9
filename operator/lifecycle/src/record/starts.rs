//! Stage 07: members that did not start.
//!
//! Where the node is the cause, it is avoided. Before a gang first runs it releases everything; later
//! only the member is placed elsewhere, while the others hold their nodes.
//!
//! Where the template is the cause (image, command, configuration, schedulerName), another node would
//! show the same: the gang releases everything and is placed again, three times in all, and then the
//! workload fails. Each time it has its whole `startDeadlineSeconds`, so a registry that is down for a
//! while fails no workload.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::reasons;
use lockstep_api::gangs::Gang;
use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;
use lockstep_api::words::span;

use crate::cause::describe;
use crate::changes::ReleaseReason;
use crate::facts::Facts;
use crate::failure::scope::DomainScope;
use crate::failure::{detect, late, requested};
use crate::ledger::{Avoidance, DomainLedger, Ledger, Outcome};
use crate::pods::{ContainerView, PodPhase, PodView};
use crate::start_problem::{self, Fault, unbound_since, waiting_container};
use crate::view::Target;
use crate::wake::Wake;

/// Starts in a row that fail because of the template before the workload fails.
const START_TRIES: i32 = 3;

/// A member that did not start.
struct StartFailure {
    member: Member,
    node: String,
    reason: &'static str,
    message: String,
    fault: Fault,
}

impl StartFailure {
    /// A start that failed because of the node, unless more is known.
    fn of_node(member: &Member, node: &str, reason: &'static str, message: String) -> Self {
        Self {
            member: member.clone(),
            node: node.to_owned(),
            reason,
            message,
            fault: Fault::Node,
        }
    }
}

/// How far a member that is placed has come.
enum Start {
    /// Its container has started, and has come to the barrier where there is one.
    Begun,
    /// Neither that is so, nor is its time over.
    UnderWay,
    /// Its time is over.
    Late(StartFailure),
    /// Its node says that it does not start.
    Failed(StartFailure),
}

/// Answers start failures of every gang that is placed.
pub(super) fn follow_starts(facts: &Facts<'_>, ledger: &mut Ledger) -> Wake {
    let mut wake = Wake::NEVER;
    for gang in &facts.gangs {
        if ledger.ended.is_none() && facts.placement(ledger, &gang.key).is_some() {
            follow_gang(facts, ledger, gang, &mut wake);
        }
    }
    wake
}

fn follow_gang(facts: &Facts<'_>, ledger: &mut Ledger, gang: &Gang, wake: &mut Wake) {
    // One that has never run gives all of its nodes back, whoever does not start.
    let alone = gang.basic || ledger.is_under_way(gang);
    let membership = ledger.membership(facts.spec());
    let mut failures = Vec::new();
    let mut takes_too_long = false;
    for domain in &gang.domains {
        if let Some(entry) = ledger.domain(&domain.key) {
            let scope = DomainScope::placed(facts, ledger, &membership, gang, domain);
            let failed = start_failures(facts, &scope, entry, alone, wake);
            takes_too_long |= !failed.is_empty() && is_restarting_too_long(facts, entry);
            failures.extend(failed);
        }
    }
    if failures.is_empty() {
        return;
    }
    let running = running_groups(facts);
    let runs = |f: &StartFailure| running.contains(f.member.group.as_str());
    for failure in failures.iter().filter(|f| f.fault.is_of_node(runs(f))) {
        if failure.reason == reasons::NODE_LOST {
            // A lost node is of no use while it is lost, and needs no avoidance after that.
            continue;
        }
        if let Some(node) = NodeName::read(Some(&failure.node)) {
            ledger.avoid_node(&gang.key, node, avoidance(facts, failure.reason));
        }
    }
    let of_template = failures.iter().find(|f| f.fault.is_of_template(runs(f)));
    let holds_nodes = alone && of_template.is_none_or(|f| runs(f) && !takes_too_long);
    if holds_nodes {
        let failures = failures
            .iter()
            .map(|f| detect::start_failure(&f.member, &f.node, f.reason, &f.message, facts.now))
            .collect();
        requested::place_elsewhere(facts, ledger, gang, failures);
    } else if let Some(failure) = of_template.or(failures.first()) {
        release(facts, ledger, gang, failure, of_template.is_some());
    }
}

/// Releases the nodes of a gang. `of_template`: no other node would help, so the third time in a row
/// fails the workload.
fn release(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    gang: &Gang,
    failure: &StartFailure,
    of_template: bool,
) {
    let reason = failure.reason;
    let message = format!(
        "member {} on node {}: {}",
        failure.member, failure.node, failure.message
    );
    if let Some(entry) = ledger.gangs.get_mut(&gang.key).filter(|_| of_template) {
        entry.start_tries = entry.start_tries.saturating_add(1);
        if entry.start_tries >= START_TRIES {
            let message = format!("{} starts in a row failed; {message}", entry.start_tries);
            ledger.finish(facts, Outcome::Failed, reason, message);
            return;
        }
    }
    ledger.release_gang(facts, &gang.key, Some(ReleaseReason { reason, message }));
}

/// Groups of which a member runs or has succeeded: image and program of their template are right.
fn running_groups<'a>(facts: &Facts<'a>) -> BTreeSet<&'a str> {
    let member = |pod: &'a PodView| pod.identity.member.as_ref();
    let runs = |member, pod| facts.running(member, pod) || facts.succeeded(member, pod);
    let pods = facts.pods().filter(|pod| !pod.terminating());
    pods.filter_map(|pod| member(pod).filter(|m| runs(m, pod)))
        .map(|m| m.group.as_str())
        .collect()
}

/// True if a restart has waited for its new pods for as long as a gang that has never run may try.
fn is_restarting_too_long(facts: &Facts<'_>, entry: &DomainLedger) -> bool {
    let limit = facts.spec().failure_policy.start_deadline_seconds;
    let longest = TimeDelta::seconds(limit.saturating_mul(i64::from(START_TRIES)));
    let incident = entry.incident.as_ref();
    incident.is_some_and(|i| i.detected_at + longest <= facts.now)
}

/// What a kubelet sees at the moment and the scheduler does not will soon be seen by both; then the
/// node is not avoided for long.
fn avoidance(facts: &Facts<'_>, reason: &str) -> Avoidance {
    let settings = facts.view.settings();
    let wait = if reason == reasons::REJECTED_BY_NODE {
        settings.retry
    } else {
        settings.avoid
    };
    Avoidance {
        reason: reason.into(),
        until: facts.now + wait,
    }
}

/// Members of a domain that their nodes did not start. `alone`: each of them goes elsewhere while the
/// others hold their nodes. Then only some of those that are late go at a time, and the next when they
/// have come up: new pods cost most where there is least to give.
fn start_failures(
    facts: &Facts<'_>,
    scope: &DomainScope<'_>,
    entry: &DomainLedger,
    alone: bool,
    wake: &mut Wake,
) -> Vec<StartFailure> {
    let (mut failed, mut late, mut under_way) = (Vec::new(), Vec::new(), 0);
    for &member in &scope.unfinished {
        match start(facts, scope, entry, member, wake) {
            Start::Begun => {}
            Start::UnderWay => under_way += usize::from(keeps_others(facts, scope, entry, member)),
            Start::Late(failure) => late.push(failure),
            Start::Failed(failure) => failed.push(failure),
        }
    }
    let allowed = if alone {
        late::at_once(scope).saturating_sub(under_way)
    } else {
        late.len()
    };
    failed.extend(late.into_iter().take(allowed));
    failed
}

/// Whether those that are late stay until this one has come up. Not for one whose pod the API server refuses,
/// for as long as it likes. Members that stand alone start whenever there is capacity for one, so that one of them
/// may always be about to: of these only those count that go elsewhere.
fn keeps_others(
    facts: &Facts<'_>,
    scope: &DomainScope<'_>,
    entry: &DomainLedger,
    member: &Member,
) -> bool {
    let refusals = facts.refusals(&Target::Pod(member.clone()));
    let refused = facts.current(entry, member).is_none() && !refusals.is_empty();
    let incident = entry.incident.as_ref();
    let goes_elsewhere = incident.is_some_and(|i| i.replace.contains(member));
    !refused && (goes_elsewhere || !scope.gang.basic)
}

/// Since when a kubelet can start the pod: it was bound, or at first when it was made.
fn may_start_since(pod: &PodView) -> DateTime<Utc> {
    let bound = pod.condition("PodScheduled").and_then(|c| c.since);
    bound.map_or(pod.created_at, |at| at.max(pod.created_at))
}

/// Until when a pod may start: its container, or where that runs its supervisor, which is at the barrier
/// when its agent has told so. News that are under way are no lateness: while others of its domain come it
/// has all of its time, and longer where nothing is heard of it (docs/decisions/0034).
struct Deadline {
    at: DateTime<Utc>,
    /// So many times `startDeadlineSeconds`.
    deadlines: i32,
}

/// `waits`: its container runs, and has not been heard to come to the barrier. None: its node says nothing.
fn deadline(
    facts: &Facts<'_>,
    scope: &DomainScope<'_>,
    entry: &DomainLedger,
    pod: &PodView,
    waits: bool,
) -> Option<Deadline> {
    let limit = TimeDelta::seconds(facts.spec().failure_policy.start_deadline_seconds);
    let since = may_start_since(pod);
    if !waits {
        return Some(Deadline {
            at: since + limit,
            deadlines: 1,
        });
    }
    let attempt = pod.identity.attempt;
    let members = scope.unfinished.iter().copied();
    let since = since.max(late::last_arrival(facts, entry, members, attempt));
    let patience = late::patience(facts, pod, attempt)?;
    Some(Deadline {
        at: patience.deadline(since, limit),
        deadlines: patience.deadlines,
    })
}

fn start(
    facts: &Facts<'_>,
    scope: &DomainScope<'_>,
    entry: &DomainLedger,
    member: &Member,
    wake: &mut Wake,
) -> Start {
    let pod = facts.current(entry, member);
    let placed = scope.assigned.contains_key(member);
    let Some(pod) = pod.filter(|p| placed && !p.terminating() && !p.gated) else {
        return Start::UnderWay;
    };
    let Some(node) = pod.place() else {
        return Start::UnderWay;
    };
    let attempt = pod.identity.attempt;
    // Arrivals are forgotten in time, releases are not.
    let released = facts.is_released(scope.key(), attempt);
    let held = pod.is_supervised() && !facts.is_at(member, pod, attempt) && !released;
    let trainer = facts.trainer(member, pod);
    let started = trainer.is_some_and(ContainerView::started);
    if pod.phase == PodPhase::Failed && !pod.has_run() {
        let message = format!("{}: {}", pod.reason, pod.message);
        let reason = reasons::REJECTED_BY_NODE;
        return Start::Failed(StartFailure::of_node(member, node, reason, message));
    }
    if let Some(failure) = detect::start_error(facts, member, pod) {
        return Start::Failed(StartFailure {
            fault: Fault::of_program(&failure.cause.message),
            ..StartFailure::of_node(
                member,
                node,
                reasons::START_ERROR,
                format!("cannot be started: {}", describe(&failure.cause)),
            )
        });
    }
    if pod.terminal() || started && !held {
        return Start::Begun;
    }
    if pod.node.is_some() && facts.lost(node) {
        let message = "the node was lost before the pod started".to_owned();
        let reason = reasons::NODE_LOST;
        return Start::Failed(StartFailure::of_node(member, node, reason, message));
    }
    if let Some(problem) = waiting_container(pod).filter(|p| p.is_final) {
        return Start::Failed(StartFailure {
            fault: problem.fault,
            ..StartFailure::of_node(member, node, problem.reason, problem.message)
        });
    }
    let intent = facts.pod_group_status(&scope.gang.key);
    if pod.node.is_none() && intent.is_some_and(|s| s.preemption.is_some()) {
        // Its victims may take as long as they are granted to end; the scheduler watches that.
        return Start::UnderWay;
    }
    let waits = held && trainer.is_some_and(ContainerView::running);
    match deadline(facts, scope, entry, pod, waits) {
        Some(deadline) if facts.due(deadline.at).passed(wake) => Start::Late(not_in_time(
            facts,
            member,
            node,
            pod,
            held,
            deadline.deadlines,
        )),
        Some(_) | None => Start::UnderWay,
    }
}

/// What has not happened within so many deadlines. `held`: it is not released to start. While one of
/// its containers waits, the supervisor is not what is late.
fn not_in_time(
    facts: &Facts<'_>,
    member: &Member,
    node: &str,
    pod: &PodView,
    held: bool,
    deadlines: i32,
) -> StartFailure {
    let limit = facts.spec().failure_policy.start_deadline_seconds;
    let within = span(limit.saturating_mul(i64::from(deadlines)));
    let times = if deadlines == 1 {
        String::new()
    } else {
        format!("{deadlines} times ")
    };
    let within = format!("within {within} ({times}failurePolicy.startDeadlineSeconds)");
    if unbound_since(pod).is_some() {
        let problem = start_problem::not_bound(facts, member);
        return StartFailure {
            fault: problem.fault,
            ..StartFailure::of_node(
                member,
                node,
                problem.reason,
                format!(
                    "no scheduler has bound the pod {within}; {}",
                    problem.message
                ),
            )
        };
    }
    let waiting = waiting_container(pod);
    let what = match (held && waiting.is_none(), deadlines) {
        (false, _) => "containers did not start",
        (true, 1) => "the supervisor did not arrive at the barrier",
        (true, _) => "nothing was heard of the supervisor",
    };
    let late = |reason, why: &str| {
        StartFailure::of_node(member, node, reason, format!("{what} {within}{why}"))
    };
    match waiting {
        Some(problem) if problem.reason != reasons::MEMBERS_NOT_READY => StartFailure {
            fault: problem.fault,
            ..late(problem.reason, &format!(": {}", problem.message))
        },
        Some(problem) => late(
            reasons::START_DEADLINE_EXCEEDED,
            &format!(": {}", problem.message),
        ),
        None => late(reasons::START_DEADLINE_EXCEEDED, ""),
    }
}
