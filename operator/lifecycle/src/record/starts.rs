//! Stage 07: members that did not start.
//!
//! If the node is the cause, the gang avoids the node. Before its first run, the gang releases all
//! nodes. Later, only the member moves.
//!
//! If the template is the cause (image, command, configuration, schedulerName), another node does
//! not help. The gang is placed again, and the third such start in a row fails the workload. If
//! other members do not need this one, it keeps its pod instead, and they continue. Each start has
//! the whole `startDeadlineSeconds`, so a temporary outage of a registry fails no
//! workload.

use std::cell::LazyCell;
use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::reasons;
use lockstep_api::gangs::Gang;
use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;
use lockstep_api::words::span;
use lockstep_api::workload::Cause;

use crate::cause::describe;
use crate::changes::ReleaseReason;
use crate::facts::{Facts, MemberObservation, Standing};
use crate::failure::domain::{DomainScope, continues_without};
use crate::failure::incident::place_elsewhere;
use crate::failure::policy::judges_node;
use crate::failure::{barrier, detect};
use crate::ledger::{Avoidance, DomainLedger, Ledger, Outcome};
use crate::pods::{ContainerView, PodPhase, PodView};
use crate::start_problem::{self, Fault, may_start_since, of_containers, unbound_since};
use crate::view::Target;
use crate::wake::Wake;

/// Consecutive failed starts by fault of the template after which the workload fails.
const START_TRIES: i32 = 3;

/// The same exit code of an init container on so many nodes is a fault of the template.
const JUDGED_NODES: usize = 3;

const NO_SUPERVISOR_REACHED: &str = "; the agents of several nodes have reached no supervisor. If the \
    container runtime hides the supervisor's socket, as sandboxes do, set \
    failurePolicy.inPlace.supervisor to Never";

struct StartFailure {
    member: Member,
    node: String,
    reason: &'static str,
    message: String,
    fault: Fault,
}

