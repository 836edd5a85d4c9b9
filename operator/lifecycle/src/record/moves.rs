//! Stage 00, second part: moves of gangs away from nodes with signals.
//!
//! A move is requested when it is due, and collects the nodes of all signals until the gang is
//! stopped. Once the scheduler has nodes and the members have replied to a request for a checkpoint,
//! one uncounted incident per restart domain gives new pods to the members on these nodes. A signal
//! causes one move of a gang. If the gang stays, it stays until the signal ends.
//!
//! A restart for another reason leaves Suspect nodes and all nodes that end soon, if the scheduler
//! has free nodes before its barrier opens. The restart does not wait for that.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::SignalLevel;
use lockstep_api::condition::reasons;
use lockstep_api::gangs::{Domain, Gang};
use lockstep_api::ids::NodeName;
use lockstep_api::member::Member;
use lockstep_api::workload::{
    Cause, CauseKind, CheckpointOutcome, FailureAction, GangMove, IncidentStage, MoveOutcome,
    NodeToLeave,
};

use crate::checkpoints::occasion_id;
use crate::facts::Facts;
use crate::failure::domain::{DomainPass, DomainScope};
use crate::ledger::{Avoidance, DomainLedger, Ledger};
use crate::messages::nodes_to_leave;
use crate::moves::{
    Departure, departures, departures_from, members_to_move, occasion, permitted, severe, stands,
    time_to_leave,
};
use crate::wake::Wake;

/// Most nodes of one move.
const MOST_NODES: usize = 64;
/// Most nodes, and most settled signals, of all gangs of a workload. They are part of its status.
const MOST_OF_WORKLOAD: usize = 128;
/// The scheduler counts the nodes that gangs have left for faults within this time.
const REMEMBERED: TimeDelta = TimeDelta::hours(1);

pub(super) fn follow_moves(facts: &Facts<'_>, ledger: &mut Ledger) -> Wake {
    let mut wake = Wake::NEVER;
    for gang in &facts.gangs {
        let Some(entry) = ledger.gang(&gang.key) else {
            continue;
        };
        let before = entry.moving.clone();
        let departures = departures(facts, ledger, gang, &mut wake);
        let after = match before {
            Some(open) if open.awaits_restart() => follow_restart(facts, ledger, gang, open),
            Some(open) if open.is_open() => {
                Some(follow_open(facts, ledger, gang, open, &departures))
            }
            last => next_move(facts, ledger, gang, last, &departures, &mut wake),
        };
        if let Some(entry) = ledger.gangs.get_mut(&gang.key) {
            entry.moving = after;
        }
    }
    wake
}

