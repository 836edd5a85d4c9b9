use std::collections::BTreeMap;

use lockstep_api::Reach;
use lockstep_api::condition::{Condition, find, is_true, reasons, types, upsert};
use lockstep_api::ids::{DomainKey, NodeName};
use lockstep_api::member::Member;
use lockstep_api::words::count;
use lockstep_api::workload::{FailureAction, TrainingWorkloadStatus};

use super::admission::{Admission, partial_gangs};
use super::checkpoint::checkpoint_requested;
use super::counts::Counts;
use super::node_leaving::node_leaving;
use super::notes;
use super::supervision::restarts_in_place;
use super::value::{ConditionValue, condition};
use crate::facts::Facts;
use crate::ledger::{DomainLedger, End, Ledger, OpenIncident, Outcome};
use crate::messages::{Restarts, avoided_nodes};
use crate::objects::hash::spec_hash;
use crate::start_problem;
use crate::view::{Priority, RejectionKind, Target};
use crate::wake::Wake;
use crate::zones::OUTAGE_PERCENT;

/// All conditions in a fixed order, without the terminal conditions, which belong to the ledger.
pub(super) fn all(
    facts: &Facts<'_>,
    ledger: &Ledger,
    groups: &BTreeMap<String, Counts>,
    ready_count: &str,
    before: &TrainingWorkloadStatus,
    wake: &mut Wake,
) -> Vec<Condition> {
    let mut out = before.conditions.clone();
    let over = facts.spec().suspend || ledger.ended.is_some();
    out.retain(|c| {
        let terminal = [Outcome::Complete, Outcome::Failed].map(Outcome::condition);
        let awaited = !over || c.type_ != types::READY;
        awaited && !terminal.contains(&c.type_.as_str())
    });
    if let Some(end) = &ledger.ended {
        out.retain(|c| c.type_ != types::PODS_NOT_MATCHING_PRIORITY);
        end_all(facts, &mut out, end);
        return out;
    }
    let stalled = stalled(facts, ledger, before, wake);
    let waits = stalled.status.then(|| stalled.reason.clone());
    put(facts, &mut out, types::STALLED, stalled);
    let admission = Admission { facts, ledger };
    put(facts, &mut out, types::ADMITTED, admission.condition(wake));
    let disrupted = disrupted(facts, ledger);
    let mut done = over;
    if !over {
        let ready = ready(facts, ledger, groups, ready_count, wake);
        done |= ready.status && !disrupted.status;
        put(facts, &mut out, types::READY, ready);
    }
    let reconciling = failed_request(facts, wake)
        .filter(|_| waits.is_none())
        .unwrap_or_else(|| reconciling(done, waits.as_deref()));
    put(facts, &mut out, types::RECONCILING, reconciling);
    put(
        facts,
        &mut out,
        types::RESTARTING,
        restarting(facts, ledger),
    );
    put(facts, &mut out, types::DISRUPTION_TARGET, disrupted);
    put(facts, &mut out, types::SUSPENDED, suspended(facts, ledger));
    let in_place = restarts_in_place(facts, ledger, wake);
    put(facts, &mut out, types::RESTARTS_IN_PLACE, in_place);
    if let Some(requested) = checkpoint_requested(facts, ledger) {
        put(facts, &mut out, types::CHECKPOINT_REQUESTED, requested);
    }
    match node_leaving(facts, ledger, wake) {
        Some(leaving) => put(facts, &mut out, types::NODE_LEAVING, leaving),
        None => out.retain(|c| c.type_ != types::NODE_LEAVING),
    }
    let agree = || condition(false, reasons::PRIORITY_MATCHES, "");
    let was_reported = find(&out, types::PODS_NOT_MATCHING_PRIORITY).is_some();
    let priorities = notes::priorities(facts, ledger).or_else(|| was_reported.then(agree));
    if let Some(priorities) = priorities {
        put(
            facts,
            &mut out,
            types::PODS_NOT_MATCHING_PRIORITY,
            priorities,
        );
    }
    out
}

fn put(facts: &Facts<'_>, conditions: &mut Vec<Condition>, type_: &str, value: ConditionValue) {
    let condition = Condition {
        type_: type_.to_owned(),
        status: value.status.into(),
        reason: value.reason,
        message: value.message,
        last_transition_time: facts.now,
        observed_generation: facts.view.generation(),
    };
    upsert(conditions, condition);
}

