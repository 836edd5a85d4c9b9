//! Stage 07, second part: gangs that stay incomplete release their capacity.

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::gangs::Gang;
use lockstep_api::member::Member;
use lockstep_api::words::span;

use crate::changes::ReleaseReason;
use crate::facts::Facts;
use crate::ledger::Ledger;
use crate::pods::PodView;
use crate::wake::Wake;

/// Releases a gang if no further member was bound for `replacementTimeoutSeconds`. Not charged,
/// because no member has run.
pub(super) fn release_incomplete(facts: &Facts<'_>, ledger: &mut Ledger) -> Wake {
    let mut wake = Wake::NEVER;
    let limit = facts.spec().failure_policy.replacement_timeout_seconds;
    let prevented = facts.prevents_pods(&mut wake);
    for gang in &facts.gangs {
        let pods = bound_in_part(facts, ledger, gang);
        let Some(bound) = pods.or_else(|| without_pods(facts, ledger, gang, prevented)) else {
            continue;
        };
        if facts
            .due(bound.last + TimeDelta::seconds(limit))
            .passed(&mut wake)
        {
            let why = prevented.map_or(String::new(), |words| format!(": {words}"));
            let within = format!("{} (failurePolicy.replacementTimeoutSeconds)", span(limit));
            let message = if bound.members == 0 {
                format!("no pod was created within {within}{why}")
            } else {
                format!(
                    "only {} of {} members are bound, and no further one within {within}{why}",
                    bound.members, bound.needed
                )
            };
            let reason = facts.release_reason(&mut wake);
            ledger.release_gang(facts, &gang.key, Some(ReleaseReason { reason, message }));
        }
    }
    wake
}

struct Bound {
    members: usize,
    needed: usize,
    last: DateTime<Utc>,
}

/// A placed gang that has never run, with some bound members. Excludes gangs with victims, which
/// have the scheduler's deadline, and Basic groups.
fn bound_in_part(facts: &Facts<'_>, ledger: &Ledger, gang: &Gang) -> Option<Bound> {
    let placement = facts.placement(ledger, &gang.key)?;
    if gang.basic || ledger.is_under_way(gang) || placement.preempting.is_some() {
        return None;
    }
    let goes_on = |m: &Member| !ledger.completed.contains(m);
    let completed = gang.members().filter(|m| !goes_on(m));
    let minimum = (gang.min_count.max(0) as usize).saturating_sub(completed.count());
    let assigned = facts.assigned_nodes(&gang.key);
    let needed = minimum.max(assigned.keys().filter(|m| goes_on(m)).count());
    let pods = facts
        .current_pods(ledger, gang)
        .filter_map(|(member, pod)| pod.filter(|_| goes_on(member)));
    let bound = pods.filter(|pod| pod.node.is_some());
    let since: Vec<DateTime<Utc>> = bound.map(bound_since).collect();
    let last = since.iter().copied().max()?;
    let members = since.len();
    (members < needed).then_some(Bound {
        members,
        needed,
        last,
    })
}

/// A placed gang without pods, because the API server fails or rejects a request. Applies to every
/// policy.
fn without_pods(
    facts: &Facts<'_>,
    ledger: &Ledger,
    gang: &Gang,
    prevented: Option<&str>,
) -> Option<Bound> {
    let placement = facts.placement(ledger, &gang.key)?;
    let mut pods = facts.current_pods(ledger, gang);
    let none = prevented.is_some() && pods.all(|(_, pod)| pod.is_none());
    let waits = none && !ledger.is_under_way(gang) && !ledger.is_done(gang);
    waits.then(|| Bound {
        members: 0,
        needed: facts.assigned_nodes(&gang.key).len(),
        last: placement.decided_at,
    })
}

fn bound_since(pod: &PodView) -> DateTime<Utc> {
    let scheduled = pod.condition("PodScheduled").and_then(|c| c.since);
    scheduled.unwrap_or(pod.created_at)
}
