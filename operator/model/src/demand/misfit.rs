//! Gangs that the cluster could not hold even without other work, and the nodes that hold no pod of a
//! gang.

use std::sync::Arc;

use lockstep_api::scheduling::TopologyLevel;
use lockstep_api::workload::TopologyMode;
use lockstep_engine::{
    Cluster, Demand, DimIx, KeyIx, Names, NodeIx, NodeSet, Shape, Shortfall, place,
};

use crate::cluster::Snapshot;
use crate::demand::request::PlacementRequest;
use crate::demand::unsuitable_nodes::{Misfit, Scattered, UnsuitableNodes, key_field};
use crate::nodes::node::Node;

/// Prefixes of taints that follow the state of a node.
const TEMPORARY_TAINTS: [&str; 2] = ["node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"];

impl PlacementRequest {
    /// Why the cluster could not hold the gang even without other work, if that is certain. Cordons
    /// and the state of nodes pass, so such nodes count as usable. `demand`: of this request.
    pub fn misfit(&self, snapshot: &Snapshot, demand: &Demand) -> Option<Misfit> {
        // Fixed members may be on nodes that admit no new members.
        if !self.fixed.is_empty() {
            return None;
        }
        let empty = snapshot.free_capacity().without_pods();
        let mut alone = Demand {
            excluded: NodeSet::new(),
            ..demand.clone()
        };
        // Most gangs fit the usable nodes, which are known.
        place(&empty, &alone).err()?;
        for (shape, nodes) in alone.shapes.iter_mut().zip(self.admitting(snapshot)) {
            shape.eligible = Some(Arc::new(nodes));
        }
        let short = place(&empty, &alone).err()?;
        let shortfall = short.shortfall()?;
        let nodes = Box::new(self.unsuitable(snapshot, &alone, shortfall.shape));
        let short = short.describe(snapshot.dims());
        Some(match nodes.suitable {
            0 => Misfit::Pod(nodes),
            _ if nodes.is_empty() => Misfit::Cluster(short),
            _ => Misfit::Nodes { short, nodes },
        })
    }

    /// Nodes that hold no pod of the shape that does not fit, and free capacity in parts that are too
    /// small. `None` if there are none. `demand`: of this request. `free`: capacity that the gang may
    /// use.
    pub fn unsuitable_nodes(
        &self,
        snapshot: &Snapshot,
        free: &Cluster,
        demand: &Demand,
        short: &Shortfall,
    ) -> Option<UnsuitableNodes> {
        let mut nodes = self.unsuitable(snapshot, demand, short.shape);
        nodes.scattered = scattered(snapshot, free, &demand.shapes[short.shape], short.dim);
        (!nodes.is_empty()).then_some(nodes)
    }

    /// For each template, the nodes that may admit it at some time.
    fn admitting(&self, snapshot: &Snapshot) -> Vec<NodeSet> {
        let templates = self.templates.iter();
        let sets = templates.map(|template| {
            let nodes = nodes(snapshot).filter(|(ix, node)| {
                template.eligible.contains(*ix) || is_temporarily_unusable(node)
            });
            nodes.map(|(ix, _)| ix).collect()
        });
        sets.collect()
    }