/// A failed workload does not recover by itself.
fn end_all(facts: &Facts<'_>, conditions: &mut Vec<Condition>, end: &End) {
    let failed = end.outcome == Outcome::Failed;
    let over = [
        types::RESTARTS_IN_PLACE,
        types::CHECKPOINT_REQUESTED,
        types::NODE_LEAVING,
    ];
    conditions.retain(|c| !over.contains(&c.type_.as_str()));
    for (type_, value) in [
        (types::STALLED, condition(failed, &end.reason, &end.message)),
        (
            types::ADMITTED,
            condition(
                false,
                &end.reason,
                "the workload has ended and its nodes are released",
            ),
        ),
        (types::RECONCILING, after_the_end(end)),
        (
            types::RESTARTING,
            condition(false, reasons::NOT_RESTARTING, ""),
        ),
        (
            types::DISRUPTION_TARGET,
            condition(false, reasons::NOT_PREEMPTED, ""),
        ),
    ] {
        put(facts, conditions, type_, value);
    }
}

/// Reason `Reconciled` would claim that a failed workload is in its desired state.
fn after_the_end(end: &End) -> ConditionValue {
    match end.outcome {
        Outcome::Complete => reconciling(true, None),
        Outcome::Failed => condition(
            false,
            &end.reason,
            "a failed workload is not reconciled any more; see condition Failed",
        ),
    }
}

/// `stalled`: the reason why only a change of other objects allows progress.
fn reconciling(done: bool, stalled: Option<&str>) -> ConditionValue {
    match stalled {
        Some(reason) => condition(
            false,
            reason,
            "not reconciled until the spec or what it refers to changes; see condition Stalled",
        ),
        None if done => condition(false, reasons::RECONCILED, ""),
        None => condition(
            true,
            reasons::PROGRESSING,
            "working towards the desired state",
        ),
    }
}

fn failed_request(facts: &Facts<'_>, wake: &mut Wake) -> Option<ConditionValue> {
    let failed = facts.failed(wake)?;
    let message = format!("{}; the request is repeated", failed.message);
    Some(condition(true, reasons::API_SERVER_ERROR, message))
}

fn suspended(facts: &Facts<'_>, ledger: &Ledger) -> ConditionValue {
    if facts.spec().suspend {
        let ending = notes::still_ending(facts).unwrap_or_default();
        let message = format!("spec.suspend is true{ending}");
        condition(true, reasons::SUSPENDED, message)
    } else if let Some(message) = notes::quota_wait(facts, ledger) {
        condition(true, reasons::WAITING_FOR_QUOTA, message)
    } else {
        condition(false, reasons::RESUMED, "spec.suspend is false")
    }
}

fn stalled(
    facts: &Facts<'_>,
    ledger: &Ledger,
    before: &TrainingWorkloadStatus,
    wake: &mut Wake,
) -> ConditionValue {
    let spec = facts.spec();
    let none = condition(false, reasons::PROGRESSING, "");
    if spec.suspend {
        return none;
    }
    if *facts.view.priority() == Priority::ClassMissing && needs_class(ledger) {
        let class = spec.priority_class_name.as_deref().unwrap_or_default();
        let message = format!("spec.priorityClassName: no PriorityClass \"{class}\" exists");
        return condition(true, reasons::INVALID_PRIORITY_CLASS, message);
    }
    let hash = spec_hash(spec);
    if let Some(dry_run) = facts.view.dry_run().filter(|d| d.spec_hash == hash) {
        if let Some(message) = &dry_run.invalid {
            return condition(true, reasons::INVALID_TEMPLATE, message);
        }
    } else if let Some(previous) = find(&before.conditions, types::STALLED)
        && previous.reason == reasons::INVALID_TEMPLATE
        && previous.observed_generation == facts.view.generation()
    {
        // A new leader has no dry-run result yet.
        let status = is_true(&before.conditions, types::STALLED);
        return condition(status, &previous.reason, &previous.message);
    }
    let mut gangs = facts.gangs.iter();
    if let Some(why) = gangs.find_map(|g| facts.native_placement(ledger, g)?.err()) {
        let field = match facts.spec().scheduling.backend {
            Some(_) => "spec.scheduling.backend",
            None => "scheduling.backend",
        };
        let message = format!("{field} is Kubernetes: {why}, or change the backend");
        return condition(true, reasons::NATIVE_GROUPS_UNAVAILABLE, message);
    }
    foreign_object(facts)
        .or_else(|| rejected_object(facts, wake))
        .unwrap_or(none)
}

