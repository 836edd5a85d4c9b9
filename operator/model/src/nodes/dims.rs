//! Resource names and topology domains as ordinals.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_engine::{Amounts, DomainIx, KeyIx, Names};

use crate::nodes::node::Node;
use crate::pods::resources::is_extended;
use crate::pods::resources::{CPU, MEMORY, PODS, Resources, with_unit};
use crate::pods::slots::{all_apart, described, is_slot};

/// Topology key without domains.
const NO_LABEL: &str = "";

/// Resource dimensions and topology domains in use, with their names.
///
/// CPU, memory and pods are first, then other native resources, then extended resources. The engine
/// relies on this order to judge fit by accelerators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dims {
    resources: Vec<String>,
    /// Sorted. The first is empty, which no node has as a label.
    keys: Vec<String>,
    /// For each key: values by ordinal, and ordinals by value.
    domains: Vec<(Vec<String>, BTreeMap<String, DomainIx>)>,
}

impl Dims {
    pub fn new<'a>(
        resources: impl IntoIterator<Item = &'a str>,
        keys: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let mut others: Vec<&str> = resources
            .into_iter()
            .filter(|name| ![CPU, MEMORY, PODS].contains(name))
            .collect();
        others.sort_unstable_by_key(|name| (name.contains('/'), *name));
        others.dedup();
        let resources = [CPU, MEMORY, PODS]
            .into_iter()
            .chain(others)
            .map(str::to_owned)
            .collect();
        let keys: BTreeSet<&str> = keys.into_iter().chain([NO_LABEL]).collect();
        let keys: Vec<String> = keys.into_iter().map(str::to_owned).collect();
        let domains = vec![(Vec::new(), BTreeMap::new()); keys.len()];
        Self {
            resources,
            keys,
            domains,
        }
    }

    pub fn len(&self) -> usize {
        self.resources.len()
    }

    /// Always false, because CPU, memory and pods always exist.
    pub fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }

    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        self.keys.iter().map(String::as_str)
    }

    /// Ordinal of a topology key. A key that is not in use has no domains.
    pub fn key(&self, name: &str) -> KeyIx {
        let position = self.keys.iter().position(|k| k == name);
        position.unwrap_or(0)
    }

    pub fn has_key(&self, name: &str) -> bool {
        self.keys.iter().any(|k| k == name)
    }

    /// Amounts by dimension. Leaves out resources that no node has ever offered; see
    /// [`Dims::never_offered`].
    pub fn amounts(&self, resources: &Resources) -> Amounts {
        self.resources
            .iter()
            .map(|name| resources.get(name))
            .collect()
    }

    /// A resource that no node has ever offered, except slots.
    pub fn never_offered<'a>(&self, resources: &'a Resources) -> Option<&'a str> {
        resources
            .iter()
            .map(|(name, _)| name)
            .find(|&name| !self.has(name) && !is_slot(name))
    }

    pub fn dim(&self, name: &str) -> Option<usize> {
        self.resources.iter().position(|r| r == name)
    }

    /// Offer of a node, including one of each slot.
    pub fn offered(&self, node: &Node) -> Amounts {
        let names = self.resources.iter();
        names.map(|name| offered_amount(node, name)).collect()
    }

    /// Ordinals of anti-affinity slots. They only separate members of one gang.
    pub fn apart_dims(&self) -> impl Iterator<Item = usize> {
        all_apart().filter_map(|slot| self.dim(&slot))
    }

    /// Extended resources, without slots.
    pub(crate) fn extended(&self) -> impl Iterator<Item = (usize, &str)> {
        let names = self.resources().enumerate();
        names.filter(|(_, name)| is_extended(name) && !is_slot(name))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.resources.iter().any(|r| r == name)
    }

    pub(crate) fn resources(&self) -> impl Iterator<Item = &str> {
        self.resources.iter().map(String::as_str)
    }

    /// Domains of a node, one per topology key. A new value gets the next ordinal.
    pub(crate) fn domains_of(&mut self, node: &Node) -> Vec<Option<DomainIx>> {
        self.keys
            .iter()
            .zip(&mut self.domains)
            .map(|(key, (names, ordinals))| {
                let value = node.labels.get(key)?;
                Some(*ordinals.entry(value.clone()).or_insert_with(|| {
                    names.push(value.clone());
                    names.len() - 1
                }))
            })
            .collect()
    }
}

/// Offer of a node for one resource; 1 for a slot.
fn offered_amount(node: &Node, name: &str) -> i64 {
    if is_slot(name) {
        1
    } else {
        node.allocatable.get(name)
    }
}

impl Names for Dims {
    fn resource(&self, dim: usize) -> String {
        let name = self.resources.get(dim).map_or("", String::as_str);
        described(name).unwrap_or_else(|| name.to_owned())
    }

    fn amount(&self, dim: usize, amount: i64) -> String {
        with_unit(self.resources.get(dim).map_or("", String::as_str), amount)
    }

    fn domain(&self, key: KeyIx, domain: DomainIx) -> String {
        let value = self
            .domains
            .get(key)
            .and_then(|(names, _)| names.get(domain))
            .map_or("", String::as_str);
        let key = self
            .keys
            .get(key)
            .map_or("", |k| k.rsplit('/').next().unwrap_or(k));
        format!("{key} {value}")
    }
}