impl StartFailure {
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

struct DomainStarts {
    failed: Vec<StartFailure>,
    overdue: Vec<StartFailure>,
    /// Number of overdue members that may move now.
    allowed: usize,
}

enum Start {
    /// The member has started and, if supervised, is at the barrier.
    Begun,
    UnderWay,
    Late(StartFailure),
    Failed(StartFailure),
}

pub(super) fn follow_starts(facts: &Facts<'_>, ledger: &mut Ledger) -> Wake {
    let mut wake = Wake::NEVER;
    for gang in &facts.gangs {
        let started = ledger.gang(&gang.key).is_some_and(|e| e.started);
        let placed = facts.placement(ledger, &gang.key).is_some();
        if ledger.ended.is_none() && started && placed {
            follow_gang(facts, ledger, gang, &mut wake);
        }
    }
    wake
}

fn follow_gang(facts: &Facts<'_>, ledger: &mut Ledger, gang: &Gang, wake: &mut Wake) {
    // Before its first run, a gang releases all of its nodes.
    let alone = gang.basic || ledger.is_under_way(gang);
    let membership = ledger.membership(facts.spec());
    let running = LazyCell::new(|| running_groups(facts));
    let runs = |f: &StartFailure| running.contains(f.member.group.as_str());
    let of_template = |f: &StartFailure| f.fault.is_of_template(runs(f));
    let (mut moving, mut hopeless) = (Vec::new(), Vec::new());
    for domain in &gang.domains {
        let Some(entry) = ledger.domain(&domain.key) else {
            continue;
        };
        let scope = DomainScope::placed(facts, ledger, &membership, gang, domain);
        let starts = start_failures(facts, &scope, entry, alone, wake);
        let too_long = is_restarting_too_long(facts, entry);
        let is_hopeless = |f: &StartFailure| of_template(f) && (!alone || !runs(f) || too_long);
        let judged = judged_alike(facts, ledger, &scope, entry);
        let failed = starts.failed.into_iter().chain(judged);
        let overdue = starts.overdue.into_iter();
        let (of_template, failed) = failed.partition::<Vec<_>, _>(is_hopeless);
        let (of_image, overdue) = overdue.partition::<Vec<_>, _>(is_hopeless);
        hopeless.extend(of_template.into_iter().chain(of_image));
        moving.extend(failed);
        moving.extend(overdue.into_iter().take(starts.allowed));
    }
    let without = hopeless.iter().map(|f| f.member.clone()).collect();
    let continues = hopeless.is_empty() || continues_without(facts, ledger, gang, &without);
    // On any node, a hopeless member fails again. Its kubelet retries.
    let keeps = alone && continues;
    // A lost node needs no avoidance.
    let avoided = |f: &&StartFailure| f.fault.is_of_node(runs(f)) && f.reason != reasons::NODE_LOST;
    let left = hopeless.iter().filter(|_| !keeps);
    for failure in moving.iter().chain(left).filter(avoided) {
        if let Some(node) = NodeName::read(Some(&failure.node)) {
            ledger.avoid_node(&gang.key, node, avoidance(facts, failure.reason));
        }
    }
    if keeps {
        let failures = moving
            .iter()
            .map(|f| detect::start_failure(&f.member, &f.node, f.reason, &f.message, facts.now))
            .collect();
        place_elsewhere(facts, ledger, gang, failures);
    } else if let Some(failure) = hopeless.first().or(moving.first()) {
        let of_template = (!hopeless.is_empty()).then_some(&without);
        release(facts, ledger, gang, failure, of_template);
    }
}

/// `of_template`: members that another node would not help, so the third consecutive failure ends
/// the workload.
fn release(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    gang: &Gang,
    failure: &StartFailure,
    of_template: Option<&BTreeSet<Member>>,
) {
    let reason = failure.reason;
    let message = format!(
        "member {} on node {}: {}",
        failure.member, failure.node, failure.message
    );
    if let (Some(entry), Some(without)) = (ledger.gangs.get_mut(&gang.key), of_template) {
        entry.start_tries = entry.start_tries.saturating_add(1);
        let tries = entry.start_tries;
        if tries >= START_TRIES && !others_are_left(facts, ledger, gang, without) {
            let message = format!("{tries} starts in a row failed; {message}");
            ledger.finish(facts, Outcome::Failed, reason, message);
            return;
        }
    }
    ledger.release_gang(facts, &gang.key, Some(ReleaseReason { reason, message }));
}

/// True if independent members are left to run. The workload fails for a template only without
/// them.
fn others_are_left(
    facts: &Facts<'_>,
    ledger: &Ledger,
    gang: &Gang,
    without: &BTreeSet<Member>,
) -> bool {
    let membership = ledger.membership(facts.spec());
    let fails = |g: &Gang| {
        ledger
            .gang(&g.key)
            .is_some_and(|e| e.start_tries >= START_TRIES)
    };
    let gangs = facts
        .gangs
        .iter()
        .filter(|g| g.key == gang.key || !fails(g));
    gang.basic
        && gangs.flat_map(Gang::members).any(|m| {
            membership.contains(m) && !ledger.completed.contains(m) && !without.contains(m)
        })
}

/// Groups whose template works, because a member runs or has succeeded.
fn running_groups<'a>(facts: &Facts<'a>) -> BTreeSet<&'a str> {
    let member = |pod: &'a PodView| pod.identity.member.as_ref();
    let runs = |member, pod| facts.running(member, pod) || facts.succeeded(member, pod);
    let pods = facts.pods().filter(|pod| !pod.terminating());
    pods.filter_map(|pod| member(pod).filter(|m| runs(m, pod)))
        .map(|m| m.group.as_str())
        .collect()
}

/// True after three start deadlines without new pods.
fn is_restarting_too_long(facts: &Facts<'_>, entry: &DomainLedger) -> bool {
    let limit = facts.spec().failure_policy.start_deadline_seconds;
    let longest = TimeDelta::seconds(limit.saturating_mul(i64::from(START_TRIES)));
    let mut open = entry.open_causes();
    open.any(|(_, detected_at, _)| detected_at + longest <= facts.now)
}

/// The scheduler soon sees the cause of a kubelet's rejection, so the node is avoided briefly.
fn avoidance(facts: &Facts<'_>, reason: &str) -> Avoidance {
    let settings = facts.view.settings();
    let wait = if reason == reasons::REJECTED_BY_NODE {
        settings.retry
    } else {
        settings.avoid
    };
    Avoidance::new(reason, facts.now + wait)
}

