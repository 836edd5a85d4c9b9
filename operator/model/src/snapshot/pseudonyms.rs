//! Snapshots with pseudonyms.
//!
//! A pseudonym is the rank of a name among names of its kind, and a salted hash. The rank keeps the
//! order that breaks ties, so decisions stay the same. The hash distinguishes names of different
//! snapshots. The salt is never stored, so names cannot be recovered.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::BuildHasher;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use lockstep_api::names::labels::EVICTABLE;

use super::{GangRecord, SnapshotFile};

/// Kind of name. Names are ranked within their kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Node,
    Namespace,
    Name,
    Uid,
    Group,
    Value,
}

type Pseudonyms = BTreeMap<Kind, BTreeMap<String, String>>;

impl Kind {
    fn prefix(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Namespace => "namespace",
            Self::Name => "name",
            Self::Uid => "uid",
            Self::Group => "group",
            Self::Value => "value",
        }
    }
}

impl SnapshotFile {
    /// Replaces names of nodes, namespaces, objects and groups, UIDs, and values of pod labels.
    ///
    /// Node labels and taints keep their values, because selectors in manifests refer to them,
    /// unless the value is a node name. Names of priority classes and resources stay.
    #[must_use]
    pub fn pseudonymized(&self, salt: &impl BuildHasher) -> Self {
        let mut names: BTreeMap<Kind, BTreeSet<String>> = BTreeMap::new();
        visit(&mut self.clone(), &mut |kind, name| {
            names.entry(kind).or_default().insert(name.clone());
        });
        let pseudonyms: Pseudonyms = names
            .into_iter()
            .map(|(kind, names)| {
                let ranked = names.into_iter().enumerate().map(|(rank, name)| {
                    let hash = salt.hash_one(&name) & 0xffff_ffff;
                    let pseudonym = format!("{}-{rank:06}-{hash:08x}", kind.prefix());
                    (name, pseudonym)
                });
                (kind, ranked.collect())
            })
            .collect();
        let mut out = self.clone();
        for value in out.nodes.iter_mut().flat_map(|n| n.labels.values_mut()) {
            replace(value, Kind::Node, &pseudonyms);
        }
        visit(&mut out, &mut |kind, name| replace(name, kind, &pseudonyms));
        out
    }
}

fn replace(name: &mut String, kind: Kind, pseudonyms: &Pseudonyms) {
    let of_kind = pseudonyms.get(&kind);
    if let Some(pseudonym) = of_kind.and_then(|all| all.get(name.as_str())) {
        name.clone_from(pseudonym);
    }
}

/// Calls `visitor` for every name in the file.
fn visit(file: &mut SnapshotFile, visitor: &mut impl FnMut(Kind, &mut String)) {
    if let Some(namespace) = &mut file.namespace {
        visitor(Kind::Namespace, namespace);
    }
    for node in &mut file.nodes {
        visitor(Kind::Node, &mut node.name);
    }
    for pod in &mut file.pods {
        visitor(Kind::Uid, &mut pod.uid);
        visitor(Kind::Namespace, &mut pod.namespace);
        visitor(Kind::Name, &mut pod.name);
        for node in [&mut pod.bound, &mut pod.pinned, &mut pod.nominated] {
            for node in node.iter_mut() {
                visitor(Kind::Node, node);
            }
        }
        pod.owner.iter_mut().for_each(|uid| visitor(Kind::Uid, uid));
        pod.unit.iter_mut().for_each(|key| visitor(Kind::Uid, key));
        pod.pod_group
            .iter_mut()
            .for_each(|name| visitor(Kind::Name, name));
        pod.member
            .iter_mut()
            .for_each(|range| visit_range(range, visitor));
        visit_labels(&mut pod.labels, visitor);
        for term in &mut pod.anti_affinity {
            let namespaces = term.namespaces.iter_mut().flatten();
            namespaces.for_each(|namespace| visitor(Kind::Namespace, namespace));
            for selector in term
                .label_selector
                .iter_mut()
                .chain(&mut term.namespace_selector)
            {
                visit_selector(selector, visitor);
            }
        }
    }
    for gang in &mut file.gangs {
        visitor(Kind::Namespace, &mut gang.namespace);
        visitor(Kind::Name, &mut gang.name);
        visitor(Kind::Name, &mut gang.workload);
        visitor(Kind::Uid, &mut gang.uid);
        visitor(Kind::Uid, &mut gang.workload_uid);
        visit_gang(gang, visitor);
    }
    for (mut namespace, weight) in std::mem::take(&mut file.namespace_weights) {
        visitor(Kind::Namespace, &mut namespace);
        file.namespace_weights.insert(namespace, weight);
    }
    for budget in &mut file.budgets {
        visitor(Kind::Namespace, &mut budget.namespace);
        visitor(Kind::Name, &mut budget.name);
        if let Some(selector) = &mut budget.selector {
            visit_selector(selector, visitor);
        }
    }
}

