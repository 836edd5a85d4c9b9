//! Reservations of waiting gangs: nodes by name, in the status of their pod groups.
//!
//! A reservation is kept while the gang needs it and the scheduler could make it now. Otherwise the
//! scheduler chooses again.

use std::collections::{BTreeMap, BTreeSet};

use chrono::DateTime;
use lockstep_api::ids::NodeName;
use lockstep_api::scheduling::{Reservation, ReservedNode};
use lockstep_engine::{
    Assignment, Blocker, Cluster, Demand, GangPlacement, NodeIx, NodeSet, amounts_by_node,
    is_possible, reserve, starts_at,
};
use lockstep_model::{BlockedGang, PlacementRequest, VictimFilter, blockers};

use super::place::capacity_for;
use super::round::Round;
use crate::capacity::Capacity;
use crate::context::Context;
use crate::occupancy::occupancy;
use crate::refusal::may_never_run;
use crate::size::fits;
use crate::standing::{amounts, held, may_preempt, wanted};
use crate::state::GangState;

/// Removes the reservations from the statuses, by index of the gang. Gangs that still wait get them
/// again.
pub(super) fn collect(gangs: &mut [GangState]) -> BTreeMap<usize, Reservation> {
    let each = gangs.iter_mut().enumerate();
    let holding = each.filter(|(_, gang)| gang.status.reservation.is_some());
    holding
        .filter_map(|(at, gang)| Some((at, gang.status.reservation.take()?)))
        .collect()
}

/// Reserves nodes for a waiting gang if it is among the first of its priority.
pub(super) fn reserve_for(
    context: &Context<'_>,
    capacity: &mut Capacity,
    gangs: &mut [GangState],
    at: usize,
    request: &PlacementRequest,
    demand: &Demand,
    round: &mut Round,
) {
    let gang = &gangs[at];
    // Such a gang may only use free capacity.
    if may_never_run(gang) {
        return;
    }
    let equals = round.ahead.iter().filter(|r| r.priority == gang.priority());
    if equals.count() >= context.settings.rules.reservations_per_priority {
        return;
    }
    let mut free = capacity_for(context, capacity, gang);
    for ahead in round.ahead.iter() {
        ahead.take(&mut free);
    }
    let before = round.before.get(&at);
    let before = before.and_then(|r| Some((placement(context, request, r)?, r.since)));
    let kept = before.and_then(|(kept, since)| {
        // Only blockers on the reserved nodes matter.
        let own: NodeSet = kept.assignments.iter().map(|a| a.node).collect();
        let blockers = blockers_of(context, capacity, gangs, at, demand, Some(&own), round);
        is_possible(&free, &blockers, demand, &kept).then_some((kept, since, blockers))
    });
    let found = kept.or_else(|| {
        let blockers = blockers_of(context, capacity, gangs, at, demand, None, round);
        let found = choose(context, gangs, at, &free, &blockers, demand, round)?;
        Some((found, context.now, blockers))
    });
    let Some((found, since, blockers)) = found else {
        return;
    };
    let start = starts_at(&free, &blockers, &demand.shapes, &found)
        .and_then(DateTime::from_timestamp_millis)
        .filter(|start| *start > context.now);
    let named = by_name(context, request, &found);
    // Otherwise each cycle would choose again, and the reservation might move.
    if !fits(&named) {
        return;
    }
    let nodes = amounts_by_node(&demand.shapes, &found);
    round.ahead.push(held(context, gang, at, start, nodes));
    gangs[at].status.reservation = Some(Reservation {
        since,
        starts_at: start,
        nodes: named,
    });
}

pub(super) fn keep(
    context: &Context<'_>,
    gangs: &mut [GangState],
    at: usize,
    reserved: Reservation,
    round: &mut Round,
) {
    let gang = &gangs[at];
    let nodes = amounts(context, gang, &reserved);
    let kept = held(context, gang, at, reserved.starts_at, nodes);
    round.ahead.push(kept);
    gangs[at].status.reservation = Some(reserved);
}