/// A new move if one is due, otherwise the last one while it counts.
fn next_move(
    facts: &Facts<'_>,
    ledger: &Ledger,
    gang: &Gang,
    mut last: Option<GangMove>,
    departures: &[Departure<'_>],
    wake: &mut Wake,
) -> Option<GangMove> {
    if let Some(last) = &mut last {
        last.settled.retain(|s| stands(facts, &s.node, &s.signal));
    }
    let left = to_leave(facts, last.as_ref(), departures);
    let mut is_due = false;
    for departure in &left {
        is_due |= facts.due(departure.due).passed(wake);
    }
    if is_due && may_stop_for_moves(facts, ledger, gang) && runs(facts, ledger, gang) {
        let mut moving = requested(facts, last.as_ref(), false);
        set_nodes(facts, ledger, gang, &mut moving, left);
        if !moving.nodes.is_empty() {
            return Some(moving);
        }
    }
    last.filter(|last| {
        let moved = last.outcome == Some(MoveOutcome::Moved);
        let counts = moved && last.reason == CauseKind::NodeFaulty;
        let until = last.ended_at.filter(|_| counts).map(|at| at + REMEMBERED);
        !last.settled.is_empty() || until.is_some_and(|at| !facts.due(at).passed(wake))
    })
}

fn requested(facts: &Facts<'_>, last: Option<&GangMove>, with_restart: bool) -> GangMove {
    GangMove {
        id: facts.now.timestamp_millis().to_string(),
        reason: CauseKind::NodeLeaving,
        nodes: Vec::new(),
        settled: last.map_or(Vec::new(), |m| m.settled.clone()),
        with_restart,
        requested_at: facts.now,
        begin_by: None,
        began_at: None,
        outcome: None,
        ended_at: None,
    }
}

/// Seeks nodes for gangs that restart and could leave nodes with signals in that restart.
pub(super) fn leave_with_restarts(facts: &Facts<'_>, ledger: &mut Ledger) {
    if facts.nodes_with_signals.is_empty() {
        return;
    }
    for gang in &facts.gangs {
        let last = ledger.gang(&gang.key).and_then(|e| e.moving.clone());
        if last.as_ref().is_some_and(GangMove::is_open) {
            continue;
        }
        let mut moving = requested(facts, last.as_ref(), true);
        let left = left_with_restart(facts, ledger, gang, &moving);
        set_nodes(facts, ledger, gang, &mut moving, left.iter().collect());
        if let Some(entry) = ledger.gangs.get_mut(&gang.key)
            && !moving.nodes.is_empty()
        {
            entry.moving = Some(moving);
        }
    }
}

/// The nodes that the restart in progress can leave: only members that restart are on them.
fn left_with_restart<'f>(
    facts: &'f Facts<'_>,
    ledger: &Ledger,
    gang: &'f Gang,
    moving: &GangMove,
) -> Vec<Departure<'f>> {
    let (restart, others): (Vec<&Domain>, Vec<&Domain>) =
        (gang.domains.iter()).partition(|domain| joins(facts, ledger, gang, domain));
    if restart.is_empty() || !may_stop_for_moves(facts, ledger, gang) {
        return Vec::new();
    }
    let assigned = facts.assigned_nodes(&gang.key);
    let others = others.into_iter().flat_map(|d| &d.members);
    let occupied: BTreeSet<&str> = others
        .filter_map(|m| Some(assigned.get(m)?.as_str()))
        .collect();
    let all = departures_from(facts, ledger, gang, SignalLevel::Suspect);
    let free = |d: &Departure<'_>| leaves(facts, Some(moving), d) && !occupied.contains(d.node);
    all.into_iter().filter(free).collect()
}

/// A move that waits for nodes while the gang restarts ends without a trace when the barrier opens.
fn follow_restart(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    gang: &Gang,
    mut moving: GangMove,
) -> Option<GangMove> {
    let left = left_with_restart(facts, ledger, gang, &moving);
    set_nodes(facts, ledger, gang, &mut moving, left.iter().collect());
    if moving.nodes.is_empty() {
        let withdrawn = ended(facts, ledger, gang, moving, MoveOutcome::Withdrawn);
        return (!withdrawn.settled.is_empty()).then_some(withdrawn);
    }
    if permitted(facts, ledger, gang, &moving).is_some() {
        // Not those of the target: since then, a barrier may have opened, or a signal ended.
        let members = members_to_move(facts, ledger, gang, &moving);
        for domain in &gang.domains {
            join(facts, ledger, domain, &members);
        }
        leave_nodes(facts, ledger, gang, &moving);
        moving.began_at = Some(facts.now);
    }
    Some(moving)
}

/// The nodes that one restart leaves.
fn to_leave<'d, 'f>(
    facts: &Facts<'_>,
    moving: Option<&GangMove>,
    departures: &'d [Departure<'f>],
) -> Vec<&'d Departure<'f>> {
    let each = departures.iter();
    each.filter(|d| leaves(facts, moving, d)).collect()
}

fn leaves(facts: &Facts<'_>, moving: Option<&GangMove>, d: &Departure<'_>) -> bool {
    d.acts() && d.is_near(facts) && !d.stays() && !d.is_settled(moving)
}

