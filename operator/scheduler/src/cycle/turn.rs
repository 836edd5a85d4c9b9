//! The turn of one gang in the queue: it is placed, preempts, or waits.

use std::sync::Arc;

use lockstep_api::scheduling::Backfill;
use lockstep_engine::{Cluster, Demand, GangPlacement, Infeasible};
use lockstep_model::{BackfillPlacement, PlacementAttempt, PlacementRequest, QueueReservation};

use super::judged::{judged_before, uids};
use super::place::{attempt, by_name, capacity_for, placement_request};
use super::preempt::{Unplaced, make_capacity};
use super::reservation::reserve_for;
use super::round::Round;
use crate::asks::{Asks, Request};
use crate::capacity::Capacity;
use crate::context::Context;
use crate::decision::Decision;
use crate::memory::Memory;
use crate::no_victims::Searcher;
use crate::pending::{GangName, Pending};
use crate::refusal::{backs_off, retry_excluded_nodes};
use crate::size;
use crate::state::{GangState, new_placement};

struct Turn<'t> {
    at: usize,
    request: &'t PlacementRequest,
    demand: &'t Demand,
    /// True if the gang runs without the requested members.
    grows: bool,
    /// Requests for the shared verdict. `None` if the gang has a history or a reservation.
    asks: Option<Asks>,
    /// Number of reservations ahead.
    ahead: usize,
}

enum Tried {
    /// Placed, or not needed.
    Done,
    /// Excluded nodes are permitted again.
    Retry,
    Short(Box<Short>),
}

/// A gang that does not fit into the remaining capacity.
struct Short {
    missing: Infeasible,
    /// Capacity that it may use now.
    left: Cluster,
    /// Factor on the usual steps of its searches.
    effort: u64,
    /// Set if the gang would fit without the reservations of other gangs.
    reserved: Option<Pending>,
}

/// Places one gang. An error says why it waits.
pub(super) fn serve_one(
    context: &Context<'_>,
    memory: &mut Memory,
    capacity: &mut Capacity,
    gangs: &mut [GangState],
    at: usize,
    request: Request,
    round: &mut Round,
) -> Result<(), Pending> {
    // A gang in back-off does not lack capacity, so it holds no reservation.
    if let Some(pending) = backs_off(context, &gangs[at], &mut round.wake) {
        return Err(pending);
    }
    let wanted = placement_request(context, memory, &gangs[at], request)?;
    let demand = wanted.demand(context.cluster).map_err(Pending::Unmet)?;
    let ahead = round.ahead.iter().count();
    let asks = round.classes.asks(gangs, at, request, &demand, ahead);
    let asks = asks.filter(|_| !memory.unknown.knows(gangs[at].uid()));
    let plain = asks.is_some();
    let turn = Turn {
        at,
        request: &wanted,
        demand: &demand,
        grows: request == Request::Growth,
        asks: asks.filter(|_| !round.before.contains_key(&at)),
        ahead,
    };
    if let Some(known) = turn.asks.as_ref().and_then(|a| round.classes.pending(a)) {
        return Err(known.clone());
    }
    if plain
        && let Some(known) = judged_before(context, memory, gangs, at, turn.asks.as_ref(), round)
    {
        return Err(known);
    }
    round.judged += 1;
    let short = match try_to_place(context, memory, capacity, gangs, &turn, round)? {
        Tried::Done => return Ok(()),
        Tried::Retry => return serve_one(context, memory, capacity, gangs, at, request, round),
        Tried::Short(short) => *short,
    };
    let left_out = round.left_out;
    let answer = preempt_or_reserve(context, memory, capacity, gangs, &turn, short, round);
    if plain {
        let left_out = round.left_out > left_out;
        remember(memory, gangs, &turn, &answer, left_out, round);
    }
    match (&answer, turn.asks) {
        (Ok(()), _) => round.disturb(),
        // If this gang got no search, no gang of its class gets one.
        (Err(pending), Some(asks)) if round.ahead.iter().count() == ahead => {
            round.classes.waits(asks, pending);
        }
        _ => {}
    }
    answer
}

