//! Opens, extends and supersedes incidents.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use chrono::TimeDelta;
use lockstep_api::condition::reasons;
use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;
use lockstep_api::words::{count, span};
use lockstep_api::workload::{Cause, CauseKind, FailureAction, IncidentStage};

use super::members::restarts_in_place;
use super::policy::Failure;
use super::refund::take_back;
use super::respond::{Response, began, respond};
use super::scope::{Consequence, DomainScope};
use crate::cause::describe;
use crate::changes::Tries;
use crate::facts::Facts;
use crate::ledger::{Avoidance, DomainLedger, Ledger, OpenIncident};
use crate::meeting::{has_peers, may_keep_pods};
use crate::settings::doubling;
use crate::tier::Tier;

/// First and longest wait of the kubelet's back-off.
const KUBELET_BACKOFF: (TimeDelta, TimeDelta) = (TimeDelta::seconds(10), TimeDelta::minutes(5));

/// Domains that lose the same node within this time are charged once.
const ONE_LOSS: TimeDelta = TimeDelta::seconds(30);

/// After this many consecutive uncounted restarts, the failed member moves to another node.
const UNCOUNTED_TRIES: i32 = 2;

struct Superseded {
    /// Already in the history.
    incident: Option<OpenIncident>,
    /// Members without the new pod that it owes them.
    owed: Vec<Member>,
    tries: Tries,
}

/// Returns a consequence instead if more than a restart is needed.
pub(crate) fn open(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    scope: &DomainScope<'_>,
    response: Response,
) -> Option<Consequence> {
    let superseded = supersede(facts, ledger, scope);
    match charge(facts, ledger, &response, &superseded) {
        ControlFlow::Break(consequence) => {
            ledger.record_interruption(facts, scope.key(), &response.cause, response.action);
            Some(consequence)
        }
        ControlFlow::Continue(charged) => {
            begin(facts, ledger, scope, response, superseded, charged);
            None
        }
    }
}

/// Opens an incident without a failure or a charge.
pub(crate) fn open_uncounted(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    scope: &DomainScope<'_>,
    action: FailureAction,
    cause: Cause,
    replace: BTreeSet<Member>,
) {
    let response = Response {
        action,
        cause,
        counted: false,
        failed: None,
        replace,
        avoid: Vec::new(),
    };
    let superseded = supersede(facts, ledger, scope);
    begin(facts, ledger, scope, response, superseded, false);
}

fn supersede(facts: &Facts<'_>, ledger: &mut Ledger, scope: &DomainScope<'_>) -> Superseded {
    let domain = ledger.domain(scope.key());
    let owed = domain.map_or(Vec::new(), |d| owed(facts, scope, d));
    let tries = domain.map_or(Tries::default(), |d| consecutive_tries(facts, d));
    Superseded {
        incident: ledger.close_incident(facts, scope.key(), false),
        owed,
        tries,
    }
}

/// Resets after `healthyReset` without incident.
fn consecutive_tries(facts: &Facts<'_>, domain: &DomainLedger) -> Tries {
    let reset = facts.view.settings().healthy_reset;
    let healthy = domain
        .healthy_since
        .is_some_and(|since| since + reset <= facts.now);
    if healthy {
        return Tries::default();
    }
    Tries {
        counted: domain.tries,
        uncounted: domain.uncounted_tries,
    }
}

/// Members that the open incident replaces and that have no new pod yet. The superseding incident
/// must replace them.
fn owed(facts: &Facts<'_>, scope: &DomainScope<'_>, domain: &DomainLedger) -> Vec<Member> {
    let Some(incident) = domain.domain_incident() else {
        return Vec::new();
    };
    let mut out = Vec::new();
    for &member in &scope.all {
        if incident.replace.contains(member) && facts.current(domain, member).is_none() {
            out.push(member.clone());
        }
    }
    out
}

/// Returns whether a unit was used, or the consequence that replaces the incident.
fn charge(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    response: &Response,
    superseded: &Superseded,
) -> ControlFlow<Consequence, bool> {
    let policy = &facts.spec().failure_policy;
    let cause = describe(&response.cause);
    if response.action.ends_workload() {
        return ControlFlow::Break(Consequence::FailWorkload(reasons::FAILURE_POLICY, cause));
    }
    // Until all members have recovered from a charged incident, further failures are free
    // (docs/decisions/0006).
    let superseded_paid = superseded
        .incident
        .as_ref()
        .is_some_and(|i| i.counted && !i.affects_single_pods());
    let paid = superseded_paid || has_paid_for_node(facts, ledger, &response.cause);
    let charged = response.counted && !paid;
    if charged && !ledger.budget.charge(&policy.limits, facts.now) {
        return ControlFlow::Break(over_budget(facts, ledger, &response.cause));
    }
    let most = policy.in_place.max_tries + facts.view.settings().recreate_tries;
    let tries = superseded.tries.counted;
    if response.counted && !response.action.affects_single_pod() && tries >= most {
        let message = format!("{tries} consecutive restarts failed; {cause}");
        return ControlFlow::Break(Consequence::ReleaseGang(
            reasons::RESTARTS_EXHAUSTED,
            message,
        ));
    }
    ControlFlow::Continue(charged)
}

