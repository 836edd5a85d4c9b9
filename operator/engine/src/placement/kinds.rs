//! Kinds of nodes in one search over several shapes.

use std::rc::Rc;

use smallvec::SmallVec;

use super::instance::PlacementInstance;
use super::patterns::{Kind, KindIx, NodeState, Pattern};
use super::shape_pods::{ShapePods, by_shape, largest_first};
use crate::problem::NodeIx;

/// Steps for one lookup of a kind.
const LOOKUP: u64 = 4;

#[derive(Clone)]
pub(super) struct Kinds<'a> {
    pub instance: &'a PlacementInstance<'a>,
    /// Shapes of the patterns, hardest first, and upper bounds of their pods. Equal in every search
    /// of an instance.
    most: Vec<ShapePods>,
    /// Pods to place, in the order of the patterns.
    pub to_place: Vec<ShapePods>,
    /// Kinds of the instance's table, as of the last lookup.
    pub all: Vec<Rc<Kind>>,
    pub steps: u64,
}

impl<'a> Kinds<'a> {
    /// Kinds for these pods, of shapes with needed pods.
    pub fn new(instance: &'a PlacementInstance<'a>, pods: &[ShapePods]) -> Self {
        let demand = instance.demand;
        let mut most = largest_first(instance, &by_shape(&demand.needed()));
        let to_place = most
            .iter()
            .map(|most| {
                let given = pods.iter().find(|pods| pods.shape == most.shape);
                given.copied().unwrap_or(ShapePods { count: 0, ..*most })
            })
            .collect();
        if demand.by_replica() {
            // A replica is placed whole, although fewer pods may be needed.
            let all = demand.desired();
            for pods in &mut most {
                pods.count = all[pods.shape];
            }
        }
        Self {
            instance,
            most,
            to_place,
            all: Vec::new(),
            steps: 0,
        }
    }

    pub fn of(&mut self, node: NodeIx, free: &[i64]) -> KindIx {
        self.steps += LOOKUP;
        let instance = self.instance;
        let admits = |pods: &ShapePods| instance.admits[pods.shape].contains(node);
        let bits = |bits: i64, pods: &ShapePods| bits << 1 | i64::from(admits(pods));
        let admitted = self.most.chunks(64).map(|w| w.iter().fold(0, bits));
        let state: NodeState = admitted.chain(free.iter().copied()).collect();
        let mut table = instance.kinds.borrow_mut();
        let kind = table.kind(state, || self.new_kind(node, free));
        let new = self.all.len()..table.all.len();
        self.all.extend_from_slice(&table.all[new]);
        kind
    }

    fn new_kind(&mut self, node: NodeIx, free: &[i64]) -> Kind {
        let shapes = &self.instance.demand.shapes;
        let each = self.most.iter();
        let requests: SmallVec<[&[i64]; 4]> = each.map(|w| &*shapes[w.shape].request).collect();
        let each = self.most.iter();
        let most: Pattern = each
            .map(|pods| pods.fitting(self.instance, node, free).into())
            .collect();
        let (kind, looked_at) = Kind::new(&requests, &most, free);
        self.steps += looked_at;
        kind
    }
}
