use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::reasons;
use lockstep_engine::{Cluster, EvictionPolicy, GangPlacement, Infeasible, NodeIx, place};
use lockstep_model::demand::attempt::may_not_preempt;
use lockstep_model::pods::resources::extended_resources;
use lockstep_model::{
    Eviction, Occupancy, PlacementRequest, VictimFilter, VictimRules, VictimScope,
};

use super::demand::prefers_new_nodes;
use super::outcome::{NoCapacity, Outcome, VictimSearch};
use super::state::Cycle;
use super::turn::Turn;
use crate::capacity::occupancy::occupancy_with_nodes;
use crate::context::Context;
use crate::gang::checkpoint::longest_wait;
use crate::gang::pending::{NoPreemption, Pending};
use crate::gang::state::GangState;
use crate::memory::REFUSAL_HOLDS;
use crate::memory::backoff::backoff;
use crate::pace::LimitReached;
use crate::refusal::why_no_preemption;

/// Number of consecutive failed placements up to which a gang waits for nodes whose kubelets
/// rejected its pods. After that, the gang may preempt.
const REJECTIONS: i32 = 3;

/// Validity of a preemption that exceeds the size limit of one object. After it, another set of
/// victims may be the cheapest one.
const TOO_LARGE_HOLDS: TimeDelta = TimeDelta::minutes(1);

