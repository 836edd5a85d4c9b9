//! Running work as the engine's units of disruption.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use lockstep_engine::{Amounts, NodeIx, NodeSet, PdbIx, Pods, Unit, Units};
use smallvec::SmallVec;

use crate::cluster::Snapshot;
use crate::eviction::cost::VictimCost;
use crate::pods::pdb::Budget;
use crate::pods::pod::Pod;
use crate::pods::resources::Resources;

#[derive(Clone, Debug, Default)]
pub struct UnitTable {
    pub units: Units,
    /// By ordinal of the unit.
    pub sources: Vec<Source>,
    /// Costs of eviction by unit ordinal.
    pub costs: Vec<VictimCost>,
    /// Nodes of pods that [`crate::eviction::victims::VictimRules`] protect.
    pub out_of_reach: Vec<NodeIx>,
    /// Nodes of pods that disruption budgets protect.
    pub guarded: Vec<NodeIx>,
    /// Earliest end of a guaranteed run time that protects a unit.
    pub shielded_until: Option<DateTime<Utc>>,
}

#[derive(Clone, Debug)]
pub enum Source {
    /// A gang that is evicted whole, by the caller's number.
    Gang(usize),
    Pod(Arc<Pod>),
    /// Foreign pods that are evicted together.
    Pods(Vec<Arc<Pod>>),
}

#[derive(Clone, Debug)]
pub struct GangUnit {
    /// The caller's number of the gang.
    pub number: usize,
    pub priority: i32,
    /// True if the evicted gang may preempt other work when it is queued again.
    pub preempts: bool,
    /// Occupants: pods, and reservations for missing pods.
    pub holds: Vec<Occupant>,
    pub cost: VictimCost,
    /// Nodes where the gang could restart. `None`: every node.
    pub eligible: Option<Arc<NodeSet>>,
}

/// A pod that is evicted alone.
#[derive(Clone, Debug)]
pub struct SinglePod<'a> {
    pub pod: &'a Arc<Pod>,
    /// Of its gang, if any.
    pub priority: i32,
    pub cost: VictimCost,
    /// From [`UnitsBuilder::cascade`] if a gang restarts with it.
    pub cascade: Option<usize>,
    /// Nodes where it could restart, if known.
    pub eligible: Option<Arc<NodeSet>>,
}

/// A pod of a gang, or the reservation for a missing pod.
#[derive(Clone, Debug)]
pub struct Occupant {
    pub node: NodeIx,
    pub requests: Arc<Resources>,
    pub pod: Option<Arc<Pod>>,
}

pub struct UnitsBuilder<'a> {
    snapshot: &'a Snapshot,
    budgets: BTreeMap<&'a str, Vec<(PdbIx, &'a Budget)>>,
    now: DateTime<Utc>,
    /// True if units may exceed disruption budgets.
    beyond_budgets: bool,
    table: UnitTable,
}

impl Occupant {
    pub fn of(pod: &Arc<Pod>, cluster: &Snapshot) -> Option<Self> {
        Some(Self {
            node: cluster.ordinal(pod.holds()?)?,
            requests: Arc::clone(&pod.requests),
            pod: Some(Arc::clone(pod)),
        })
    }
}

impl<'a> UnitsBuilder<'a> {
    /// Without `beyond_budgets`, leaves out units that alone exceed a disruption budget.
    pub fn new(
        snapshot: &'a Snapshot,
        budgets: &'a [Arc<Budget>],
        now: DateTime<Utc>,
        beyond_budgets: bool,
    ) -> Self {
        let mut by_namespace: BTreeMap<&str, Vec<(PdbIx, &Budget)>> = BTreeMap::new();
        for (ix, budget) in budgets.iter().enumerate() {
            by_namespace
                .entry(&budget.namespace)
                .or_default()
                .push((ix, budget));
        }
        let pdb_allowed = budgets.iter().map(|b| b.allowed.max(0) as u32).collect();
        let units = Units {
            pdb_allowed,
            ..Units::default()
        };
        Self {
            snapshot,
            budgets: by_namespace,
            now,
            beyond_budgets,
            table: UnitTable {
                units,
                ..UnitTable::default()
            },
        }
    }