fn needs_class(ledger: &Ledger) -> bool {
    let awaits_pods = |d: &DomainLedger| {
        let replaces = |i: &OpenIncident| !i.replace.is_empty();
        d.replacement.is_some() || d.incident.as_ref().is_some_and(replaces)
    };
    ledger.applied.is_none() || ledger.domains.values().any(awaits_pods)
}

/// Another owner's object with a name that the workload needs.
fn foreign_object(facts: &Facts<'_>) -> Option<ConditionValue> {
    let view = facts.view;
    let service = view.service().map(|h| h.owned);
    let workload = view.scheduling().map(|h| h.owned || h.orphaned);
    let order = view.order().map(|h| h.owned || h.orphaned);
    for (kind, name, free) in [
        ("Service", view.subdomain(), service),
        ("Workload", view.name(), workload),
        ("RestartOrder", view.name(), order),
    ] {
        if free == Some(false) {
            let advice = advice(RejectionKind::NameTaken);
            let message = format!("{kind} {name} exists and is not owned by this workload{advice}");
            return Some(condition(true, reasons::NAME_CONFLICT, message));
        }
    }
    None
}

fn advice(kind: RejectionKind) -> &'static str {
    match kind {
        RejectionKind::NameTaken => ": delete it, or create this workload under another name",
        RejectionKind::Invalid => {
            "; it follows from name and spec of this workload: change there what the message names"
        }
        RejectionKind::QuotaExceeded | RejectionKind::Forbidden | RejectionKind::Altered => "",
    }
}

fn rejected_object(facts: &Facts<'_>, wake: &mut Wake) -> Option<ConditionValue> {
    let rejection = facts.rejected_object(wake)?;
    let Target::Object(object, name) = &rejection.target else {
        return None;
    };
    let reason = match rejection.kind {
        RejectionKind::NameTaken => reasons::NAME_CONFLICT,
        RejectionKind::QuotaExceeded => reasons::QUOTA_EXCEEDED,
        RejectionKind::Forbidden => reasons::FORBIDDEN,
        RejectionKind::Invalid => reasons::INVALID_OBJECT,
        RejectionKind::Altered => reasons::POD_ALTERED,
    };
    let message = &rejection.message;
    // Most messages already begin with the object.
    let rejected = if message.starts_with(object) {
        message.clone()
    } else {
        format!("{object} {name}: {message}")
    };
    let message = format!("{rejected}{}", advice(rejection.kind));
    Some(condition(true, reason, message))
}

fn ready(
    facts: &Facts<'_>,
    ledger: &Ledger,
    groups: &BTreeMap<String, Counts>,
    ready_count: &str,
    wake: &mut Wake,
) -> ConditionValue {
    let membership = ledger.membership(facts.spec());
    let (mut members, mut missing) = (0, 0);
    for (name, counts) in groups {
        let running = membership.size_of(name);
        members += running;
        missing += running - counts.succeeded - counts.ready;
    }
    if ledger.domains.values().any(DomainLedger::is_restarting) {
        // Running members of the old attempt do not count.
        not_ready(facts, ledger, "a restart is in progress".to_owned(), wake)
    } else if missing <= 0 && members > 0 {
        let message = match partial_gangs(facts, ledger) {
            Some(partial) => format!("all placed members are ready or have succeeded; {partial}"),
            None => "all members are ready or have succeeded".to_owned(),
        };
        condition(true, reasons::ALL_MEMBERS_READY, message)
    } else if groups.values().all(|c| c.created == 0) {
        condition(false, reasons::STARTING, "no pods yet")
    } else {
        let message = format!("{ready_count} members are ready or have succeeded");
        not_ready(facts, ledger, message, wake)
    }
}