impl Turn<'_> {
    /// Finds capacity that terminating pods or victims release. `left`: capacity that the gang may
    /// use now.
    pub(super) fn make_capacity(
        &self,
        short: Infeasible,
        left: Cluster,
    ) -> Result<Outcome, Box<NoCapacity>> {
        let leaving = &self.cycle.leaving().held;
        let (free, soon) = self.attempt().after_terminations(left, leaving);
        let terminations = |placement: &GangPlacement| {
            let nodes = self.request.assign(self.context.cluster, placement);
            Box::new(NoCapacity {
                after_terminations: Some(nodes),
                ..*waits(Pending::Terminations {
                    short: short.clone().into(),
                })
            })
        };
        if let Some(placement) = soon {
            return Err(terminations(&placement));
        }
        self.may_search(&short, &free)?;
        let eviction = self.search(&short, &free)?;
        let plan = &eviction.plan;
        // A longer search may find a placement without victims.
        match (plan.victims.is_empty(), leaving.is_empty()) {
            (true, true) => return Ok(self.placed(&plan.placement, None)),
            (true, false) => return Err(terminations(&plan.placement)),
            (false, _) => {}
        }
        if let Err(reached) = self.within_limit(&eviction) {
            let why = Box::new(NoPreemption::Paced(reached));
            let short = short.into();
            let pending = Pending::NoPreemption { short, why };
            return Err(no_result(pending, Some(reached.next_try)));
        }
        let preemption = self.intend(&eviction).map_err(|too_large| {
            let until = self.context.now + TOO_LARGE_HOLDS;
            no_result(Pending::TooLarge(too_large), Some(until))
        })?;
        Ok(Outcome::Preempts(Box::new(preemption)))
    }

    /// Returns an error with the reason if the gang may not search for victims now.
    fn may_search(&self, short: &Infeasible, free: &Cluster) -> Result<(), Box<NoCapacity>> {
        let Self { context, gang, .. } = *self;
        let never = self.demand().preemption == EvictionPolicy::Never && !gang.input.group.preempts;
        // A longer search comes first, because the gang may fit without evictions.
        if let Infeasible::GaveUp { steps } = short
            && (never || self.effort == 1)
        {
            return Err(waits(self.undecided(*steps)));
        }
        if never {
            return Err(waits(Pending::Capacity(
                may_not_preempt(short.clone()).into(),
            )));
        }
        let retried = without_rejections(context, gang, &self.request);
        if let Some(rejecting) = retried
            && let Ok(demand) = rejecting.without.demand(context.cluster)
            && place(free, &demand).is_ok()
        {
            return Err(waits(Pending::RejectingNodes {
                node: rejecting.first.to_owned(),
                others: rejecting.others,
                next_try: rejecting.until,
            }));
        }
        if let Some(why) = why_no_preemption(context, gang) {
            let (short, why) = (short.clone().into(), Box::new(why));
            return Err(waits(Pending::NoPreemption { short, why }));
        }
        if let Some(until) = prefers_new_nodes(context, gang) {
            let why = Box::new(NoPreemption::PrefersNewNodes { until });
            let short = short.clone().into();
            return Err(waits(Pending::NoPreemption { short, why }));
        }
        let cache = &self.cycle.memory.inadmissible;
        if let Some(cached) = cache.searched(&self.class, context.now) {
            let cached = NoCapacity::new(cached.clone(), VictimSearch::Cached);
            return Err(Box::new(cached));
        }
        if self.cycle.queue.searches == context.settings.searches_per_cycle {
            let pending = Pending::Capacity(short.clone().into());
            let unsearched = NoCapacity::new(pending, VictimSearch::OverBudget);
            return Err(Box::new(unsearched));
        }
        Ok(())
    }

    fn search(&self, short: &Infeasible, free: &Cluster) -> Result<Eviction, Box<NoCapacity>> {
        let Self { context, .. } = *self;
        let Cycle {
            memory,
            capacity,
            gangs,
            ..
        } = self.cycle;
        let templates = self.request.templates.iter();
        let requested = extended_resources(templates.map(|t| &*t.requests));
        let refused = memory.may_not_evict(context.ago(REFUSAL_HOLDS));
        let filter = VictimFilter {
            rules: &context.settings.rules.victims,
            requested: &requested,
            beyond_budgets: context.settings.delete_after.is_some(),
            refused: &refused,
        };
        let mut everything = occupancy_with_nodes(context, memory, capacity, gangs);
        let wait = longest_wait(context, self.gang);
        for saved in everything.gangs.iter_mut().map(|g| &mut g.saved) {
            saved.save = saved.save.filter(|save| *save < wait);
        }
        let result = self.search_victims(&everything, free, filter);
        result.map_err(|failure| {
            if let Some(Infeasible::GaveUp { steps }) = failure.short {
                // Without this back-off, a few gangs would use all victim searches of each cycle.
                let until = context.now + backoff(1);
                return no_result(self.undecided(steps), Some(until));
            }
            let retry_at = (!refused.is_empty()).then(|| {
                let holds = TimeDelta::from_std(REFUSAL_HOLDS).unwrap_or(TimeDelta::MAX);
                context.now + holds
            });
            let until = failure.until.into_iter().chain(retry_at).min();
            no_result(failure.pending(short.clone()), until)
        })
    }

    /// Checks the limit of evictions per minute.
    fn within_limit(&self, eviction: &Eviction) -> Result<(), LimitReached> {
        let Context { settings, now, .. } = *self.context;
        let units = &eviction.table.units.units;
        let victims = eviction.plan.victims.iter();
        let pods = victims
            .filter_map(|&unit| Some(units.get(unit)?.pod_count()))
            .fold(0, u32::saturating_add);
        if let Some(first) = self.cycle.limits.reached {
            return Err(LimitReached { pods, ..first });
        }
        let intents = self
            .cycle
            .gangs
            .iter()
            .filter_map(|g| g.status.preemption.as_ref());
        let evictions = self.cycle.memory.evictions.with_decided(intents, now);
        evictions.allow(pods, settings.max_evictions_per_minute, now)
    }

    /// Verdict after a placement search that reached its step limit. The search is repeated with
    /// more steps after a back-off.
    fn undecided(&self, steps: u64) -> Pending {
        let (uid, undecided) = (self.gang.uid(), &self.cycle.memory.undecided);
        let next_try = undecided.next_try(uid, self.context.now, self.effort);
        Pending::Undecided { steps, next_try }
    }

    /// Searches for the cheapest victims among work that the rules permit.
    fn search_victims(
        &self,
        everything: &Occupancy<'_>,
        free: &Cluster,
        filter: VictimFilter<'_>,
    ) -> Result<Eviction, SearchFailure> {
        let rules = &self.context.settings.rules;
        let (at, attempt) = (self.at, self.attempt());
        // Counts protected pods only on nodes that the gang's pods can use.
        let may_use = |node: NodeIx| {
            let mut shapes = attempt.demand.shapes.iter();
            shapes.any(|shape| attempt.demand.admits(shape, node))
        };
        let search = |filter: VictimFilter<'_>| {
            let table = everything.units(Some(at), attempt.demand.priority, filter);
            let usable = |nodes: &[NodeIx]| nodes.iter().filter(|n| may_use(**n)).count();
            let left_out = (
                table.shielded_until,
                usable(&table.out_of_reach),
                usable(&table.guarded),
            );
            (attempt.by_preemption(free, table, rules), left_out)
        };
        let (result, (until, mut out_of_reach, mut guarded)) = search(filter);
        let short = match result {
            // Budgets permit each eviction alone, but not all together.
            Ok(eviction) if eviction.plan.cost.pdb_excess > 0 && !filter.beyond_budgets => {
                guarded += eviction.plan.cost.pdb_excess as usize;
                None
            }
            Ok(eviction) => return Ok(eviction),
            Err(short) => Some(short),
        };
        // Reports protected pods only if evicting all work of lower priority would free enough.
        let enough = || {
            let most = everything.free_at_most(Some(at), attempt.demand.priority, free);
            !matches!(
                place(&most, attempt.demand),
                Err(Infeasible::InsufficientCapacity(_))
            )
        };
        if guarded + out_of_reach > 0 && !enough() {
            (guarded, out_of_reach) = (0, 0);
        }
        let nobody = BTreeSet::new();
        let beyond = VictimFilter {
            beyond_budgets: true,
            refused: &nobody,
            ..filter
        };
        if guarded > 0 && search(beyond).0.is_err() {
            guarded = 0;
        }
        let all = VictimRules {
            scope: VictimScope::Any,
            excluded_namespaces: BTreeSet::new(),
            excluded_labels: BTreeMap::new(),
            opt_out: false,
            evict_admitted: true,
            longest_grace_period: Duration::MAX,
        };
        let any = VictimFilter {
            rules: &all,
            ..beyond
        };
        if out_of_reach > 0 && (guarded > 0 || search(any).0.is_err()) {
            out_of_reach = 0;
        }
        Err(SearchFailure {
            short,
            until,
            out_of_reach,
            guarded,
        })
    }
}

