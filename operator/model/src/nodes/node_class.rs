//! Classes of nodes that differ only in name.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Taint;

use crate::nodes::node::Node;

/// Label with a different value on every node; not part of a class.
pub(crate) const HOSTNAME: &str = "kubernetes.io/hostname";
/// Taint effects that keep pods away. `PreferNoSchedule` does not.
pub(crate) const BINDING_EFFECTS: [&str; 2] = ["NoSchedule", "NoExecute"];

/// Id of a class of nodes; never reused.
pub type ClassId = u64;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeClass {
    labels: BTreeMap<String, String>,
    /// Key, value, effect; sorted, binding effects only.
    taints: Vec<(String, String, String)>,
    features: BTreeSet<String>,
    takes_pods: bool,
}

impl NodeClass {
    pub fn of(node: &Node) -> Self {
        let mut labels = node.labels.clone();
        labels.remove(HOSTNAME);
        let binding = |t: &&Taint| BINDING_EFFECTS.contains(&t.effect.as_str());
        let mut taints: Vec<_> = node
            .taints
            .iter()
            .filter(binding)
            .map(|t| {
                (
                    t.key.clone(),
                    t.value.clone().unwrap_or_default(),
                    t.effect.clone(),
                )
            })
            .collect();
        taints.sort();
        Self {
            labels,
            taints,
            features: node.features.clone(),
            takes_pods: node.state.takes_pods(),
        }
    }
}
