//! The domains of a topology as clusters of their own: what a domain costs to look at depends on its own size only.

use super::field::Field;
use crate::{
    cluster::Cluster,
    placement::Site,
    problem::{Demand, DomainIx, KeyIx, NodeIx, Placement},
};

/// A cluster cut into the domains of one key.
pub(super) struct Parts {
    /// The gang without its topology: every part is one domain.
    demand: Demand,
    /// Per domain, its nodes in the whole cluster.
    nodes: Vec<Vec<NodeIx>>,
    clusters: Vec<Cluster>,
    /// Per node of the whole cluster, its domain and its ordinal there.
    place: Vec<Option<(DomainIx, NodeIx)>>,
}

impl Parts {
    pub fn new(site: &Site<'_>, key: KeyIx) -> Self {
        let nodes = site.nodes_by_domain(key);
        let mut place = vec![None; site.cluster.node_count()];
        for (domain, members) in nodes.iter().enumerate() {
            for (local, &node) in members.iter().enumerate() {
                place[node] = Some((domain, local));
            }
        }
        Self {
            demand: Demand { topology: None, ..site.demand.clone() },
            clusters: nodes.iter().map(|members| site.cluster.part(members)).collect(),
            nodes,
            place,
        }
    }

    /// Number of domains, those without usable nodes included.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The nodes of a domain, in the order of their ordinals there.
    pub fn nodes(&self, domain: DomainIx) -> &[NodeIx] {
        &self.nodes[domain]
    }

    /// The gang in one domain.
    pub fn site<'p>(&'p self, whole: &Site<'_>, domain: DomainIx) -> Site<'p> {
        whole.within(&self.nodes[domain], &self.clusters[domain], &self.demand)
    }

    /// The question in one domain; `site` is that of the domain.
    pub fn field<'p>(&self, whole: &Field<'p>, site: &'p Site<'p>, domain: DomainIx) -> Field<'p> {
        whole.within(site, &self.nodes[domain], |node| {
            self.place[node].filter(|&(d, _)| d == domain).map(|(_, local)| local)
        })
    }

    /// Turns the node ordinals of a domain's placement into those of the whole cluster.
    pub fn number(&self, domain: DomainIx, placement: &mut Placement) {
        for seat in &mut placement.seats {
            seat.node = self.nodes[domain][seat.node];
        }
        placement.seats.sort_unstable();
    }
}