    /// Subtracts a pod that is about to terminate from its disruption budgets.
    pub fn spend(&mut self, pod: &Pod) {
        for (pdb, pods) in self.hits(pod) {
            let allowed = &mut self.table.units.pdb_allowed[pdb];
            *allowed = allowed.saturating_sub(pods);
        }
    }

    pub fn add_gang(&mut self, gang: &GangUnit) {
        let mut pods: BTreeMap<Amounts, Vec<NodeIx>> = BTreeMap::new();
        let mut hits: BTreeMap<PdbIx, u32> = BTreeMap::new();
        for held in &gang.holds {
            pods.entry(self.snapshot.dims().amounts(&held.requests))
                .or_default()
                .push(held.node);
            for (pdb, count) in held.pod.iter().flat_map(|p| self.hits(p)) {
                *hits.entry(pdb).or_default() += count;
            }
        }
        let start = gang
            .holds
            .iter()
            .filter_map(|h| h.pod.as_ref()?.started)
            .min();
        self.push(
            Source::Gang(gang.number),
            Unit {
                pods: pods
                    .into_iter()
                    .map(|(request, nodes)| Pods { request, nodes })
                    .collect(),
                priority: gang.priority,
                gang: true,
                cost: gang.cost.total(),
                pdbs: hits.into_iter().collect(),
                start: start.unwrap_or(self.now).timestamp(),
                cascade: None,
                eligible: gang.eligible.clone(),
                preempts: gang.preempts,
            },
            gang.cost,
        );
    }

    pub fn add_pod(&mut self, single: SinglePod<'_>) {
        let SinglePod {
            pod,
            priority,
            cost,
            cascade,
            eligible,
        } = single;
        let Some(node) = self.node_of(pod) else {
            return;
        };
        let unit = Unit {
            pods: vec![Pods {
                request: self.snapshot.dims().amounts(&pod.requests),
                nodes: vec![node],
            }],
            priority,
            gang: false,
            cost: cost.total(),
            pdbs: self.hits(pod),
            start: pod.started.unwrap_or(self.now).timestamp(),
            cascade,
            eligible,
            preempts: pod.preempts,
        };
        self.push(Source::Pod(Arc::clone(pod)), unit, cost);
    }

    pub fn add_pods(&mut self, pods: &[&Arc<Pod>], priority: i32, cost: VictimCost) {
        let mut held: BTreeMap<Amounts, Vec<NodeIx>> = BTreeMap::new();
        let mut hits: BTreeMap<PdbIx, u32> = BTreeMap::new();
        for pod in pods {
            if let Some(node) = self.node_of(pod) {
                let amounts = self.snapshot.dims().amounts(&pod.requests);
                held.entry(amounts).or_default().push(node);
            }
            for (pdb, count) in self.hits(pod) {
                *hits.entry(pdb).or_default() += count;
            }
        }
        let start = pods.iter().filter_map(|p| p.started).min();
        let unit = Unit {
            pods: held
                .into_iter()
                .map(|(request, nodes)| Pods { request, nodes })
                .collect(),
            priority,
            gang: true,
            cost: cost.total(),
            pdbs: hits.into_iter().collect(),
            start: start.unwrap_or(self.now).timestamp(),
            cascade: None,
            eligible: None,
            preempts: pods.iter().any(|p| p.preempts),
        };
        let all = pods.iter().map(|pod| Arc::clone(pod)).collect();
        self.push(Source::Pods(all), unit, cost);
    }

    /// Adds a gang that restarts when one of its pods is evicted, with the total cost in
    /// accelerator-seconds. Returns its ordinal.
    pub fn cascade(&mut self, cost: u64) -> usize {
        self.table.units.cascade_loss.push(cost);
        self.table.units.cascade_loss.len() - 1
    }

    pub fn shielded_until(&mut self, end: DateTime<Utc>) {
        let first = &mut self.table.shielded_until;
        *first = Some(first.map_or(end, |f| f.min(end)));
    }

    pub fn out_of_reach(&mut self, nodes: impl IntoIterator<Item = NodeIx>) {
        self.table.out_of_reach.extend(nodes);
    }

    pub fn guarded(&mut self, nodes: impl IntoIterator<Item = NodeIx>) {
        self.table.guarded.extend(nodes);
    }

    pub fn node_of(&self, pod: &Pod) -> Option<NodeIx> {
        self.snapshot.ordinal(pod.holds()?)
    }

