//! Reservations of waiting gangs, as read from their statuses.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use lockstep_api::scheduling::Reservation;
use lockstep_engine::queue::QueuePosition;
use lockstep_engine::{Amounts, NodeIx};
use lockstep_model::QueueReservation;
use lockstep_model::pods::resources::extended_resources;

use crate::context::Context;
use crate::gang::state::GangState;
use crate::input::hold::GangPhase;
use crate::refusal::why_no_preemption;

pub(crate) type Position = QueuePosition<Option<DateTime<Utc>>, String>;

/// Reservations of the last cycle, with positions in the queue. They bind gangs that are placed
/// before the queue is served.
pub(crate) fn standing(
    context: &Context<'_>,
    gangs: &[GangState],
) -> Vec<(Position, QueueReservation)> {
    let waiting = gangs
        .iter()
        .enumerate()
        .filter(|(_, gang)| gang.phase() == &GangPhase::Active && gang.status.preemption.is_none());
    let all = waiting.filter_map(|(at, gang)| {
        let reservation = gang.status.reservation.as_ref()?;
        Some((position(gang), held(context, gang, at, reservation)))
    });
    all.collect()
}

pub(crate) fn held(
    context: &Context<'_>,
    gang: &GangState,
    at: usize,
    reservation: &Reservation,
) -> QueueReservation {
    let mut nodes = amounts(context, gang, reservation);
    // Anti-affinity separates only members of one gang.
    for dim in context.cluster.dims().apart_dims() {
        for amounts in nodes.values_mut() {
            amounts[dim] = 0;
        }
    }
    QueueReservation {
        gang: at,
        priority: gang.priority(),
        preempts: may_preempt(context, gang),
        requested: requested_resources(gang),
        starts_at: reservation.starts_at,
        nodes,
    }
}

/// Queue position among gangs with reserved or assigned nodes.
pub(crate) fn position(gang: &GangState) -> Position {
    let uid = gang.uid().to_owned();
    QueuePosition::new(gang.priority(), gang.status.queued_at, uid).holding()
}

pub(crate) fn may_preempt(context: &Context<'_>, gang: &GangState) -> bool {
    gang.input.group.preempts && why_no_preemption(context, gang).is_none()
}

pub(crate) fn requested_resources(gang: &GangState) -> BTreeSet<String> {
    let templates = gang.input.workload.templates.iter();
    let requests = templates.filter_map(|t| t.requests.as_deref().ok());
    extended_resources(requests)
}

/// Reserved amounts by node. Skips counts above the size of the gang.
pub(crate) fn amounts(
    context: &Context<'_>,
    gang: &GangState,
    reservation: &Reservation,
) -> BTreeMap<NodeIx, Amounts> {
    let mut out: BTreeMap<NodeIx, Amounts> = BTreeMap::new();
    let most = i32::try_from(gang.input.gang.size()).unwrap_or(i32::MAX);
    for reserved in &reservation.nodes {
        let Some(node) = context.cluster.ordinal(&reserved.node) else {
            continue;
        };
        for (group, &count) in &reserved.members {
            let Some(requests) = gang.input.requests(group) else {
                continue;
            };
            if !(1..=most).contains(&count) {
                continue;
            }
            let on_node = out.entry(node).or_default();
            add_amounts(on_node, &context.amounts(requests), i64::from(count));
        }
    }
    out
}

/// Adds amounts this many times.
pub(crate) fn add_amounts(sum: &mut Amounts, amounts: &[i64], times: i64) {
    sum.resize(amounts.len(), 0);
    for (sum, amount) in sum.iter_mut().zip(amounts) {
        *sum = sum.saturating_add(amount.saturating_mul(times));
    }
}
