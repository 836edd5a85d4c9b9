//! Observable state of gangs, and its invariants.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_api::scheduling::PodGroupStatus;
use lockstep_model::Rules;
use lockstep_sim::Spec;

use super::NODES;

/// Amount of each resource.
pub(super) type Amounts = [i64; 2];

/// Pods of one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub members: i32,
    /// Request of one pod.
    pub each: Amounts,
}

impl From<Spec> for Shape {
    fn from(spec: Spec) -> Self {
        Self {
            members: spec.members,
            each: [spec.gpus, 0],
        }
    }
}

/// Observable state of a gang.
pub(super) struct Seen {
    pub name: String,
    /// Groups in the order of their names.
    pub shapes: Vec<Shape>,
    /// Members that a gang needs. `None` if members are independent.
    pub needed: Option<usize>,
    pub priority: i32,
    pub status: PodGroupStatus,
    /// True if its workload has released its placement.
    pub released: bool,
    /// Group and node of each placed member.
    pub assigned: Vec<(String, String)>,
}

impl Seen {
    /// Number of members without which it does not run.
    fn members(&self) -> usize {
        self.needed.unwrap_or(1)
    }

    /// Request of a member. Groups are named `s0`, `s1`, unless there is only one.
    fn each(&self, group: &str) -> Amounts {
        let at = group.strip_prefix('s').and_then(|at| at.parse().ok());
        self.shapes[at.unwrap_or(0_usize)].each
    }
}

type ByNode<'s> = BTreeMap<&'s str, Amounts>;

fn add<'s>(to: &mut ByNode<'s>, node: &'s str, each: Amounts, times: i64) {
    let there = to.entry(node).or_default();
    for (there, each) in there.iter_mut().zip(each) {
        *there += each * times;
    }
}

/// Amounts held by these gangs.
fn held<'s>(seen: impl Iterator<Item = &'s Seen>) -> ByNode<'s> {
    let mut held = ByNode::new();
    for gang in seen {
        for (group, node) in &gang.assigned {
            add(&mut held, node, gang.each(group), 1);
        }
    }
    held
}

/// Amounts reserved by name for these gangs.
fn reserved<'s>(seen: impl Iterator<Item = &'s Seen>) -> ByNode<'s> {
    let mut reserved = ByNode::new();
    for gang in seen {
        for on_node in gang.status.reservation.iter().flat_map(|r| &r.nodes) {
            for (group, members) in &on_node.members {
                let each = gang.each(group);
                add(&mut reserved, &on_node.node, each, i64::from(*members));
            }
        }
    }
    reserved
}

/// An overcommitted node.
fn exceeded(taken: &ByNode<'_>, how: &str) -> Option<String> {
    let offered: ByNode<'_> = NODES.into_iter().collect();
    taken.iter().find_map(|(node, taken)| {
        let offered = offered[node];
        let more = taken.iter().zip(offered).any(|(taken, has)| *taken > has);
        more.then(|| format!("{node}: {taken:?} of {offered:?} {how}"))
    })
}

/// Placements without an intent that overcommit a node. Members that wait for victims only overlap
/// with these victims.
pub(super) fn overcommitted(seen: &[Seen]) -> Option<String> {
    let holding = seen
        .iter()
        .filter(|g| g.status.preemption.is_none() && !g.released);
    exceeded(&held(holding), "promised")
}

/// A gang that holds capacity, but less than it needs, and has lost no running members.
pub(super) fn partly_placed(seen: &[Seen]) -> Option<String> {
    seen.iter().find_map(|gang| {
        let (placed, needed) = (gang.assigned.len(), gang.needed?);
        (placed > 0 && placed < needed).then(|| format!("{}: {placed} of {needed}", gang.name))
    })
}

/// A victim that is as important as its preemptor.
pub(super) fn out_of_reach(seen: &[Seen]) -> Option<String> {
    seen.iter().find_map(|gang| {
        let intent = gang.status.preemption.as_ref()?;
        let victim = intent
            .victims
            .iter()
            .find(|v| v.priority >= gang.priority)?;
        let (name, priority) = (&victim.name, victim.priority);
        Some(format!(
            "{} evicts {name} of priority {priority}",
            gang.name
        ))
    })
}

/// A node with more reservations than capacity, a running gang with a reservation, or too many
/// reservations.
pub(super) fn reserved_twice(seen: &[Seen]) -> Option<String> {
    if let Some(twice) = exceeded(&reserved(seen.iter()), "reserved") {
        return Some(twice);
    }
    let mut holders: BTreeMap<i32, usize> = BTreeMap::new();
    for gang in seen.iter().filter(|g| g.status.reservation.is_some()) {
        *holders.entry(gang.priority).or_default() += 1;
        if gang.assigned.len() >= gang.members() || gang.status.preemption.is_some() {
            return Some(format!("{} is placed and reserves", gang.name));
        }
    }
    let most = Rules::default().reservations_per_priority;
    let many = holders.into_iter().find(|(_, holders)| *holders > most);
    many.map(|(priority, holders)| format!("{holders} of priority {priority} reserve"))
}

/// A gang that waits although unheld, unreserved capacity would suffice (I13). Only valid in an
/// idle cluster.
pub(super) fn kept_waiting(seen: &[Seen], held_back: &BTreeSet<String>) -> Option<String> {
    let waits = |gang: &&Seen| {
        let status = &gang.status;
        let runs_elsewhere = status.refusal.is_none() && status.excluded_nodes.is_empty();
        gang.assigned.is_empty() && runs_elsewhere && !held_back.contains(&gang.name)
    };
    seen.iter().filter(waits).find_map(|gang| {
        let others = || seen.iter().filter(|other| other.name != gang.name);
        let (held, reserved) = (held(others()), reserved(others()));
        let mut left = NODES.map(|(node, mut left)| {
            for taken in [&held, &reserved]
                .map(|of| of.get(node))
                .into_iter()
                .flatten()
            {
                left.iter_mut()
                    .zip(taken)
                    .for_each(|(left, taken)| *left -= taken);
            }
            left
        });
        // If members are independent, one is enough.
        let each = gang.shapes.iter().map(|shape| (shape.each, shape.members));
        let mut members: Vec<Amounts> = each
            .flat_map(|(each, members)| (0..members).map(move |_| each))
            .collect();
        members.sort_unstable();
        let enough = match gang.needed {
            Some(_) => all_fit(&mut left, &members),
            None => members.iter().any(|one| all_fit(&mut left, &[*one])),
        };
        enough.then(|| {
            format!(
                "{} waits, and would fit beside {held:?} and {reserved:?}",
                gang.name
            )
        })
    })
}

/// True if all these members fit, by enumeration.
fn all_fit(left: &mut [Amounts], members: &[Amounts]) -> bool {
    let Some((last, others)) = members.split_last() else {
        return true;
    };
    (0..left.len()).any(|node| {
        let before = left[node];
        let fits = before.iter().zip(last).all(|(left, asks)| left >= asks);
        if !fits {
            return false;
        }
        for (left, asks) in left[node].iter_mut().zip(last) {
            *left -= asks;
        }
        let all = all_fit(left, others);
        left[node] = before;
        all
    })
}
