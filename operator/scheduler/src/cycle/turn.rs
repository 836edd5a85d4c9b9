//! The turn of one gang in the queue: placed, preempting or waiting. A turn only reads;
//! [`Cycle::apply`] writes its outcome.

use std::sync::Arc;

use lockstep_api::scheduling::Backfill;
use lockstep_engine::{Cluster, Demand, GangPlacement, Infeasible};
use lockstep_model::{BackfillPlacement, PlacementAttempt, PlacementRequest, Requester};

use super::demand::{open_since, prefers_new_nodes};
use super::outcome::{NoCapacity, Outcome, Waiting};
use super::place::{attempt, capacity_for, is_evictable, move_request, placement_request};
use super::state::Cycle;
use crate::context::Context;
use crate::gang::pending::Pending;
use crate::gang::state::{GangState, new_placement};
use crate::input::hold::Hold;
use crate::memory::equivalence_class::{EquivalenceClass, Request};
use crate::refusal::{backs_off, may_retry_excluded_nodes};
use crate::size;

pub(super) struct Turn<'c> {
    pub cycle: &'c Cycle<'c>,
    pub context: &'c Context<'c>,
    pub at: usize,
    pub gang: &'c GangState,
    pub request: PlacementRequest,
    pub class: EquivalenceClass,
    pub effort: u64,
    /// True if only events can change its verdict.
    plain: bool,
}

impl Cycle<'_> {
    pub(super) fn evaluate(&self, at: usize, request: Request) -> Outcome {
        let turn = match Turn::new(self, at, request) {
            Ok(turn) => turn,
            Err(pending) => return Outcome::NotEvaluated(pending),
        };
        turn.reused().unwrap_or_else(|| turn.evaluate())
    }
}

impl<'c> Turn<'c> {
    /// An error if the gang cannot request capacity now.
    pub fn new(cycle: &'c Cycle<'_>, at: usize, request: Request) -> Result<Self, Pending> {
        let (context, gang) = (&cycle.context, &cycle.gangs[at]);
        // A gang in back-off holds no reservation, because capacity is not what it lacks.
        if let Some(pending) = backs_off(context, gang) {
            return Err(pending);
        }
        let requested = match request {
            Request::Move { whole } => move_request(context, cycle.memory, gang, whole)?,
            _ => placement_request(context, cycle.memory, gang, request)?,
        };
        let demand = requested
            .demand(context.cluster)
            .map_err(|misfit| Pending::Held(Hold::Misfit(misfit)))?;
        // Time alone decides whether reserved nodes are lost.
        let plain = cycle.is_plain(gang)
            && gang.unusable.reserved.is_empty()
            && prefers_new_nodes(context, gang).is_none();
        let ahead = &cycle.queue.ahead;
        let ends = gang.input.workload.ends.and_then(|e| e.from(context.now));
        let class = EquivalenceClass {
            demand,
            request,
            namespace: gang.input.key.namespace.clone(),
            preempts: gang.input.group.preempts,
            preemption_priority: gang.input.preemption_priority,
            evictable: is_evictable(context, &gang.input),
            ahead: ahead.len(),
            later: ahead.iter().filter(|r| r.starts_after(ends)).count(),
            demanded: open_since(context, gang),
            only: None,
        };
        // Keys that are not in use are equal to the engine.
        let dims = context.cluster.dims();
        let mut levels = gang.input.group.topology.iter();
        let labelled = levels.all(|level| dims.has_key(&level.key));
        let shares = plain && labelled && !cycle.queue.previous.contains_key(&at);
        Ok(Self {
            cycle,
            context,
            at,
            gang,
            request: requested,
            class: if shares {
                class
            } else {
                class.of_one(gang.uid())
            },
            effort: cycle.search_effort(at),
            plain,
        })
    }

    pub fn demand(&self) -> &Demand {
        &self.class.demand
    }