    /// Nodes by the check that a pod of a shape fails.
    fn unsuitable(&self, snapshot: &Snapshot, demand: &Demand, at: usize) -> UnsuitableNodes {
        let cluster = snapshot.free_capacity();
        let shape = &demand.shapes[at];
        let template = self.templates.get(at);
        let is_closed = |ix| template.is_some_and(|t| t.closed.contains(ix));
        let required: Vec<(&TopologyLevel, KeyIx)> = self
            .topology
            .iter()
            .filter(|level| level.mode == TopologyMode::Required)
            .map(|level| (level, snapshot.dims().key(&level.key)))
            .collect();
        let mut counts = UnsuitableNodes {
            field: key_field(&self.topology),
            ..UnsuitableNodes::default()
        };
        let mut nearest: Option<(u128, String)> = None;
        for (ix, node) in nodes(snapshot) {
            if !demand.admits(shape, ix) {
                *match node {
                    _ if demand.excluded.contains(ix) => &mut counts.avoided,
                    _ if is_closed(ix) => &mut counts.closed,
                    node if node.state.cordoned => &mut counts.cordoned,
                    node if !node.state.is_ready() => &mut counts.not_ready,
                    node if !node.state.takes_pods() => &mut counts.faulty,
                    _ => &mut counts.unmatched,
                } += 1;
            } else if let Some(miss) = shortage(snapshot, cluster.allocatable(ix), shape) {
                counts.too_small += 1;
                nearest = nearest.into_iter().chain([miss]).min();
            } else if let Some((level, _)) = required
                .iter()
                .find(|(_, key)| cluster.domain(ix, *key).is_none())
            {
                *counts.unlabelled.entry(level.key.clone()).or_default() += 1;
            } else {
                counts.suitable += 1;
            }
        }
        counts.nearest_miss = nearest.map(|(_, text)| text).unwrap_or_default();
        let member = template.and_then(|t| t.members.first());
        let group = member.filter(|_| self.templates.len() > 1);
        counts.group = group.map(|member| member.group.clone());
        counts
    }
}

/// Free amounts below the request of a pod, if they add up to a pod.
fn scattered(snapshot: &Snapshot, free: &Cluster, shape: &Shape, dim: DimIx) -> Option<Scattered> {
    let each = shape.request[dim];
    let eligible = shape.eligible.as_ref()?;
    let parts: Vec<i64> = eligible
        .ones()
        .filter(|&node| node < free.node_count())
        .map(|node| free.free(node)[dim])
        .filter(|part| (1..each).contains(part))
        .collect();
    let (sum, most) = (parts.iter().sum::<i64>(), *parts.iter().max()?);
    let names = snapshot.dims();
    (sum >= each).then(|| Scattered {
        resource: names.resource(dim),
        free: names.amount(dim, sum),
        most: names.amount(dim, most),
    })
}

fn nodes(snapshot: &Snapshot) -> impl Iterator<Item = (NodeIx, &Node)> {
    (0..snapshot.node_count()).filter_map(|ix| Some((ix, snapshot.node(ix)?)))
}

fn is_temporarily_unusable(node: &Node) -> bool {
    let temporary = |key: &str| TEMPORARY_TAINTS.iter().any(|taint| key.starts_with(taint));
    let mut taints = node.taints.iter();
    !node.state.takes_pods() || taints.any(|taint| temporary(&taint.key))
}