/// True if no preemption or suspension is about to stop the gang.
fn may_stop_for_moves(facts: &Facts<'_>, ledger: &Ledger, gang: &Gang) -> bool {
    let Some(view) = facts.gang_view(&gang.key) else {
        return false;
    };
    let is_preempted = view.preempted_by.is_some() || view.checkpoint_request.is_some();
    !ledger.is_suspended(facts.spec()) && !is_preempted
}

/// True if all restart domains with unfinished members run.
fn runs(facts: &Facts<'_>, ledger: &Ledger, gang: &Gang) -> bool {
    let membership = ledger.membership(facts.spec());
    let is_unfinished = |m: &Member| membership.contains(m) && !ledger.completed.contains(m);
    let mut domains = gang.domains.iter();
    domains.all(|domain| {
        let entry = ledger.domain_or_empty(&domain.key);
        let healthy = entry.healthy_since.is_some() && !entry.is_restarting();
        healthy || !domain.members.iter().any(is_unfinished)
    })
}

/// Sets the most urgent nodes, up to the limits of a status.
fn set_nodes(
    facts: &Facts<'_>,
    ledger: &Ledger,
    gang: &Gang,
    moving: &mut GangMove,
    mut left: Vec<&Departure<'_>>,
) {
    let (others, _) = recorded(ledger, gang);
    left.sort_by_key(|d| {
        let mild = d.kind() != CauseKind::NodeFaulty;
        (mild, d.deadline.is_some(), d.deadline, d.node)
    });
    left.truncate(MOST_NODES.min(MOST_OF_WORKLOAD.saturating_sub(others)));
    let is_faulty = left.iter().any(|d| d.kind() == CauseKind::NodeFaulty);
    moving.reason = if is_faulty {
        CauseKind::NodeFaulty
    } else {
        CauseKind::NodeLeaving
    };
    let nodes = left.iter().map(|d| NodeToLeave {
        node: d.node.to_owned(),
        signal: d.signal.name.clone(),
        deadline: d.deadline,
    });
    moving.nodes = nodes.collect();
    moving.nodes.sort_by(|a, b| a.node.cmp(&b.node));
    let earliest = moving.nodes.iter().filter_map(|n| n.deadline).min();
    // Fixed once the save has begun: its duration is learned from this request.
    let learned = moving.begin_by.filter(|at| *at <= facts.now);
    let by = earliest.map(|at| at - time_to_leave(facts, ledger, gang));
    moving.begin_by = by.min(learned).or(by);
}

/// Nodes and settled signals in the records of the other gangs.
fn recorded(ledger: &Ledger, gang: &Gang) -> (usize, usize) {
    let others = ledger.gangs.iter().filter(|(key, _)| **key != gang.key);
    let moves = others.filter_map(|(_, entry)| entry.moving.as_ref());
    let counts = moves.map(|m| (m.nodes.len(), m.settled.len()));
    counts.fold((0, 0), |(n, s), (nodes, settled)| (n + nodes, s + settled))
}

