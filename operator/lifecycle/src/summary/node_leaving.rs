//! The condition `NodeLeaving`: nodes with signals on which members run, and what the gang does.

use lockstep_api::condition::reasons;
use lockstep_api::gangs::Gang;
use lockstep_api::words::{count, time};
use lockstep_api::workload::{CauseKind, GangMove};

use super::value::{ConditionValue, condition};
use crate::facts::Facts;
use crate::ledger::Ledger;
use crate::messages::{NOT_MOVED, and_others, node_with_signal, of_gang};
use crate::moves::{Departure, departures, permitted};
use crate::wake::Wake;

/// Names one gang and one node, the most urgent. `None` if no member runs on a node with a signal.
pub(super) fn node_leaving(
    facts: &Facts<'_>,
    ledger: &Ledger,
    wake: &mut Wake,
) -> Option<ConditionValue> {
    let mut gangs = Vec::new();
    for gang in &facts.gangs {
        let mut departures = departures(facts, ledger, gang, wake);
        departures.sort_by_key(|d| (d.kind() != CauseKind::NodeFaulty, d.due, d.node));
        if let Some(first) = departures.first() {
            let urgency = (first.kind() != CauseKind::NodeFaulty, first.due);
            gangs.push((urgency, gang, departures));
        }
    }
    let others = gangs.len().saturating_sub(1);
    let (_, gang, departures) = gangs.into_iter().min_by_key(|(urgency, ..)| *urgency)?;
    let first = departures.first()?;
    let nodes = and_others(departures.len() - 1);
    let plan = plan(facts, ledger, gang, &departures, wake);
    let gangs = match others {
        0 => String::new(),
        n => format!(
            "; members of {} are on such nodes too",
            count(n, "other gang")
        ),
    };
    let message = format!(
        "{}{nodes}: the gang {}{gangs}",
        node_with_signal(first.node, &first.signal.name, first.deadline),
        plan.text,
    );
    let message = of_gang(gang.key.as_str(), facts.gangs.len() > 1, &message);
    let reason = match first.kind() {
        _ if plan.stays => reasons::MOVE_STAYED,
        CauseKind::NodeFaulty => reasons::NODE_FAULTY,
        _ => reasons::NODE_LEAVING,
    };
    Some(condition(true, reason, message))
}

struct Plan {
    stays: bool,
    text: String,
}

fn plan(
    facts: &Facts<'_>,
    ledger: &Ledger,
    gang: &Gang,
    departures: &[Departure<'_>],
    wake: &mut Wake,
) -> Plan {
    let moves = |text: String| Plan { stays: false, text };
    let stays = |why: &str| Plan {
        stays: true,
        text: format!("stays {why}"),
    };
    let moving = ledger.gang(&gang.key).and_then(|e| e.moving.as_ref());
    if let Some(open) = moving.filter(|m| m.is_open() && !m.awaits_restart()) {
        return moves(open_plan(facts, ledger, gang, open));
    }
    if let Some(rule) = departures.iter().find(|d| d.stays()).and_then(|d| d.rule)
        && departures.iter().all(Departure::stays)
    {
        return stays(&format!("by rule {} of failurePolicy", rule.name));
    }
    let open = departures.iter();
    let open = open.filter(|d| !d.stays() && !d.is_settled(moving));
    let Some(next) = open.min_by_key(|d| d.due) else {
        return stays(NOT_MOVED);
    };
    let when = if facts.due(next.due).passed(wake) {
        "as soon as all members run".to_owned()
    } else if next.awaits_checkpoint {
        let latest = time(next.due);
        format!("after its next checkpoint, at {latest} at the latest")
    } else {
        format!("at {}", time(next.due))
    };
    moves(if next.acts() {
        format!("moves {when}")
    } else {
        format!("would move {when}; nodeHealth.mode is Observe")
    })
}

fn open_plan(facts: &Facts<'_>, ledger: &Ledger, gang: &Gang, open: &GangMove) -> String {
    if !open.is_awaited() || permitted(facts, ledger, gang, open).is_some() {
        return "moves now".to_owned();
    }
    let view = facts.gang_view(&gang.key);
    let target = view.and_then(|v| v.move_target.as_ref());
    match target.filter(|t| t.id == open.id && !t.message.is_empty()) {
        Some(target) => format!("stays until it can move: {}", target.message),
        None => "moves once other nodes are found".to_owned(),
    }
}
