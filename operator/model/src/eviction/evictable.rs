//! Evictable units for a gang.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_engine::NodeIx;
use lockstep_engine::queue::within_min_runtime;

use crate::cluster::pod_list::ListedPod;
use crate::eviction::cost::VictimCost;
use crate::eviction::foreign_units::ForeignUnits;
use crate::eviction::occupancy::{ByRequests, Disruption, Occupancy, PlacedGang};
use crate::eviction::rules::after;
use crate::eviction::units::{GangUnit, SinglePod, UnitTable, UnitsBuilder};
use crate::eviction::victims::{VictimFilter, VictimRules};
use crate::pods::pod::Pod;
use crate::pods::resources::Resources;

struct Candidate<'o, 'a> {
    number: usize,
    gang: &'o PlacedGang<'a>,
    /// Its priority towards the preemptor.
    counts: i32,
    /// True if its quota protects it from the preemptor.
    admitted: bool,
}

impl<'a> Occupancy<'a> {
    /// Everything evictable for a gang of this priority. `requester`: its number, if it is one of the
    /// gangs.
    pub fn units(
        &self,
        requester: Option<usize>,
        priority: i32,
        filter: VictimFilter<'_>,
    ) -> UnitTable {
        let mut builder =
            UnitsBuilder::new(self.cluster, self.budgets, self.now, filter.beyond_budgets);
        self.about_to_go().for_each(|pod| builder.spend(pod));
        let (whole, single): (Vec<_>, Vec<_>) = self
            .candidates(requester, priority, filter.rules)
            .partition(|candidate| candidate.gang.disruption == Disruption::Whole);
        for gang in &whole {
            self.add_whole_gang(gang, filter, &mut builder);
        }
        for gang in &single {
            self.add_single_members(gang, filter, &mut builder);
        }
        self.add_foreign_pods(priority, filter, &mut builder);
        for pods in self.whole_units().values() {
            self.add_whole_unit(pods, priority, filter, &mut builder);
        }
        builder.build()
    }

    /// Gangs of lower priority that are not about to end anyway.
    fn candidates(
        &self,
        requester: Option<usize>,
        priority: i32,
        rules: &VictimRules,
    ) -> impl Iterator<Item = Candidate<'_, 'a>> {
        let requester_gang = requester.and_then(|number| self.gangs.get(number));
        let preemptor = requester_gang.map(|gang| gang.uid);
        let protects = rules.protect_admitted(requester_gang.is_some_and(|gang| gang.in_kueue));
        let all = self
            .gangs
            .iter()
            .enumerate()
            .map(move |(number, gang)| Candidate {
                number,
                gang,
                counts: gang.counts_for(preemptor, priority),
                admitted: gang.in_kueue && protects,
            });
        all.filter(move |c| {
            Some(c.number) != requester && c.counts < priority && !self.goes(c.gang)
        })
    }

    fn add_whole_gang(
        &self,
        &Candidate {
            number,
            gang,
            counts,
            admitted,
        }: &Candidate<'_, '_>,
        filter: VictimFilter<'_>,
        builder: &mut UnitsBuilder<'_>,
    ) {
        let unit = self.unit(number, gang, counts);
        // Accelerators of a node are useless to a gang that its other resources keep out.
        let nodes = unit.holds.iter().map(|h| h.node);
        let spared = admitted || gang.spared(filter.rules);
        if spared || !filter.admits_gang(gang.namespace, self.offers(nodes)) {
            builder.out_of_reach(unit.holds.iter().map(|held| held.node));
            return;
        }
        let overstays = counts < gang.victim_priority();
        if !unit.holds.is_empty() && (overstays || !self.shielded(gang.started(), builder)) {
            builder.add_gang(&unit);
        }
    }

    fn offers(&self, nodes: impl Iterator<Item = NodeIx>) -> impl Iterator<Item = &Resources> {
        nodes.filter_map(|node| Some(&self.cluster.node(node)?.allocatable))
    }

    /// Adds the members of a gang that can be evicted one by one.
    fn add_single_members(
        &self,
        &Candidate {
            gang,
            counts,
            admitted,
            ..
        }: &Candidate<'_, '_>,
        filter: VictimFilter<'_>,
        builder: &mut UnitsBuilder<'_>,
    ) {
        let pods = gang.pods.iter();
        let running: Vec<&Arc<Pod>> = pods.filter(|p| self.evictable(p)).collect();
        let nodes: Vec<NodeIx> = running.iter().filter_map(|p| builder.node_of(p)).collect();
        let in_scope = filter.admits_gang(gang.namespace, self.offers(nodes.iter().copied()));
        if admitted || gang.spared(filter.rules) || !in_scope {
            builder.out_of_reach(nodes);
            return;
        }
        let together = gang.disruption == Disruption::Together;
        if together && self.shielded(gang.started(), builder) {
            return;
        }
        let costs = running.iter().map(|p| self.cost(gang, p));
        let cost: VictimCost = costs.sum();
        let cascade = together.then(|| builder.cascade(cost.total()));
        for pod in running {
            if filter.refused.contains(pod.uid.as_str()) {
                builder.guarded(builder.node_of(pod));
            } else if together || !self.shielded(pod.started, builder) {
                builder.add_pod(SinglePod {
                    pod,
                    priority: counts,
                    cost: self.cost(gang, pod),
                    cascade,
                    eligible: gang.eligible.clone(),
                });
            }
        }
    }

