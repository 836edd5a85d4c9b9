//! Topology levels: domains that the gang and its replicas must share.
//!
//! A domain of a level is one value of its label within one domain of the levels outside it. So
//! equal rack names in two blocks are two domains.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::{
    cluster::Cluster,
    infeasible::DomainPath,
    problem::{DomainIx, KeyIx, NodeIx, Scope, TopologyDemand, TopologyStrictness},
};

/// Domains of one level.
#[derive(Clone, Debug)]
pub(crate) struct LevelDomains {
    /// Keys of the levels outside it, outermost first, and its own.
    keys: SmallVec<[KeyIx; 4]>,
    of_node: Vec<Option<DomainIx>>,
    /// First node of each domain. Unused ordinals have the number of nodes.
    first: Vec<NodeIx>,
}

impl LevelDomains {
    /// `required`: keys without which a node is in no domain.
    fn new(cluster: &Cluster, keys: SmallVec<[KeyIx; 4]>, required: &[KeyIx]) -> Self {
        let nodes = 0..cluster.node_count();
        let of_node: Vec<Option<DomainIx>> = if let &[key] = &*keys {
            nodes.map(|node| cluster.domain(node, key)).collect()
        } else {
            let path = |node: NodeIx| -> Option<SmallVec<[Option<DomainIx>; 4]>> {
                let domain = |key: &KeyIx| cluster.domain(node, *key);
                let labelled = required.iter().all(|key| domain(key).is_some());
                labelled.then(|| keys.iter().map(domain).collect())
            };
            let mut ordinals = BTreeMap::new();
            for node in nodes.clone() {
                ordinals.extend(path(node).map(|path| (path, 0)));
            }
            for (next, ordinal) in ordinals.values_mut().enumerate() {
                *ordinal = next;
            }
            nodes
                .map(|node| ordinals.get(&path(node)?).copied())
                .collect()
        };
        let count = of_node.iter().flatten().max().map_or(0, |d| d + 1);
        let mut first = vec![of_node.len(); count];
        for (node, domain) in of_node.iter().enumerate().rev() {
            if let Some(domain) = *domain {
                first[domain] = node;
            }
        }
        Self {
            keys,
            of_node,
            first,
        }
    }

    /// Largest ordinal plus one.
    pub fn count(&self) -> usize {
        self.first.len()
    }

    /// Domain of a node. `None` if a label is missing.
    pub fn of(&self, node: NodeIx) -> Option<DomainIx> {
        self.of_node.get(node).copied().flatten()
    }

    /// These nodes by domain, without nodes in no domain.
    pub fn group(&self, nodes: &[NodeIx]) -> Vec<Vec<NodeIx>> {
        let mut domains: Vec<Vec<NodeIx>> = Vec::new();
        for &node in nodes {
            if let Some(domain) = self.of(node) {
                if domain >= domains.len() {
                    domains.resize(domain + 1, Vec::new());
                }
                domains[domain].push(node);
            }
        }
        domains
    }

    /// A domain, after the domains that contain it.
    pub fn path(&self, cluster: &Cluster, domain: DomainIx) -> DomainPath {
        let (keys, node) = (self.keys.iter(), self.first[domain]);
        keys.filter_map(|&key| Some((key, cluster.domain(node, key)?)))
            .collect()
    }
}

/// What a placement has to satisfy: all required levels, and of each scope the preferred levels from
/// the outermost up to some level.
#[derive(Clone, Debug)]
pub(crate) struct LevelConstraint {
    /// Domains of which the whole gang uses one.
    pub gang: Option<LevelDomains>,
    /// Domains of which each replica uses one.
    pub replica: Option<LevelDomains>,
    /// Domains of the outermost level left out, of which a placement uses few. If no level of the
    /// replicas is kept, the outermost of these.
    pub spread: Option<LevelDomains>,
}

