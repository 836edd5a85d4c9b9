//! Converts a gang's request to the engine's demand, and the engine's placement to a node per member.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodSpec;
use lockstep_api::gangs::Assignments;
use lockstep_api::member::Member;
use lockstep_api::scheduling::TopologyLevel;
use lockstep_api::workload::{TopologyMode, TopologyScope};
use lockstep_engine as engine;
use lockstep_engine::{Demand, EvictionPolicy, GangPlacement, KeyIx, NodeIx, NodeSet, Shape};

use crate::cluster::Snapshot;
use crate::cluster::eligibility::Constraints;
use crate::common::quantity::InvalidQuantity;
use crate::demand::unsuitable_nodes::Misfit;
use crate::pods::pod_view::PodSpecView;
use crate::pods::resources::{Resources, pod_takes};

/// A gang that requests capacity, for all members or for members without a node.
#[derive(Clone, Debug)]
pub struct PlacementRequest {
    pub templates: Vec<TemplateMembers>,
    /// Number of members that it needs, including fixed ones.
    pub min_count: u32,
    pub priority: i32,
    pub preemption: EvictionPolicy,
    /// Levels of the topology, outermost first.
    pub topology: Vec<TopologyLevel>,
    /// Members that keep their nodes. The snapshot includes their capacity.
    pub fixed: BTreeMap<Member, NodeIx>,
    pub excluded: NodeSet,
}

#[derive(Clone, Debug)]
pub struct TemplateMembers {
    /// Requested members in rank order, including fixed ones.
    pub members: Vec<Member>,
    pub requests: Arc<Resources>,
    pub eligible: Arc<NodeSet>,
    /// Slot that each member takes on its node to keep other members away
    /// ([`crate::pods::slots::apart`]).
    pub apart: Option<String>,
    /// Nodes that pods of other workloads close by anti-affinity
    /// ([`crate::cluster::neighbours::closed_nodes`]).
    pub closed: NodeSet,
}

#[derive(Clone, Debug)]
pub struct Template {
    /// Resources of one pod, or the quantity that is invalid.
    pub requests: Result<Arc<Resources>, InvalidQuantity>,
    pub constraints: Constraints,
}

impl From<&PodSpec> for Template {
    fn from(spec: &PodSpec) -> Self {
        Self {
            requests: pod_takes(&PodSpecView::from(spec)).map(Arc::new),
            constraints: Constraints::from(spec),
        }
    }
}

