//! Conditions for the gang to fit, in terms of slots.

use crate::{
    placement::{PlacementInstance, levels::LevelDomains, pack::multiple_of},
    problem::{Amounts, DomainIx, NodeIx, ShapeIx},
};

#[derive(Clone, Debug)]
pub(super) struct ShapeNeed {
    pub shape: ShapeIx,
    pub request: Amounts,
    /// Pods to place, or replicas if `replica_size` is set.
    pub need: i64,
    /// Slots of this shape that pods of larger shapes use.
    pub taken_by_larger: i64,
    /// Pods that must share a domain.
    pub replica_size: Option<i64>,
}

/// Condition under which a victim set is large enough.
#[derive(Clone, Debug)]
pub(super) struct FitCondition {
    /// Shapes with a need. Largest first if each is a multiple of the next; otherwise by the needed
    /// part of the scarcest resource.
    pub shapes: Vec<ShapeNeed>,
    /// True if enough slots of every shape imply that the gang fits. Otherwise a placement decides.
    pub counting_is_exact: bool,
    /// True if replicas must share a domain.
    pub by_replica: bool,
    /// Domain of each node; empty unless replicas must share a domain.
    pub domain_of: Vec<Option<DomainIx>>,
    /// Usable nodes by domain; empty unless replicas must share a domain.
    pub domains: Vec<Vec<NodeIx>>,
}

impl FitCondition {
    /// True if patterns of nodes decide: several shapes compete for nodes.
    pub fn several_shapes(&self) -> bool {
        !self.counting_is_exact && !self.by_replica
    }

    pub fn new(placement: &PlacementInstance<'_>) -> Self {
        let demand = placement.demand;
        let required = placement.required();
        let replicas = required.replica.as_ref();
        let together = required.gang.is_some() || replicas.is_some();
        let mut shapes: Vec<ShapeNeed> = demand
            .needed()
            .into_iter()
            .enumerate()
            .filter(|&(_, need)| need > 0)
            .map(|(shape, need)| ShapeNeed {
                shape,
                request: demand.shapes[shape].request.clone(),
                need: i64::from(need),
                taken_by_larger: 0,
                replica_size: None,
            })
            .collect();
        shapes.sort_by(|a, b| {
            b.request
                .iter()
                .sum::<i64>()
                .cmp(&a.request.iter().sum())
                .then(a.shape.cmp(&b.shape))
        });
        let chain = shapes.windows(2).all(|pair| {
            multiple_of(&pair[0].request, &pair[1].request).is_some()
                && placement.admits[pair[0].shape] == placement.admits[pair[1].shape]
        });
        if !chain {
            // The relaxation uses the first shape, with the largest shortage.
            shapes.sort_by_key(|s| {
                let lack = i128::from(s.need) * placement.scarce[s.shape].part;
                std::cmp::Reverse(lack)
            });
        }
        let mut fit = Self {
            counting_is_exact: chain && !together,
            by_replica: replicas.is_some(),
            shapes,
            domain_of: Vec::new(),
            domains: Vec::new(),
        };
        if chain {
            fit.count_larger_ones();
        }
        if let Some(level) = replicas {
            fit.group(placement, level);
        }
        fit
    }

    /// A pod of a larger shape uses a fixed number of a smaller shape's slots, on any node.
    fn count_larger_ones(&mut self) {
        for small in 1..self.shapes.len() {
            let taken = self.shapes[..small]
                .iter()
                .filter_map(|l| {
                    Some(l.need * multiple_of(&l.request, &self.shapes[small].request)?)
                })
                .sum();
            self.shapes[small].taken_by_larger = taken;
        }
    }

    /// Counts replicas per domain. Exact for one shape without running members.
    fn group(&mut self, placement: &PlacementInstance<'_>, level: &LevelDomains) {
        self.counting_is_exact = self.shapes.len() == 1
            && placement.demand.shapes[self.shapes[0].shape]
                .running
                .is_empty();
        if !self.counting_is_exact {
            return;
        }
        self.domain_of = (0..placement.cluster.node_count())
            .map(|n| level.of(n))
            .collect();
        self.domains = level.group(&placement.nodes);
        self.domains.resize(level.count(), Vec::new());
        for shape in &mut self.shapes {
            let members = i64::from(placement.demand.shapes[shape.shape].replica_size);
            shape.need = (shape.need + members - 1) / members;
            shape.replica_size = Some(members);
        }
    }
}