/// `alone`: members move individually. Then only a share of the overdue members moves at a time,
/// because new pods load a slow control plane.
fn start_failures(
    facts: &Facts<'_>,
    scope: &DomainScope<'_>,
    entry: &DomainLedger,
    alone: bool,
    wake: &mut Wake,
) -> DomainStarts {
    let (mut failed, mut overdue, mut under_way) = (Vec::new(), Vec::new(), 0);
    for &member in &scope.unfinished {
        if alone && lacks_node(facts, scope, entry, member) {
            let message = "lost its node before its pod had run".to_owned();
            let reason = reasons::UNSCHEDULABLE;
            failed.push(StartFailure::of_node(member, "", reason, message));
            continue;
        }
        match start(facts, scope, entry, member, wake) {
            Start::Begun => {}
            Start::UnderWay => under_way += usize::from(keeps_others(facts, scope, entry, member)),
            Start::Late(failure) => overdue.push(failure),
            Start::Failed(failure) => failed.push(failure),
        }
    }
    let allowed = if alone {
        barrier::at_once(scope).saturating_sub(under_way)
    } else {
        overdue.len()
    };
    DomainStarts {
        failed,
        overdue,
        allowed,
    }
}

/// Members whose init container judged their node, after the same exit code on several other nodes:
/// the template is the cause. The first nodes are left by the rule (stage 08).
fn judged_alike(
    facts: &Facts<'_>,
    ledger: &Ledger,
    scope: &DomainScope<'_>,
    entry: &DomainLedger,
) -> Vec<StartFailure> {
    let avoided = ledger.gang(&scope.gang.key).map(|gang| &gang.avoid);
    let alike = |node: &str, code: Option<i32>| {
        let others = avoided.into_iter().flatten();
        let others = others.filter(|(n, a)| n.as_str() != node && a.exit_code == code);
        code.is_some() && others.count() + 1 >= JUDGED_NODES
    };
    if avoided.is_none_or(|avoid| avoid.values().all(|a| a.exit_code.is_none())) {
        return Vec::new();
    }
    let failures = scope.unfinished.iter().filter_map(|&member| {
        let observed = facts.observe(member, facts.current(entry, member)?);
        let restarts = entry.restart_in_place(member).is_some();
        let exits = observed.exits_beside_training(entry, restarts).into_iter();
        let mut exits = exits.chain(observed.pod_failure());
        let exit = exits.find(|f| judges_node(facts, f))?;
        let Cause {
            node, exit_code, ..
        } = &exit.cause;
        alike(node, *exit_code).then(|| StartFailure {
            fault: Fault::Template,
            ..StartFailure::of_node(
                member,
                node,
                reasons::START_ERROR,
                format!("{}, as on other nodes", describe(&exit.cause)),
            )
        })
    });
    failures.collect()
}

/// True if a member has neither node nor pod, and its domain has not run. The incident limits how
/// long the other domains keep their nodes for it.
fn lacks_node(
    facts: &Facts<'_>,
    scope: &DomainScope<'_>,
    entry: &DomainLedger,
    member: &Member,
) -> bool {
    !entry.under_way()
        && !scope.assigned.contains_key(member)
        && facts.current(entry, member).is_none()
}

/// True if overdue members must wait for this one. False if the API server rejects its pod, which
/// can last. Members of Basic groups start at any time, so only moving members count there.
fn keeps_others(
    facts: &Facts<'_>,
    scope: &DomainScope<'_>,
    entry: &DomainLedger,
    member: &Member,
) -> bool {
    let rejections = facts.rejections(&Target::Pod(member.clone()));
    let rejected = facts.current(entry, member).is_none() && !rejections.is_empty();
    !rejected && (entry.replaces(member) || !scope.gang.basic)
}

/// Start deadline of a pod. Reports of arrivals can be delayed, so it counts from the last arrival
/// in the domain, and is longer without reports (docs/decisions/0034).
struct Deadline {
    at: DateTime<Utc>,
    /// Number of `startDeadlineSeconds`.
    deadlines: i32,
}

