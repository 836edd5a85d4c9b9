//! The words of conditions and events.

use chrono::{DateTime, SecondsFormat, Utc};
use lockstep_api::scheduling::{Preemption, Victim};
use lockstep_engine::{Preemption as Answer, Toll};

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

/// Why these victims. `next` is the next best set that was found, and what it would cost.
pub(super) fn explanation(answer: &Answer, victims: &[Victim], next: Option<&(Vec<Victim>, Toll)>) -> String {
    let Toll { lost, pdb_excess, .. } = answer.toll;
    let mut text = format!("{}; {lost} accelerator-seconds of work in all", named(victims, victim));
    if pdb_excess > 0 {
        text = format!("{text}, {}", beyond(pdb_excess));
    }
    let caused: u128 = answer.explanation.follow_on.iter().map(|f| f.lost).sum();
    if caused > 0 {
        text = format!("{text}, {caused} of them because victims evict others in turn");
    }
    text = match (answer.proven, answer.bound.lost) {
        (true, _) => format!("{text}; no cheaper set makes room"),
        (false, least) => format!("{text}; no set makes room for less than {least}"),
    };
    match next {
        Some((others, toll)) => {
            let excess = if toll.pdb_excess > 0 { format!(", {}", beyond(toll.pdb_excess)) } else { String::new() };
            format!("{text}; the next best set, {}, costs {}{excess}", named(others, name), toll.lost)
        }
        None => format!("{text}; no other set was found"),
    }
}

/// Why these victims, after some of those decided on were found to be able to stay.
pub(super) fn reduced(victims: &[Victim], cost: i64) -> String {
    let victims = named(victims, victim);
    format!("{victims}; {cost} accelerator-seconds of work in all; other victims stay, since room has become free")
}

/// Why nobody leaves for a gang that may preempt. `until`: somebody may be asked to then who has not run for long enough.
pub(super) fn hopeless(short: &str, until: Option<DateTime<Utc>>) -> String {
    match until {
        Some(until) => {
            let until = until.to_rfc3339_opts(SecondsFormat::Secs, true);
            format!("{short}; some of lower priority may not be evicted before {until} (minRuntimeSeconds)")
        }
        None => short.to_owned(),
    }
}

fn named(victims: &[Victim], words: fn(&Victim) -> String) -> String {
    let text = victims.iter().take(NAMED).map(words).collect::<Vec<_>>().join(", ");
    if victims.len() > NAMED { format!("{text} and {} more", victims.len() - NAMED) } else { text }
}

fn beyond(pods: u64) -> String {
    format!("{} beyond disruption budgets", count(usize::try_from(pods).unwrap_or(usize::MAX), "pod"))
}

fn name(v: &Victim) -> String {
    format!("{} {}/{}", v.kind.to_lowercase(), v.namespace, v.name)
}

fn victim(v: &Victim) -> String {
    let pods = count(v.pods.max(0) as usize, "pod");
    format!("{} (priority {}, {pods}, {} accelerator-seconds)", name(v), v.priority, v.cost)
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
