//! Order of status writes.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_api::gangs::Assignments;
use lockstep_api::ids::NodeName;

#[derive(Debug, Default)]
pub struct Moves {
    /// Nodes on which a member loses its place.
    pub gives_up: BTreeSet<NodeName>,
    /// Nodes on which a member gets a place.
    pub gains: BTreeSet<NodeName>,
}

impl Moves {
    pub(crate) fn between(before: Option<&Assignments>, after: Option<&Assignments>) -> Self {
        Self {
            gives_up: nodes_without(before, after),
            gains: nodes_without(after, before),
        }
    }
}

/// Nodes with members that `other` does not assign there.
fn nodes_without(
    assigned: Option<&Assignments>,
    other: Option<&Assignments>,
) -> BTreeSet<NodeName> {
    let members = assigned.into_iter().flatten();
    members
        .filter(|(member, node)| other.and_then(|o| o.get(*member)) != Some(*node))
        .map(|(_, node)| node.clone())
        .collect()
}

/// For each write, the writes to acknowledge first: those that release a node it gains.
pub(crate) fn waits_for(moves: &[Moves]) -> Vec<BTreeSet<usize>> {
    let mut givers: BTreeMap<&NodeName, Vec<usize>> = BTreeMap::new();
    for (at, moved) in moves.iter().enumerate() {
        for node in &moved.gives_up {
            givers.entry(node).or_default().push(at);
        }
    }
    let waits = moves.iter().enumerate().map(|(at, moved)| {
        let givers = moved.gains.iter().filter_map(|node| givers.get(node));
        givers.flatten().copied().filter(|by| *by != at).collect()
    });
    waits.collect()
}

/// Writes that wait for each other in a circle, or on a path between two circles.
pub(crate) fn circles(waits_for: &[BTreeSet<usize>]) -> BTreeSet<usize> {
    let mut left: BTreeSet<usize> = (0..waits_for.len()).collect();
    loop {
        let awaited: BTreeSet<usize> = left
            .iter()
            .flat_map(|at| &waits_for[*at])
            .copied()
            .collect();
        let waits = |at: &usize| waits_for[*at].iter().any(|by| left.contains(by));
        let kept: BTreeSet<usize> = left
            .iter()
            .copied()
            .filter(|at| awaited.contains(at) && waits(at))
            .collect();
        if kept.len() == left.len() {
            return left;
        }
        left = kept;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_before_and_behind_a_circle_are_not_part_of_it() {
        // 0 waits for 1. 1 and 2 wait for each other. 2 waits for 3, which waits for no write.
        let waits = [vec![1], vec![2], vec![1, 3], vec![], vec![3]].map(BTreeSet::from_iter);
        assert_eq!(circles(&waits), BTreeSet::from([1, 2]));
        assert_eq!(circles(&waits[3..4]), BTreeSet::new());
    }
}
