//! The words of conditions and events.

use chrono::{DateTime, SecondsFormat, Utc};
use lockstep_api::scheduling::{NextBest, Preemption, Victim};

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

/// Why these victims. `beyond` is the number of pods evicted beyond their budgets, `caused` the work that victims destroy by
/// evicting others in turn.
pub(super) fn explanation(intent: &Preemption, beyond: u64, caused: u128) -> String {
    let mut text = format!("{}; {} accelerator-seconds of work in all", named(&intent.victims, victim), intent.cost);
    if beyond > 0 {
        let pods = count(usize::try_from(beyond).unwrap_or(usize::MAX), "pod");
        text = format!("{text}, {pods} beyond disruption budgets");
    }
    if caused > 0 {
        text = format!("{text}, {caused} of them because victims evict others in turn");
    }
    text = format!("{text}; {}", verdict(intent));
    match &intent.next_best {
        Some(next) => format!("{text}; the next best set, {}, costs {}", next.victims.join(", "), next.cost),
        None => format!("{text}; no other set was found"),
    }
}

/// How good the choice is known to be.
fn verdict(intent: &Preemption) -> String {
    if intent.proven {
        "no cheaper set makes room".to_owned()
    } else {
        format!("no set makes room for less than {}", intent.at_least)
    }
}

/// The next best set of victims as it stands in an intent.
pub(super) fn next_best(victims: &[Victim], cost: i64) -> NextBest {
    let mut names: Vec<String> = victims.iter().take(NAMED).map(name).collect();
    if victims.len() > NAMED {
        names.push(format!("{} more", victims.len() - NAMED));
    }
    NextBest { cost, victims: names }
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

fn name(v: &Victim) -> String {
    format!("{} {}/{}", v.kind.to_lowercase(), v.namespace, v.name)
}

fn victim(v: &Victim) -> String {
    let pods = count(v.pods.max(0) as usize, "pod");
    format!("{} (priority {}, {pods}, {} accelerator-seconds)", name(v), v.priority, v.cost)
}

/// What a victim is told. The beginning is kube-scheduler's. Who else was weighed may be none of its business.
pub(super) fn preempted_by(preemptor: &Case, intent: &Preemption, cost: i64) -> String {
    let (key, priority) = (&preemptor.key, preemptor.priority());
    let mut text = format!(
        "Preempted by podgroup {}/{} of priority {priority}, which needs the room (intent {}): {cost} accelerator-seconds of \
         work are lost here, {} in all",
        key.namespace, key.name, intent.id, intent.cost
    );
    if intent.proven || intent.at_least > 0 {
        text = format!("{text}; {}", verdict(intent));
    }
    match &intent.next_best {
        Some(next) => format!("{text}; the next best choice costs {}", next.cost),
        None => text,
    }
}

/// A victim has left and waits again: what it was told stays to be read.
pub(super) fn queued_again(told: &str) -> String {
    format!("{told}; it has left, and is in the queue again at its old place")
}

fn count(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}