/// Places a gang in the remaining capacity, or returns the shortage.
fn try_to_place(
    context: &Context<'_>,
    memory: &mut Memory,
    capacity: &mut Capacity,
    gangs: &mut [GangState],
    turn: &Turn<'_>,
    round: &mut Round,
) -> Result<Tried, Pending> {
    let at = turn.at;
    let free = capacity_for(context, capacity, &gangs[at]);
    let input = Arc::clone(&gangs[at].input);
    let effort = memory
        .unknown
        .effort(gangs[at].uid(), context.now, &mut round.longer);
    let (request, demand) = (turn.request, turn.demand);
    let attempt = attempt(context, &input, request, demand, &round.ahead, effort);
    let left = attempt.left_over(&free);
    let (placement, promise) =
        match in_free_capacity_or_reserved_for_later(&attempt, gangs, &free, &left) {
            Ok(found) => found,
            Err(_) if retry_excluded_nodes(&mut gangs[at]) => return Ok(Tried::Retry),
            Err(_) if turn.grows => return Ok(Tried::Done),
            Err(missing) => {
                let by = attempt.kept_waiting_by(&free);
                return Ok(Tried::Short(Box::new(Short {
                    missing,
                    left,
                    effort,
                    reserved: reserved_for(gangs, &by),
                })));
            }
        };
    let nodes = request.assign(context.cluster, &placement);
    let named = by_name(context, &nodes);
    let placement = || new_placement(gangs[at].uid(), &named, context.now);
    size::check(named.len(), placement, &[], context.now).map_err(Pending::TooLarge)?;
    gangs[at].promise(promise);
    capacity.assign(context, &mut gangs[at], named);
    gangs[at].decision = Decision::Placed(nodes);
    memory.unknown.settle(gangs[at].uid());
    round.work = None;
    round.disturb();
    Ok(Tried::Done)
}

/// Preempts for a gang. If that fails, reserves its nodes.
fn preempt_or_reserve(
    context: &Context<'_>,
    memory: &mut Memory,
    capacity: &mut Capacity,
    gangs: &mut [GangState],
    turn: &Turn<'_>,
    short: Short,
    round: &mut Round,
) -> Result<(), Pending> {
    let (at, request, demand) = (turn.at, turn.request, turn.demand);
    let unplaced = Unplaced {
        at,
        request,
        demand,
        short: short.missing,
        effort: short.effort,
        asks: turn.asks.as_ref(),
    };
    let answer = make_capacity(
        context, memory, capacity, gangs, unplaced, short.left, round,
    );
    if answer.is_err() {
        reserve_for(context, capacity, gangs, at, request, demand, round);
        round.disturbed |= round.before.get(&at) != gangs[at].status.reservation.as_ref();
    }
    match short.reserved {
        Some(reserved) => answer.map_err(|_| reserved),
        None => answer,
    }
}

/// Caches the verdict for later cycles, unless this cycle has changed its input. `left_out`: the
/// gang got no search.
fn remember(
    memory: &mut Memory,
    gangs: &[GangState],
    turn: &Turn<'_>,
    answer: &Result<(), Pending>,
    left_out: bool,
    round: &Round,
) {
    let Err(pending) = answer else {
        return;
    };
    if round.disturbed {
        return;
    }
    let behind = uids(gangs, &round.ahead).take(turn.ahead);
    let who = Searcher::of(turn.asks.as_ref(), gangs[turn.at].uid());
    if left_out {
        memory.no_victims.leave_out(who, behind, pending);
    } else {
        memory.no_victims.judged(who, behind, pending);
    }
}

/// Places the gang in the remaining capacity. Also returns the time by which it must end if it
/// needs capacity that is reserved for later.
fn in_free_capacity_or_reserved_for_later(
    attempt: &PlacementAttempt<'_>,
    gangs: &[GangState],
    free: &Cluster,
    left: &Cluster,
) -> Result<(GangPlacement, Option<Backfill>), Infeasible> {
    let short = match attempt.in_left_over(left) {
        Ok(placement) => return Ok((placement, None)),
        Err(short) => short,
    };
    let BackfillPlacement {
        placement,
        reservations,
    } = attempt.as_backfill(free).ok_or(short)?;
    let holders = reservations.iter().filter_map(|r| gangs.get(r.gang));
    let promise = Backfill {
        ends_by: reservations
            .iter()
            .filter_map(|r| r.starts_at)
            .min()
            .ok_or(short)?,
        reserved_for: holders.map(|gang| gang.uid().to_owned()).collect(),
    };
    Ok((placement, Some(promise)))
}

fn reserved_for(gangs: &[GangState], by: &[&QueueReservation]) -> Option<Pending> {
    let (first, others) = by.split_first()?;
    Some(Pending::Reserved {
        gang: GangName::of(&gangs.get(first.gang)?.input),
        others: others.len(),
    })
}
