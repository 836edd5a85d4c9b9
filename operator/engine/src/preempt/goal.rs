//! What "the gang fits" means, as far as counting seats can say.

use crate::{
    placement::{Site, pack::multiple_of},
    problem::{Amounts, DomainIx, NodeIx, Scope, ShapeIx, TopologyMode},
};

/// One shape of the goal.
#[derive(Clone, Debug)]
pub(super) struct GoalShape {
    /// Ordinal in the demand.
    pub shape: ShapeIx,
    pub request: Amounts,
    /// Pods to be placed, or replicas where `replica_size` is set.
    pub need: i64,
    /// Seats of this shape that larger shapes before it take away.
    pub behind: i64,
    /// Pods that must share a domain.
    pub replica_size: Option<i64>,
}

/// What has to be counted together.
#[derive(Clone, Debug)]
pub(super) struct Goal {
    /// Shapes of which something is needed, largest first.
    pub shapes: Vec<GoalShape>,
    /// Whether enough seats of every shape mean that the gang fits; else a placement has to be tried.
    pub counting_decides: bool,
    /// Per node, its domain; empty unless replicas must share one.
    pub domain_of: Vec<Option<DomainIx>>,
    /// Usable nodes per domain; empty unless replicas must share one.
    pub domains: Vec<Vec<NodeIx>>,
}

impl Goal {
    pub fn new(site: &Site<'_>) -> Self {
        let demand = site.demand;
        let together = demand.topology.filter(|t| t.mode == TopologyMode::Required);
        let replicas = together.filter(|t| t.scope == Scope::Replica);
        let mut shapes: Vec<GoalShape> = demand
            .needed()
            .into_iter()
            .enumerate()
            .filter(|&(_, need)| need > 0)
            .map(|(shape, need)| GoalShape {
                shape,
                request: demand.shapes[shape].request.clone(),
                need: i64::from(need),
                behind: 0,
                replica_size: None,
            })
            .collect();
        shapes.sort_by(|a, b| b.request.iter().sum::<i64>().cmp(&a.request.iter().sum()).then(a.shape.cmp(&b.shape)));
        let chain = shapes.windows(2).all(|pair| {
            multiple_of(&pair[0].request, &pair[1].request).is_some()
                && site.admits[pair[0].shape] == site.admits[pair[1].shape]
        });
        let mut goal =
            Self { counting_decides: chain && together.is_none(), shapes, domain_of: Vec::new(), domains: Vec::new() };
        if chain {
            goal.count_larger_ones();
        }
        if let Some(topology) = replicas {
            goal.group(site, topology.key);
        }
        goal
    }

    /// Each pod of a larger shape takes a fixed number of a smaller one's seats, wherever it goes.
    fn count_larger_ones(&mut self) {
        for small in 1..self.shapes.len() {
            let behind = self.shapes[..small]
                .iter()
                .filter_map(|l| Some(l.need * multiple_of(&l.request, &self.shapes[small].request)?))
                .sum();
            self.shapes[small].behind = behind;
        }
    }

    /// Counts replicas per domain. Exact for one shape whose replicas are all still to be placed.
    fn group(&mut self, site: &Site<'_>, key: usize) {
        let fresh = |shape: ShapeIx| site.demand.shapes[shape].running.is_empty();
        self.counting_decides = self.shapes.len() == 1 && self.shapes.iter().all(|s| fresh(s.shape));
        if !self.counting_decides {
            return;
        }
        self.domain_of = (0..site.cluster.node_count()).map(|n| site.cluster.domain(n, key)).collect();
        self.domains = site.nodes_by_domain(key);
        self.domains.resize(site.cluster.domain_count(key), Vec::new());
        for shape in &mut self.shapes {
            let members = i64::from(site.demand.shapes[shape.shape].replica_size);
            shape.need = (shape.need + members - 1) / members;
            shape.replica_size = Some(members);
        }
    }
}