    pub fn attempt(&self) -> PlacementAttempt<'_> {
        let (input, ahead) = (&self.gang.input, &self.cycle.queue.ahead);
        let usual = attempt(self.context, input, &self.request, self.demand(), ahead);
        // A move has the rights of a lost member's replacement.
        let moves = matches!(self.class.request, Request::Move { .. });
        PlacementAttempt {
            placement_steps: usual.placement_steps * self.effort,
            effort: self.effort,
            requester: Requester {
                replaces: usual.requester.replaces || moves,
                ..usual.requester
            },
            ..usual
        }
    }

    /// The verdict on its class, if no event can have changed it. A class without a search is
    /// evaluated again once the cycle has a search left.
    fn reused(&self) -> Option<Outcome> {
        let Cycle { queue, memory, .. } = self.cycle;
        let now = self.context.now;
        let starts = queue.previous.get(&self.at).and_then(|r| r.starts_at);
        // Time alone can change a known start: a pod on the nodes is overdue.
        if !self.plain || starts.is_some() {
            return None;
        }
        let cache = &memory.inadmissible;
        let wait = cache.wait(&self.class, queue.ahead_hash, now)?;
        let searches = queue.searches < self.context.settings.searches_per_cycle;
        (wait.searched || !searches).then(|| Outcome::Reused(wait.clone()))
    }

    fn evaluate(&self) -> Outcome {
        let free = capacity_for(self.context, &self.cycle.capacity, self.gang);
        let attempt = self.attempt();
        let left = attempt.left_over(&free);
        let short = match self.in_free_capacity_or_reserved_for_later(&attempt, &free, &left) {
            Ok((placement, backfill)) => return self.placed(&placement, backfill),
            Err(_) if may_retry_excluded_nodes(self.gang) => return Outcome::RetriesExcludedNodes,
            Err(short) if self.class.request == Request::Growth => {
                return Outcome::KeepsSize(self.no_growth(short, &left));
            }
            Err(short) => short,
        };
        let waits = |no_capacity, reserved, reservation| {
            Outcome::Waits(Box::new(Waiting {
                no_capacity,
                reserved,
                reservation,
                class: self.class.clone(),
                plain: self.plain,
            }))
        };
        if let Some(held) = self.misfit() {
            return waits(NoCapacity::without_search(held), None, self.new_nodes());
        }
        match self.make_capacity(short, left.clone()) {
            Ok(outcome) => outcome,
            Err(mut no_capacity) => {
                self.count_nodes(&mut no_capacity.pending, &left);
                let reserved = kept_waiting_by(&attempt, &free);
                let kept = self.reservation().or_else(|| self.new_nodes());
                waits(*no_capacity, reserved, kept)
            }
        }
    }

    /// The gang would not fit into the empty cluster.
    fn misfit(&self) -> Option<Pending> {
        let misfit = self.request.misfit(self.context.cluster, self.demand());
        misfit.map(|misfit| Pending::Held(Hold::Misfit(misfit)))
    }

    /// Why a placed gang does not grow.
    fn no_growth(&self, short: Infeasible, left: &Cluster) -> Pending {
        self.misfit().unwrap_or_else(|| {
            let mut pending = Pending::Capacity(short.into());
            self.count_nodes(&mut pending, left);
            pending
        })
    }

    /// Adds the nodes that cannot hold a pod to missing capacity.
    pub(super) fn count_nodes(&self, pending: &mut Pending, left: &Cluster) {
        let Some(shortage) = pending.shortage_mut() else {
            return;
        };
        if let Some(short) = shortage.reason.shortfall() {
            let cluster = self.context.cluster;
            let nodes = (self.request).unsuitable_nodes(cluster, left, self.demand(), short);
            shortage.nodes = nodes.map(Arc::new);
        }
    }

    pub(super) fn placed(&self, placement: &GangPlacement, backfill: Option<Backfill>) -> Outcome {
        let nodes = self.request.assign(self.context.cluster, placement);
        let placement = || new_placement(self.gang.uid(), &nodes, self.context.now);
        match size::check(nodes.len(), placement, &[], self.context.now) {
            Ok(()) => Outcome::Placed { nodes, backfill },
            Err(too_large) => Outcome::TooLarge(too_large),
        }
    }

    /// Places the gang in the remaining capacity. If it needs capacity that is reserved for later,
    /// the time by which it must end is returned too.
    fn in_free_capacity_or_reserved_for_later(
        &self,
        attempt: &PlacementAttempt<'_>,
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
        } = attempt.as_backfill(free).ok_or_else(|| short.clone())?;
        let gangs = &self.cycle.gangs;
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
}

/// Set if the gang would fit without the reservations of other gangs.
pub(super) fn kept_waiting_by(attempt: &PlacementAttempt<'_>, free: &Cluster) -> Option<Pending> {
    let gangs = attempt.kept_waiting_by(free).len();
    (gangs > 0).then_some(Pending::Reserved { gangs })
}
