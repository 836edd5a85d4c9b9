//! The words of conditions and events.

use lockstep_api::scheduling::{Preemption, Victim};

use super::case::Case;

/// Victims that a text names; the others are counted.
const NAMED: usize = 4;

/// A placement was decided.
pub(super) fn placed(members: usize, nodes: usize) -> String {
    format!("placed {} on {}", count(members, "member"), count(nodes, "node"))
}

/// Nodes look free and the gang waits all the same: who reads it should not look for missing room.
pub(super) const AHEAD: &str = "would fit, but the room is kept for a gang ahead of it in the queue";

/// A gang waits for its victims. The beginning is kube-scheduler's (KEP-5710).
pub(super) fn preempting(intent: &Preemption) -> String {
    format!(
        "pod group preemption: found a placement for podgroup, preempting {} victims: {}",
        intent.victims.len(),
        intent.explanation
    )
}

/// Why these victims.
pub(super) fn explanation(victims: &[Victim], cost: i64, proven: bool, runner_up: Option<u128>) -> String {
    let mut text = victims.iter().take(NAMED).map(victim).collect::<Vec<_>>().join(", ");
    if victims.len() > NAMED {
        text = format!("{text} and {} more", victims.len() - NAMED);
    }
    text = format!("{text}; {cost} accelerator-seconds of work in all");
    if proven {
        text.push_str("; no cheaper set makes room");
    }
    if let Some(other) = runner_up {
        text = format!("{text}; the next best set costs {other}");
    }
    text
}

fn victim(v: &Victim) -> String {
    format!(
        "{} {}/{} (priority {}, {}, {} accelerator-seconds)",
        v.kind.to_lowercase(),
        v.namespace,
        v.name,
        v.priority,
        count(v.pods.max(0) as usize, "pod"),
        v.cost
    )
}

/// What a victim is told. The beginning is kube-scheduler's.
pub(super) fn preempted_by(preemptor: &Case, intent: &Preemption, cost: i64) -> String {
    format!(
        "Preempted by podgroup {}/{} of priority {}, which needs the room (intent {}, {cost} accelerator-seconds of work lost here)",
        preemptor.key.namespace,
        preemptor.key.name,
        preemptor.priority(),
        intent.id
    )
}

fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}