/// True if the loss of this node was recently charged to another domain.
fn has_paid_for_node(facts: &Facts<'_>, ledger: &Ledger, cause: &Cause) -> bool {
    let same = |other: &Cause| other.kind == CauseKind::NodeLost && other.node == cause.node;
    let open = ledger
        .domains
        .values()
        .filter_map(|d| d.incident.as_ref())
        .filter(|i| i.counted && same(&i.cause))
        .map(|i| i.detected_at);
    let closed = ledger
        .history
        .iter()
        .filter(|h| h.counted && same(&h.cause))
        .map(|h| h.time);
    cause.kind == CauseKind::NodeLost && open.chain(closed).any(|at| facts.now - at <= ONE_LOSS)
}

fn begin(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    scope: &DomainScope<'_>,
    response: Response,
    superseded: Superseded,
    charged: bool,
) {
    let Some(domain) = ledger.domain(scope.key()) else {
        return;
    };
    let Superseded {
        incident: before,
        owed,
        tries,
    } = superseded;
    let action = escalate(facts, scope, domain, response.action, tries.all());
    let mut replace = response.replace;
    replace.extend(owed);
    for &member in &scope.all {
        if gets_new_pod(facts, domain, action, member) {
            replace.insert(member.clone());
        }
    }
    // Requests and failed starts are no failures of the program.
    let repeats = !response.counted && response.failed.is_some() && repeats(&response.cause);
    let mut after = tries;
    let wait = if response.counted {
        after.counted = tries.counted.saturating_add(1);
        tries.counted
    } else if repeats {
        after.uncounted = tries.uncounted.saturating_add(1);
        tries.uncounted
    } else {
        0
    };
    let mut incident = build(facts, domain, &response.cause, action, wait);
    if action.raises_attempt() {
        // Attempts never decrease, even if another client has changed the order.
        let ordered = facts.order(scope.key()).map_or(0, |o| o.attempt);
        incident.attempt = domain.attempt.max(ordered).saturating_add(1);
    }
    incident.counted = charged;
    let mut avoid = response.avoid;
    if repeats && tries.uncounted >= UNCOUNTED_TRIES {
        // On the same node, this sequence of uncounted restarts would never end.
        replace.extend(response.failed);
        avoid.extend(node_of(facts, &response.cause));
    }
    if let Some(before) = before
        && before.affects_single_pods()
        && action.affects_single_pod()
    {
        // Concurrent replacements of single pods share one incident.
        replace.extend(before.replace);
        incident.old_pods = before.old_pods;
    }
    incident.replace_members(facts, replace);
    for (node, avoidance) in avoid {
        ledger.avoid_node(&scope.gang.key, node, avoidance);
    }
    ledger.open_incident(scope.key(), incident, after);
    if action.replaces_pods() {
        ledger.note_recreation(scope.key());
    }
    if action.raises_attempt() {
        let members = scope.all.iter().copied();
        ledger.forget_unfinished(facts.spec(), scope.gang, scope.domain, members);
    }
}

/// True if the restart itself may repeat an uncounted cause. Drains, lost nodes and requests are
/// external. So are deletions without a reason, but back-off must limit clients that delete pods
/// repeatedly.
fn repeats(cause: &Cause) -> bool {
    match cause.kind {
        CauseKind::ContainerExit | CauseKind::PodFailed | CauseKind::Hang => true,
        CauseKind::PodDeleted => cause.reason.is_empty(),
        CauseKind::NodeLost | CauseKind::Preempted | CauseKind::Requested | CauseKind::Resize => {
            false
        }
    }
}

fn node_of(facts: &Facts<'_>, cause: &Cause) -> Option<(NodeName, Avoidance)> {
    let avoidance = Avoidance {
        reason: reasons::FAILED_MEMBER.into(),
        until: facts.now + facts.view.settings().avoid,
    };
    Some((NodeName::read(Some(&cause.node))?, avoidance))
}

/// True if the action alone requires a new pod for this member.
fn gets_new_pod(
    facts: &Facts<'_>,
    domain: &DomainLedger,
    action: FailureAction,
    member: &Member,
) -> bool {
    if action.replaces_pods() {
        return true;
    }
    let stays = facts
        .current(domain, member)
        .is_some_and(|p| restarts_in_place(facts, member, p));
    action.raises_attempt() && !stays
}

