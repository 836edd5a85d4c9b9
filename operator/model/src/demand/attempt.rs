//! Placement attempts of one gang: in free capacity, after terminations, by preemption.

use std::collections::BTreeSet;

use lockstep_engine::{
    Amounts, Cluster, Demand, GangPlacement, Infeasible, NodeIx, PreemptionPlan, Reasons, explain,
    place_if_it_fits, place_within, preempt,
};

use crate::demand::reservation::{QueueReservation, Requester};
use crate::eviction::rules::Rules;
use crate::eviction::units::UnitTable;

#[derive(Clone, Copy, Debug)]
pub struct PlacementAttempt<'a> {
    pub demand: &'a Demand,
    pub requester: Requester<'a>,
    /// Reservations of gangs ahead in the queue.
    pub ahead: &'a [QueueReservation],
    /// Nodes that the gang gets only if it does not fit without them, the best first.
    pub last_choice: &'a [NodeIx],
    /// Step limit of a placement search for several shapes.
    pub placement_steps: u64,
    /// Factor on the usual steps of a victim search.
    pub effort: u64,
}

/// A placement in capacity that is reserved for later.
#[derive(Clone, Debug)]
pub struct BackfillPlacement<'a> {
    pub placement: GangPlacement,
    pub reservations: Vec<&'a QueueReservation>,
}

impl<'a> PlacementAttempt<'a> {
    pub fn in_free_capacity(&self, free: &Cluster) -> Result<GangPlacement, Infeasible> {
        self.place(&self.left_over(free))
    }

    /// Free capacity without the reservations that bind the gang.
    pub fn left_over(&self, free: &Cluster) -> Cluster {
        let mut left = free.clone();
        for reservation in self.binding() {
            reservation.take(&mut left);
        }
        left
    }

    /// Places the gang in [`left_over`](Self::left_over) capacity.
    pub fn in_left_over(&self, left: &Cluster) -> Result<GangPlacement, Infeasible> {
        self.place(left)
    }