/// `waits`: the container runs without a known arrival. `None`: the node is not ready.
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
    let since = since.max(barrier::last_arrival(facts, entry, members, attempt));
    let deadline = barrier::arrival_deadline(facts, pod, attempt)?;
    Some(Deadline {
        at: deadline.at(since, limit),
        deadlines: deadline.deadlines,
    })
}

/// True if supervised members run on several nodes with agents, and none has arrived.
fn all_silent(
    facts: &Facts<'_>,
    scope: &DomainScope<'_>,
    entry: &DomainLedger,
    attempt: i64,
) -> bool {
    let members = || scope.unfinished.iter().copied();
    if barrier::last_arrival(facts, entry, members(), attempt) != DateTime::UNIX_EPOCH {
        return false;
    }
    let pods = members().filter_map(|member| {
        let pod = facts.current(entry, member)?;
        let trainer = facts.observe(member, pod).trainer()?;
        (pod.is_supervised() && trainer.running()).then_some(pod)
    });
    let nodes: BTreeSet<&str> = pods.filter_map(|pod| pod.node.as_deref()).collect();
    nodes.len() > 1 && nodes.iter().all(|node| facts.agent(node).is_some())
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
    let observed = facts.observe(member, pod);
    // Arrivals are removed over time, releases are kept.
    let released = facts.is_released(scope.key(), attempt);
    let held = pod.is_supervised() && !observed.is_at(attempt) && !released;
    let trainer = observed.trainer();
    let started = trainer.is_some_and(ContainerView::started);
    if pod.phase == PodPhase::Failed && !pod.has_run() {
        let message = format!("{}: {}", pod.reason, pod.message);
        let reason = reasons::REJECTED_BY_NODE;
        return Start::Failed(StartFailure::of_node(member, node, reason, message));
    }
    if let Some(failure) = observed.start_error() {
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
    if facts.standing(pod) == Standing::Lost {
        let message = "the node was lost before the pod started".to_owned();
        let reason = reasons::NODE_LOST;
        return Start::Failed(StartFailure::of_node(member, node, reason, message));
    }
    if let Some(problem) = of_containers(pod).filter(|p| p.is_final) {
        return Start::Failed(StartFailure {
            fault: problem.fault,
            ..StartFailure::of_node(member, node, problem.reason, problem.message)
        });
    }
    let placement = facts.any_placement(&scope.gang.key);
    if pod.node.is_none() && placement.is_some_and(|p| p.preempting.is_some()) {
        // The scheduler watches the deadline of victims.
        return Start::UnderWay;
    }
    let waits = held && trainer.is_some_and(ContainerView::running);
    match deadline(facts, scope, entry, pod, waits) {
        Some(deadline) if facts.due(deadline.at).passed(wake) => {
            let silent = waits && all_silent(facts, scope, entry, attempt);
            let deadlines = deadline.deadlines;
            Start::Late(not_in_time(&observed, node, held, deadlines, silent))
        }
        Some(_) | None => Start::UnderWay,
    }
}

/// `held`: the member is not released. The message then names the waiting container instead of the
/// supervisor. `silent`: as [`all_silent`].
fn not_in_time(
    observed: &MemberObservation<'_>,
    node: &str,
    held: bool,
    deadlines: i32,
    silent: bool,
) -> StartFailure {
    let (facts, member, pod) = (observed.facts, observed.member, observed.pod);
    let limit = facts.spec().failure_policy.start_deadline_seconds;
    let within = span(limit.saturating_mul(i64::from(deadlines)));
    let times = if deadlines == 1 {
        String::new()
    } else {
        format!("{deadlines} times ")
    };
    let within = format!("within {within} ({times}failurePolicy.startDeadlineSeconds)");
    if unbound_since(pod).is_some() {
        let problem = start_problem::not_bound(facts, member, pod);
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
    let waiting = of_containers(pod);
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
        None if silent => late(reasons::START_DEADLINE_EXCEEDED, NO_SUPERVISOR_REACHED),
        None => late(reasons::START_DEADLINE_EXCEEDED, ""),
    }
}