impl LevelConstraint {
    /// Constraints in the order in which they are tried. Levels of the gang are left out before
    /// levels of the replicas, because the members of a replica communicate most. Of one scope,
    /// inner levels are left out first. The last constraint contains the required levels only.
    pub fn all(cluster: &Cluster, levels: &[TopologyDemand]) -> Vec<Self> {
        let preferred = |scope: Scope| -> Vec<usize> {
            let of_scope = |at: &usize| {
                let level = &levels[*at];
                level.mode == TopologyStrictness::Preferred && level.scope == scope
            };
            (0..levels.len()).filter(of_scope).collect()
        };
        let (of_gang, of_replicas) = (preferred(Scope::Gang), preferred(Scope::Replica));
        let kept = (0..=of_replicas.len()).rev().flat_map(|replicas| {
            let kept_of_gang = (0..=of_gang.len()).rev();
            kept_of_gang.map(move |gang| (gang, replicas))
        });
        kept.map(|(gang, replicas)| {
            let (of_gang, of_replicas) = (&of_gang[gang..], &of_replicas[replicas..]);
            let is_left_out = |at: &usize| of_gang.contains(at) || of_replicas.contains(at);
            let domains = |at: usize| {
                let outer = 0..=at;
                let required: Vec<KeyIx> = outer
                    .clone()
                    .filter(|o| *o == at || !is_left_out(o))
                    .map(|o| levels[o].key)
                    .collect();
                LevelDomains::new(cluster, outer.map(|o| levels[o].key).collect(), &required)
            };
            let innermost = |scope: Scope| {
                let mut each = (0..levels.len()).rev();
                each.find(|at| levels[*at].scope == scope && !is_left_out(at))
            };
            let (gang, replica) = (innermost(Scope::Gang), innermost(Scope::Replica));
            let spread = of_replicas
                .first()
                .filter(|_| replica.is_none())
                .or(of_gang.first())
                .or(of_replicas.first());
            Self {
                gang: gang.map(domains),
                replica: replica.map(domains),
                spread: spread.map(|&at| domains(at)),
            }
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::ClusterNode;
    use crate::problem::Amounts;

    const BLOCK: KeyIx = 0;
    const RACK: KeyIx = 1;

    /// Nodes with these blocks and racks.
    fn cluster(nodes: &[(Option<DomainIx>, Option<DomainIx>)]) -> Cluster {
        let mut cluster = Cluster::new(1, 2);
        for (ix, &(block, rack)) in nodes.iter().enumerate() {
            let spec = ClusterNode {
                allocatable: Amounts::from_slice(&[1]),
                domains: vec![block, rack],
                schedulable: true,
            };
            cluster.upsert_node(ix, &spec);
        }
        cluster
    }

    fn level(key: KeyIx, mode: TopologyStrictness, scope: Scope) -> TopologyDemand {
        TopologyDemand { key, mode, scope }
    }

    fn of_all(domains: Option<&LevelDomains>, nodes: usize) -> Vec<Option<DomainIx>> {
        let domains = domains.expect("a level");
        (0..nodes).map(|node| domains.of(node)).collect()
    }

    #[test]
    fn equal_racks_of_two_blocks_are_two_domains() {
        use TopologyStrictness::Required;
        let nodes = [
            (Some(1), Some(0)),
            (Some(0), Some(0)),
            (Some(0), Some(0)),
            (None, Some(0)),
        ];
        let cluster = cluster(&nodes);
        let levels = [
            level(BLOCK, Required, Scope::Gang),
            level(RACK, Required, Scope::Replica),
        ];
        let all = LevelConstraint::all(&cluster, &levels);
        assert_eq!(all.len(), 1);
        let racks = of_all(all[0].replica.as_ref(), 4);
        assert_eq!(racks, [Some(1), Some(0), Some(0), None]);
        let path = all[0].replica.as_ref().unwrap().path(&cluster, 0);
        assert_eq!(path, [(BLOCK, 0), (RACK, 0)]);
        let blocks = of_all(all[0].gang.as_ref(), 4);
        assert_eq!(blocks, [Some(1), Some(0), Some(0), None]);
    }

    #[test]
    fn preferred_levels_of_replicas_are_left_out_last() {
        use TopologyStrictness::{Preferred, Required};
        let cluster = cluster(&[(Some(0), Some(0)), (None, Some(0)), (Some(0), None)]);
        let levels = [
            level(BLOCK, Preferred, Scope::Gang),
            level(RACK, Required, Scope::Gang),
            level(RACK, Preferred, Scope::Replica),
        ];
        let all = LevelConstraint::all(&cluster, &levels);
        let replica: Vec<bool> = all.iter().map(|c| c.replica.is_some()).collect();
        assert_eq!(replica, [true, true, false, false]);
        let gang = |at: usize| of_all(all[at].gang.as_ref(), 3);
        assert_eq!(gang(0), [Some(0), None, None]);
        // Without its block, the rack of the second node is another domain.
        assert_eq!(gang(1), [Some(1), Some(0), None]);
        assert_eq!(gang(2), gang(0));
        assert!(all[0].spread.is_none());
        let blocks = [Some(0), None, Some(0)];
        assert_eq!(of_all(all[1].spread.as_ref(), 3), blocks);
    }

    #[test]
    fn no_level_is_no_constraint() {
        let all = LevelConstraint::all(&cluster(&[(None, None)]), &[]);
        let [only] = &*all else {
            panic!("one constraint")
        };
        assert!(only.gang.is_none() && only.replica.is_none() && only.spread.is_none());
    }
}