/// `tries`: consecutive restarts, which determine the back-off.
fn build(
    facts: &Facts<'_>,
    domain: &DomainLedger,
    cause: &Cause,
    action: FailureAction,
    tries: i32,
) -> OpenIncident {
    let settings = facts.view.settings();
    let wait = doubling(
        settings.incident_backoff,
        settings.incident_backoff_max,
        tries,
    );
    OpenIncident {
        attempt: domain.attempt,
        cause: cause.clone(),
        action,
        counted: false,
        stage: IncidentStage::Decided,
        replace: BTreeSet::new().into_iter().collect(),
        old_pods: BTreeSet::new(),
        not_before: (!wait.is_zero()).then(|| facts.now + wait),
        detected_at: facts.now,
        decided_at: facts.now,
        ordered_at: None,
        arrived_at: None,
    }
}

/// Replaces a restart in place by new pods in three cases. The policy requires a barrier and the
/// pods have none. The in-place tries are used up. The kubelet's back-off, which also doubles,
/// would take longer than a new pod.
fn escalate(
    facts: &Facts<'_>,
    scope: &DomainScope<'_>,
    domain: &DomainLedger,
    action: FailureAction,
    tries: i32,
) -> FailureAction {
    let in_place = &facts.spec().failure_policy.in_place;
    let tiers = tiers(facts, scope, domain);
    let has_barrier = !tiers.is_empty() && tiers.iter().all(|t| t.is_some_and(Tier::has_barrier));
    let denied = !may_keep_pods(in_place, has_peers(scope.domain), has_barrier);
    let (first, longest) = KUBELET_BACKOFF;
    let held_back = doubling(first, longest, tries) > facts.view.settings().recreate_takes;
    let slow = held_back && tiers.iter().any(|t| t.is_none_or(Tier::kubelet_backs_off));
    if denied || tries >= in_place.max_tries || slow {
        action.with_new_pods()
    } else {
        action
    }
}

/// Restart tiers of the pods of unfinished members. `None`: unknown.
fn tiers(facts: &Facts<'_>, scope: &DomainScope<'_>, domain: &DomainLedger) -> Vec<Option<Tier>> {
    scope
        .unfinished
        .iter()
        .filter_map(|m| Some(facts.current(domain, m)?.identity.tier))
        .collect()
}

/// Adds failures of the ended attempt to the open incident.
pub(crate) fn join(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    scope: &DomainScope<'_>,
    failures: &[Failure],
) -> Option<Consequence> {
    let response = respond(facts, failures)?;
    let mut incident = ledger.incident(scope.key())?.clone();
    if response.action.ends_workload() {
        return Some(Consequence::FailWorkload(
            reasons::FAILURE_POLICY,
            describe(&response.cause),
        ));
    }
    let mut consequence = None;
    if is_better_cause(facts, &incident, &response.cause) {
        incident.cause = response.cause;
        if incident.counted && !response.counted {
            // The earlier, uncounted cause led to the charged failure.
            take_back(ledger, scope.key(), &mut incident);
        }
        if response.counted && !incident.counted && !ledger.follows_charged(scope.key(), &incident)
        {
            incident.counted = true;
            let limits = &facts.spec().failure_policy.limits;
            if !ledger.budget.charge(limits, facts.now) {
                consequence = Some(over_budget(facts, ledger, &incident.cause));
            }
        }
    }
    for (node, avoidance) in response.avoid {
        ledger.avoid_node(&scope.gang.key, node, avoidance);
    }
    let mut members = response.replace;
    let action = incident.action.or_more_severe(response.action);
    let escalates = action.replaces_pods() && !incident.action.replaces_pods();
    incident.action = action;
    if escalates {
        // Members with new pods get new pods again, because the coordinator's address changes.
        ledger.note_recreation(scope.key());
        members.extend(scope.unfinished.iter().map(|m| (*m).clone()));
    } else {
        members.retain(|m| !incident.replace.contains(m));
    }
    incident.replace_members(facts, members);
    if let Some(domain) = ledger.domains.get_mut(scope.key()) {
        domain.incident = Some(incident);
    }
    consequence
}

/// True if a later known cause replaces the cause of the incident.
fn is_better_cause(facts: &Facts<'_>, incident: &OpenIncident, cause: &Cause) -> bool {
    // Members may fail because their peers restart on request.
    if incident.cause.kind.is_requested() {
        return false;
    }
    // Pod status may have shown a masked exit code.
    let same = (&cause.pod, cause.kind) == (&incident.cause.pod, incident.cause.kind);
    let corrected = same && cause.exit_code != incident.cause.exit_code;
    let detected = incident.detected_at;
    corrected
        || began(facts, cause, detected, facts.now)
            < began(facts, &incident.cause, detected, detected)
}

pub(crate) fn over_budget(facts: &Facts<'_>, ledger: &Ledger, cause: &Cause) -> Consequence {
    let limits = &facts.spec().failure_policy.limits;
    let failures = ledger.budget.used(limits, facts.now) + 1;
    let message = format!(
        "restart limit reached: {} within {} (failurePolicy.limits.maxRestarts is {}); {}",
        count(failures, "counted failure"),
        span(limits.window_seconds),
        limits.max_restarts,
        describe(cause)
    );
    Consequence::FailWorkload(reasons::RESTART_LIMIT_EXCEEDED, message)
}
