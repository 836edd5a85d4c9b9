//! Decides by enumeration whether a gang fits: slow, and independent of the engine.

use lockstep_engine::{Cluster, Demand, NodeIx, Scope, Shape, TopologyStrictness};

/// Members of one shape to place, together if the topology requires it.
#[derive(Clone, Copy)]
struct Lot {
    shape: usize,
    count: u32,
    domain: Option<usize>,
}

/// True if the needed members fit, whichever these are.
pub fn fits(cluster: &Cluster, demand: &Demand) -> bool {
    let divisions = divisions(demand, 0);
    divisions
        .iter()
        .any(|divided| fits_divided(cluster, divided))
}

/// The demand with each choice of needed members as minima of the shapes, from a shape on.
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
    let key = demand
        .topology
        .filter(|t| t.mode == TopologyStrictness::Required)
        .map(|t| (t.key, t.scope));
    let lots = |domain| {
        let needed = demand.needed().into_iter().enumerate();
        needed
            .map(|(shape, count)| Lot {
                shape,
                count,
                domain,
            })
            .collect::<Vec<Lot>>()
    };
    match key {
        None => place_all(&mut cluster.clone(), demand, &lots(None)),
        Some((key, Scope::Gang)) => {
            let pin = demand
                .shapes
                .iter()
                .flat_map(|s| &s.running)
                .find_map(|r| cluster.domain(r.node, key));
            let domains = (0..cluster.domain_count(key)).filter(|&d| pin.is_none_or(|p| p == d));
            domains
                .into_iter()
                .any(|d| place_all(&mut cluster.clone(), demand, &lots(Some(d))))
        }
        Some((key, Scope::Replica)) => {
            let replicas: Vec<Lot> = (0..demand.shapes.len())
                .flat_map(|shape| replicas(cluster, demand, key, shape))
                .collect();
            together(cluster, demand, key, &replicas, &mut Vec::new())
        }
    }
}

/// Incomplete replicas of a shape, partly running ones first, until enough members are placed.
fn replicas(cluster: &Cluster, demand: &Demand, key: usize, shape: usize) -> Vec<Lot> {
    let spec = &demand.shapes[shape];
    let lot = |replica: u32| {
        let running = || spec.running.iter().filter(|r| r.replica == replica);
        let count = spec.replica_size - running().map(|r| r.count).sum::<u32>();
        Lot {
            shape,
            count,
            domain: running().find_map(|r| cluster.domain(r.node, key)),
        }
    };
    let (mut started, fresh): (Vec<Lot>, Vec<Lot>) = (0..spec.count / spec.replica_size)
        .map(lot)
        .filter(|l| l.count > 0)
        .partition(|l| l.domain.is_some());
    started.extend(fresh);
    let needed = demand.needed()[shape];
    let mut placed = 0;
    started.retain(|lot| {
        let wanted = placed < needed;
        placed += lot.count;
        wanted
    });
    started
}

/// Tries every domain for every replica without a fixed domain.
fn together(
    cluster: &Cluster,
    demand: &Demand,
    key: usize,
    left: &[Lot],
    chosen: &mut Vec<Lot>,
) -> bool {
    let Some((first, rest)) = left.split_first() else {
        return place_all(&mut cluster.clone(), demand, chosen);
    };
    (0..cluster.domain_count(key))
        .filter(|&d| first.domain.is_none_or(|f| f == d))
        .any(|d| {
            chosen.push(Lot {
                domain: Some(d),
                ..*first
            });
            let fits = together(cluster, demand, key, rest, chosen);
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
    let fewer: Vec<Lot> = std::iter::once(Lot {
        count: lot.count - 1,
        ..*lot
    })
    .chain(rest.iter().copied())
    .collect();
    let key = demand.topology.map(|t| t.key);
    (0..cluster.node_count()).any(|node| {
        let here =
            lot.domain.is_none() || key.is_some_and(|key| cluster.domain(node, key) == lot.domain);
        if !here || !one_more_fits(cluster, demand, shape, node) {
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