    /// Places the gang in capacity reserved for later, which it releases in time. `None` if that is
    /// no help.
    pub fn as_backfill(&'a self, free: &Cluster) -> Option<BackfillPlacement<'a>> {
        let ends = self.requester.ends;
        let (later, now): (Vec<_>, Vec<_>) = self.binding().partition(|r| r.starts_after(ends));
        if later.is_empty() {
            return None;
        }
        let mut left = free.clone();
        for reservation in now {
            reservation.take(&mut left);
        }
        let placement = place_if_it_fits(&left, self.demand, self.placement_steps)?;
        let placement = self.on_better_nodes(placement, &left);
        let used = nodes(&placement);
        let touched = |r: &&QueueReservation| r.nodes.keys().any(|n| used.contains(n));
        Some(BackfillPlacement {
            reservations: later.into_iter().filter(touched).collect(),
            placement,
        })
    }

    /// Reservations without which the gang would fit. Empty if it would not fit even then.
    pub fn kept_waiting_by(&'a self, free: &Cluster) -> Vec<&'a QueueReservation> {
        let binding: Vec<&QueueReservation> = self.binding().collect();
        if binding.is_empty() {
            return binding;
        }
        let Some(placement) = place_if_it_fits(free, self.demand, self.placement_steps) else {
            return Vec::new();
        };
        let needed = nodes(&placement);
        let in_way = |r: &&QueueReservation| r.nodes.keys().any(|n| needed.contains(n));
        binding.into_iter().filter(in_way).collect()
    }

    /// Remaining capacity after terminations, and the gang's placement there, if any. `left`:
    /// [remaining capacity](Self::left_over) now, which does not suffice.
    pub fn after_terminations(
        &self,
        mut left: Cluster,
        leaving: &[(NodeIx, Amounts)],
    ) -> (Cluster, Option<GangPlacement>) {
        if leaving.is_empty() {
            return (left, None);
        }
        for (node, amounts) in leaving {
            left.remove_pod(*node, amounts);
        }
        let placement = place_if_it_fits(&left, self.demand, self.placement_steps);
        let placement = placement.map(|placement| self.on_better_nodes(placement, &left));
        (left, placement)
    }

    /// Places the gang by preemption. `free`: see [`PlacementAttempt::after_terminations`].
    pub fn by_preemption(
        &self,
        free: &Cluster,
        table: UnitTable,
        rules: &Rules,
    ) -> Result<Eviction, Infeasible> {
        let mut options = rules.options();
        options.work_budget *= self.effort;
        let plan = preempt(free, &table.units, self.demand, &options)?;
        let reasons = explain(free, &table.units, self.demand, &options, &plan);
        Ok(Eviction {
            table,
            plan,
            reasons,
        })
    }

    fn binding(&self) -> impl Iterator<Item = &'a QueueReservation> {
        self.ahead.iter().filter(|r| r.binds(&self.requester))
    }

    fn place(&self, free: &Cluster) -> Result<GangPlacement, Infeasible> {
        let placement = place_within(free, self.demand, self.placement_steps)?;
        Ok(self.on_better_nodes(placement, free))
    }

    /// The placement without nodes of the last choice, or with the fewest that suffice, the best
    /// first.
    fn on_better_nodes(&self, placement: GangPlacement, free: &Cluster) -> GangPlacement {
        let used = nodes(&placement);
        if !self.last_choice.iter().any(|node| used.contains(node)) {
            return placement;
        }
        let mut found = placement;
        let (mut least, mut enough, mut tried) = (0, self.last_choice.len(), 0);
        while least < enough {
            let mut demand = self.demand.clone();
            demand
                .excluded
                .extend(self.last_choice[tried..].iter().copied());
            match place_if_it_fits(free, &demand, self.placement_steps) {
                Some(placement) => (found, enough) = (placement, tried),
                None => least = tried + 1,
            }
            tried = usize::midpoint(least, enough);
        }
        found
    }
}

fn nodes(placement: &GangPlacement) -> BTreeSet<NodeIx> {
    placement.assignments.iter().map(|a| a.node).collect()
}

#[derive(Clone, Debug)]
pub struct Eviction {
    pub table: UnitTable,
    pub plan: PreemptionPlan,
    pub reasons: Reasons,
}

pub fn may_not_preempt(short: Infeasible) -> Infeasible {
    match short {
        Infeasible::InsufficientCapacity(shortfall) => Infeasible::MayNotPreempt(shortfall),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::DateTime;
    use lockstep_engine::EvictionPolicy;
    use smallvec::smallvec;

    use crate::Snapshot;
    use crate::demand::request::{PlacementRequest, TemplateMembers};
    use crate::eviction::victims::{VictimRules, VictimScope};
    use crate::test_support::{mk_node, mk_pod, mk_resources};
    use crate::{ClusterModel, Resources};
    use lockstep_api::member::Member;
    use std::sync::Arc;

    const GPU: &str = "nvidia.com/gpu";

    /// Two nodes of four accelerators. A gang of priority 50 has reserved the first node.
    struct Case {
        cluster: Snapshot,
        request: PlacementRequest,
        victims: VictimRules,
        held: QueueReservation,
        /// Of the requesting gang.
        victim_priority: i32,
        evictable: bool,
        ends: Option<i64>,
        last_choice: Vec<NodeIx>,
    }

    impl Case {
        /// A gang requests one pod with `gpus` accelerators on the first node.
        fn new(gpus: i64) -> Self {
            let mut model = ClusterModel::default();
            for name in ["n1", "n2"] {
                model.upsert_node(mk_node(name, 4));
            }
            let cluster = model.snapshot();
            let requests: Resources =
                mk_resources(&[("pods", "1"), (GPU, gpus.to_string().as_str())]);
            let mut whole = cluster.dims().amounts(&mk_resources(&[(GPU, "4")]));
            whole.iter_mut().for_each(|a| *a = (*a).max(0));
            Self {
                request: PlacementRequest {
                    min_count: 1,
                    templates: vec![TemplateMembers {
                        members: vec![Member::new("w", 0, 0)],
                        requests: Arc::new(requests),
                        eligible: Arc::new([0].into_iter().collect()),
                        apart: None,
                        closed: lockstep_engine::NodeSet::new(),
                    }],
                    priority: 50,
                    preemption: EvictionPolicy::LowerPriority,
                    topology: Vec::new(),
                    fixed: std::collections::BTreeMap::new(),
                    excluded: lockstep_engine::NodeSet::new(),
                },
                held: QueueReservation {
                    gang: 7,
                    priority: 50,
                    preempts: true,
                    requested: [GPU.to_owned()].into(),
                    starts_at: None,
                    nodes: [(0, whole)].into(),
                },
                cluster,
                victims: VictimRules::default(),
                victim_priority: 50,
                evictable: true,
                ends: None,
                last_choice: Vec::new(),
            }
        }

        fn with_attempt<T>(&self, what: impl FnOnce(&PlacementAttempt<'_>, &Cluster) -> T) -> T {
            let demand = self.request.demand(&self.cluster).unwrap();
            let ahead = [self.held.clone()];
            let second = |s: i64| DateTime::from_timestamp(s, 0).unwrap();
            let attempt = PlacementAttempt {
                demand: &demand,
                requester: Requester {
                    request: &self.request,
                    namespace: "ml",
                    victim_priority: self.victim_priority,
                    evictable: self.evictable,
                    victims: &self.victims,
                    replaces: false,
                    ends: self.ends.map(second),
                },
                ahead: &ahead,
                last_choice: &self.last_choice,
                placement_steps: lockstep_engine::PLACEMENT_STEPS,
                effort: 1,
            };
            what(&attempt, self.cluster.free_capacity())
        }

        fn placed(&self) -> bool {
            self.with_attempt(|attempt, free| attempt.in_free_capacity(free).is_ok())
        }

        fn backfills(&self) -> bool {
            self.with_attempt(|attempt, free| attempt.as_backfill(free).is_some())
        }
    }

    #[test]
    fn what_is_reserved_is_left_to_its_holder_unless_it_can_take_it_back() {
        let lower = || Case {
            victim_priority: 49,
            ..Case::new(1)
        };
        assert!(!Case::new(1).placed(), "its equal");
        assert!(lower().placed());
        let mut case = lower();
        case.evictable = false;
        assert!(!case.placed(), "it is guaranteed a run time");
        case = lower();
        case.held.preempts = false;
        assert!(!case.placed(), "the holder may not preempt");
        case = lower();
        case.victims.excluded_namespaces = ["ml".to_owned()].into();
        assert!(!case.placed(), "nothing of its namespace is evicted");
        case = lower();
        case.held.requested = ["amd.com/gpu".to_owned()].into();
        assert!(!case.placed(), "it holds nothing that the holder asks for");
        case.victims.scope = VictimScope::Any;
        assert!(case.placed());
    }

    #[test]
    fn nodes_of_the_last_choice_are_used_in_their_order_and_only_if_needed() {
        let mut model = ClusterModel::default();
        for name in ["n0", "n1", "n2", "n3"] {
            model.upsert_node(mk_node(name, 4));
        }
        let mut case = Case::new(4);
        case.cluster = model.snapshot();
        case.held.nodes.clear();
        case.last_choice = vec![2, 0];
        let mut used = |members: i32| {
            let template = &mut case.request.templates[0];
            template.members = (0..members).map(|i| Member::new("w", 0, i)).collect();
            template.eligible = Arc::new((0..4).collect());
            case.request.min_count = members as u32;
            case.with_attempt(|attempt, free| {
                let placement = attempt.in_free_capacity(free).unwrap();
                nodes(&placement).into_iter().collect::<Vec<_>>()
            })
        };
        assert_eq!(used(2), [1, 3]);
        assert_eq!(used(3), [1, 2, 3]);
        assert_eq!(used(4), [0, 1, 2, 3]);
    }

    #[test]
    fn the_reservations_that_delay_a_fitting_gang_are_known() {
        let by = |gpus| {
            Case::new(gpus).with_attempt(|attempt, free| {
                let by = attempt.kept_waiting_by(free);
                by.iter().map(|r| r.gang).collect::<Vec<_>>()
            })
        };
        assert_eq!((by(1), by(5)), (vec![7], vec![]));
    }

    #[test]
    fn what_leaves_a_reserved_node_goes_to_the_reservation_first() {
        let mut case = Case::new(1);
        let mut model = ClusterModel::default();
        model.upsert_node(mk_node("n1", 4));
        model.upsert_pod(mk_pod("p", "n1", 3));
        case.cluster = model.snapshot();
        let leaving = [(
            0,
            case.cluster.dims().amounts(&mk_pod("p", "n1", 3).requests),
        )];
        let soon = |case: &Case| {
            case.with_attempt(|attempt, free| {
                attempt
                    .after_terminations(attempt.left_over(free), &leaving)
                    .1
                    .is_some()
            })
        };
        assert!(!soon(&case));
        let gpu = case.cluster.dims().len() - 1;
        let mut three: Amounts = smallvec![0; gpu + 1];
        three[gpu] = 3;
        case.held.nodes = [(0, three)].into();
        assert!(soon(&case), "it is left over beside the reservation");
    }

    #[test]
    fn a_gang_that_ends_in_time_may_use_what_is_reserved_for_later() {
        let starting = |start: Option<i64>, ends| {
            let mut case = Case::new(1);
            case.held.starts_at = start.map(|s| DateTime::from_timestamp(s, 0).unwrap());
            Case { ends, ..case }
        };
        assert!(starting(Some(130), Some(100)).backfills());
        assert!(!starting(Some(130), Some(101)).backfills(), "too late");
        assert!(
            !starting(Some(130), None).backfills(),
            "its end is not known"
        );
        assert!(!starting(None, Some(100)).backfills(), "it may start now");
        let mut case = starting(Some(130), Some(100));
        case.held.preempts = false;
        assert!(!case.backfills(), "its end cannot be enforced");
        assert!(!starting(Some(130), Some(100)).placed());
    }
}
