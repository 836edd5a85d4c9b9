//! Decides by enumeration whether a gang fits: slow, and independent of the engine.

use std::collections::BTreeMap;

use lockstep_engine::{Cluster, Demand, NodeIx, Scope, Shape};

use super::{domain_of, required};

/// Members of one shape to place.
#[derive(Clone)]
struct Lot {
    shape: usize,
    count: u32,
    /// Nodes that they may use. Empty for a replica whose domain is not chosen.
    nodes: Vec<NodeIx>,
}

/// True if the gang fits with any choice of its `min_count` members.
pub fn fits(cluster: &Cluster, demand: &Demand) -> bool {
    let divisions = divisions(demand, 0);
    divisions
        .iter()
        .any(|divided| fits_divided(cluster, divided))
}

/// All ways to raise the minima of `shape` and later shapes until `min_count` members are needed.
fn divisions(demand: &Demand, shape: usize) -> Vec<Demand> {
    let minimum = |s: &Shape| s.min.max(s.running_count());
    let needed: u32 = demand.shapes.iter().map(minimum).sum();
    let Some(spec) = demand.shapes.get(shape) else {
        let enough = needed >= demand.min_count;
        return enough.then(|| demand.clone()).into_iter().collect();
    };
    let missing = demand.min_count.saturating_sub(needed);
    let counts = minimum(spec)..=spec.count.min(minimum(spec) + missing);
    let with = counts.map(|count| {
        let mut divided = demand.clone();
        divided.shapes[shape].min = count;
        divided
    });
    with.flat_map(|divided| divisions(&divided, shape + 1))
        .collect()
}

fn fits_divided(cluster: &Cluster, demand: &Demand) -> bool {
    let running: Vec<NodeIx> = demand
        .shapes
        .iter()
        .flat_map(|s| &s.running)
        .map(|r| r.node)
        .collect();
    let mut domains = domains(cluster, demand, Scope::Gang).into_iter();
    domains
        .any(|nodes| running.iter().all(|n| nodes.contains(n)) && fits_on(cluster, demand, &nodes))
}

/// True if the gang fits on these nodes, with each replica in one domain.
fn fits_on(cluster: &Cluster, demand: &Demand, nodes: &[NodeIx]) -> bool {
    if required(&demand.topology, Scope::Replica).next().is_none() {
        let needed = demand.needed().into_iter().enumerate();
        let lots = needed.map(|(shape, count)| Lot {
            shape,
            count,
            nodes: nodes.to_vec(),
        });
        return place_all(&mut cluster.clone(), demand, &lots.collect::<Vec<Lot>>());
    }
    let mut domains = domains(cluster, demand, Scope::Replica);
    for domain in &mut domains {
        domain.retain(|node| nodes.contains(node));
    }
    let replicas: Vec<Lot> = (0..demand.shapes.len())
        .flat_map(|shape| replicas(demand, &domains, shape))
        .collect();
    together(cluster, demand, &domains, &replicas, &mut Vec::new())
}

/// Nodes of each domain that members of a scope may share. All nodes if no level requires that.
fn domains(cluster: &Cluster, demand: &Demand, scope: Scope) -> Vec<Vec<NodeIx>> {
    let levels = &demand.topology;
    let mut domains: BTreeMap<Vec<_>, Vec<NodeIx>> = BTreeMap::new();
    for node in 0..cluster.node_count() {
        let each = required(levels, scope).map(|at| domain_of(cluster, levels, at, node));
        if let Some(domain) = each.collect::<Option<Vec<_>>>() {
            domains.entry(domain).or_default().push(node);
        }
    }
    domains.into_values().collect()
}

/// Incomplete replicas of a shape, partly running ones first, until enough members are placed.
fn replicas(demand: &Demand, domains: &[Vec<NodeIx>], shape: usize) -> Vec<Lot> {
    let spec = &demand.shapes[shape];
    let lot = |replica: u32| {
        let running = || spec.running.iter().filter(|r| r.replica == replica);
        let count = spec.replica_size - running().map(|r| r.count).sum::<u32>();
        let of = |node: NodeIx| domains.iter().find(|d| d.contains(&node)).cloned();
        Lot {
            shape,
            count,
            nodes: running().find_map(|r| of(r.node)).unwrap_or_default(),
        }
    };
    let (mut started, fresh): (Vec<Lot>, Vec<Lot>) = (0..spec.count / spec.replica_size)
        .map(lot)
        .filter(|l| l.count > 0)
        .partition(|l| !l.nodes.is_empty());
    started.extend(fresh);
    let needed = demand.needed()[shape];
    let mut placed = 0;
    started.retain(|lot| {
        let desired = placed < needed;
        placed += lot.count;
        desired
    });
    started
}

/// Tries every domain for every replica without running members.
fn together(
    cluster: &Cluster,
    demand: &Demand,
    domains: &[Vec<NodeIx>],
    left: &[Lot],
    chosen: &mut Vec<Lot>,
) -> bool {
    let Some((first, rest)) = left.split_first() else {
        return place_all(&mut cluster.clone(), demand, chosen);
    };
    let fixed = !first.nodes.is_empty();
    let mut each = domains.iter().filter(|d| !fixed || **d == first.nodes);
    each.any(|nodes| {
        chosen.push(Lot {
            nodes: nodes.clone(),
            ..*first
        });
        let fits = together(cluster, demand, domains, rest, chosen);
        chosen.pop();
        fits
    })
}

/// Tries every node for every member.
fn place_all(cluster: &mut Cluster, demand: &Demand, lots: &[Lot]) -> bool {
    let Some((lot, rest)) = lots.split_first() else {
        return true;
    };
    if lot.count == 0 {
        return place_all(cluster, demand, rest);
    }
    let shape = &demand.shapes[lot.shape];
    let mut fewer = lots.to_vec();
    fewer[0].count -= 1;
    lot.nodes.iter().any(|&node| {
        if !one_more_fits(cluster, demand, shape, node) {
            return false;
        }
        cluster.add_pod(node, &shape.request);
        let fits = place_all(cluster, demand, &fewer);
        cluster.remove_pod(node, &shape.request);
        fits
    })
}

/// True if one more pod of the shape fits on a node.
pub fn one_more_fits(cluster: &Cluster, demand: &Demand, shape: &Shape, node: NodeIx) -> bool {
    let eligible = shape.eligible.as_ref().is_none_or(|set| set.contains(node));
    let fits = cluster
        .free(node)
        .iter()
        .zip(&shape.request)
        .all(|(&free, &asked)| asked == 0 || free >= asked);
    cluster.schedulable(node) && eligible && !demand.excluded.contains(node) && fits
}