fn visit_selector(selector: &mut LabelSelector, visitor: &mut impl FnMut(Kind, &mut String)) {
    selector
        .match_labels
        .iter_mut()
        .flat_map(BTreeMap::values_mut)
        .for_each(|v| visitor(Kind::Value, v));
    let expressions = selector.match_expressions.iter_mut().flatten();
    expressions
        .flat_map(|e| e.values.iter_mut().flatten())
        .for_each(|v| visitor(Kind::Value, v));
}

/// Leaves out the opt-out label, whose value has a meaning.
fn visit_labels(
    labels: &mut BTreeMap<String, String>,
    visitor: &mut impl FnMut(Kind, &mut String),
) {
    let named = labels.iter_mut().filter(|(key, _)| *key != EVICTABLE);
    named.for_each(|(_, value)| visitor(Kind::Value, value));
}

fn visit_gang(gang: &mut GangRecord, visitor: &mut impl FnMut(Kind, &mut String)) {
    for template in &mut gang.templates {
        visitor(Kind::Group, &mut template.group);
        visit_labels(&mut template.labels, visitor);
    }
    for domain in &mut gang.domains {
        visit_ranges(&mut domain.members, visitor);
        let incident = domain.ledger.as_mut().and_then(|l| l.incident.as_mut());
        if let Some(incident) = incident {
            visit_ranges(&mut incident.members, visitor);
            incident
                .old_pods
                .iter_mut()
                .for_each(|uid| visitor(Kind::Uid, uid));
        }
    }
    for ranges in [&mut gang.completed, &mut gang.finished, &mut gang.absent] {
        visit_ranges(ranges, visitor);
    }
    let avoided = gang.avoid.iter_mut().map(|a| &mut a.node);
    let excluded = gang.excluded_nodes.iter_mut().map(|e| &mut e.node);
    avoided
        .chain(excluded)
        .for_each(|node| visitor(Kind::Node, node));
    if let Some(placement) = &mut gang.placement {
        let mut nodes = BTreeMap::new();
        for (mut node, mut ranges) in std::mem::take(&mut placement.nodes) {
            visitor(Kind::Node, &mut node);
            visit_ranges(&mut ranges, visitor);
            nodes.insert(node, ranges);
        }
        placement.nodes = nodes;
    }
    let backfill = gang.placement.as_mut().and_then(|p| p.backfill.as_mut());
    for uid in backfill.into_iter().flat_map(|b| &mut b.reserved_for) {
        visitor(Kind::Uid, uid);
    }
    for on_node in gang.reservation.iter_mut().flat_map(|r| &mut r.nodes) {
        visitor(Kind::Node, &mut on_node.node);
        let groups = std::mem::take(&mut on_node.members).into_iter();
        let renamed = groups.map(|(mut group, members)| {
            visitor(Kind::Group, &mut group);
            (group, members)
        });
        on_node.members = renamed.collect();
    }
    for left in gang.moving.iter_mut().flat_map(|m| &mut m.nodes) {
        visitor(Kind::Node, &mut left.node);
    }
    for on_node in gang.move_target.iter_mut().flat_map(|t| &mut t.nodes) {
        visitor(Kind::Node, &mut on_node.node);
        visit_ranges(&mut on_node.members, visitor);
    }
    for victim in gang.preemption.iter_mut().flat_map(|p| &mut p.victims) {
        visitor(Kind::Namespace, &mut victim.namespace);
        visitor(Kind::Name, &mut victim.name);
        visitor(Kind::Uid, &mut victim.uid);
    }
}

fn visit_ranges(ranges: &mut [String], visitor: &mut impl FnMut(Kind, &mut String)) {
    for range in ranges {
        visit_range(range, visitor);
    }
}

/// Calls `visitor` for the group of a range such as `workers/0/0-7`.
fn visit_range(range: &mut String, visitor: &mut impl FnMut(Kind, &mut String)) {
    if let Some((group, rest)) = range.split_once('/') {
        let mut group = group.to_owned();
        let rest = rest.to_owned();
        visitor(Kind::Group, &mut group);
        *range = format!("{group}/{rest}");
    }
}
