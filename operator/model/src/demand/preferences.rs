//! Preferred levels of the topology that a placement does not meet.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_api::gangs::Assignments;
use lockstep_api::scheduling::TopologyLevel;
use lockstep_api::words::count;
use lockstep_api::workload::{TopologyMode, TopologyScope};

use crate::cluster::Snapshot;

/// The preferred levels that a placement does not meet, as text. `None` if it meets all.
pub fn unmet_preferences(
    levels: &[TopologyLevel],
    assigned: &Assignments,
    cluster: &Snapshot,
) -> Option<String> {
    let unmet: Vec<String> = (0..levels.len())
        .filter(|&at| levels[at].mode == TopologyMode::Preferred)
        .filter_map(|at| unmet(&levels[..=at], assigned, cluster))
        .collect();
    (!unmet.is_empty()).then(|| unmet.join("; "))
}

/// As [`unmet_preferences`], for the innermost of these levels.
fn unmet(levels: &[TopologyLevel], assigned: &Assignments, cluster: &Snapshot) -> Option<String> {
    let level = levels.last()?;
    let by_replica = level.scope == TopologyScope::Replica;
    let keys: Vec<_> = levels.iter().map(|l| cluster.dims().key(&l.key)).collect();
    let mut domains: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (member, node) in assigned {
        let node = cluster.ordinal(node.as_str())?;
        let domain = |key| cluster.free_capacity().domain(node, key);
        let domain: Vec<_> = keys.iter().map(|&key| domain(key)).collect();
        let bound = by_replica.then_some((&member.group, member.replica));
        domains.entry(bound).or_default().insert(domain);
    }
    let is_met = |of: &BTreeSet<Vec<Option<usize>>>| {
        of.len() == 1 && of.iter().flatten().all(Option::is_some)
    };
    let unmet = domains.values().filter(|of| !is_met(of)).count();
    let text = match unmet {
        0 => return None,
        _ if !by_replica => "members are in several domains".to_owned(),
        n => format!(
            "{n} of {} are in several domains",
            count(domains.len(), "replica")
        ),
    };
    Some(format!("preferred level {} is not met: {text}", level.key))
}

#[cfg(test)]
mod tests {
    use lockstep_api::member::Member;

    use super::*;
    use crate::ClusterModel;
    use crate::test_support::mk_node;

    #[test]
    fn levels_that_are_not_met_are_named_with_the_number_of_replicas() {
        let mut model = ClusterModel::default();
        let nodes = [
            ("n0", "x", "a"),
            ("n1", "x", "a"),
            ("n2", "x", "b"),
            ("n3", "y", "a"),
        ];
        for key in ["zone", "rack"] {
            model.use_topology_key(key);
        }
        for (name, zone, rack) in nodes {
            let mut node = mk_node(name, 8);
            for (key, value) in [("zone", zone), ("rack", rack)] {
                node.labels.insert(key.to_owned(), value.to_owned());
            }
            model.upsert_node(node);
        }
        let s = model.snapshot();
        let levels = [
            ("zone", TopologyScope::Gang),
            ("rack", TopologyScope::Replica),
        ]
        .map(|(key, scope)| TopologyLevel {
            key: key.into(),
            mode: TopologyMode::Preferred,
            scope,
        });
        let unmet = |nodes: [&str; 4]| {
            let member = |ix: usize| Member::new("w", ix as i32 / 2, ix as i32 % 2);
            let assigned = nodes
                .iter()
                .enumerate()
                .map(|(ix, node)| (member(ix), (*node).parse().unwrap()));
            unmet_preferences(&levels, &assigned.collect(), &s)
        };
        assert_eq!(unmet(["n0", "n1", "n0", "n1"]), None);
        let rack = "preferred level rack is not met: 1 of 2 replicas are in several domains";
        assert_eq!(unmet(["n0", "n1", "n0", "n2"]).as_deref(), Some(rack));
        // Racks of one name in two zones are two domains.
        let zone = "preferred level zone is not met: members are in several domains";
        let both = format!("{zone}; {rack}");
        assert_eq!(unmet(["n0", "n1", "n0", "n3"]), Some(both));
        assert_eq!(unmet(["n0", "n1", "n3", "n3"]).as_deref(), Some(zone));
    }
}