    fn add_foreign_pods(
        &self,
        priority: i32,
        filter: VictimFilter<'_>,
        builder: &mut UnitsBuilder<'_>,
    ) {
        let mut kinds = ByRequests::default();
        let costs = &self.rules.costs;
        let mut together = ForeignUnits::new(self.cluster, costs, self.now);
        for listed in self.foreign_pods(priority) {
            let pod = &listed.pod;
            if listed.in_unit && self.cluster.goes_whole(pod) {
                continue;
            }
            let in_scope = *kinds.of(&listed.requests, |held| filter.holds_in_scope(held));
            if !in_scope || filter.rules.leave_alone(pod) {
                builder.out_of_reach([listed.node]);
            } else if filter.refused.contains(pod.uid.as_str()) {
                builder.guarded([listed.node]);
            } else if !self.shielded(pod.started, builder) {
                let cascade = together.cascade(pod, builder);
                builder.add_pod(SinglePod {
                    pod,
                    priority: self.victim_priority(listed),
                    cost: costs.cost_of_pod(pod, self.now),
                    cascade,
                    eligible: None,
                });
            }
        }
    }

    /// Foreign units that are evicted whole, with their pods that hold capacity and are not
    /// terminating.
    pub(crate) fn whole_units(&self) -> BTreeMap<(&'a str, &'a str), Vec<&'a ListedPod>> {
        let mut units: BTreeMap<_, Vec<&ListedPod>> = BTreeMap::new();
        let parts = self.cluster.pod_parts().filter(|part| part.in_units);
        let listed = parts.flat_map(|part| &part.pods);
        for listed in listed.filter(|l| l.in_unit && l.bound && !l.terminating) {
            let unit = self.cluster.unit(&listed.pod);
            if let Some(unit) = unit.filter(|unit| unit.whole) {
                let key = (&*listed.pod.namespace, unit.key);
                units.entry(key).or_default().push(listed);
            }
        }
        units
    }

    /// Adds a unit if all its pods are evictable for a gang of this priority.
    fn add_whole_unit(
        &self,
        unit: &[&ListedPod],
        priority: i32,
        filter: VictimFilter<'_>,
        builder: &mut UnitsBuilder<'_>,
    ) {
        let evictable = |l: &&ListedPod| l.evictable && !self.is_being_evicted(&l.pod);
        let highest = unit.iter().map(|l| self.victim_priority(l)).max();
        if highest.is_none_or(|highest| highest >= priority) || !unit.iter().all(evictable) {
            return;
        }
        let pods: Vec<&Arc<Pod>> = unit.iter().map(|l| &l.pod).collect();
        let nodes = unit.iter().map(|listed| listed.node);
        let in_scope = unit.iter().any(|l| filter.holds_in_scope(&l.requests));
        if !in_scope || pods.iter().any(|pod| filter.rules.leave_alone(pod)) {
            builder.out_of_reach(nodes);
        } else if pods
            .iter()
            .any(|pod| filter.refused.contains(pod.uid.as_str()))
        {
            builder.guarded(nodes);
        } else if !self.shielded(pods.iter().filter_map(|p| p.started).min(), builder) {
            let costs = &self.rules.costs;
            let cost = pods
                .iter()
                .map(|pod| costs.cost_of_pod(pod, self.now))
                .sum();
            builder.add_pods(&pods, highest.unwrap_or_default(), cost);
        }
    }

    fn unit(&self, number: usize, gang: &PlacedGang<'_>, priority: i32) -> GangUnit {
        let mut holds = gang.holds(self.cluster).into_owned();
        holds.retain(|h| {
            h.pod
                .as_ref()
                .is_none_or(|p| !gang.stray.contains(p.uid.as_str()))
        });
        let pods = holds.iter().filter_map(|h| h.pod.as_ref());
        let cost = pods.map(|pod| self.cost(gang, pod)).sum();
        let (preempts, eligible) = (gang.preempts, gang.eligible.clone());
        GangUnit {
            number,
            priority,
            preempts,
            holds,
            cost,
            eligible,
        }
    }

    fn cost(&self, gang: &PlacedGang<'_>, pod: &Pod) -> VictimCost {
        self.rules.costs.cost_of_member(pod, gang.saved, self.now)
    }

    /// True if work with this start is within its guaranteed run time, whose end is recorded.
    fn shielded(&self, started: Option<DateTime<Utc>>, builder: &mut UnitsBuilder<'_>) -> bool {
        let guaranteed = self.rules.min_runtime;
        let Some(started) = started.filter(|_| !guaranteed.is_zero()) else {
            return false;
        };
        let seconds = i64::try_from(guaranteed.as_secs()).unwrap_or(i64::MAX);
        let within = within_min_runtime(started.timestamp(), self.now.timestamp(), seconds);
        if let Some(end) = after(started, guaranteed).filter(|_| within) {
            builder.shielded_until(end);
        }
        within
    }
}
