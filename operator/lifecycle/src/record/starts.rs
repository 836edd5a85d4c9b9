//! Stage 07: members that their nodes did not start. The placement was wrong, not the workload.
//! Before a gang first runs it releases everything; later only the member is placed elsewhere,
//! while the others hold their nodes.

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
use crate::ledger::{Avoidance, DomainLedger, Ledger};
use crate::pods::{ContainerState, ContainerView, PodPhase, PodView};
use crate::view::Target;
use crate::wake::Wake;

/// A member that its node cannot start.
struct StartFailure {
    member: Member,
    node: String,
    reason: &'static str,
    message: String,
}

impl StartFailure {
    /// Why this member does not start on the node that it has.
    fn new(member: &Member, node: &str, reason: &'static str, message: String) -> Self {
        Self {
            member: member.clone(),
            node: node.to_owned(),
            reason,
            message,
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
        if facts.placement(ledger, &gang.key).is_some() {
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
    for domain in &gang.domains {
        if let Some(entry) = ledger.domain(&domain.key) {
            let scope = DomainScope::placed(facts, ledger, &membership, gang, domain);
            failures.extend(start_failures(facts, &scope, entry, alone, wake));
        }
    }
    let Some(first) = failures.first() else {
        return;
    };
    for failure in &failures {
        if let Some(node) = NodeName::read(Some(&failure.node)) {
            ledger.avoid_node(&gang.key, node, avoidance(facts, failure.reason));
        }
    }
    if alone {
        let failures = failures
            .iter()
            .map(|f| detect::start_failure(&f.member, &f.node, f.reason, &f.message, facts.now))
            .collect();
        requested::place_elsewhere(facts, ledger, gang, failures);
    } else {
        let message = format!(
            "member {} on node {}: {}",
            first.member, first.node, first.message
        );
        let reason = first.reason;
        ledger.release_gang(facts, &gang.key, Some(ReleaseReason { reason, message }));
    }
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

/// The container that keeps the pod from starting, with the kubelet's reason. While an init container
/// waits the others say `PodInitializing`, which is the reason of nothing.
fn waiting_container(pod: &PodView) -> Option<String> {
    let mut waiting = pod
        .containers
        .iter()
        .filter_map(|(name, c)| match &c.state {
            ContainerState::Waiting { reason, .. } if !reason.is_empty() => Some((name, reason)),
            _ => None,
        });
    let (name, reason) = waiting.find(|(_, reason)| *reason != "PodInitializing")?;
    Some(format!(": container {name} waits: {reason}"))
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
        return Start::Failed(StartFailure::new(member, node, reason, message));
    }
    if let Some(failure) = detect::start_error(facts, member, pod) {
        let message = format!("cannot be started: {}", describe(&failure.cause));
        let reason = reasons::START_ERROR;
        return Start::Failed(StartFailure::new(member, node, reason, message));
    }
    if pod.terminal() || started && !held {
        return Start::Begun;
    }
    if pod.node.is_some() && facts.lost(node) {
        let message = "the node was lost before the pod started".to_owned();
        let reason = reasons::NODE_LOST;
        return Start::Failed(StartFailure::new(member, node, reason, message));
    }
    let intent = facts.pod_group_status(&scope.gang.key);
    if pod.node.is_none() && intent.is_some_and(|s| s.preemption.is_some()) {
        // Its victims may take as long as they are granted to end; the scheduler watches that.
        return Start::UnderWay;
    }
    let runs = trainer.is_some_and(ContainerView::running);
    match deadline(facts, scope, entry, pod, held && runs) {
        Some(deadline) if facts.due(deadline.at).passed(wake) => {
            let message = not_in_time(facts, pod, held, deadline.deadlines);
            let reason = reasons::START_DEADLINE_EXCEEDED;
            Start::Late(StartFailure::new(member, node, reason, message))
        }
        Some(_) | None => Start::UnderWay,
    }
}

/// What has not happened within so many deadlines.
fn not_in_time(facts: &Facts<'_>, pod: &PodView, held: bool, deadlines: i32) -> String {
    let limit = facts.spec().failure_policy.start_deadline_seconds;
    let within = span(limit.saturating_mul(i64::from(deadlines)));
    let waits = waiting_container(pod).unwrap_or_default();
    let what = match (held, deadlines) {
        (false, _) => "containers did not start",
        (true, 1) => "the supervisor did not come to the barrier",
        (true, _) => "nothing was heard of the supervisor",
    };
    let times = if deadlines == 1 {
        String::new()
    } else {
        format!("{deadlines} times ")
    };
    format!("{what} within {within} ({times}failurePolicy.startDeadlineSeconds){waits}")
}
