//! Gangs whose earlier verdict is still valid, because no relevant input has changed and nothing
//! earlier in this cycle affects them.

use lockstep_model::ReservationsAhead;

use super::reservation::keep;
use super::round::Round;
use crate::asks::Asks;
use crate::context::Context;
use crate::memory::Memory;
use crate::no_victims::Searcher;
use crate::pending::Pending;
use crate::state::GangState;

/// Cached verdict on a gang without history. `None` if it must be judged again. `asks`: its
/// requests; `None` if it has a reservation, which it then keeps.
pub(super) fn judged_before(
    context: &Context<'_>,
    memory: &mut Memory,
    gangs: &mut [GangState],
    at: usize,
    asks: Option<&Asks>,
    round: &mut Round,
) -> Option<Pending> {
    let reserved = round.before.get(&at);
    let starts = reserved.and_then(|r| r.starts_at);
    if round.disturbed || starts.is_some_and(|start| start <= context.now) {
        return None;
    }
    let who = Searcher::of(asks, gangs[at].uid());
    let behind = || uids(gangs, &round.ahead);
    let cache = &mut memory.no_victims;
    let known = match cache.verdict(who, behind(), context.now).cloned() {
        Some(known) => known,
        None if round.searches < context.settings.searches_per_cycle => return None,
        // No search is left for this gang.
        None => {
            let known = cache.left_out(who, behind(), context.now)?.clone();
            round.left_out += 1;
            known
        }
    };
    if let Some(reserved) = reserved.cloned() {
        keep(context, gangs, at, reserved, round);
    }
    Some(known)
}

/// UIDs of the pod groups with reservations.
pub(super) fn uids<'g>(
    gangs: &'g [GangState],
    ahead: &'g ReservationsAhead,
) -> impl Iterator<Item = &'g str> {
    ahead.iter().filter_map(|r| Some(gangs.get(r.gang)?.uid()))
}