fn follow_open(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    gang: &Gang,
    mut moving: GangMove,
    departures: &[Departure<'_>],
) -> GangMove {
    if !moving.is_awaited() {
        if facts.placement(ledger, &gang.key).is_none() {
            return ended(facts, ledger, gang, moving, MoveOutcome::Stayed);
        }
        if !runs(facts, ledger, gang) {
            return moving;
        }
        let remain = !members_to_move(facts, ledger, gang, &moving).is_empty();
        let outcome = if remain {
            MoveOutcome::Stayed
        } else {
            MoveOutcome::Moved
        };
        return ended(facts, ledger, gang, moving, outcome);
    }
    let left = to_leave(facts, Some(&moving), departures);
    if left.is_empty() {
        let outcome = without_nodes(facts, ledger, gang, &moving);
        if outcome == MoveOutcome::Moved {
            leave_nodes(facts, ledger, gang, &moving);
        }
        return ended(facts, ledger, gang, moving, outcome);
    }
    let (action, rule) = action(&left);
    set_nodes(facts, ledger, gang, &mut moving, left);
    if let Some(members) = permitted(facts, ledger, gang, &moving)
        && may_stop(facts, ledger, gang, &moving, &members)
    {
        let cause = Cause {
            node: moving
                .nodes
                .first()
                .map_or(String::new(), |n| n.node.clone()),
            rule,
            ..Cause::requested(
                moving.reason,
                facts.now,
                format!("the gang leaves {}", nodes_to_leave(&moving)),
            )
        };
        stop(facts, ledger, gang, &members, (action, &cause));
        leave_nodes(facts, ledger, gang, &moving);
        moving.began_at = Some(facts.now);
    }
    moving
}

/// The outcome of a move that was not begun and has no node left.
fn without_nodes(
    facts: &Facts<'_>,
    ledger: &Ledger,
    gang: &Gang,
    moving: &GangMove,
) -> MoveOutcome {
    let passed = |at: DateTime<Utc>| at <= facts.now;
    let nodes = || moving.nodes.iter();
    let placed = facts.placement(ledger, &gang.key).is_some();
    let has_left = placed && members_to_move(facts, ledger, gang, moving).is_empty();
    if nodes().any(|n| n.deadline.is_some_and(passed)) {
        MoveOutcome::Stayed
    } else if has_left && nodes().any(|n| counts(facts, n)) {
        // Its members have left the nodes for another reason.
        MoveOutcome::Moved
    } else {
        MoveOutcome::Withdrawn
    }
}

fn counts(facts: &Facts<'_>, node: &NodeToLeave) -> bool {
    let info = facts.view.nodes().get(&node.node);
    info.is_some_and(|info| {
        crate::moves::is_left(info) && severe(info, facts.now).any(|s| s.name == node.signal)
    })
}

fn ended(
    facts: &Facts<'_>,
    ledger: &Ledger,
    gang: &Gang,
    mut moving: GangMove,
    outcome: MoveOutcome,
) -> GangMove {
    let stays = outcome == MoveOutcome::Stayed && !moving.with_restart;
    if outcome == MoveOutcome::Moved || stays {
        let mut settled = Vec::new();
        for NodeToLeave { node, .. } in &moving.nodes {
            let info = facts.view.nodes().get(node);
            let signals = info.into_iter().flat_map(|info| severe(info, facts.now));
            settled.extend(signals.map(|s| NodeToLeave {
                node: node.clone(),
                signal: s.name.clone(),
                deadline: s.deadline,
            }));
        }
        moving.settled.retain(|s| {
            let mut new = settled.iter();
            !new.any(|n| (&n.node, &n.signal) == (&s.node, &s.signal))
        });
        settled.append(&mut moving.settled);
        let (_, others) = recorded(ledger, gang);
        settled.truncate(MOST_NODES.min(MOST_OF_WORKLOAD.saturating_sub(others)));
        moving.settled = settled;
    }
    moving.outcome = Some(outcome);
    moving.ended_at = Some(facts.now);
    moving
}

/// The most severe action for these nodes, and its rule.
fn action(left: &[&Departure<'_>]) -> (FailureAction, String) {
    let most = left.iter().max_by_key(|d| d.action.severity());
    let rule = most.and_then(|d| d.rule);
    let action = most.map_or(FailureAction::RestartGang, |d| d.action);
    (action, rule.map(|r| r.name.clone()).unwrap_or_default())
}

/// True if each restart domain with these members has replied to its request, or is about to restart
/// for another reason.
fn may_stop(
    facts: &Facts<'_>,
    ledger: &Ledger,
    gang: &Gang,
    moving: &GangMove,
    members: &BTreeSet<Member>,
) -> bool {
    let Some(view) = facts.gang_view(&gang.key) else {
        return false;
    };
    let mut domains = gang.domains.iter().filter(|d| is_moved(d, members));
    view.preempted_by.is_none()
        && view.checkpoint_request.is_none()
        && domains.all(|domain| {
            let entry = ledger.domain_or_empty(&domain.key);
            joins(facts, ledger, gang, domain) || has_replied(facts, entry, moving)
        })
}

fn is_moved(domain: &Domain, members: &BTreeSet<Member>) -> bool {
    domain.members.iter().any(|m| members.contains(m))
}

/// True if the domain has an incident whose barrier is closed, and which needs no other nodes. The
/// move then becomes part of it.
fn joins(facts: &Facts<'_>, ledger: &Ledger, gang: &Gang, domain: &Domain) -> bool {
    let avoided = ledger.gang(&gang.key).map(|entry| &entry.avoid);
    let assigned = facts.assigned_nodes(&gang.key);
    let usable = |node: &NodeName| {
        facts.node_state(node.as_str()).is_ready()
            && avoided.is_none_or(|avoided| !avoided.contains_key(node))
    };
    let entry = ledger.domain_or_empty(&domain.key);
    entry.incident.as_ref().is_some_and(|i| {
        i.stage != IncidentStage::Arrived
            && !facts.is_released(&domain.key, i.attempt)
            && (i.replace.iter()).all(|m| assigned.get(m).is_some_and(usable))
    })
}

/// True if the domain runs, and needs no request or has its outcome.
fn has_replied(facts: &Facts<'_>, entry: &DomainLedger, moving: &GangMove) -> bool {
    let occasion = occasion(moving);
    let id = occasion_id(occasion, &moving.id);
    let replied = entry.request.as_ref().is_some_and(|r| {
        let ended = r.outcome.is_some_and(|o| o != CheckpointOutcome::Withdrawn);
        r.id == id && r.attempt == entry.attempt && ended
    });
    let is_free = !facts.asks_before(occasion) && entry.open_request().is_none();
    entry.healthy_since.is_some() && !entry.is_restarting() && (replied || is_free)
}

fn stop(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    gang: &Gang,
    members: &BTreeSet<Member>,
    (action, cause): (FailureAction, &Cause),
) {
    let membership = ledger.membership(facts.spec());
    for domain in gang.domains.iter().filter(|d| is_moved(d, members)) {
        if join(facts, ledger, domain, members) {
            continue;
        }
        let scope = DomainScope::of_restart(facts, ledger, &membership, gang, domain);
        if let Some(mut pass) = DomainPass::new(facts, ledger, scope) {
            pass.open_uncounted(action, cause.clone(), of_domain(domain, members));
        }
    }
}

fn of_domain(domain: &Domain, members: &BTreeSet<Member>) -> BTreeSet<Member> {
    let own = domain.members.iter();
    own.filter(|m| members.contains(*m)).cloned().collect()
}

/// Members that move get new pods in the open incident of their domain, if it has one.
fn join(
    facts: &Facts<'_>,
    ledger: &mut Ledger,
    domain: &Domain,
    members: &BTreeSet<Member>,
) -> bool {
    let entry = ledger.domains.get_mut(&domain.key);
    let incident = entry.and_then(|e| e.incident.as_mut());
    let joined = incident.map(|i| i.replace_members(facts, of_domain(domain, members)));
    joined.is_some()
}

/// The gang avoids the nodes from now on.
fn leave_nodes(facts: &Facts<'_>, ledger: &mut Ledger, gang: &Gang, moving: &GangMove) {
    let until = facts.now + facts.view.settings().avoid;
    for NodeToLeave { node, .. } in &moving.nodes {
        let info = facts.view.nodes().get(node);
        let (Some(name), Some(info)) = (NodeName::read(Some(node)), info) else {
            continue;
        };
        let is_faulty = severe(info, facts.now).any(|s| s.level == SignalLevel::Faulty);
        // A reboot ends an announcement. A fault can outlast it.
        let (reason, boot) = if is_faulty {
            (reasons::NODE_FAULTY, String::new())
        } else {
            (reasons::NODE_LEAVING, info.boot.clone())
        };
        let avoidance = Avoidance {
            machine: info.machine.clone(),
            boot,
            ..Avoidance::new(reason, until)
        };
        ledger.avoid_node(&gang.key, name, avoidance);
    }
}