    pub fn build(self) -> UnitTable {
        self.table
    }

    fn hits(&self, pod: &Pod) -> SmallVec<[(PdbIx, u32); 1]> {
        let budgets = self.budgets.get(&*pod.namespace);
        budgets
            .into_iter()
            .flatten()
            .filter(|(_, b)| b.guards(pod))
            .map(|&(ix, _)| (ix, 1))
            .collect()
    }

    fn push(&mut self, source: Source, unit: Unit, cost: VictimCost) {
        let allowed = &self.table.units.pdb_allowed;
        let beyond = |&(pdb, pods): &(PdbIx, u32)| pods > allowed.get(pdb).copied().unwrap_or(0);
        // The API server refuses to evict a pod with two budgets.
        let twice = match &source {
            Source::Gang(_) => false,
            Source::Pod(_) => unit.pdbs.len() > 1,
            Source::Pods(pods) => pods.iter().any(|pod| self.hits(pod).len() > 1),
        };
        let kept = unit.pdbs.iter().any(beyond) || twice;
        if !self.beyond_budgets && kept {
            self.guarded(unit.pods.into_iter().flat_map(|pods| pods.nodes));
            return;
        }
        self.table.units.units.push(unit);
        self.table.sources.push(source);
        self.table.costs.push(cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClusterModel;
    use crate::test_support::{mk_node, mk_pod};
    use serde_json::json;

    #[test]
    fn a_gang_counts_every_pod_that_a_budget_guards_and_a_single_pod_its_own() {
        let mut model = ClusterModel::default();
        model.upsert_node(mk_node("n1", 8));
        let guarded = Pod {
            labels: Arc::new([("app".into(), "db".into())].into()),
            ..mk_pod("a", "n1", 1)
        };
        for pod in [
            guarded.clone(),
            Pod {
                uid: "b".parse().unwrap(),
                ..guarded
            },
            mk_pod("c", "n1", 2),
        ] {
            model.upsert_pod(pod);
        }
        let s = model.snapshot();
        let selector = serde_json::from_value(json!({"matchLabels": {"app": "db"}})).unwrap();
        let budget = Budget {
            namespace: "ml".into(),
            name: "b".into(),
            selector: Some(selector),
            allowed: 1,
        };
        let budgets = [Arc::new(budget)];
        let mut builder =
            UnitsBuilder::new(&s, &budgets, DateTime::from_timestamp(0, 0).unwrap(), true);
        let pods: Vec<_> = s.pods_on(0).cloned().collect();
        let holds: Vec<Occupant> = pods
            .iter()
            .map(|p| Occupant {
                node: 0,
                requests: Arc::clone(&p.requests),
                pod: Some(Arc::clone(p)),
            })
            .collect();
        let unit = GangUnit {
            number: 7,
            priority: 5,
            preempts: true,
            holds,
            cost: VictimCost {
                lost_work: 4,
                save: 3,
                restart: 2,
            },
            eligible: None,
        };
        builder.add_gang(&unit);
        let single = SinglePod {
            pod: &pods[0],
            priority: 3,
            cost: VictimCost::default(),
            cascade: None,
            eligible: None,
        };
        builder.add_pod(single.clone());
        let table = builder.build();
        let [gang, alone] = table.units.units.as_slice() else {
            panic!("two units")
        };
        assert_eq!(
            (gang.pdbs.as_slice(), gang.pod_count(), gang.pods.len()),
            ([(0, 2)].as_slice(), 3, 2)
        );
        assert_eq!(
            (alone.pdbs.as_slice(), alone.priority),
            ([(0, 1)].as_slice(), 3)
        );
        assert_eq!(table.units.pdb_allowed, [1]);
        assert!(matches!(table.sources[0], Source::Gang(7)));
        assert_eq!((gang.cost, table.costs[0]), (9, unit.cost));
        // The budget permits one of the two evictions.
        let mut strict =
            UnitsBuilder::new(&s, &budgets, DateTime::from_timestamp(0, 0).unwrap(), false);
        strict.add_gang(&unit);
        strict.add_pod(single);
        let table = strict.build();
        assert!(matches!(table.sources.as_slice(), [Source::Pod(_)]));
        assert_eq!(table.guarded, [0, 0, 0]);
    }
}