fn not_ready(
    facts: &Facts<'_>,
    ledger: &Ledger,
    message: String,
    wake: &mut Wake,
) -> ConditionValue {
    if let Some(outage) = outage(facts, ledger) {
        let message = format!("{message}; {outage}");
        return condition(false, reasons::NODES_NOT_READY, message);
    }
    let placed = facts
        .gangs
        .iter()
        .filter(|gang| facts.placement(ledger, &gang.key).is_some());
    let pods = placed
        .flat_map(|gang| facts.current_pods(ledger, gang))
        .filter_map(|(member, pod)| Some((member, pod?)));
    match start_problem::worst(facts, pods, wake) {
        Some(problem) => {
            let message = format!("{message}; {}", problem.message);
            condition(false, problem.reason, message)
        }
        None => condition(false, reasons::MEMBERS_NOT_READY, message),
    }
}

/// During an outage, members on NotReady nodes do not count as lost.
fn outage(facts: &Facts<'_>, ledger: &Ledger) -> Option<String> {
    let mut pods = facts.gangs.iter().flat_map(|gang| {
        let pods = facts.current_pods(ledger, gang);
        pods.filter_map(|(_, pod)| pod?.node.as_deref())
    });
    let in_outage = |node| facts.node_state(node).reach == Reach::Silent { since: None };
    pods.any(in_outage).then(|| {
        format!(
            "at least {OUTAGE_PERCENT} % of the nodes in the zone are NotReady, so this counts as an outage, and \
             members on NotReady nodes are not replaced"
        )
    })
}

fn restarting(facts: &Facts<'_>, ledger: &Ledger) -> ConditionValue {
    let domains = || ledger.domains.iter();
    let restarts = Restarts {
        spec: facts.spec(),
        gangs: &facts.gangs,
        ledger,
    };
    let incidents = domains().filter_map(|(key, d)| Some((key, d.incident.as_ref()?)));
    let replacements = domains().filter_map(|(key, d)| Some((key, d.replacement.as_ref()?)));
    let (key, mut message, action) =
        if let Some((key, incident)) = incidents.min_by_key(|(_, i)| i.cause.time) {
            let message = restarts.under_way(key.as_str(), incident);
            (key, message, incident.action)
        } else if let Some((key, pods)) = replacements.min_by_key(|(_, r)| r.cause.time) {
            let message = restarts.replacing(key.as_str(), pods);
            (key, message, FailureAction::RestartPod)
        } else {
            let none = || condition(false, reasons::NOT_RESTARTING, "");
            return notes::restarting_whole(facts, ledger).unwrap_or_else(none);
        };
    if let Some(missing) = without_node(facts, ledger, key) {
        message = format!("{message}; {missing}");
    }
    condition(true, action.reason(), message)
}

/// Number of replaced members without a node, and the scheduler's reason.
fn without_node(facts: &Facts<'_>, ledger: &Ledger, key: &DomainKey) -> Option<String> {
    let (gang, domain) = (facts.gang_of(key)?, ledger.domain(key)?);
    let entry = ledger.gang(&gang.key)?;
    let assigned = facts.assigned_nodes(&gang.key);
    let membership = ledger.membership(facts.spec());
    let waits = |m: &&Member| {
        let node = assigned.get(*m).map(NodeName::as_str);
        membership.contains(m)
            && !ledger.completed.contains(*m)
            && !node.is_some_and(|n| facts.usable(entry, n))
            && facts.current(domain, m).is_none()
    };
    let members = facts.domain(key)?.members.iter().filter(waits).count();
    let verb = if members == 1 { "has" } else { "have" };
    let view = facts.gang_view(&gang.key)?;
    let unplaced = view.waiting.as_ref().map(|wait| &wait.message);
    let why = unplaced.or(view.other_members_pending.as_ref());
    let why = why.map_or(String::new(), |why| format!(": {why}"));
    let avoided = avoided_nodes(entry);
    (members > 0).then(|| {
        let members = count(members, "member");
        format!("{members} {verb} no node{why}{avoided}")
    })
}

fn disrupted(facts: &Facts<'_>, ledger: &Ledger) -> ConditionValue {
    for gang in &facts.gangs {
        if ledger.gang(&gang.key).is_some()
            && let Some(message) = facts.preemptor(&gang.key)
        {
            return condition(true, reasons::PREEMPTION_BY_SCHEDULER, message);
        }
    }
    condition(false, reasons::NOT_PREEMPTED, "")
}