fn waits(pending: Pending) -> Box<NoCapacity> {
    Box::new(NoCapacity::without_search(pending))
}

/// `until`: time until which the result of the search is valid.
fn no_result(pending: Pending, until: Option<DateTime<Utc>>) -> Box<NoCapacity> {
    Box::new(NoCapacity::new(pending, VictimSearch::NoResult(until)))
}

struct SearchFailure {
    /// Shortage after evicting all permitted work. `None`: evicting it would free enough, but
    /// disruption budgets do not permit all evictions together.
    short: Option<Infeasible>,
    until: Option<DateTime<Utc>>,
    /// Pods that the rules protect, if their eviction would free enough; else 0.
    out_of_reach: usize,
    /// Pods that disruption budgets protect, if their eviction would free enough; else 0.
    guarded: usize,
}

impl SearchFailure {
    /// Verdict on the gang. `short`: shortage without any eviction.
    fn pending(self, short: Infeasible) -> Pending {
        Pending::NoVictims {
            short: self.short.unwrap_or(short).into(),
            until: self.until,
            out_of_reach: self.out_of_reach,
            guarded: self.guarded,
        }
    }
}

/// Nodes that the workload avoids because their kubelets rejected its pods.
struct Rejecting<'g> {
    /// The request with these nodes permitted.
    without: PlacementRequest,
    until: DateTime<Utc>,
    first: &'g str,
    others: usize,
}

/// Nodes whose kubelets rejected pods of the gang, and the request with these nodes. The gang waits
/// until the exclusion ends, because the cause of the rejection is usually temporary. `None` after
/// too many rejections.
fn without_rejections<'g>(
    context: &Context<'_>,
    gang: &'g GangState,
    request: &PlacementRequest,
) -> Option<Rejecting<'g>> {
    let workload = &gang.input.workload;
    if workload.placement_tries > REJECTIONS {
        return None;
    }
    let refusing = &gang.status.excluded_nodes;
    let mut again = request.clone();
    let mut rejecting = BTreeMap::new();
    for avoided in &workload.avoid {
        let rejected = avoided.reason == reasons::REJECTED_BY_NODE && avoided.until > context.now;
        if !rejected || refusing.iter().any(|e| e.node == avoided.node) {
            continue;
        }
        if let Some(node) = context.cluster.ordinal(&avoided.node) {
            again.excluded.remove(node);
            rejecting.insert(avoided.node.as_str(), avoided.until);
        }
    }
    let (&first, _) = rejecting.first_key_value()?;
    Some(Rejecting {
        without: again,
        until: rejecting.values().copied().max()?,
        first,
        others: rejecting.len() - 1,
    })
}