/// What a node lacks for one pod of a shape, as a sum of parts per million of the requests, and as
/// text. `None` if the node is large enough.
fn shortage(snapshot: &Snapshot, offer: &[i64], shape: &Shape) -> Option<(u128, String)> {
    let names = snapshot.dims();
    let (mut missing, mut parts) = (0, Vec::new());
    for (dim, (&offered, &requested)) in offer.iter().zip(&shape.request).enumerate() {
        if offered >= requested {
            continue;
        }
        let lacking = u128::from((requested - offered.max(0)).unsigned_abs());
        missing += 1_000_000 * lacking / u128::from(requested.unsigned_abs());
        let part = format!(
            "{}: {} at most, {} requested",
            names.resource(dim),
            names.amount(dim, offered.max(0)),
            names.amount(dim, requested)
        );
        parts.push(part);
    }
    (!parts.is_empty()).then(|| (missing, parts.join("; ")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lockstep_api::member::Member;
    use lockstep_api::workload::TopologyScope;
    use lockstep_engine::EvictionPolicy;

    use super::*;
    use crate::ClusterModel;
    use crate::demand::request::TemplateMembers;
    use crate::test_support::{cordoned, mk_node, mk_pod, mk_resources, silent};

    const RACK: &str = "topology.kubernetes.io/rack";

    /// Nodes of so many accelerators, each with its rack.
    fn model(nodes: &[(i64, Option<&str>)]) -> ClusterModel {
        let mut model = ClusterModel::default();
        model.use_topology_key(RACK);
        for (at, (gpus, rack)) in nodes.iter().enumerate() {
            let mut node = mk_node(&format!("n{at}"), *gpus);
            node.labels
                .extend(rack.map(|rack| (RACK.to_owned(), rack.to_owned())));
            model.upsert_node(node);
        }
        model
    }

    fn cluster(nodes: &[(i64, Option<&str>)]) -> Snapshot {
        model(nodes).snapshot()
    }

    fn template(
        group: &str,
        count: i32,
        requests: &[(&str, &str)],
        on: &[NodeIx],
    ) -> TemplateMembers {
        TemplateMembers {
            members: (0..count).map(|ix| Member::new(group, 0, ix)).collect(),
            requests: Arc::new(mk_resources(requests)),
            eligible: Arc::new(on.iter().copied().collect()),
            apart: None,
            closed: NodeSet::new(),
        }
    }

    fn request(templates: Vec<TemplateMembers>) -> PlacementRequest {
        PlacementRequest {
            min_count: templates.iter().map(|t| t.members.len() as u32).sum(),
            templates,
            priority: 0,
            preemption: EvictionPolicy::LowerPriority,
            topology: Vec::new(),
            fixed: BTreeMap::new(),
            excluded: NodeSet::new(),
        }
    }

    fn in_racks(scope: TopologyScope, request: PlacementRequest) -> PlacementRequest {
        let topology = vec![TopologyLevel {
            key: RACK.into(),
            mode: TopologyMode::Required,
            scope,
        }];
        PlacementRequest {
            topology,
            ..request
        }
    }

    /// Reason and message.
    fn misfit(request: &PlacementRequest, snapshot: &Snapshot) -> Option<(&'static str, String)> {
        let demand = request.demand(snapshot).unwrap();
        let misfit = request.misfit(snapshot, &demand)?;
        Some((misfit.reason(), misfit.to_string()))
    }

    fn gpus(count: &str) -> [(&str, &str); 2] {
        [("cpu", "1"), ("nvidia.com/gpu", count)]
    }

    fn of(reason: &'static str, text: &str) -> (&'static str, String) {
        (reason, text.to_owned())
    }

    #[test]
    fn a_pod_larger_than_the_largest_node_names_the_nearest_miss() {
        let s = cluster(&[(0, None), (8, None), (4, None), (8, None)]);
        let large = request(vec![template("w", 2, &gpus("9"), &[1, 2, 3])]);
        let text = "0/4 nodes are available: 1 did not match nodeSelector, affinity, tolerations or volumes, 3 too small (nvidia.com/gpu: 8 at most, 9 requested)";
        assert_eq!(misfit(&large, &s), Some(of("ExceedsLargestNode", text)));
        let requests = [
            ("cpu", "96500m"),
            ("memory", "1Ti"),
            ("nvidia.com/gpu", "8"),
        ];
        let text = "0/4 nodes are available: 4 too small (cpu: 64 CPUs at most, 96.5 CPUs requested; memory: 512Gi at most, 1024Gi requested)";
        let large = request(vec![template("w", 1, &requests, &[0, 1, 2, 3])]);
        assert_eq!(misfit(&large, &s), Some(of("ExceedsLargestNode", text)));
        let fits = request(vec![template("w", 2, &gpus("8"), &[1, 2, 3])]);
        assert_eq!(misfit(&fits, &s), None);
    }

    #[test]
    fn a_group_without_a_matching_node_is_named() {
        let s = cluster(&[(8, None), (8, None)]);
        let two = request(vec![
            template("w", 1, &gpus("8"), &[0]),
            template("driver", 1, &[("cpu", "1")], &[]),
        ]);
        let text = "group driver: 0/2 nodes are available: 2 did not match nodeSelector, affinity, tolerations or volumes";
        assert_eq!(misfit(&two, &s), Some(of("NoNodeMatches", text)));
        let none = request(vec![template("w", 1, &[("cpu", "1")], &[])]);
        let text = "0/0 nodes are available";
        assert_eq!(
            misfit(&none, &cluster(&[])),
            Some(of("NoNodeMatches", text))
        );
    }

    #[test]
    fn a_group_that_the_gang_can_do_without_is_no_misfit() {
        let s = cluster(&[(8, None)]);
        let mut elastic = request(vec![
            template("w", 1, &gpus("8"), &[0]),
            template("v", 1, &gpus("8"), &[]),
        ]);
        elastic.min_count = 1;
        assert_eq!(misfit(&elastic, &s), None);
    }

    #[test]
    fn work_and_the_state_of_nodes_pass() {
        let mut model = model(&[(8, None)]);
        model.upsert_node(silent(mk_node("n1", 8)));
        model.upsert_pod(mk_pod("p", "n0", 8));
        let s = model.snapshot();
        let mut waits = request(vec![template("w", 2, &gpus("8"), &[0])]);
        assert_eq!(misfit(&waits, &s), None);
        waits.excluded = [0].into_iter().collect();
        assert_eq!(misfit(&waits, &s), None);
    }

    #[test]
    fn nodes_without_the_label_of_the_topology_are_counted() {
        let s = cluster(&[(8, None), (4, Some("a")), (8, None)]);
        let pods = || request(vec![template("w", 1, &gpus("8"), &[0, 1, 2])]);
        let text = "0/3 nodes are available: 1 too small (nvidia.com/gpu: 4 at most, 8 requested), 2 without label topology.kubernetes.io/rack (scheduling.topology.key)";
        let labelled = in_racks(TopologyScope::Gang, pods());
        assert_eq!(misfit(&labelled, &s), Some(of("NoTopologyLabel", text)));
        assert_eq!(misfit(&pods(), &s), None);
    }

    #[test]
    fn the_level_without_a_label_or_without_capacity_is_named() {
        const BLOCK: &str = "example.com/block";
        let levels = |pods| {
            let rack = in_racks(TopologyScope::Replica, pods);
            let block = TopologyLevel {
                key: BLOCK.into(),
                mode: TopologyMode::Required,
                scope: TopologyScope::Gang,
            };
            let topology = [vec![block], rack.topology.clone()].concat();
            PlacementRequest { topology, ..rack }
        };
        let cluster = |labels: &[(Option<&str>, Option<&str>)]| {
            let mut model = model(&[]);
            model.use_topology_key(BLOCK);
            for (at, (block, rack)) in labels.iter().enumerate() {
                let mut node = mk_node(&format!("n{at}"), 8);
                let of =
                    |key: &str, value: Option<&str>| value.map(|v| (key.to_owned(), v.to_owned()));
                node.labels
                    .extend(of(BLOCK, *block).into_iter().chain(of(RACK, *rack)));
                model.upsert_node(node);
            }
            model.snapshot()
        };
        let pods = |count| levels(request(vec![template("w", count, &gpus("8"), &[0, 1, 2])]));
        let s = cluster(&[(None, Some("a")), (Some("x"), None), (Some("x"), None)]);
        let text = "0/3 nodes are available: 1 without label example.com/block (scheduling.topology.levels), 2 without label topology.kubernetes.io/rack (scheduling.topology.levels)";
        assert_eq!(misfit(&pods(1), &s), Some(of("NoTopologyLabel", text)));
        // The racks of the same name in two blocks do not add up.
        let s = cluster(&[
            (Some("x"), Some("a")),
            (Some("y"), Some("a")),
            (None, Some("a")),
        ]);
        let text = "too few nodes even without other work: insufficient nvidia.com/gpu in block x, rack a: 1 pod needs 8 more; 2/3 nodes can hold such a pod: 1 without label example.com/block (scheduling.topology.levels)";
        assert_eq!(misfit(&pods(2), &s), Some(of("ExceedsCluster", text)));
        assert_eq!(misfit(&pods(1), &s), None);
    }

    #[test]
    fn a_gang_larger_than_the_cluster_or_than_every_rack_exceeds_it() {
        let s = cluster(&[(8, Some("a")), (8, Some("a")), (8, Some("b"))]);
        let pods = |count| request(vec![template("w", count, &gpus("8"), &[0, 1, 2])]);
        assert_eq!(misfit(&pods(3), &s), None);
        let text = "the cluster is too small even without other work: insufficient nvidia.com/gpu: 1 pod needs 8 more";
        assert_eq!(misfit(&pods(4), &s), Some(of("ExceedsCluster", text)));
        let gang = |count| in_racks(TopologyScope::Gang, pods(count));
        assert_eq!(misfit(&gang(2), &s), None);
        let text = "the cluster is too small even without other work: insufficient nvidia.com/gpu in rack a: 1 pod needs 8 more";
        assert_eq!(misfit(&gang(3), &s), Some(of("ExceedsCluster", text)));
        let replica = |size| in_racks(TopologyScope::Replica, pods(size));
        assert_eq!(misfit(&replica(2), &s), None);
        assert_eq!(misfit(&replica(3), &s).unwrap().0, "ExceedsCluster");
    }

    /// Five nodes of 8 accelerators, of which only the first two can hold a pod. The gang needs three.
    #[test]
    fn too_few_matching_nodes_are_counted_by_cause() {
        let five = cluster(&[(8, Some("a")); 5]);
        let pods = |count, on: &[NodeIx]| request(vec![template("w", count, &gpus("8"), on)]);
        let short = "insufficient nvidia.com/gpu";
        let causes = [
            (
                pods(3, &[0, 1]),
                five,
                format!(
                    "{short}: 1 pod needs 8 more; 2/5 nodes can hold such a pod: 3 did not match nodeSelector, affinity, tolerations or volumes"
                ),
            ),
            (
                in_racks(TopologyScope::Gang, pods(3, &[0, 1, 2, 3, 4])),
                cluster(&[
                    (8, Some("a")),
                    (8, Some("a")),
                    (8, None),
                    (8, None),
                    (8, None),
                ]),
                format!(
                    "{short} in rack a: 1 pod needs 8 more; 2/5 nodes can hold such a pod: 3 without label {RACK} (scheduling.topology.key)"
                ),
            ),
            (
                pods(3, &[0, 1, 2, 3, 4]),
                cluster(&[(8, None), (8, None), (4, None), (2, None), (0, None)]),
                format!(
                    "{short}: 1 pod needs 8 more; 2/5 nodes can hold such a pod: 3 too small (nvidia.com/gpu: 4 at most, 8 requested)"
                ),
            ),
        ];
        for (gang, cluster, text) in causes {
            let text = format!("too few nodes even without other work: {text}");
            assert_eq!(misfit(&gang, &cluster), Some(of("ExceedsCluster", &text)));
        }
    }

    #[test]
    fn nodes_of_a_waiting_gang_are_counted_by_state_and_scattered_capacity_is_named() {
        let mut model = model(&[(8, None), (8, None), (8, None)]);
        model.upsert_node(cordoned(mk_node("n3", 8)));
        model.upsert_node(silent(mk_node("n4", 8)));
        let waiting = request(vec![template("w", 3, &gpus("8"), &[0, 1, 2])]);
        let nodes = |model: &ClusterModel| {
            let s = model.snapshot();
            let (demand, free) = (waiting.demand(&s).unwrap(), s.free_capacity());
            let infeasible = place(free, &demand).unwrap_err();
            let short = infeasible.shortfall().unwrap();
            let nodes = waiting.unsuitable_nodes(&s, free, &demand, short);
            nodes.map(|nodes| nodes.to_string())
        };
        model.upsert_pod(mk_pod("p", "n0", 4));
        let text = "3/5 nodes can hold such a pod: 1 cordoned, 1 NotReady";
        assert_eq!(nodes(&model).as_deref(), Some(text));
        model.upsert_pod(mk_pod("q", "n1", 3));
        let text = format!("{text}; 9 nvidia.com/gpu free in parts of at most 5 on a node");
        assert_eq!(nodes(&model), Some(text));
    }

    #[test]
    fn groups_that_exceed_the_cluster_only_together_exceed_it() {
        let s = cluster(&[(8, None), (8, None)]);
        let two = request(vec![
            template("w", 1, &gpus("8"), &[0, 1]),
            template("v", 2, &gpus("8"), &[0, 1]),
        ]);
        assert_eq!(misfit(&two, &s).unwrap().0, "ExceedsCluster");
    }
}