/// Work that blocks a gang temporarily, on these nodes or on all.
fn blockers_of(
    context: &Context<'_>,
    capacity: &Capacity,
    gangs: &[GangState],
    at: usize,
    demand: &Demand,
    on: Option<&NodeSet>,
    round: &mut Round,
) -> Vec<Blocker> {
    let work = round
        .work
        .get_or_insert_with(|| occupancy(context, capacity, gangs).passing_work());
    let gang = &gangs[at];
    let wanted = wanted(gang);
    let nobody = BTreeSet::new();
    // Budgets change with every pod, so their current state does not matter later.
    let victims = may_preempt(context, gang).then_some(VictimFilter {
        rules: &context.settings.rules.victims,
        wanted: &wanted,
        beyond_budgets: true,
        refused: &nobody,
    });
    let blocked = BlockedGang {
        number: at,
        priority: demand.priority,
        victims,
    };
    blockers(work, blocked, on, |other| {
        let backfill = gangs.get(other)?.backfill.as_ref()?;
        let promised = backfill.reserved_for.iter().any(|uid| uid == gang.uid());
        promised.then_some(backfill.ends_by)
    })
}

/// Chooses nodes, if possible none that are reserved for gangs further back.
fn choose(
    context: &Context<'_>,
    gangs: &[GangState],
    at: usize,
    free: &Cluster,
    blockers: &[Blocker],
    demand: &Demand,
    round: &Round,
) -> Option<GangPlacement> {
    let served: BTreeSet<usize> = round.ahead.iter().map(|r| r.gang).collect();
    let mut elsewhere = free.clone();
    for (&other, reservation) in &round.before {
        if other != at && !served.contains(&other) {
            for (node, amounts) in amounts(context, &gangs[other], reservation) {
                elsewhere.add_pod(node, &amounts);
            }
        }
    }
    reserve(&elsewhere, blockers, demand).or_else(|| reserve(free, blockers, demand))
}

/// The engine's placement of a reservation. `None` if a node or group is missing or duplicated.
fn placement(
    context: &Context<'_>,
    request: &PlacementRequest,
    reservation: &Reservation,
) -> Option<GangPlacement> {
    let mut found: BTreeMap<(usize, NodeIx), u32> = BTreeMap::new();
    for reserved in &reservation.nodes {
        let node = context.cluster.ordinal(&reserved.node)?;
        for (group, &count) in &reserved.members {
            let shape = group_names(request).position(|name| name == group)?;
            let most = request.templates[shape].members.len();
            let count = u32::try_from(count).ok().filter(|&c| c > 0)?;
            if count as usize > most || found.insert((shape, node), count).is_some() {
                return None;
            }
        }
    }
    let assignments = found.into_iter().map(|((shape, node), count)| Assignment {
        shape,
        replica: 0,
        node,
        count,
    });
    Some(GangPlacement {
        assignments: assignments.collect(),
    })
}

fn by_name(
    context: &Context<'_>,
    request: &PlacementRequest,
    placement: &GangPlacement,
) -> Vec<ReservedNode> {
    let groups: Vec<&str> = group_names(request).collect();
    let mut by_node: BTreeMap<&NodeName, BTreeMap<String, i32>> = BTreeMap::new();
    for assigned in &placement.assignments {
        let Some(node) = context.cluster.node_name(assigned.node) else {
            continue;
        };
        let on_node = by_node.entry(node).or_default();
        *on_node
            .entry(groups[assigned.shape].to_owned())
            .or_default() += assigned.count as i32;
    }
    let nodes = by_node.into_iter();
    nodes
        .map(|(node, members)| ReservedNode {
            node: node.to_string(),
            members,
        })
        .collect()
}

fn group_names(request: &PlacementRequest) -> impl Iterator<Item = &str> {
    let templates = request.templates.iter();
    templates.map(|t| t.members.first().map_or("", |m| m.group.as_str()))
}