impl PlacementRequest {
    /// The engine's demand. Shapes are the templates in order.
    pub fn demand(&self, snapshot: &Snapshot) -> Result<Demand, Misfit> {
        let topology = self.topology.iter().map(|l| level(l, snapshot)).collect();
        let by_replica = self.by_replica();
        let shapes = self
            .templates
            .iter()
            .map(|template| {
                if let Some(name) = snapshot.dims().never_offered(&template.requests) {
                    return Err(Misfit::Resource(name.to_owned()));
                }
                let replicas = template.replicas();
                let mut request = snapshot.dims().amounts(&template.requests);
                let apart = template.apart.as_deref();
                if let Some(dim) = apart.and_then(|slot| snapshot.dims().dim(slot)) {
                    request[dim] = 1;
                }
                Ok(Shape {
                    request,
                    count: template.members.len() as u32,
                    min: 0,
                    replica_size: replicas.first().map_or(1, |r| r.1),
                    eligible: Some(template.open_nodes()),
                    running: self.running(template, by_replica),
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Demand {
            shapes,
            min_count: self.min_count,
            priority: self.priority,
            preemption: self.preemption,
            topology,
            excluded: self.excluded.clone(),
        })
    }

    /// Node of each member: fixed members, and members that the placement adds.
    ///
    /// Members in rank order get nodes in the order of topology domain and name. So neighbouring
    /// ranks share nodes and domains.
    pub fn assign(&self, snapshot: &Snapshot, placement: &GangPlacement) -> Assignments {
        let mut out = self.fixed.clone();
        let levels = self.topology.iter();
        let keys: Vec<KeyIx> = levels
            .map(|level| snapshot.dims().key(&level.key))
            .collect();
        let by_replica = self.by_replica();
        for (shape, template) in self.templates.iter().enumerate() {
            let mut free_places: BTreeMap<u32, Vec<(NodeIx, u32)>> = BTreeMap::new();
            for assigned in placement.assignments.iter().filter(|a| a.shape == shape) {
                free_places
                    .entry(assigned.replica)
                    .or_default()
                    .push((assigned.node, assigned.count));
            }
            for (replica, mut free) in free_places {
                free.sort_by_cached_key(|&(node, _)| {
                    let domain = |key: &KeyIx| snapshot.free_capacity().domain(node, *key);
                    let domains: Vec<_> = keys.iter().map(domain).collect();
                    (domains, snapshot.node_name(node))
                });
                let waiting = template
                    .with_replica_ordinals()
                    .filter(|(m, r)| (!by_replica || *r == replica) && !self.fixed.contains_key(*m))
                    .map(|(m, _)| m.clone());
                let places = free
                    .iter()
                    .flat_map(|&(node, count)| std::iter::repeat_n(node, count as usize));
                out.extend(waiting.zip(places));
            }
        }
        let named = out.into_iter();
        named
            .filter_map(|(member, node)| Some((member, snapshot.node_name(node)?.clone())))
            .collect()
    }

    fn by_replica(&self) -> bool {
        let mut levels = self.topology.iter();
        levels.any(|level| level.scope == TopologyScope::Replica)
    }

    fn running(&self, template: &TemplateMembers, by_replica: bool) -> Vec<engine::RunningMembers> {
        let mut counts: BTreeMap<(u32, NodeIx), u32> = BTreeMap::new();
        for (member, replica) in template.with_replica_ordinals() {
            if let Some(&node) = self.fixed.get(member) {
                *counts
                    .entry((if by_replica { replica } else { 0 }, node))
                    .or_default() += 1;
            }
        }
        counts
            .into_iter()
            .map(|((replica, node), count)| engine::RunningMembers {
                replica,
                node,
                count,
            })
            .collect()
    }
}

fn level(level: &TopologyLevel, snapshot: &Snapshot) -> engine::TopologyDemand {
    engine::TopologyDemand {
        key: snapshot.dims().key(&level.key),
        mode: match level.mode {
            TopologyMode::Required => engine::TopologyStrictness::Required,
            TopologyMode::Preferred => engine::TopologyStrictness::Preferred,
        },
        scope: match level.scope {
            TopologyScope::Gang => engine::Scope::Gang,
            TopologyScope::Replica => engine::Scope::Replica,
        },
    }
}

impl TemplateMembers {
    /// Eligible nodes that are not closed.
    fn open_nodes(&self) -> Arc<NodeSet> {
        if self.closed.is_clear() {
            return Arc::clone(&self.eligible);
        }
        let mut open = NodeSet::clone(&self.eligible);
        open.difference_with(&self.closed);
        Arc::new(open)
    }

    fn replicas(&self) -> Vec<(i32, u32)> {
        let mut counts: BTreeMap<i32, u32> = BTreeMap::new();
        for m in &self.members {
            *counts.entry(m.replica).or_default() += 1;
        }
        counts.into_iter().collect()
    }

    /// Members with the ordinal of their replica within the template.
    fn with_replica_ordinals(&self) -> impl Iterator<Item = (&Member, u32)> {
        let ordinals: BTreeMap<i32, u32> = (0..)
            .zip(self.replicas())
            .map(|(ix, (replica, _))| (replica, ix))
            .collect();
        self.members
            .iter()
            .map(move |m| (m, ordinals.get(&m.replica).copied().unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClusterModel;
    use crate::test_support::{mk_node, mk_resources};
    use lockstep_engine::place;

    const RACK: &str = "topology.kubernetes.io/rack";

    fn cluster(nodes: &[(&str, &str, i64)]) -> Snapshot {
        let mut model = ClusterModel::default();
        model.use_topology_key(RACK);
        for (name, rack, gpus) in nodes {
            let mut node = mk_node(name, *gpus);
            node.labels.insert(RACK.into(), (*rack).into());
            model.upsert_node(node);
        }
        model.snapshot()
    }

    fn members(replicas: i32, size: i32) -> Vec<Member> {
        (0..replicas)
            .flat_map(|r| (0..size).map(move |i| Member::new("w", r, i)))
            .collect()
    }

    fn request(snapshot: &Snapshot, members: Vec<Member>, gpus: &str) -> PlacementRequest {
        PlacementRequest {
            min_count: members.len() as u32,
            templates: vec![TemplateMembers {
                members,
                requests: Arc::new(mk_resources(&[
                    ("cpu", "1"),
                    ("pods", "1"),
                    ("nvidia.com/gpu", gpus),
                ])),
                eligible: Arc::new((0..snapshot.node_count()).collect()),
                apart: None,
                closed: NodeSet::new(),
            }],
            priority: 0,
            preemption: EvictionPolicy::LowerPriority,
            topology: Vec::new(),
            fixed: BTreeMap::new(),
            excluded: NodeSet::new(),
        }
    }

    fn placed(request: &PlacementRequest, snapshot: &Snapshot) -> Vec<(String, String)> {
        let placement =
            place(snapshot.free_capacity(), &request.demand(snapshot).unwrap()).unwrap();
        let nodes = request.assign(snapshot, &placement);
        nodes
            .iter()
            .map(|(member, node)| (member.to_string(), node.to_string()))
            .collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected
            .iter()
            .map(|&(m, n)| (m.to_owned(), n.to_owned()))
            .collect()
    }

    #[test]
    fn neighbouring_ranks_share_nodes_in_the_order_of_their_names() {
        let s = cluster(&[("n2", "a", 2), ("n1", "a", 2)]);
        let got = placed(&request(&s, members(1, 4), "1"), &s);
        assert_eq!(
            got,
            pairs(&[
                ("w-0-0", "n1"),
                ("w-0-1", "n1"),
                ("w-0-2", "n2"),
                ("w-0-3", "n2")
            ])
        );
    }

    #[test]
    fn a_member_keeps_its_node_when_another_is_replaced() {
        let s = cluster(&[("n1", "a", 1), ("n2", "a", 1), ("n3", "a", 1)]);
        let ix = |n: &str| s.ordinal(n).unwrap();
        let mut r = request(&s, members(1, 2), "1");
        r.fixed = [(Member::new("w", 0, 0), ix("n3"))].into();
        r.excluded = [ix("n1"), ix("n3")].into_iter().collect();
        assert_eq!(placed(&r, &s), pairs(&[("w-0-0", "n3"), ("w-0-1", "n2")]));
    }

    #[test]
    fn each_replica_shares_a_domain_under_replica_scope() {
        let s = cluster(&[
            ("n1", "a", 2),
            ("n2", "b", 1),
            ("n3", "b", 1),
            ("n4", "a", 1),
        ]);
        let mut r = request(&s, members(2, 2), "1");
        r.topology = vec![TopologyLevel {
            key: RACK.into(),
            mode: TopologyMode::Required,
            scope: TopologyScope::Replica,
        }];
        let got = placed(&r, &s);
        let rack = |m: &str| {
            got.iter()
                .find(|(name, _)| name == m)
                .map(|(_, n)| ["n1", "n4"].contains(&n.as_str()))
        };
        assert_eq!(got.len(), 4);
        assert!(
            rack("w-0-0") == rack("w-0-1")
                && rack("w-1-0") == rack("w-1-1")
                && rack("w-0-0") != rack("w-1-0")
        );
    }

    #[test]
    fn members_without_accelerators_prefer_nodes_without_accelerators() {
        let s = cluster(&[("n1", "a", 8), ("n2", "a", 0)]);
        let got = placed(&request(&s, members(1, 2), "0"), &s);
        assert_eq!(got, pairs(&[("w-0-0", "n2"), ("w-0-1", "n2")]));
    }

    #[test]
    fn an_elastic_gang_places_its_first_ranks() {
        let s = cluster(&[("n1", "a", 2)]);
        let mut r = request(&s, members(1, 4), "1");
        r.min_count = 1;
        assert_eq!(placed(&r, &s), pairs(&[("w-0-0", "n1"), ("w-0-1", "n1")]));
    }

    #[test]
    fn a_resource_that_no_node_offers_is_named() {
        let s = cluster(&[("n1", "a", 2)]);
        let mut r = request(&s, members(1, 1), "1");
        r.templates[0].requests = Arc::new(mk_resources(&[("example.com/fpga", "1")]));
        assert_eq!(
            r.demand(&s).unwrap_err().to_string(),
            "no node offers example.com/fpga (resources of the containers in template.spec); devices of a DeviceClass (DRA) are not counted"
        );
    }
}
